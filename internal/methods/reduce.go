package methods

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

// Reduce applies o to one picture with o.N tokens. Results do not depend on pool; nil computes
// serially. The error names the input that is missing, has a wrong size, or holds a value that is
// not finite.
func Reduce(in *reduce.Input, o *Plan, pool *kernel.Pool) (*reduce.Reduction, error) {
	r, err := reduceEncoded(in, o, pool)
	if err == nil && in.Pruned != nil {
		unpruned(r, in.Pruned)
	}
	return r, err
}

// reduceEncoded is Reduce by the tokens that were encoded.
func reduceEncoded(in *reduce.Input, o *Plan, pool *kernel.Pool) (*reduce.Reduction, error) {
	m := o.method
	switch {
	case m == nil:
		return nil, fmt.Errorf("methods: %s: the plan was not made by Resolve", o.Base)
	case m.encoder != nil:
		return nil, fmt.Errorf("methods: %s: acts inside the encoder, between blocks that "+
			"features alone do not give; ask a model", o.Base)
	case o.first != nil:
		return nil, fmt.Errorf("methods: %s: got a plan after another, want that one", o.Base)
	case m.inside != nil:
		return nil, fmt.Errorf(
			"methods: %s: acts inside the decoder, on rows that features alone do "+
				"not give; ask a model", o.Base)
	case o.facts.Tokens != in.N:
		return nil, fmt.Errorf("methods: %s: the plan is for %d tokens, got %d", o.Base,
			o.facts.Tokens, in.N)
	}
	blind := slices.Contains(m.Needs, reduce.Shrunk) && o.NVis < o.N
	if err := checkInput(in, m, o.Restore, blind, pool); err != nil {
		return nil, err
	}
	start := time.Now()
	w := &work{in: in, o: o, pool: pool}
	if in.N == o.NVis {
		return w.identity(m, start)
	}
	if m.plain != nil && (m.whole || !o.Restore) {
		r, err := w.plain(m)
		if err != nil {
			return nil, err
		}
		for i, v := range r.Features {
			if v-v != 0 {
				return nil, fmt.Errorf("methods: %s: row %d becomes %v, want finite numbers "+
					"(the features are too large to add, or not finite)", m.Name, i/r.Width, v)
			}
		}
		r.Options, r.N = o.Resolved, in.N
		if o.NVis == 0 {
			r.Options.NVis, r.Options.Keep = len(r.Rows), len(r.Rows)
		}
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
	in   *reduce.Input
	o    *Plan
	pool *kernel.Pool
	cos  *cosines // of X; made on first use, shared by the criterion and the anchors
}

// selection is the result of a criterion.
type selection struct {
	kept    []int32 // in the criterion's order; -1 is a zero vector
	rest    []int32 // all others in the order for merging; nil means ascending
	scores  map[string][]float32
	indices map[string][]int32
}

// identity is the reduction to N tokens: no reduction, whatever the method. It still reports the
// choice of the base and of the anchors, if they can choose.
func (w *work) identity(m *method, start time.Time) (*reduce.Reduction, error) {
	in, o := w.in, w.o
	sel := &selection{kept: iota32(in.N)}
	plainOnly := m.plain != nil && !o.Restore
	if m.pick != nil && !plainOnly && o.checkShares(in.ViewSizes()) == nil {
		var err error
		if sel, err = w.pick(m, o.Keep); err != nil {
			return nil, err
		}
	}
	var r *reduce.Reduction
	if len(sel.kept) == in.N {
		r = &reduce.Reduction{
			Options: o.Resolved, N: in.N, Width: in.C, Kept: sel.kept, Scores: sel.scores,
			Indices: sel.indices,
		}
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
	r.Rows = make([]reduce.Row, in.N)
	for i := range r.Rows {
		r.Rows[i] = reduce.Row{
			Members: []int32{int32(i)}, Anchor: int32(i), Merged: merged[i], Size: 1,
			Position: float64(i),
		}
	}
	r.Group = iota32(in.N)
	r.Features = slices.Clone(in.X)
	return r, nil
}

// checkInput checks that the input holds what m reads, in the shapes of Input, and finite; blind
// says that X may be missing.
func checkInput(in *reduce.Input, m *method, restore, blind bool, pool *kernel.Pool) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("methods: %s: "+format, append([]any{m.Name}, a...)...)
	}
	if in.N < 1 || in.C < 1 {
		return bad("X: got %d tokens of width %d, want at least 1 of 1", in.N, in.C)
	}
	if len(in.X) != in.N*in.C && !(in.X == nil && blind) {
		return bad("X: got %d values, want %d (%d tokens of width %d)", len(in.X), in.N*in.C, in.N,
			in.C)
	}
	allFinite := func(name string, values []float32) error {
		if i := notFinite(pool, values); i >= 0 {
			return bad("%s: value %d is %v, want finite numbers", name, i, values[i])
		}
		return nil
	}
	if err := allFinite("X", in.X); err != nil {
		return err
	}
	if err := checkViews(in, m); err != nil {
		return err
	}
	for _, need := range m.Require(restore) {
		switch {
		case need == reduce.Grid:
			if err := checkGrid(in, m); err != nil {
				return err
			}
		case need == reduce.Pixels && m.before == nil: // otherwise they were read before
			if err := checkPixels(in, m.Name); err != nil {
				return err
			}
		}
		d, ok := needed(in, need)
		switch {
		case !ok || need == reduce.Shrunk && !blind: // all tokens are not of a smaller picture
			continue
		case d.got == 0 && !d.empty:
			return bad("needs %s, got none", d.name)
		case d.got != d.want:
			return bad("%s: got %d values, want %d (%s)", d.name, d.got, d.want, d.layout)
		}
		for _, values := range d.finite {
			if err := allFinite(d.name, values); err != nil {
				return err
			}
		}
	}
	return nil
}

