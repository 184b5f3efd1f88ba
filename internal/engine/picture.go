package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// planned is the plan for a picture.
type planned struct {
	plan  *methods.Plan
	list  *list // tokens that are reduced, of a picture encoded in views; nil: all tokens
	need  model.Needs
	site  reduce.Site
	draws bool        // the choice depends on a seed
	small bool        // the method reads the picture encoded at a smaller size
	sees  bool        // the method reads the picture's pixels
	text  reduce.Need // the text that the method reads after the encoder; "": none

	// late is set for a budget by content, which is computed from the encoded picture: the options
	// to resolve then. Until then, plan has the largest possible budget.
	late *methods.Options
}

// whole reports whether the decoder's first layer reads every token.
func (p *picture) whole() bool {
	switch o := &p.plan.Resolved; {
	case p.tokens != nil:
		return p.tokens.reduction == nil
	case p.late != nil || p.shape.Pruned != nil:
		return false
	default:
		return o.Base == "none" || o.NVis == o.N || len(o.Stages) > 0
	}
}

// features are the decoder's rows of a picture. They are immutable, and requests share them.
type features struct {
	plan      *methods.Plan     // of a budget by content; nil: the picture's own plan
	gains     []float64         // from which the budget was computed; nil: it was given
	options   reduce.Resolved   // of what happens before the decoder, as planned or as it came out
	reduction *reduce.Reduction // before the decoder; nil: every token is kept
	// [1 + shape.Deep, rows, hidden]: the rows, then for each of the decoder's first layers what is
	// added to them after it; nil if only keys and values are kept
	x        []float32
	encoding *methods.Encoding // of a method inside the encoder; nil without a trace
	// for a method that reads a text: the encoder's output, and nothing else
	visual *model.Visual
}

// rows returns how many rows the decoder reads. It is an upper bound if the method determines the
// number.
func (p *picture) rows() int {
	switch {
	case p.tokens != nil && p.tokens.reduction != nil:
		return len(p.tokens.reduction.Rows) + len(p.texts())
	case p.whole() || p.plan.NVis == 0:
		return p.shape.N
	}
	return p.plan.BeforeDecoder().NVis + len(p.texts())
}

// texts returns the texts between the parts of a picture that is reduced before the decoder. They
// stay, each a row of its own.
func (p *picture) texts() []int32 {
	if p.whole() {
		return nil
	}
	return p.shape.Texts()
}

// chosenInside reports whether a method inside the decoder, which reads the question, chooses the
// rows of the picture, or may do so once the budget is known.
func (p *picture) chosenInside() bool {
	return p.site == reduce.InsideDecoder && (p.late != nil || len(p.plan.Stages) > 0)
}

// readNow reports whether this request's decoder reduced the picture.
func (p *picture) readNow() bool { return p.inside != nil && p.chosen == 0 && p.from != FromPrefix }

// reduced returns the reduction of the picture, or nil if every token was read.
func (p *picture) reduced() *reduce.Reduction {
	if p.inside != nil {
		return p.inside.Reduction()
	}
	if p.tokens == nil {
		return nil
	}
	return p.tokens.reduction
}

// needs returns the by-products of the encoder that a method reads.
func needs(m *reduce.Method, restore, noClass bool) (n model.Needs, small bool) {
	for _, need := range m.Require(restore) {
		n.ClsAttn = n.ClsAttn || need == reduce.ClsAttn || need == reduce.ReceivedDeep && noClass
		n.Keys = n.Keys || need == reduce.Keys
		n.Last = n.Last || need == reduce.LastKeys
		n.Cells = n.Cells || need == reduce.Cells
		small = small || need == reduce.Shrunk
	}
	return n, small
}

// tapped adds the attention that p reads of the encoder's blocks to what it needs.
func (p *planned) tapped(noClass bool) {
	for _, t := range p.plan.Taps() {
		if t.Need == reduce.ClsAttnShallow && !noClass {
			p.need.Class = append(p.need.Class, t.Block)
		} else {
			p.need.Received = append(p.need.Received, t.Block)
		}
	}
}

// cannot returns the error for a base that needs what the model lacks for pictures of shape s. It
// names the bases that the model can have.
func cannot(s *model.Shape, base string, restore bool, why string) error {
	var others []string
	for _, m := range methods.Methods() {
		small := s.Fixed != "" && slices.Contains(m.Require(restore), reduce.Shrunk)
		if m.Name != base && m.Site != reduce.BeforeEncoder && !small &&
			lacking(s, &m, restore) == "" {
			others = append(others, m.Name)
		}
	}
	return fmt.Errorf("engine: %w", &errs.OptionError{
		Name: "base", Got: base, Want: "one of " + strings.Join(others, ", "), Why: why,
		Fault: errs.Conflict,
	})
}

