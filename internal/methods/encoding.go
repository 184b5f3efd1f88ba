package methods

// Methods inside the encoder shrink a picture's rows between its blocks. An Encoding follows one
// picture through the blocks, in one or more views: the encoder passes it a block's result, and
// gets back how the rows combine. The class token is never merged or dropped. Each row stands for
// the patches merged into it; sizes add up over blocks.

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// encoderMethod is the part of a method's table entry for methods inside the encoder.
type encoderMethod struct {
	place EncoderPlace
	// makes every row itself, so RESTORE only calibrates
	partners bool
	// the released code returns rows in raster order
	raster bool
	// sets NVis and the method's other values; views are patches per view
	resolve func(p *Plan, views []int) error
	// starts a view with that many patches, of which n rows will remain; nil: nothing to do
	begin func(e *Encoding, s *viewRows, patches, n int) error
	// reports whether the method reads the class token's attention in a block; nil: it does not
	// read the class token
	class func(e *Encoding, block int) bool
	act   func(e *Encoding, p *kernel.Pool, block int, views []EncoderView) ([][]nn.Mix, error)
}

// proportional is a parameter that methods inside the encoder and before it share.
type proportional struct{ on bool }

// proportionalName is its name.
const proportionalName = "proportional-attention"

// declare declares the parameter with a default; words say it.
func (q *proportional) declare(d *reduce.Declaration, on bool, words string) {
	q.on = on
	d.Bool(&q.on, reduce.Parameter{
		Name: proportionalName, Default: words,
		Help: "the encoder's attention weighs a row by the number of its patches",
	})
}

// attends reports whether attention adds ln(size) to the scores of keys.
func (q *proportional) attends() bool { return q.on }

// resolveEncoder completes p for a method inside the encoder. Without an encoder it only resolves
// plans that reduce nothing.
func (p *Plan) resolveEncoder(ownBudget bool) error {
	if p.EncoderBlocks > 0 {
		views := p.facts.Views
		if views == nil {
			views = []int{p.N}
		}
		return p.method.encoder.resolve(p, views)
	}
	if ownBudget || p.NVis == p.N {
		return nil
	}
	return refused("base", errs.Conflict, p.Base, "a method after the encoder",
		"it acts inside the encoder, and there is none")
}

// EncoderPlace is the point in a block at which a method acts.
type EncoderPlace uint8

const (
	// Between attention (with its residual added) and the MLP.
	Between EncoderPlace = iota
	// After the whole block.
	Behind
)

// EncoderView is a block's result for one view. Rows are the class token, if there is one, and the
// remaining patches.
type EncoderView struct {
	X              []float32 // [rows, Width] after attention or after the block
	Width          int
	Heads, HeadDim int
	Keys, Values   []float32 // [rows, Heads*HeadDim], with bias, unscaled
	Class          []float32 // [Heads, rows] the class token's attention; nil if not requested
}

// Encoding follows one picture through the encoder. It belongs to one request.
type Encoding struct {
	// the blocks that removed rows; rows of all views, without class tokens
	Stages []reduce.StageResult
	// Trace, if not nil, collects the inputs and results of each block's step.
	Trace map[string]*tensor.Tensor

	SelectTime time.Duration

	plan *Plan
	m    *encoderMethod
	// each view's rows at HandOn; nil before it
	done  [][]reduce.Row
	class int // 1 if row 0 of each view is a class token
	views []*viewRows
}

// viewRows holds one view's rows.
type viewRows struct {
	rows    []reduce.Row // including the class token
	target  int          // patch rows that will remain
	merges  []int        // ToMe's merges in each block
	score   []float64
	logSize []float32 // nil while every row stands for one patch
}