// notFinite returns the index of the first value that is NaN or infinite, -1 if there is none.
func notFinite(pool *kernel.Pool, values []float32) int {
	const share = 1 << 14 // values of a task
	var any atomic.Bool
	pool.Run((len(values)+share-1)/share, func(i int) {
		sum := kernel.SumSquares(values[i*share : min((i+1)*share, len(values))])
		if !finite(sum) {
			any.Store(true)
		}
	})
	if !any.Load() {
		return -1
	}
	return slices.IndexFunc(values, func(v float32) bool { return v-v != 0 })
}

// neededData is what an input holds of a need.
type neededData struct {
	name      string // of the tensor
	got, want int    // values
	layout    string // of want
	empty     bool   // it is there and may have no values
	finite    [][]float32
}

// needed returns what in holds of a need; ok is false if the need is not data.
func needed(in *reduce.Input, need reduce.Need) (d neededData, ok bool) {
	d.name = string(need)
	// of any number of heads
	attention := func(v []float32) {
		d.got, d.want, d.layout = len(v), max(1, len(v)/(in.N+1))*(in.N+1), "heads*(tokens+1)"
		d.finite = [][]float32{v}
	}
	switch need {
	case reduce.ClsAttn:
		attention(in.ClsAttn)
		d.want = in.Heads * (in.N + 1)
	case reduce.ClsAttnShallow:
		attention(in.ClsAttnShallow)
	case reduce.ReceivedMid:
		attention(in.ReceivedMid)
	case reduce.ReceivedDeep:
		attention(in.ReceivedDeep)
	case reduce.Cells:
		if in.NoClass {
			d.got, d.want, d.layout = len(in.Cells), in.N*in.CellDim, "tokens*width"
			d.finite = [][]float32{in.Cells}
			break
		}
		return needed(in, reduce.Hidden)
	case reduce.Hidden:
		d.got, d.want, d.layout = len(in.Hidden), (in.N+1)*in.Cv, "(tokens+1)*width"
		d.finite = [][]float32{in.Hidden}
	case reduce.Keys:
		d.got, d.want = len(in.Keys), in.Heads*(in.N+1)*in.KeyDim
		d.layout = "heads*(tokens+1)*width"
		d.finite = [][]float32{in.Keys}
	case reduce.LastKeys:
		d.got, d.want = len(in.LastKeys), (in.N+1)*len(in.LastQuery)
		d.layout = "(tokens+1)*width of pm_q_cls"
		d.finite = [][]float32{in.LastQuery, in.LastKeys}
	case reduce.Shrunk:
		d.got, d.want = len(in.Shrunk), in.ShrunkH*in.ShrunkW*in.C
		d.layout = "rows*columns*width of X"
	case reduce.PromptText, reduce.QuestionText:
		d.name, d.got, d.layout = "text", len(in.Text), "rows*width of X"
		d.want, d.empty, d.finite = d.got/in.C*in.C, in.Text != nil, [][]float32{in.Text}
	default:
		return d, false
	}
	return d, true
}

// checkGrid checks that the tokens form a grid, several grids, or grids of the views that the
// method looks at.
func checkGrid(in *reduce.Input, m *method) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("methods: %s: grid: "+format, append([]any{m.Name}, a...)...)
	}
	if m.PerView && len(in.Views) > 1 {
		for i := range in.Views {
			if v := &in.Views[i]; v.H*v.W != len(v.Tokens) {
				return bad("got none for view %d, want rows and columns of %d tokens", i,
					len(v.Tokens))
			}
		}
		return nil
	}
	switch {
	case in.Grids != nil:
		return checkGrids(in, m)
	case in.GridH == 0 || in.GridW == 0:
		return bad("got none, want rows and columns of %d tokens (a class token, newlines or "+
			"views are among them)", in.N)
	case in.GridH < 1 || in.GridW < 1 || in.GridH*in.GridW != in.N:
		return bad("got %dx%d, want rows and columns of %d tokens", in.GridH, in.GridW, in.N)
	}
	return nil
}

// meanAttention returns the class token's attention to every patch, averaged over heads. [N] in
// float64, so that the sum of a few heads does not depend on their order.
func meanAttention(in *reduce.Input) []float64 { return meanHeads(in.ClsAttn, in.N) }

// meanHeads is the mean over the heads of attention [heads, n+1], without the class token's.
func meanHeads(attention []float32, n int) []float64 {
	a := sumHeads(attention, n)
	for i := range a {
		a[i] /= float64(len(attention) / (n + 1))
	}
	return a
}

// sumAttention is meanAttention without the division.
func sumAttention(in *reduce.Input) []float64 { return sumHeads(in.ClsAttn, in.N) }

// sumHeads is meanHeads without the division.
func sumHeads(attention []float32, n int) []float64 {
	a := make([]float64, n)
	for row := range slices.Chunk(attention, n+1) {
		for i, v := range row[1:] {
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

// float32s converts to float32 for a table of scores.
func float32s(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
