package reduce

// Methods inside the decoder shrink a picture's rows at some of its layers, from attention that the decoder computes anyway. A method says
// where (a schedule of stages) and by which score; an Inside follows one picture through the stages, with or without RESTORE: the
// criterion keeps floor(gamma*n) of the n rows that a stage leaves, distinctive anchors take in the others, weighted by what each row
// stands for already. Sizes add up over stages, and a merged row sits at the lower median of all patches that it stands for.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/restore-vlm/restore/kernel"
	"github.com/restore-vlm/restore/nn"
)

// scheduleParam is the option that all methods inside the decoder share.
var scheduleParam = Param{"schedule", "none", "stages as LAYER:SHARE or LAYER:COUNT, instead of a budget: 2:0.5,16:64"}

// Stage is one shrinking of a picture's rows inside the decoder.
type Stage struct {
	Layer  int `json:"layer"`            // whose attention or input decides; see the method
	Kept   int `json:"kept"`             // rows kept as they are by the criterion
	Merged int `json:"merged,omitempty"` // rows that merging adds
}

// Rows is what the stage leaves.
func (s Stage) Rows() int { return s.Kept + s.Merged }

// insideMethod is what a method inside the decoder adds to its line of the table.
type insideMethod struct {
	read       int  // layer whose attention the criterion reads, counted from the stage's
	ahead      bool // that layer's attention as it would be, before it runs on what the stage leaves
	states     bool // the criterion reads rows and keys (Sight.States), not attention
	within     bool // rows go inside the stage's layer, between attention and its output projection
	after      int  // first layer that the stage's rows enter, counted from the stage's
	first      int  // lowest layer that a stage may have
	sequential bool // the released code renumbers positions without gaps
	recipe     bool // a budget needs a recipe

	share func(n int, share float64) int                   // rows of n that a share is
	plan  func(o *Options, n, budget int) ([]Stage, error) // schedule whose mean over layer inputs is budget, 1 <= budget < n
	merge func(before int, s Stage) (Stage, error)         // rows that the plain method adds at a stage; nil: none

	// looks says which rows' attention the criterion reads at a stage (ahead: no other than the last), and whether as the mean over heads or as
	// the largest of them. score makes one value a row of the picture from it, higher is kept; look is [rows, v.Keys].
	looks func(s *Inside, v *Sight) (rows []int32, largest bool)
	score func(s *Inside, v *Sight, look []float32) ([]float32, error)

	begin func(s *Inside, p *kernel.Pool, visual, text []float32, width int) error      // looks at the embeddings; nil: does not
	extra func(s *Inside, p *kernel.Pool, x []float32, width int, r *StageResult) []mix // the rows that the plain method adds
}

// mix is a row that a plain method makes of others: those it is the plain mean of, the first being its centre.
type mix struct{ from []int32 }

// Sight is what a criterion sees at a stage. Rows count the queries of one pass through the decoder, keys all that the layer holds.
type Sight struct {
	First int     // row of the picture's first token
	Key   int     // its key
	Keys  int     // number of keys
	Text  []int32 // rows of text behind the picture
	Last  int32   // the last row

	States *States // where the method reads them, not attention
}

// States are all rows of a pass on their way into a layer.
type States struct {
	Width, KeyWidth int
	Hidden          []float32 // [rows, Width] after the decoder's final norm
	Keys            []float32 // [rows, KeyWidth] of the layer before, all heads, after rotation
	Pool            *kernel.Pool
}

// StageResult is what one stage did. Rows before the stage are counted in their order then.
type StageResult struct {
	Stage
	From    int // first layer, or block of the encoder, that the rows enter
	Before  int
	Rows    []Row     // after the stage, in decoder order
	Sources []int32   // per row after it, the row before that it was kept from; -1: merged
	Score   []float32 // [Before]
	Kept    []int32   // rows before the stage, ascending
	// What anchors were chosen from, as in Reduction; rows before the stage.
	Pool, Anchors, Assign  []int32
	Density, MaxSim, Merit []float32

	Scores  map[string][]float32 // the method's own
	Indices map[string][]int32
}

