package methods

// Methods inside the decoder shrink a picture's rows at some of its layers, from attention that the
// decoder computes anyway. A method defines where (a schedule of stages) and by which score. An
// Inside follows one picture through the stages, with or without RESTORE: the criterion keeps
// floor(gamma*n) of the n rows that a stage leaves, and the others merge into distinctive anchors,
// weighted by the rows' sizes. Sizes add up over stages, and a merged row's position is the lower
// median of all patches that it stands for.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// insideMethod is the part of a method's table entry for methods inside the decoder.
type insideMethod struct {
	read int // layer whose attention the criterion reads, relative to the stage's
	// the criterion reads that layer's attention computed in advance, before the stage shrinks its
	// input
	ahead      bool
	states     bool // the criterion reads rows and keys (Sight.States), not attention
	within     bool // rows are dropped in the stage's layer, before attention's output projection
	after      int  // first layer that the stage's rows enter, relative to the stage's
	first      int  // lowest layer of a stage
	sequential bool // the released code renumbers positions without gaps
	drops      bool // the plain method says which rows to drop, not which to keep

	share func(n int, share float64) int // number of rows for a share of n
	// returns the schedule whose mean over layer inputs is budget, 1 <= budget < n
	plan func(p *Plan, budget int) ([]reduce.Stage, error)
	// returns the rows that the plain method adds at a stage; nil: none
	merge func(before int, s reduce.Stage) (reduce.Stage, error)

	// looks says which rows' attention the criterion reads at a stage (with ahead only the last
	// row's), and whether as the largest value over the heads or as their mean. score computes one
	// value for each row of the picture from it, higher is kept; look is [rows, v.Keys].
	looks func(s *Inside, v *Sight) (rows []int32, largest bool)
	score func(s *Inside, v *Sight, look []float32) ([]float32, error)

	// reads the embeddings; nil: does not
	begin func(s *Inside, p *kernel.Pool, visual, text []float32, width int) error
	// returns the rows that the plain method adds
	extra func(s *Inside, p *kernel.Pool, x []float32, width int, r *reduce.StageResult) []mix
}

// mix is a row that a plain method makes as the mean of other rows; the first of them is its
// centre.
type mix struct{ from []int32 }

// Sight is a criterion's input at a stage. Rows are the queries of one pass through the decoder,
// keys are all keys in the layer.
type Sight struct {
	First int     // row of the picture's first token
	Key   int     // its key
	Keys  int     // number of keys
	Text  []int32 // rows of text after the picture
	Last  int32   // the last row

	States *States // if the method reads them instead of attention
}

// States are all rows of a pass as they enter a layer.
type States struct {
	Width, KeyWidth int
	Hidden          []float32 // [rows, Width] after the decoder's final norm
	Keys            []float32 // [rows, KeyWidth] of the layer before, all heads, after rotation
	Pool            *kernel.Pool
}

// Inside follows one picture through the stages. It belongs to one request.
type Inside struct {
	Plan    *Plan
	Results []reduce.StageResult
	Entered []int // rows that entered each layer so far

	Scores  map[string][]float32 // the method's scores from the embeddings, before the first layer
	Indices map[string][]int32

	SelectTime, MergeTime time.Duration

	m       *insideMethod
	n       int // the picture's tokens
	rows    []reduce.Row
	score   []float32
	scores  map[string][]float32
	indices map[string][]int32
}

// NewInside starts a picture with the rows of before, the reduction before the decoder, or with all
// o.N tokens if before is nil. Something in o must act inside the decoder.
func NewInside(o *Plan, before *reduce.Reduction) (*Inside, error) {
	if o.inside == nil {
		return nil, fmt.Errorf("methods: %s: got a plan of another kind, want one for a decoder",
			o.Base)
	}
	n := o.facts.tokens()
	if want := o.first != nil; want != (before != nil) ||
		want && (before.N != n || len(before.Rows) != o.start()) {
		return nil, fmt.Errorf("methods: %s: got a first stage %v, want %v with %d rows of %d",
			o.Base, before != nil, want, o.start(), n)
	}
	s := newInside(o, o.inside)
	s.n = n
	if before != nil {
		s.rows = slices.Clone(before.Rows)
	}
	return s, nil
}

func newInside(o *Plan, m *insideMethod) *Inside {
	s := &Inside{Plan: o, m: m, n: o.N, rows: make([]reduce.Row, o.N)}
	for i := range s.rows {
		s.rows[i] = reduce.Row{
			Members: []int32{int32(i)}, Anchor: int32(i), Size: 1, Position: float64(i),
		}
	}
	return s
}

// Rows returns the current rows. They are read-only.
func (s *Inside) Rows() []reduce.Row { return s.rows }

// Reduced reports whether a stage has removed rows.
func (s *Inside) Reduced() bool { return len(s.Results) > 0 }