// lacking tells what m needs that the encoder does not compute for pictures of shape s, "" if
// nothing.
func lacking(s *model.Shape, m *reduce.Method, restore bool) string {
	if m.Site == reduce.InsideEncoder && s.Closed != "" {
		return "this model's encoder cannot be reduced inside: " + s.Closed
	}
	for _, need := range m.Require(restore) {
		switch need {
		case reduce.LastKeys:
			if s.NoClass {
				return "it reads the class token of the encoder's last layer, and this model's " +
					"encoder has no class token"
			}
		case reduce.ClsAttn, reduce.ClsAttnShallow, reduce.ReceivedMid, reduce.ReceivedDeep,
			reduce.Keys:
			if s.Blocks == 0 {
				return fmt.Sprintf("it needs %s of the encoder's blocks, and the features of this "+
					"model are the embedding, before any block", need)
			}
		}
	}
	return ""
}

// plan resolves o for a picture of shape s.
func (e *Engine) plan(s *model.Shape, o methods.Options) (p planned, err error) {
	m, err := methods.Lookup(o.Base)
	if err != nil {
		return p, err
	}
	p.site, p.draws = m.Site, m.Draws
	p.need, p.small = needs(&m, o.Restore, s.NoClass)
	p.sees = m.Site == reduce.AfterEncoder && slices.Contains(m.Require(o.Restore), reduce.Pixels)
	if why := lacking(s, &m, o.Restore); why != "" {
		return p, cannot(s, o.Base, o.Restore, why)
	}
	f := e.facts(s)
	// Inside the decoder all rows take part, from every view.
	if s.Views != nil && m.Site != reduce.InsideDecoder {
		p.list = listOf(s, &o, &m)
		f.Tokens, f.Views = len(p.list.source), p.list.sizes()
	}
	f.Gains = func(most int) ([]float64, error) { // as for a picture that needs every token
		p.late = &o
		return slices.Repeat([]float64{math.Inf(1)}, min(most, f.Tokens)), nil
	}
	if p.plan, err = methods.Resolve(o, f); err != nil {
		return p, err
	}
	p.tapped(s.NoClass)
	p.text = p.plan.Text()
	p.small = p.small && p.plan.BeforeDecoder().NVis < p.plan.N // to all tokens, nothing shrinks
	if p.small && s.Fixed != "" {
		return p, cannot(s, o.Base, o.Restore,
			"this model cannot encode a picture at another size: "+s.Fixed)
	}
	return p, nil
}

// facts returns the facts about the model and a picture of shape s that a plan depends on.
func (e *Engine) facts(s *model.Shape) methods.Facts {
	return methods.Facts{
		Tokens: s.N, GridH: s.GridH, GridW: s.GridW,
		NoClass: s.NoClass, Axes: s.Pos != nil,
		Newlines: s.Views != nil && s.Views.Texts == nil,
		Texts:    s.Views != nil && s.Views.Texts != nil,
		Layers:   e.shape.Layers, EncoderBlocks: s.Blocks, EncoderDepth: s.Depth,
		EncoderFull: s.Full,
		Recipe:      e.recipe, Budgets: e.budgets, Pruned: pruned(s),
	}
}

// pruned tells which tokens of a picture of shape s were left out before the encoder.
func pruned(s *model.Shape) *reduce.Pruned {
	if s.Pruned == nil {
		return nil
	}
	return s.Pruned.Pruned
}

// settle plans p, whose budget depends on gains.
func (e *Engine) settle(
	p *picture, gains func(most int) ([]float64, error),
) (*methods.Plan, error) {
	f := e.facts(p.shape)
	if p.list != nil {
		f.Tokens, f.Views = len(p.list.source), p.list.sizes()
	}
	f.Gains = gains
	return methods.Resolve(*p.late, f)
}

// features encodes and reduces p, and records the times in p.spent.
func (e *Engine) features(r *model.Run, p *picture) (*features, error) {
	start := time.Now()
	f := &features{}
	if p.late != nil {
		v, err := e.encode(r, p, p.need)
		if err != nil {
			return nil, err
		}
		p.plan, err = e.settle(p, func(most int) (_ []float64, err error) {
			in := p.input(v)
			f.gains, err = methods.Gains(e.pool, in.X, in.N, in.C, most)
			return f.gains, err
		})
		if err != nil {
			return nil, err
		}
		defer func(before *model.Visual) { p.visual = before }(p.visual)
		p.visual, p.late, f.plan = v, nil, p.plan
	}
	plan := p.plan.BeforeDecoder()
	f.options = plan.Resolved
	switch {
	case p.whole():
		v, err := e.encode(r, p, model.Needs{})
		if err != nil {
			return nil, err
		}
		f.x = nn.Joined(append([][]float32{v.X}, v.Deep...))
		p.spent.encode = time.Since(start)
		return f, nil
	case p.site == reduce.InsideEncoder:
		return f, e.within(r, p, f)
	}
	in, err := e.competing(r, p)
	if err != nil {
		return nil, err
	}
	p.spent.encode = time.Since(start)
	if f.reduction, err = methods.Reduce(in, plan, e.pool); err != nil {
		return nil, err
	}
	p.spent.choose, p.spent.merge = f.reduction.SelectTime, f.reduction.MergeTime
	f.options = f.reduction.Options
	e.take(r, f)
	e.deepen(p, f)
	return f, nil
}

