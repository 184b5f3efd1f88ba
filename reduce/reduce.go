package reduce

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/restore-vlm/restore/kernel"
)

// Input is one picture's tokens and what the criteria read. Slices are read-only.
type Input struct {
	N, C int
	X    []float32 // [N, C] features after the projector, in the decoder's space; may be nil where the method reads Shrunk

	GridH, GridW int   // rows and columns of patches; 0 when unknown
	Grids        []Cut // where the tokens lie on several grids instead: a small picture of the whole and the tiles'

	Heads   int
	ClsAttn []float32 // [Heads, N+1] attention of the class token's query; column 0 is the class token itself; nil when there is none

	Cv     int
	Hidden []float32 // [N+1, Cv] features before the projector; row 0 is the class token

	KeyDim int
	Keys   []float32 // [Heads, N+1, KeyDim] keys of the layer that made Hidden

	LastQuery []float32 // [width] class token's query of the encoder's last layer, heads side by side, with bias, unscaled
	LastKeys  []float32 // [N+1, width] that layer's keys

	NoClass bool // the encoder has no class token; see Options.NoClass

	Views []View // parts of the picture that the encoder saw on their own; nil: it saw the picture whole

	ShrunkH, ShrunkW int
	Shrunk           []float32 // [ShrunkH*ShrunkW, C] features after the projector of the shrunk picture (ShrunkGrid)

	Seed int64        // mixed into the seed of the options: a caller may give each picture its own
	Pool *kernel.Pool // nil computes serially; results do not depend on it
}

// Space says which features a Reduction holds.
type Space uint8

const (
	// Decoder means rows of width C, ready for the decoder.
	Decoder Space = iota
	// Encoder means rows of width Cv, which the caller still projects (plain VisionZip merges before the projector).
	Encoder
)

// Row is one token handed to the decoder.
type Row struct {
	Members  []int32 // original indices, ascending; nil for a class-token or zero row
	Anchor   int32   // the member that the row grew from: the anchor of a merged row, the token itself of a kept one, -1 where Members is nil or where a row merges what is left over (plain PruMerge)
	Merged   bool    // came out of merging, even if no other token joined its anchor
	IsClass  bool    // the class token itself (plain VisionZip)
	IsZero   bool    // a vector of zeros (HoloV's overflow rule "zero")
	Size     int     // tokens it stands for: len(Members), 1 where Members is nil
	Position float64 // counted from the first visual token, 0..N-1; fractional only where a mean was asked for
}

// Reduction is what became of one picture's tokens. It shares no memory with its Input.
type Reduction struct {
	Options Resolved

	N        int       // tokens before
	Rows     []Row     // in the order in which the decoder gets them
	Width    int       // features per row: C, or Cv where Space is Encoder
	Features []float32 // [len(Rows), Width]
	Space    Space
	Group    []int32 // [N] row of every original token, -1 dropped

	Kept    []int32 // tokens kept by the base, original indices in the criterion's order; -1 is a zero vector
	Anchors []int32 // anchors, original indices in pool order

	// What the anchors were chosen from, in the order in which the base hands it on. Density, MaxSim and Score are per element of
	// Rest: R, the masked maximum and R*(1-max) of Eqs. 5-8. They are nil when anchors are uniform or nothing was merged.
	Rest                   []int32
	Density, MaxSim, Score []float32

	Scores  map[string][]float32 // the base's own scores, by the names in its file
	Indices map[string][]int32   // the base's own lists of tokens or counts

	Stages []StageResult // of a method inside the decoder; Rows are those of the last

	SelectTime, MergeTime time.Duration
}

// Reduce applies o, which Options.Resolve made for in.N tokens, to one picture. An error names the input that is missing, has another
// size than it should or holds a value that is not finite.
func Reduce(in *Input, o Resolved) (*Reduction, error) {
	m, err := lookup(o.Base)
	if err != nil {
		return nil, err
	}
	if !o.checked {
		return nil, fmt.Errorf("reduce: %s: options were not made by Resolve", o.Base)
	}
	if m.encoder != nil {
		return nil, fmt.Errorf("reduce: %s: acts inside the encoder, between blocks that features alone do not give; ask a model", o.Base)
	}
	if m.inside != nil {
		return nil, fmt.Errorf("reduce: %s: acts inside the decoder, on rows that features alone do not give; ask a model", o.Base)
	}
	if o.N != in.N {
		return nil, fmt.Errorf("reduce: %s: options resolved for %d tokens, got %d", o.Base, o.N, in.N)
	}
	if err := in.check(m, o.Restore, slices.Contains(m.Needs, Shrunk) && o.NVis < o.N); err != nil {
		return nil, err
	}
	start := time.Now()
	w := &work{in: in, o: &o}
	if o.N == o.NVis {
		return w.identity(m, start)
	}
	if m.plain != nil && (m.whole || !o.Restore) {
		r, err := w.plain(m)
		if err != nil {
			return nil, err
		}
		if o.NVis == 0 {
			o.NVis, o.Keep = len(r.Rows), len(r.Rows)
		}
		r.Options, r.N = o, in.N
		r.SelectTime = time.Since(start) - r.MergeTime
		return r, nil
	}
	sel, err := w.pick(m, o.Keep)
	if err != nil {
		return nil, err
	}
	return w.finish(sel, start)
}