// NewEncoding starts a picture. o must be resolved for an encoder, with a method inside it; class
// says that each view starts with a class token. views holds each view's tokens among the
// picture's, in raster order; nil means one view of all tokens.
func NewEncoding(o *Plan, class bool, views [][]int32) (*Encoding, error) {
	m := o.method
	if m == nil || m.encoder == nil || o.EncoderBlocks == 0 {
		return nil, fmt.Errorf("methods: %s: got a plan of another kind, want one for an encoder",
			o.Base)
	}
	if m.encoder.class != nil && !class {
		return nil, refused("base", errs.Conflict, o.Base, "another base",
			"the model's encoder has no class token, whose attention and values it reads")
	}
	if views == nil {
		views = [][]int32{iota32(o.N)}
	}
	e := &Encoding{plan: o, m: m.encoder, class: btoi(class)}
	sizes := make([]int, len(views))
	for i := range views {
		sizes[i] = len(views[i])
	}
	targets := shares(o.NVis, sizes, 1)
	for i, patches := range views {
		s := &viewRows{target: targets[i]}
		if class {
			s.rows = append(s.rows, reduce.Row{Anchor: -1, IsClass: true, Size: 1})
		}
		for _, t := range patches {
			s.rows = append(s.rows, reduce.Row{Members: []int32{t}, Anchor: t, Size: 1})
		}
		if o.NVis < o.N && e.m.begin != nil {
			if err := e.m.begin(e, s, len(patches), targets[i]); err != nil {
				return nil, err
			}
		}
		e.views = append(e.views, s)
	}
	return e, nil
}

// Rows returns the current number of rows of each view, including class tokens.
func (e *Encoding) Rows() []int {
	out := make([]int, len(e.views))
	for i, s := range e.views {
		out[i] = len(s.rows)
	}
	return out
}

// LogSize returns ln of the number of patches for each row of a view, to be added to the scores of
// attention; nil if there is nothing to add.
func (e *Encoding) LogSize(view int) []float32 {
	if q, ok := e.plan.own.(interface{ attends() bool }); !ok || !q.attends() {
		return nil
	}
	return e.views[view].logSize
}

// ReadsClass says whether the method reads the class token's attention in a block.
func (e *Encoding) ReadsClass(block int) bool {
	return e.m.class != nil && e.plan.NVis < e.plan.N && e.m.class(e, block)
}

// HandOn records that the current rows are the picture's features. A trace may continue with the
// blocks after them.
func (e *Encoding) HandOn() {
	for _, s := range e.views {
		e.done = append(e.done, s.rows)
	}
}

// Act passes the method a block's result, and returns the mix that makes each view's new rows; nil
// for an unchanged view. The result is nil if no view changes.
func (e *Encoding) Act(
	p *kernel.Pool, block int, place EncoderPlace, views []EncoderView,
) ([][]nn.Mix, error) {
	if place != e.m.place || e.plan.NVis == e.plan.N {
		return nil, nil
	}
	start := time.Now()
	defer func() { e.SelectTime += time.Since(start) }()
	st := reduce.StageResult{
		Stage: reduce.Stage{Layer: block}, From: block + 1, Before: e.patches(),
	}
	mixes, err := e.m.act(e, p, block, views)
	if err != nil {
		return nil, fmt.Errorf("methods: %s: block %d of the encoder: %w", e.plan.Base, block, err)
	}
	if after := e.patches(); after < st.Before && e.done == nil {
		for _, s := range e.views {
			st.Rows = append(st.Rows, s.rows[e.class:]...)
		}
		for i := range st.Rows {
			st.Rows[i].Position = rowPosition(e.plan, e.plan.N, &st.Rows[i])
			if st.Rows[i].Merged {
				st.Merged++
			}
		}
		st.Stage.Kept = after - st.Merged
		e.Stages = append(e.Stages, st)
	}
	return mixes, nil
}

// patches is the number of rows without class tokens.
func (e *Encoding) patches() int {
	n := 0
	for _, s := range e.views {
		n += len(s.rows) - e.class
	}
	return n
}

// replace makes the rows of s from mixes of the old ones and sets the mixes' weights to the rows'
// sizes. The first row of a mix is the one that the others join. The rows of also, if not nil, only
// add to a row's size.
func (s *viewRows) replace(mixes []nn.Mix, also [][]int32) {
	rows := make([]reduce.Row, len(mixes))
	sized := false
	for i := range mixes {
		m := &mixes[i]
		rows[i] = s.rows[m.From[0]]
		if len(m.From) > 1 {
			row := &rows[i]
			row.Merged, row.Members, row.Size = true, nil, 0
			m.Weight = make([]float32, len(m.From))
			for j, f := range m.From {
				m.Weight[j] = float32(s.rows[f].Size)
				row.Members = append(row.Members, s.rows[f].Members...)
				row.Size += s.rows[f].Size
			}
		}
		if also != nil && len(also[i]) > 0 {
			rows[i].Members = slices.Clone(rows[i].Members)
			for _, f := range also[i] {
				rows[i].Members = append(rows[i].Members, s.rows[f].Members...)
				rows[i].Size += s.rows[f].Size
			}
		}
		if len(rows[i].Members) > 1 && (len(m.From) > 1 || also != nil) {
			slices.Sort(rows[i].Members)
		}
		sized = sized || rows[i].Size > 1
	}
	s.rows, s.logSize = rows, nil
	if sized {
		s.logSize = make([]float32, len(rows))
		for i := range rows {
			s.logSize[i] = float32(math.Log(float64(rows[i].Size)))
		}
	}
}

