package methods

// Methods inside the encoder shrink a picture's rows between its blocks. An Encoding follows one
// picture through the blocks, in one or more views: the encoder shows what a block computed, and is
// told what its rows become. The class token is never merged or dropped. Of the patches, each row
// stands for those that it has taken in; sizes add up over blocks.

import (
	"cmp"
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

// encoderMethod is what a method inside the encoder adds to its line of the table.
type encoderMethod struct {
	place EncoderPlace
	// makes every row itself: RESTORE only calibrates
	partners bool
	// the released code hands rows on in raster order
	raster bool
	// sets NVis and what else it needs; views are patches
	resolve func(p *Plan, views []int) error
	// a view of so many patches that n rows are to be left of; nil: nothing to do
	begin func(e *Encoding, s *strand, patches, n int) error
	// reads the class token's attention there; nil: nor the token itself
	class func(e *Encoding, block int) bool
	act   func(e *Encoding, p *kernel.Pool, block int, views []EncoderView) ([][]nn.Mix, error)
}

// proportional is the parameter that methods inside the encoder share.
type proportional struct{ on bool }

// proportionalName is its name.
const proportionalName = "proportional-attention"

// declare ties the parameter to its name; on is its default with RESTORE and without.
func (q *proportional) declare(d *reduce.Declaration, on bool) {
	q.on = on
	def := "true"
	if !on {
		def = "true with RESTORE, false with compat"
	}
	d.Bool(&q.on, reduce.Parameter{
		Name: proportionalName, Default: def,
		Help: "the encoder's attention counts a row as the patches that it stands for",
	})
}

// attends says that attention adds ln(size) to the scores of keys.
func (q *proportional) attends() bool { return q.on }

// resolveEncoder completes p for a method inside the encoder. Without an encoder only what
// reduces nothing can be resolved.
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

// EncoderPlace is where in a block a method acts.
type EncoderPlace uint8

const (
	// Between attention, its residual added, and the MLP.
	Between EncoderPlace = iota
	// Behind the whole block.
	Behind
)

// EncoderView is what a block computed of one view. Rows are the class token, where there is one,
// and what is left of the patches.
type EncoderView struct {
	X              []float32 // [rows, Width] after attention or after the block
	Width          int
	Heads, HeadDim int
	Keys, Values   []float32 // [rows, Heads*HeadDim], with bias, unscaled
	Class          []float32 // [Heads, rows] the class token's attention; nil where not asked for
}

// Encoding is one picture on its way through the encoder. It belongs to one request.
type Encoding struct {
	// of the blocks that took rows away; rows of all views, class tokens not counted
	Stages []reduce.StageResult
	// Trace, when not nil, collects what each block looked at and did.
	Trace map[string]*tensor.Tensor

	SelectTime time.Duration

	plan *Plan
	m    *encoderMethod
	// each view's rows when the features were handed on; nil: they still are to be
	done  [][]reduce.Row
	class int // 1 where row 0 of each view is a class token
	views []*strand
}

// strand is one view's rows.
type strand struct {
	rows    []reduce.Row // the class token too
	target  int          // patches' rows to be left
	merges  []int        // per block, of ToMe
	score   []float64
	logSize []float32 // nil as long as every row stands for one patch
}

// NewEncoding starts a picture. o must be resolved for an encoder and its method act inside it;
// class says that each view starts with a class token. views holds each view's tokens among the
// picture's, in raster order; nil is one view of all.
func NewEncoding(o *Plan, class bool, views [][]int32) (*Encoding, error) {
	m := o.method
	if m == nil || m.encoder == nil || o.EncoderBlocks == 0 {
		return nil, fmt.Errorf("reduce: %s: got a plan of another kind, want one for an encoder",
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
		s := &strand{target: targets[i]}
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

// Rows returns the rows of each view as they are now, class tokens included.
func (e *Encoding) Rows() []int {
	out := make([]int, len(e.views))
	for i, s := range e.views {
		out[i] = len(s.rows)
	}
	return out
}

// LogSize returns ln of the patches that each row of a view stands for, to be added to the scores
// of attention; nil where nothing is.
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

// HandOn notes that the rows are now the picture's features. A trace may lead them through the
// blocks after them.
func (e *Encoding) HandOn() {
	for _, s := range e.views {
		e.done = append(e.done, s.rows)
	}
}

// Act shows the method what a block computed, and returns what each view's rows are made of from
// there on: nil where they stay. The result is nil where all do.
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
		return nil, fmt.Errorf("reduce: %s: block %d of the encoder: %w", e.plan.Base, block, err)
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

// patches is the number of rows that are no class token.
func (e *Encoding) patches() int {
	n := 0
	for _, s := range e.views {
		n += len(s.rows) - e.class
	}
	return n
}

// replace makes the rows of s from mixes of the old ones and sets their weights to the rows'
// sizes. The row that a mix begins with is the one that the others join. Those of also, where
// it is not nil, add to a row's size alone.
func (s *strand) replace(mixes []nn.Mix, also [][]int32) {
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

// Reduction returns what became of the picture after HandOn: features [rows, width] are the
// encoder's then, view by view, without class tokens.
func (e *Encoding) Reduction(features []float32, width int) (*reduce.Reduction, error) {
	own := *e.plan
	o := &own
	if o.NVis == o.N { // nothing is reduced, whatever the options
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
		return nil, fmt.Errorf("reduce: %s: got %d rows and %d feature values from the "+
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
			x, y := &r.Rows[a], &r.Rows[b]
			return cmp.Or(cmp.Compare(x.Position, y.Position),
				cmp.Compare(tieOrder(x, o.N, false), tieOrder(y, o.N, false)))
		})
	}
	rows := r.Rows
	r.Rows, r.Features = make([]reduce.Row, len(rows)), make([]float32, 0, len(features))
	for i, j := range order {
		r.Rows[i] = rows[j]
		r.Features = append(r.Features, features[int(j)*width:(int(j)+1)*width]...)
	}
	if e.Trace != nil {
		e.Trace["features"] = tensor.FromFloat32s([]int{len(rows), width}, features)
		e.ints("llm_order", order)
		e.groups("final_size", "final_", rows, 0)
	}
	(&work{o: o}).place(r)
	return r, nil
}

// at begins the names of what a block of a view traces.
func (e *Encoding) at(view, block int) string {
	if len(e.views) > 1 {
		return fmt.Sprintf("vit_stage.%d.%d.", view, block)
	}
	return fmt.Sprintf("vit_stage.%d.", block)
}

// ints, floats and groups put values in the trace, where there is one.
func (e *Encoding) ints(name string, v []int32) {
	if e.Trace == nil {
		return
	}
	wide := make([]int64, len(v))
	for i, x := range v {
		wide[i] = int64(x)
	}
	e.Trace[name] = tensor.FromInt64s([]int{len(v)}, wide)
}

func (e *Encoding) floats(name string, v []float64) {
	if e.Trace != nil {
		e.Trace[name] = tensor.FromFloat32s([]int{len(v)}, float32s(v))
	}
}

// groups puts the patches that rows stand for, each counted with add, and how many.
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