// Inside is one picture on its way through the stages. It belongs to one request.
type Inside struct {
	Options Resolved
	Results []StageResult
	Entered []int // rows that entered each layer so far

	Scores  map[string][]float32 // what the method found in the embeddings, before the first layer
	Indices map[string][]int32

	SelectTime, MergeTime time.Duration

	m       *insideMethod
	rows    []Row
	score   []float32
	scores  map[string][]float32
	indices map[string][]int32
}

// NewInside starts a picture of o.N tokens. o must be resolved and its method act inside the decoder.
func NewInside(o Resolved) (*Inside, error) {
	m, err := lookup(o.Base)
	if err != nil {
		return nil, err
	}
	if !o.checked || m.inside == nil {
		return nil, fmt.Errorf("reduce: %s: does not act inside the decoder, or options were not made by Resolve", o.Base)
	}
	return newInside(o, m.inside), nil
}

func newInside(o Resolved, m *insideMethod) *Inside {
	s := &Inside{Options: o, m: m, rows: make([]Row, o.N)}
	for i := range s.rows {
		s.rows[i] = Row{Members: []int32{int32(i)}, Anchor: int32(i), Size: 1, Position: float64(i)}
	}
	return s
}

// Rows returns the rows as they are now. Read-only.
func (s *Inside) Rows() []Row { return s.rows }

// Reduced reports whether a stage has taken rows away.
func (s *Inside) Reduced() bool { return len(s.Results) > 0 }

// Sequential reports whether the rows that stages leave are renumbered without gaps.
func (s *Inside) Sequential() bool { return s.Options.Positions == "sequential" }

// Enter notes that the rows enter the next layer.
func (s *Inside) Enter() { s.Entered = append(s.Entered, len(s.rows)) }

// FirstReduced is the first layer of the decoder that sees fewer rows than the picture has tokens. Only with Stages.
func (r *Resolved) FirstReduced() int {
	m, err := lookup(r.Base)
	if err != nil || m.inside == nil || len(r.Stages) == 0 {
		return 0
	}
	return r.Stages[0].Layer + m.inside.after
}

// stage returns the stage to come, nil when all are done.
func (s *Inside) stage() *Stage {
	if len(s.Results) == len(s.Options.Stages) {
		return nil
	}
	return &s.Options.Stages[len(s.Results)]
}

// Begins reports whether the method looks at embeddings before the first layer.
func (s *Inside) Begins() bool { return s.m.begin != nil && s.stage() != nil }

// Begin shows the picture's embeddings [N, width] and those of the text behind it [*, width].
func (s *Inside) Begin(p *kernel.Pool, visual, text []float32, width int) error {
	defer s.time(&s.SelectTime)()
	return s.m.begin(s, p, visual, text, width)
}

// ReadsStates reports whether the stage to come reads what enters layer.
func (s *Inside) ReadsStates(layer int) bool {
	st := s.stage()
	return st != nil && s.score == nil && s.m.states && layer == st.Layer
}

// Reads reports whether the stage to come reads the attention of layer: as it runs, or (ahead) before it runs.
func (s *Inside) Reads(layer int, ahead bool) bool {
	st := s.stage()
	return st != nil && s.score == nil && !s.m.states && s.m.ahead == ahead && layer == st.Layer+s.m.read
}

// Looks says which rows' attention the stage to come reads: the mean over heads, or the largest of them.
func (s *Inside) Looks(v *Sight) (rows []int32, largest bool) { return s.m.looks(s, v) }

// Read scores the rows for the stage to come from the probabilities [rows, v.Keys] of the rows that Looks asked for, or from v.States.
func (s *Inside) Read(v *Sight, look []float32) (err error) {
	defer s.time(&s.SelectTime)()
	if s.score, err = s.m.score(s, v, look); err != nil {
		return fmt.Errorf("reduce: %s: layer %d: %w", s.Options.Base, s.stage().Layer, err)
	}
	for i, x := range s.score {
		if x-x != 0 {
			return fmt.Errorf("reduce: %s: layer %d: score of row %d is %v, want finite numbers", s.Options.Base, s.stage().Layer, i, x)
		}
	}
	return nil
}