// got sets the features of p, made by this request or by another.
func (p *picture) got(f *features) {
	if p.tokens = f; f.plan != nil {
		p.plan = f.plan
	}
	p.late = nil
}

// take sets the decoder's rows in f from its reduction.
func (e *Engine) take(r *model.Run, f *features) {
	f.x = f.reduction.Features
	if f.reduction.Space == reduce.Encoder {
		f.x = e.m.Project(r, f.reduction.Features, len(f.reduction.Rows))
	}
}

// deepen adds to f what the rows of a reduced picture add after the decoder's first layers: the
// mean of their members', and of a kept row to whose size others only add, its own.
func (e *Engine) deepen(p *picture, f *features) {
	levels := p.deep
	if p.deep = nil; levels == nil {
		return
	}
	h, rows := e.shape.Hidden, f.reduction.Rows
	mixes := make([]nn.Mix, len(rows))
	for i := range rows {
		row := &rows[i]
		from := row.Members
		if !row.Merged && len(from) > 1 {
			from = []int32{row.Anchor}
		}
		switch {
		case p.small:
			from = []int32{int32(i)} // a row of the smaller picture
		case p.shape.Pruned != nil:
			from = p.shape.Pruned.Encoded(from)
		}
		mixes[i].From = from
	}
	x := make([]float32, (1+len(levels))*len(rows)*h)
	copy(x, f.x)
	for i, level := range levels {
		nn.Blend(e.pool, x[(1+i)*len(rows)*h:(2+i)*len(rows)*h], level, mixes, h)
	}
	f.x = x
}

// encode runs the encoder on p unless it was encoded before.
func (e *Engine) encode(r *model.Run, p *picture, need model.Needs) (*model.Visual, error) {
	if p.visual != nil && p.visual.Needs.Cover(&need) {
		return p.visual, nil
	}
	if p.shared != nil && p.shared.key != (Key{}) && e.encoded.most > 0 {
		return p.shared.encode(e, r, need)
	}
	v, err := e.m.Encode(r, []model.Picture{p.prepared}, need)
	if err != nil {
		return nil, err
	}
	return v[0], nil
}

// competing encodes p and returns the input of its method.
func (e *Engine) competing(r *model.Run, p *picture) (in *reduce.Input, err error) {
	if !p.small {
		v, err := e.encode(r, p, p.need)
		if err != nil {
			return nil, err
		}
		if in, p.deep = p.input(v), v.Deep; p.text != "" {
			if in.Text, err = e.textOf(p); err != nil {
				return nil, err
			}
		}
	} else {
		in = p.input(&model.Visual{Shape: p.shape})
		if in.ShrunkH, in.ShrunkW, err = methods.ShrunkGrid(p.shape.GridH, p.shape.GridW,
			p.plan.BeforeDecoder().NVis); err != nil {
			return nil, err
		}
		in.Shrunk, p.deep, err = p.prepared.Shrink(r, in.ShrunkH, in.ShrunkW)
		if err != nil {
			return nil, err
		}
	}
	if p.sees {
		if p.rgb == nil {
			return nil, cannot(p.shape, p.plan.Base, p.plan.Restore, "it reads pixels, which "+
				"this model's picture processor does not keep")
		}
		show(in, p.rgb)
	}
	in.Seed = int64(p.index)
	return in, nil
}

// within encodes p with its method between the encoder's blocks.
func (e *Engine) within(r *model.Run, p *picture, f *features) error {
	start := time.Now()
	var views [][]int32
	if p.list != nil {
		views = p.list.views
	}
	w, err := methods.NewEncoding(p.plan.BeforeDecoder(), p.shape.Class, views)
	if err != nil {
		return err
	}
	if r.Trace != nil {
		w.Trace = map[string]*tensor.Tensor{}
	}
	rows, err := p.prepared.Within(r, w)
	if err != nil {
		return err
	}
	if f.reduction, err = w.Reduction(rows, p.shape.Cv); err != nil {
		return err
	}
	f.options = f.reduction.Options
	e.take(r, f)
	p.spent.choose, p.spent.merge = f.reduction.SelectTime, f.reduction.MergeTime
	p.spent.encode = time.Since(start) - w.SelectTime
	if r.Trace != nil {
		f.encoding = w
	}
	return nil
}