// work is the state of one Reduce call.
type work struct {
	in  *Input
	o   *Resolved
	cos *cosines // of X; made on first use, shared by the criterion and the anchors
}

// selection is what a criterion hands on.
type selection struct {
	kept    []int32 // the criterion's order; -1 is a zero vector
	rest    []int32 // all others in the order in which they reach merging; nil means ascending
	scores  map[string][]float32
	indices map[string][]int32
}

// identity is the reduction to N tokens: no reduction, whatever the method. What the base and the anchors would choose is still
// reported where they can choose.
func (w *work) identity(m *Method, start time.Time) (*Reduction, error) {
	in, o := w.in, w.o
	o.HolovOverflow = "redistribute"
	sel := &selection{kept: iota32(in.N)}
	plainOnly := m.plain != nil && !o.Restore
	if m.pick != nil && !plainOnly && (o.Keep == 0 || m.check == nil || m.check(o, o.Keep) == nil) {
		var err error
		if sel, err = w.pick(m, o.Keep); err != nil {
			return nil, err
		}
	}
	var r *Reduction
	if len(sel.kept) == in.N {
		r = &Reduction{Options: *o, N: in.N, Width: in.C, Kept: sel.kept, Scores: sel.scores, Indices: sel.indices}
		r.SelectTime = time.Since(start)
	} else {
		var err error
		if r, err = w.finish(sel, start); err != nil {
			return nil, err
		}
	}
	merged := make([]bool, in.N)
	for _, a := range r.Anchors {
		merged[a] = true
	}
	r.Rows = make([]Row, in.N)
	for i := range r.Rows {
		r.Rows[i] = Row{Members: []int32{int32(i)}, Anchor: int32(i), Merged: merged[i], Size: 1, Position: float64(i)}
	}
	r.Group = iota32(in.N)
	r.Features = slices.Clone(in.X)
	return r, nil
}

// Identity reports whether nothing was reduced: N rows, each its own token at its own place. Such a picture needs no calibration.
func (r *Reduction) Identity() bool {
	return len(r.Rows) == r.N && r.N == r.Options.NVis && r.Space == Decoder
}

// Counts returns how many rows are tokens kept as they were (class-token and zero rows included) and how many came out of merging.
func (r *Reduction) Counts() (kept, merged int) {
	for i := range r.Rows {
		if r.Rows[i].Merged {
			merged++
		}
	}
	return len(r.Rows) - merged, merged
}

// LayerSizes returns per row the size s that calibration gives the decoder (Eq. 4): all 1 where sizes are not calibrated or nothing was
// reduced, else the group sizes. In the first layer, under FirstLayerSize "uniform", every row counts N/n, as the released code does.
func (r *Reduction) LayerSizes(first bool) []float32 {
	s := make([]float32, len(r.Rows))
	use := r.Options.Restore && !r.Identity() && (r.Options.Calibrate == "full" || r.Options.Calibrate == "size")
	for i := range s {
		switch {
		case !use:
			s[i] = 1
		case first && r.Options.FirstLayerSize == "uniform":
			s[i] = float32(r.N) / float32(len(r.Rows))
		default:
			s[i] = float32(r.Rows[i].Size)
		}
	}
	return s
}