// Due reports whether rows go before layer runs, or (within) inside it.
func (s *Inside) Due(layer int, within bool) bool {
	st := s.stage()
	switch {
	case st == nil || s.score == nil || s.m.within != within:
		return false
	case within:
		return layer == st.Layer
	}
	return layer == st.Layer+s.m.after
}

// Shrink performs the stage that is due on the rows x [rows, width] and returns what each new row is made of.
func (s *Inside) Shrink(p *kernel.Pool, x []float32, width int) ([]nn.Mix, error) {
	stop := s.time(&s.SelectTime)
	st, o := *s.stage(), &s.Options
	r := StageResult{Stage: st, From: st.Layer + s.m.after, Before: len(s.rows), Score: s.score, Scores: s.scores, Indices: s.indices}
	s.score, s.scores, s.indices = nil, nil, nil
	wide := make([]float64, len(r.Score))
	for i, v := range r.Score {
		wide[i] = float64(v)
	}
	r.Kept = topK(wide, st.Kept)
	slices.Sort(r.Kept)

	rows, mixes := make([]Row, 0, st.Rows()), make([]nn.Mix, 0, st.Rows())
	for _, i := range r.Kept {
		rows, mixes = append(rows, s.rows[i]), append(mixes, nn.Mix{From: []int32{i}})
		r.Sources = append(r.Sources, i)
	}
	switch {
	case st.Merged > 0 && o.Restore:
		groups, err := r.anchors(*o, p, x, width)
		if err != nil {
			return nil, err
		}
		stop()
		stop = s.time(&s.MergeTime)
		for j, g := range groups {
			m := nn.Mix{From: g}
			row := Row{Anchor: s.rows[r.Anchors[j]].Anchor, Merged: true}
			for _, i := range g {
				m.Weight = append(m.Weight, float32(s.rows[i].Size))
				row.Members = append(row.Members, s.rows[i].Members...)
			}
			rows, mixes, r.Sources = append(rows, row), append(mixes, m), append(r.Sources, -1)
		}
	case st.Merged > 0:
		for _, m := range s.m.extra(s, p, x, width, &r) {
			row := Row{Anchor: s.rows[m.from[0]].Anchor, Merged: true}
			for _, i := range m.from {
				row.Members = append(row.Members, s.rows[i].Members...)
			}
			rows, mixes, r.Sources = append(rows, row), append(mixes, nn.Mix{From: m.from}), append(r.Sources, -1)
		}
	}
	for i := range rows {
		row := &rows[i]
		slices.Sort(row.Members)
		row.Size = len(row.Members)
		row.Position = rowPosition(o, o.N, row)
	}
	order := iota32(len(rows))
	if !s.Sequential() || o.Restore { // the released code leaves merged rows behind the others
		slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(rows[a].Position, rows[b].Position) })
	}
	s.rows = make([]Row, len(rows))
	sorted, sources := make([]nn.Mix, len(rows)), make([]int32, len(rows))
	for i, j := range order {
		s.rows[i], sorted[i], sources[i] = rows[j], mixes[j], r.Sources[j]
		if s.Sequential() {
			s.rows[i].Position = float64(i)
		}
	}
	r.Rows, r.Sources = s.rows, sources
	s.Results = append(s.Results, r)
	stop()
	return sorted, nil
}

// anchors chooses r.Merged of the rows x [r.Before, width] that are not kept and returns the group of each, itself first.
func (r *StageResult) anchors(o Resolved, p *kernel.Pool, x []float32, width int) ([][]int32, error) {
	o.Merge = r.Merged
	r.Pool = others(r.Before, r.Kept)
	in, red := &Input{N: r.Before, C: width, X: x, Pool: p}, &Reduction{Rest: r.Pool}
	if o.AnchorPool == "rest" { // the rows that are kept take no part
		in.N, in.X, red.Rest = len(r.Pool), rowsOf(x, r.Pool, width), iota32(len(r.Pool))
	}
	w := &work{in: in, o: &o}
	c, err := w.cosine()
	if err != nil {
		return nil, err
	}
	chosen := w.anchors(red, c)
	r.Assign = assignTo(c, red.Rest, chosen)
	for _, i := range chosen {
		r.Anchors = append(r.Anchors, r.Pool[i])
	}
	r.Density, r.MaxSim, r.Merit = red.Density, red.MaxSim, red.Score
	groups := make([][]int32, len(chosen))
	for j, a := range r.Anchors {
		groups[j] = []int32{a}
	}
	for i, t := range r.Pool {
		if j := r.Assign[i]; t != r.Anchors[j] {
			groups[j] = append(groups[j], t)
		}
	}
	return groups, nil
}