// Reduction returns the picture's reduction after HandOn; features [rows, width] are the encoder's
// at that point, view by view, without class tokens.
func (e *Encoding) Reduction(features []float32, width int) (*reduce.Reduction, error) {
	own := *e.plan
	o := &own
	if o.NVis == o.N { // no reduction, whatever the options
		o.MirrorLast, o.ReleasedOrder = false, false
	}
	r := &reduce.Reduction{
		Options: e.plan.Resolved, N: o.N, Width: width, Space: reduce.Encoder,
		SelectTime: e.SelectTime, Stages: e.Stages,
	}
	for _, rows := range e.done {
		r.Rows = append(r.Rows, rows[e.class:]...)
	}
	if len(r.Rows) != o.NVis || len(features) != len(r.Rows)*width {
		return nil, fmt.Errorf("methods: %s: got %d rows and %d feature values from the "+
			"encoder, want %d rows of %d", o.Base, len(r.Rows), len(features), o.NVis, width)
	}
	order := iota32(len(r.Rows))
	for i := range r.Rows {
		row := &r.Rows[i]
		row.Position = rowPosition(o, o.N, row)
		if row.Merged {
			r.Anchors = append(r.Anchors, row.Anchor)
		} else {
			r.Kept = append(r.Kept, row.Anchor)
		}
	}
	if !o.ReleasedOrder {
		slices.SortStableFunc(order, func(a, b int32) int {
			return o.inReadingOrder(&r.Rows[a], &r.Rows[b], o.N)
		})
	}
	rows := r.Rows
	r.Rows, r.Features = make([]reduce.Row, len(rows)), make([]float32, 0, len(features))
	for i, j := range order {
		r.Rows[i] = rows[j]
		r.Features = append(r.Features, features[int(j)*width:(int(j)+1)*width]...)
	}
	if e.Trace != nil {
		e.Trace["features"] = tensor.From([]int{len(rows), width}, features)
		e.ints("llm_order", order)
		e.groups("final_size", "final_", rows, 0)
	}
	(&work{o: o}).place(r)
	return r, nil
}

// at is the prefix of the trace names for a block of a view.
func (e *Encoding) at(view, block int) string {
	if len(e.views) > 1 {
		return fmt.Sprintf("vit_stage.%d.%d.", view, block)
	}
	return fmt.Sprintf("vit_stage.%d.", block)
}

// ints, floats and groups add values to the trace, if there is one.
func (e *Encoding) ints(name string, v []int32) {
	if e.Trace == nil {
		return
	}
	wide := make([]int64, len(v))
	for i, x := range v {
		wide[i] = int64(x)
	}
	e.Trace[name] = tensor.From([]int{len(v)}, wide)
}

func (e *Encoding) floats(name string, v []float64) {
	if e.Trace != nil {
		e.Trace[name] = tensor.From([]int{len(v)}, float32s(v))
	}
}

// groups adds the patches of each row, numbered from add, and their counts.
func (e *Encoding) groups(size, prefix string, rows []reduce.Row, add int32) {
	if e.Trace == nil {
		return
	}
	var members, offsets []int32
	sizes := make([]float64, len(rows))
	for i := range rows {
		offsets = append(offsets, int32(len(members)))
		if rows[i].IsClass {
			members = append(members, 0)
		}
		for _, m := range rows[i].Members {
			members = append(members, m+add)
		}
		sizes[i] = float64(rows[i].Size)
	}
	e.floats(size, sizes)
	e.ints(prefix+"group_members", members)
	e.ints(prefix+"group_offsets", append(offsets, int32(len(members))))
}

// headMean averages x [rows, heads*dim] over heads: [rows, dim].
func headMean(x []float32, rows, heads, dim int) []float32 {
	out := make([]float32, rows*dim)
	sum := make([]float64, dim)
	for i := range rows {
		clear(sum)
		for h := range heads {
			for k, v := range x[(i*heads+h)*dim:][:dim] {
				sum[k] += float64(v)
			}
		}
		for k, v := range sum {
			out[i*dim+k] = float32(v / float64(heads))
		}
	}
	return out
}