// Check reports the first broken invariant: every token in at most one row and Group agreeing with it, sizes that add up, every
// merged row with exactly one anchor, finite positions in range and in the order that the options promise.
func (r *Reduction) Check() error {
	bad := func(format string, a ...any) error { return fmt.Errorf("reduce: invariant: "+format, a...) }
	if len(r.Group) != r.N {
		return bad("group has %d entries, want %d", len(r.Group), r.N)
	}
	if len(r.Rows) != r.Options.NVis {
		return bad("%d rows, want the budget %d", len(r.Rows), r.Options.NVis)
	}
	if len(r.Features) != len(r.Rows)*r.Width {
		return bad("%d feature values, want %d rows of %d", len(r.Features), len(r.Rows), r.Width)
	}
	isAnchor := make([]bool, r.N)
	for _, a := range r.Anchors {
		if a < 0 || int(a) >= r.N || isAnchor[a] {
			return bad("anchor %d out of range or repeated", a)
		}
		isAnchor[a] = true
	}
	covered := 0
	for i := range r.Rows {
		row := &r.Rows[i]
		if want := max(1, len(row.Members)); row.Size != want {
			return bad("row %d: size %d, want %d", i, row.Size, want)
		}
		if (len(row.Members) == 0) != (row.IsClass || row.IsZero) {
			return bad("row %d: %d members, but class %v and zero %v", i, len(row.Members), row.IsClass, row.IsZero)
		}
		anchors := 0
		for k, m := range row.Members {
			if m < 0 || int(m) >= r.N || k > 0 && row.Members[k-1] >= m {
				return bad("row %d: members are not ascending in 0..%d: %v", i, r.N-1, row.Members)
			}
			if r.Group[m] != int32(i) {
				return bad("row %d: token %d has group %d", i, m, r.Group[m])
			}
			if isAnchor[m] {
				anchors++
			}
		}
		covered += len(row.Members)
		leftover := row.Merged && row.Anchor < 0 && anchors == 0
		if row.Merged && anchors != 1 && !leftover || !row.Merged && (anchors != 0 || len(row.Members) > 1) {
			return bad("row %d: %d members and %d anchors, merged %v", i, len(row.Members), anchors, row.Merged)
		}
		if !(row.Position >= 0 && row.Position <= float64(r.N-1)) {
			return bad("row %d: position %v, want 0..%d", i, row.Position, r.N-1)
		}
		ordered := !r.Options.ReleasedOrder || r.Options.Positions == "sequential"
		if ordered && i > 0 && row.Position < r.Rows[i-1].Position {
			return bad("row %d: position %v after %v", i, row.Position, r.Rows[i-1].Position)
		}
	}
	dropped := 0
	for _, g := range r.Group {
		if g < 0 {
			dropped++
		}
	}
	if covered+dropped != r.N {
		return bad("%d tokens in rows and %d dropped, want %d together", covered, dropped, r.N)
	}
	if r.Options.Merge > 0 && dropped > 0 {
		return bad("%d tokens dropped though merging is on", dropped)
	}
	for i, v := range r.Features {
		if v-v != 0 {
			return bad("feature %d of row %d is %v", i%r.Width, i/r.Width, v)
		}
	}
	return nil
}

// check says whether the input holds what m reads, in the shapes that Input states; blind says that X may be missing.
func (in *Input) check(m *Method, restore, blind bool) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("reduce: %s: "+format, append([]any{m.Name}, a...)...)
	}
	if in.N < 1 || in.C < 1 {
		return bad("X: got %d tokens of width %d, want at least 1 of 1", in.N, in.C)
	}
	if len(in.X) != in.N*in.C && !(in.X == nil && blind) {
		return bad("X: got %d values, want %d (%d tokens of width %d)", len(in.X), in.N*in.C, in.N, in.C)
	}
	if err := in.checkViews(m); err != nil {
		return err
	}
	for _, need := range m.needs(restore) {
		got, want, name := 0, 0, ""
		switch need {
		case ClsAttn:
			got, want, name = len(in.ClsAttn), in.Heads*(in.N+1), "heads*(tokens+1)"
		case Hidden:
			got, want, name = len(in.Hidden), (in.N+1)*in.Cv, "(tokens+1)*width"
		case Keys:
			got, want, name = len(in.Keys), in.Heads*(in.N+1)*in.KeyDim, "heads*(tokens+1)*width"
		case LastKeys:
			got, want, name = len(in.LastKeys), (in.N+1)*len(in.LastQuery), "(tokens+1)*width of pm_q_cls"
		case Shrunk:
			got, want, name = len(in.Shrunk), in.ShrunkH*in.ShrunkW*in.C, "rows*columns*width of X"
		case Grid:
			if in.Grids != nil {
				if err := in.checkGrids(m); err != nil {
					return err
				}
				continue
			}
			if in.GridH == 0 || in.GridW == 0 {
				return bad("grid: got none, want rows and columns of %d tokens (a class token, newlines or views are among them)", in.N)
			}
			if in.GridH < 1 || in.GridW < 1 || in.GridH*in.GridW != in.N {
				return bad("grid: got %dx%d, want rows and columns of %d tokens", in.GridH, in.GridW, in.N)
			}
			continue
		default:
			continue
		}
		if got == 0 {
			return bad("needs %s, got none", need)
		}
		if got != want {
			return bad("%s: got %d values, want %d (%s)", need, got, want, name)
		}
		for _, values := range map[Need][][]float32{ClsAttn: {in.ClsAttn}, LastKeys: {in.LastQuery, in.LastKeys}}[need] {
			for i, v := range values {
				if v-v != 0 {
					return bad("%s: value %d is %v, want finite numbers", need, i, v)
				}
			}
		}
	}
	return nil
}

// meanAttention returns the class token's attention to every patch, averaged over heads. [N], float64: sums of a few heads are then
// the same whatever their order.
func (in *Input) meanAttention() []float64 {
	a := in.sumAttention()
	for i := range a {
		a[i] /= float64(in.Heads)
	}
	return a
}

// sumAttention is meanAttention without the division.
func (in *Input) sumAttention() []float64 {
	a := make([]float64, in.N)
	for h := range in.Heads {
		row := in.ClsAttn[h*(in.N+1)+1:][:in.N]
		for i, v := range row {
			a[i] += float64(v)
		}
	}
	return a
}

// iota32 returns 0..n-1.
func iota32(n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(i)
	}
	return v
}

// float32s narrows for a score table.
func float32s(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