// Sizes returns per row the size that calibration gives the decoder: 1 where sizes are not calibrated.
func (s *Inside) Sizes() []float32 {
	r := Reduction{Options: s.Options, N: s.Options.N, Rows: s.rows}
	return r.LayerSizes(false)
}

// Reduction returns what became of the picture after the last stage so far. It holds no features: they differ by layer.
func (s *Inside) Reduction() *Reduction {
	r := &Reduction{Options: s.Options, N: s.Options.N, SelectTime: s.SelectTime, MergeTime: s.MergeTime, Stages: s.Results}
	r.setRows(s.rows)
	return r
}

// AfterStage returns what a method inside the decoder had made of the picture after its i-th stage, 0 <= i < len(r.Stages).
func (r *Reduction) AfterStage(i int) *Reduction {
	out := &Reduction{Options: r.Options, N: r.N, Stages: r.Stages[:i+1]}
	if r.Options.EncoderBlocks == 0 {
		out.Options.Stages = out.Options.Stages[:i+1]
	}
	st := &r.Stages[i]
	out.Options.NVis, out.Options.Keep, out.Options.Merge = st.Stage.Rows(), st.Stage.Kept, st.Stage.Merged
	out.setRows(st.Rows)
	return out
}

// setRows fills what follows from the rows of a method inside the decoder.
func (r *Reduction) setRows(rows []Row) {
	r.Rows, r.Group = slices.Clone(rows), make([]int32, r.N)
	for i := range r.Group {
		r.Group[i] = -1
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, t := range row.Members {
			r.Group[t] = int32(i)
		}
		if row.Merged {
			r.Anchors = append(r.Anchors, row.Anchor)
		} else {
			r.Kept = append(r.Kept, row.Anchor)
		}
	}
}

// time adds what passes until its result is called to d.
func (s *Inside) time(d *time.Duration) func() {
	start := time.Now()
	return func() { *d += time.Since(start) }
}

// visual returns the rows of the picture.
func (s *Inside) visual(v *Sight) []int32 {
	rows := iota32(len(s.rows))
	for i := range rows {
		rows[i] += int32(v.First)
	}
	return rows
}

// columns sums what the given rows of look [*, v.Keys] give to each row of the picture, in float64.
func (s *Inside) columns(v *Sight, look []float32, lo, hi int) []float64 {
	sum := make([]float64, len(s.rows))
	for r := lo; r < hi; r++ {
		for j, p := range look[r*v.Keys+v.Key:][:len(sum)] {
			sum[j] += float64(p)
		}
	}
	return sum
}

// lastRow reads the last row's attention as the mean over heads.
func lastRow(_ *Inside, v *Sight) ([]int32, bool) { return []int32{v.Last}, false }

// asSeen scores rows by what one row gives them.
func asSeen(s *Inside, v *Sight, look []float32) ([]float32, error) {
	return look[v.Key:][:len(s.rows)], nil
}

// step is one entry of a schedule as it was given.
type step struct {
	layer, count int
	share        float64 // used when count is -1
}