// Sequential reports whether the remaining rows are renumbered without gaps.
func (s *Inside) Sequential() bool { return s.Plan.Positions == "sequential" }

// Enter records that the rows enter the next layer.
func (s *Inside) Enter() { s.Entered = append(s.Entered, len(s.rows)) }

// FirstReduced is the first layer of the decoder that sees fewer rows than the picture has tokens.
func (r *Plan) FirstReduced() int {
	if r.first != nil || len(r.Stages) == 0 {
		return 0
	}
	return r.Stages[0].Layer + r.inside.after
}

// RowsAt is the most rows of the picture that layer of the decoder holds, including rows that it
// only holds before a stage.
func (r *Plan) RowsAt(layer int) int {
	n := r.start()
	for _, st := range r.Stages {
		if st.Layer+r.inside.after < layer {
			n = st.Rows()
		}
	}
	return n
}

// stage returns the next stage, nil after the last.
func (s *Inside) stage() *reduce.Stage {
	if len(s.Results) == len(s.Plan.Stages) {
		return nil
	}
	return &s.Plan.Stages[len(s.Results)]
}

// Begins reports whether the method reads embeddings before the first layer.
func (s *Inside) Begins() bool { return s.m.begin != nil && s.stage() != nil }

// Begin passes the picture's embeddings [N, width] and the embeddings of the text after it [*,
// width].
func (s *Inside) Begin(p *kernel.Pool, visual, text []float32, width int) error {
	defer s.time(&s.SelectTime)()
	return s.m.begin(s, p, visual, text, width)
}

// ReadsStates reports whether the next stage reads the rows that enter layer.
func (s *Inside) ReadsStates(layer int) bool {
	st := s.stage()
	return st != nil && s.score == nil && s.m.states && layer == st.Layer
}

// Reads reports whether the next stage reads the attention of layer: as it runs, or (ahead)
// computed in advance.
func (s *Inside) Reads(layer int, ahead bool) bool {
	st := s.stage()
	return st != nil && s.score == nil && !s.m.states && s.m.ahead == ahead &&
		layer == st.Layer+s.m.read
}

// AttentionRows says which rows' attention the next stage reads, and whether as the largest value
// over the heads or as their mean.
func (s *Inside) AttentionRows(v *Sight) (rows []int32, largest bool) { return s.m.looks(s, v) }

// Read scores the rows for the next stage from the probabilities [rows, v.Keys] of the rows that
// AttentionRows named, or from v.States.
func (s *Inside) Read(v *Sight, look []float32) (err error) {
	defer s.time(&s.SelectTime)()
	if s.score, err = s.m.score(s, v, look); err != nil {
		return fmt.Errorf("methods: %s: layer %d: %w", s.Plan.Base, s.stage().Layer, err)
	}
	for i, x := range s.score {
		if x-x != 0 {
			return fmt.Errorf("methods: %s: layer %d: score of row %d is %v, want finite numbers",
				s.Plan.Base, s.stage().Layer, i, x)
		}
	}
	return nil
}

// Shrinks reports whether rows are dropped before layer runs, or (within) inside it.
func (s *Inside) Shrinks(layer int, within bool) bool {
	st := s.stage()
	switch {
	case st == nil || s.score == nil || s.m.within != within:
		return false
	case within:
		return layer == st.Layer
	}
	return layer == st.Layer+s.m.after
}