// parseSchedule reads "layer:count" and "layer:share" entries separated by commas: a whole number is a count of rows, one with a
// decimal point a share of the picture's tokens.
func parseSchedule(text string) ([]step, error) {
	bad := func(what string) error {
		return fmt.Errorf("reduce: schedule: got %q, %s, want LAYER:COUNT or LAYER:SHARE, as in 2:0.5,16:64", text, what)
	}
	var steps []step
	for entry := range strings.SplitSeq(text, ",") {
		layer, amount, ok := strings.Cut(strings.TrimSpace(entry), ":")
		if !ok {
			return nil, bad(fmt.Sprintf("no colon in %q", entry))
		}
		l, err := strconv.Atoi(layer)
		if err != nil || l < 0 {
			return nil, bad(fmt.Sprintf("layer %q is no whole number of at least 0", layer))
		}
		if n := len(steps); n > 0 && steps[n-1].layer >= l {
			return nil, bad(fmt.Sprintf("layer %d does not come after %d", l, steps[n-1].layer))
		}
		s := step{layer: l, count: -1}
		if c, err := strconv.Atoi(amount); err == nil {
			if c < 1 {
				return nil, bad(fmt.Sprintf("count %d is less than 1", c))
			}
			s.count = c
		} else if s.share, err = strconv.ParseFloat(amount, 64); err != nil || !(s.share > 0 && s.share <= 1) {
			return nil, bad(fmt.Sprintf("%q is neither a count nor a share above 0 and at most 1", amount))
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// parseLayers reads layers from first on, separated by commas, nil for an empty text. option is what an error calls it.
func parseLayers(option, text string, first int) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var layers []int
	for entry := range strings.SplitSeq(text, ",") {
		l, err := strconv.Atoi(strings.TrimSpace(entry))
		if n := len(layers); err != nil || l < first || n > 0 && layers[n-1] >= l {
			return nil, fmt.Errorf("reduce: %s: got %q, want ascending layers from %d on, as in 8,16,24", option, text, first)
		}
		layers = append(layers, l)
	}
	return layers, nil
}

// stages returns the schedule of m for n tokens and the mean number of them that enter a layer (0 where the depth is not known).
func (o *Options) stages(m *Method, n int) (stages []Stage, mean float64, err error) {
	in := m.inside
	switch {
	case o.Schedule != "" && (o.NVis != 0 || o.KeepRatio != 0):
		return nil, 0, fmt.Errorf("reduce: schedule: got %q beside n-vis or keep-ratio, want one of them", o.Schedule)
	case o.Schedule != "":
		stages, err = o.explicit(m, n)
	default:
		var budget int
		if budget, err = o.budget(n); err != nil {
			return nil, 0, err
		}
		switch {
		case budget == n:
		case o.Layers == 0:
			return nil, 0, fmt.Errorf("reduce: %s: got no number of decoder layers, which a budget of %d tokens a layer needs, want a model or a schedule", m.Name, budget)
		default:
			stages, err = in.plan(o, n, budget)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	before := n
	for i, s := range stages {
		switch highest := o.Layers - 1 - in.after + btoi(in.within); {
		case s.Layer < in.first:
			return nil, 0, fmt.Errorf("reduce: schedule: got layer %d, want %d or more for %s", s.Layer, in.first, m.Name)
		case o.Layers > 0 && s.Layer > highest:
			return nil, 0, fmt.Errorf("reduce: schedule: got layer %d, want %d to %d for %s (the model has %d layers)", s.Layer, in.first, highest, m.Name, o.Layers)
		}
		if s.Kept > before {
			return nil, 0, fmt.Errorf("reduce: schedule: got %d rows at layer %d, want at most the %d that enter the stage", s.Kept, s.Layer, before)
		}
		if in.merge != nil && s.Kept < before {
			if s, err = in.merge(before, s); err != nil {
				return nil, 0, err
			}
		}
		stages[i], before = s, s.Rows()
	}
	mean = meanRows(stages, in, o.Layers, n)
	// A stage that takes nothing away is none.
	before = n
	stages = slices.DeleteFunc(stages, func(s Stage) bool {
		same := s.Rows() == before
		before = s.Rows()
		return same
	})
	if o.Restore {
		gamma := defaultGamma
		if o.gammaGiven() {
			gamma = o.Gamma
		}
		for i := range stages {
			rows := stages[i].Rows()
			stages[i].Kept = int(gamma * float64(rows))
			stages[i].Merged = rows - stages[i].Kept
		}
	}
	return stages, mean, nil
}

// explicit turns the schedule that was given into stages.
func (o *Options) explicit(m *Method, n int) ([]Stage, error) {
	steps, err := parseSchedule(o.Schedule)
	if err != nil {
		return nil, err
	}
	var stages []Stage
	mixed := slices.ContainsFunc(steps, func(s step) bool { return (s.count < 0) != (steps[0].count < 0) })
	for _, s := range steps {
		if o.anyPicture && mixed {
			s.count = 1
		}
		if s.count < 0 {
			if s.count = m.inside.share(n, s.share); s.count < 1 {
				return nil, fmt.Errorf("reduce: schedule: got a share of %v at layer %d, which is no token of %d, want more", s.share, s.layer, n)
			}
		}
		stages = append(stages, Stage{Layer: s.layer, Kept: s.count})
	}
	return stages, nil
}

// LayerRows returns how many of the picture's rows enter each of so many decoder layers, and how many are left in it after attention.
func (r *Resolved) LayerRows(layers int) (enter, leave []int) {
	enter, leave = make([]int, layers), make([]int, layers)
	rows, within, after := r.NVis, false, 0
	if m, err := lookup(r.Base); err == nil && m.inside != nil {
		rows, within, after = r.N, m.inside.within, m.inside.after
	}
	for l := range layers {
		for _, s := range r.Stages {
			if !within && s.Layer+after == l {
				rows = s.Rows()
			}
		}
		enter[l] = rows
		for _, s := range r.Stages {
			if within && s.Layer == l {
				rows = s.Rows()
			}
		}
		leave[l] = rows
	}
	return enter, leave
}

// EncoderRows returns how many of the picture's tokens enter each of so many blocks of the encoder, and how many are left in it after
// attention. The class token is not counted.
func (r *Resolved) EncoderRows(blocks int) (enter, leave []int) {
	enter, leave = make([]int, blocks), make([]int, blocks)
	rows := r.N
	m, err := lookup(r.Base)
	if err == nil && m.Site == BeforeEncoder {
		rows = r.NVis
	}
	for b := range blocks {
		enter[b] = rows
		switch {
		case b < len(r.ToMeR):
			rows, _ = toMeLeft(rows, r.ToMeR[b:b+1])
		case err == nil && m.encoder != nil && b == r.EncoderBlocks-1:
			rows, enter[b] = r.NVis, r.NVis
		}
		leave[b] = rows
	}
	return enter, leave
}

// meanRows is the mean number of rows that enter a layer.
func meanRows(stages []Stage, in *insideMethod, layers, n int) float64 {
	if layers == 0 {
		return 0
	}
	sum, rows := 0, n
	for l := range layers {
		for _, s := range stages {
			if s.Layer+in.after == l {
				rows = s.Rows()
			}
		}
		sum += rows
	}
	return float64(sum) / float64(layers)
}

// depths moves layers of a decoder with 32, for which schedules are published, to the same relative depth: each at least one behind the
// one before, none before layer 1, and none that the decoder does not have.
func depths(of32 []int, layers int) []int {
	var out []int
	last := 0
	for _, l := range of32 {
		if last = max(last+1, int(math.Round(float64(l)*float64(layers)/32))); last < layers {
			out = append(out, last)
		}
	}
	return out
}

// nearest returns the candidate schedule whose mean over layer inputs is nearest to budget, the first on ties, and an error where none
// comes within half a token and a hundredth of it.
func nearest(m *Method, layers, n, budget int, candidates func(yield func([]Stage) bool)) ([]Stage, error) {
	var best []Stage
	gap, below, above := math.Inf(1), math.Inf(-1), math.Inf(1) // the means closest to budget
	for stages := range candidates {
		mean := meanRows(stages, m.inside, layers, n)
		if mean <= float64(budget) {
			below = max(below, mean)
		} else {
			above = min(above, mean)
		}
		if d := math.Abs(mean - float64(budget)); d < gap {
			best, gap = stages, d
		}
	}
	if best == nil || gap > 0.5+float64(budget)/100 {
		want := fmt.Sprintf("%.4g or %.4g, the closest", below, above)
		switch {
		case math.IsInf(below, -1):
			want = fmt.Sprintf("at least %.4g, the least", above)
		case math.IsInf(above, 1):
			want = fmt.Sprintf("at most %.4g, the most", below)
		}
		return nil, fmt.Errorf("reduce: n-vis: got a mean of %d tokens a layer, want %s with %s's stages in %d layers of %d tokens; or give a schedule", budget, want, m.Name, layers, n)
	}
	return best, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