// Shrink performs the next stage on the rows x [rows, width] and returns the mix for each new row.
func (s *Inside) Shrink(p *kernel.Pool, x []float32, width int) ([]nn.Mix, error) {
	stop := s.time(&s.SelectTime)
	st, o := *s.stage(), s.Plan
	r := reduce.StageResult{
		Stage: st, From: st.Layer + s.m.after, Before: len(s.rows), Score: s.score,
		Scores: s.scores, Indices: s.indices,
	}
	s.score, s.scores, s.indices = nil, nil, nil
	wide := make([]float64, len(r.Score))
	for i, v := range r.Score {
		wide[i] = float64(v)
	}
	if s.m.drops && !o.Restore {
		for i := range wide {
			wide[i] = -wide[i]
		}
		r.Kept = others(len(wide), topK(wide, len(wide)-st.Kept))
	} else {
		r.Kept = topK(wide, st.Kept)
		slices.Sort(r.Kept)
	}

	rows, mixes := make([]reduce.Row, 0, st.Rows()), make([]nn.Mix, 0, st.Rows())
	for _, i := range r.Kept {
		rows, mixes = append(rows, s.rows[i]), append(mixes, nn.Mix{From: []int32{i}})
		r.Sources = append(r.Sources, i)
	}
	switch {
	case st.Merged > 0 && o.Restore:
		groups, _, err := chooseGroups(&r, *o, p, x, width)
		if err != nil {
			return nil, err
		}
		stop()
		stop = s.time(&s.MergeTime)
		for j, g := range groups {
			m := nn.Mix{From: g}
			for _, i := range g {
				m.Weight = append(m.Weight, float32(s.rows[i].Size))
			}
			rows, mixes = append(rows, s.merged(r.Anchors[j], g)), append(mixes, m)
		}
	case st.Merged > 0:
		for _, m := range s.m.extra(s, p, x, width, &r) {
			rows = append(rows, s.merged(m.from[0], m.from))
			mixes = append(mixes, nn.Mix{From: m.from})
		}
	}
	for len(r.Sources) < len(rows) { // the merged ones
		r.Sources = append(r.Sources, -1)
	}
	for i := range rows {
		row := &rows[i]
		slices.Sort(row.Members)
		row.Size, row.IsZero = max(1, len(row.Members)), len(row.Members) == 0
		row.Position = rowPosition(o, s.n, row)
	}
	order := iota32(len(rows))
	if !s.Sequential() || o.Restore { // the released code puts merged rows after the others
		slices.SortStableFunc(order, func(a, b int32) int {
			return cmp.Compare(rows[a].Position, rows[b].Position)
		})
	}
	s.rows = make([]reduce.Row, len(rows))
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

// merged is the row of the rows in from, with the anchor of one of them.
func (s *Inside) merged(anchor int32, from []int32) reduce.Row {
	row := reduce.Row{Anchor: s.rows[anchor].Anchor, Merged: true}
	for _, i := range from {
		row.Members = append(row.Members, s.rows[i].Members...)
	}
	return row
}

// chooseGroups chooses r.Merged anchors among the rows of x [r.Before, width] that are not kept. It
// returns the groups of the anchors, each beginning with its anchor, and the rows that join each
// kept one.
func chooseGroups(
	r *reduce.StageResult, o Plan, p *kernel.Pool, x []float32, width int,
) (groups, joined [][]int32, err error) {
	o.Merge = r.Merged
	r.Pool = others(r.Before, r.Kept)
	in := &reduce.Input{N: r.Before, C: width, X: x}
	red := &reduce.Reduction{N: r.Before, Rest: r.Pool, Kept: r.Kept}
	original := func(i int32) int32 { return i }
	if o.AnchorPool == "rest" && o.Join == "rest" { // kept rows take no part
		in.N, in.X = len(r.Pool), rowsOf(x, r.Pool, width)
		red = &reduce.Reduction{N: in.N, Rest: iota32(in.N)}
		original = func(i int32) int32 { return r.Pool[i] }
	}
	for _, t := range red.Kept {
		red.Rows = append(red.Rows, reduce.Row{Members: []int32{t}, Anchor: t})
	}
	w := &work{in: in, o: &o, pool: p}
	similar, err := w.anchors(red)
	if err != nil {
		return nil, nil, err
	}
	if err := w.join(red, similar); err != nil {
		return nil, nil, err
	}
	r.Density, r.MaxSim, r.Merit = red.Density, red.MaxSim, red.Score
	r.Assign = slices.Repeat([]int32{-1}, len(r.Pool))
	place := make([]int32, r.Before) // index of a row in r.Pool
	for i, t := range r.Pool {
		place[t] = int32(i)
	}
	for _, row := range red.Rows {
		group := []int32{original(row.Anchor)}
		for _, m := range row.Members {
			if m != row.Anchor {
				group = append(group, original(m))
			}
		}
		if len(joined) < len(red.Kept) {
			joined = append(joined, group[1:])
			continue
		}
		for _, m := range group {
			r.Assign[place[m]] = int32(len(groups))
		}
		r.Anchors, groups = append(r.Anchors, group[0]), append(groups, group)
	}
	return groups, joined, nil
}

// Sizes returns each row's size for the decoder's calibration: 1 if sizes are not calibrated.
func (s *Inside) Sizes() []float32 {
	r := reduce.Reduction{Options: s.Plan.Resolved, N: s.n, Rows: s.rows}
	return r.LayerSizes(false)
}

// Reduction returns the picture's reduction after the last stage so far. It holds no features,
// because they differ by layer.
func (s *Inside) Reduction() *reduce.Reduction {
	r := &reduce.Reduction{
		Options: s.Plan.Resolved, N: s.n, SelectTime: s.SelectTime, MergeTime: s.MergeTime,
		Stages: s.Results,
	}
	r.SetRows(s.rows)
	return r
}

// time adds the time until its result is called to d.
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

// columns sums the attention that the given rows of look [*, v.Keys] give to each row of the
// picture, in float64.
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

// asSeen scores rows by the attention that one row gives them.
func asSeen(s *Inside, v *Sight, look []float32) ([]float32, error) {
	return look[v.Key:][:len(s.rows)], nil
}
