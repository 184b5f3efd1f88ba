package engine

import (
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// list holds the tokens that a reducer sees of a picture encoded in views.
type list struct {
	source []int32 // index of each token's patch (see model.Views); −1: a newline
	packed []int32 // rows of the picture's tokens; nil: source counts rows of the views' features
	// index of each token among the picture's tokens if positions count all of them; nil: positions
	// count the list
	places []int32
	views  [][]int32
}

// listOf chooses the tokens that compete under o.
func listOf(v *model.Shape, o *methods.Options, m *reduce.Method) *list {
	l := &list{}
	if m.Site == reduce.InsideEncoder || o.Compat == "released" && !o.Restore && m.PerView &&
		o.Newlines == "" && v.Views.Padded() {
		l.source = v.Views.All // the encoder and the released per-view code keep the padding
	} else {
		l.packed = []int32{}
		for i, s := range v.Views.Source {
			if s >= 0 || o.Newlines == "keep" {
				l.source, l.packed = append(l.source, s), append(l.packed, int32(i))
			}
		}
		if o.Newlines == "skip" || v.Views.Texts != nil {
			l.places = l.packed
		}
	}
	l.views = make([][]int32, v.Views.Count)
	for i, s := range l.source {
		if s >= 0 {
			view := v.View(s)
			l.views[view] = append(l.views[view], int32(i))
		}
	}
	return l
}

func (l *list) sizes() []int {
	out := make([]int, len(l.views))
	for i := range l.views {
		out[i] = len(l.views[i])
	}
	return out
}

// input returns the input of methods for v: features and scores of the picture's list, or of all
// tokens. Where nothing is gathered, it shares v's memory.
func (p *picture) input(v *model.Visual) *reduce.Input {
	in := &reduce.Input{
		N: v.N, C: v.C, X: v.X, GridH: v.GridH, GridW: v.GridW, NoClass: v.NoClass,
		Heads: v.Heads, ClsAttn: v.ClsAttn, Cv: v.Cv, Hidden: v.Hidden, KeyDim: v.KeyDim,
		Keys: v.Keys, LastQuery: v.LastQuery, LastKeys: v.LastKeys, CellDim: v.CellDim,
		Cells: v.Cells, Grids: moments(v.Shape), Padding: p.padding(),
		Pruned: pruned(v.Shape),
	}
	p.attention(in, v)
	var rows []int32 // rows of the encoder: the class token's, then each token's; nil: all in order
	switch l := p.list; {
	case l != nil:
		rows = l.encoderRows(v.T)
		in.N, in.X, in.GridH, in.GridW = len(l.source), l.features(v), 0, 0
		in.Cells = nn.Gathered(v.Cells, l.source, v.CellDim)
		in.Views = l.parts(v)
		rectangles(in.Views, p.viewGrids())
		if in.Grids == nil {
			in.Grids = p.cuts()
		}
		in.LastQuery = v.LastQuery[:len(v.LastQuery)/v.Views.Count]
	case v.T == v.N: // the class token is a visual token too ("full")
		rows = make([]int32, 1, v.N+1)
		for i := range v.N {
			rows = append(rows, int32(i))
		}
	}
	if rows == nil {
		return in
	}
	for _, a := range []*[]float32{
		&in.ClsAttn, &in.ClsAttnShallow, &in.ReceivedMid, &in.ReceivedDeep,
	} {
		*a = nn.GatheredHeads(*a, rows, v.Heads, v.T, 1)
	}
	in.Hidden = nn.Gathered(v.Hidden, rows, v.Cv)
	in.Keys = nn.GatheredHeads(v.Keys, rows, v.Heads, v.T, v.KeyDim)
	in.LastKeys = nn.Gathered(v.LastKeys, rows, len(in.LastQuery))
	return in
}

// attention sets the attention of the encoder's blocks that the picture's method reads.
func (p *picture) attention(in *reduce.Input, v *model.Visual) {
	for _, t := range p.plan.Taps() {
		switch {
		case t.Need == reduce.ReceivedMid:
			in.ReceivedMid = v.Received[t.Block]
		case t.Need == reduce.ReceivedDeep:
			in.ReceivedDeep = v.Received[t.Block]
		case v.NoClass:
			in.ClsAttnShallow = v.Received[t.Block]
		default:
			in.ClsAttnShallow = v.Class[t.Block]
		}
	}
	if v.NoClass {
		in.ReceivedDeep = v.ClsAttn
	}
}

// padding tells which tokens of a picture, or of its list, show only the padding around it; nil:
// none do.
func (p *picture) padding() []bool {
	var out []bool
	for _, g := range p.grids() {
		for k := range g.Rows * g.Cols {
			t := k
			if g.Tokens != nil {
				t = int(g.Tokens[k])
			}
			if t < 0 || !g.Outside(k, p.width, p.height) {
				continue
			}
			if out == nil {
				out = make([]bool, p.plan.N)
			}
			out[t] = true
		}
	}
	return out
}

// encoderRows returns the encoder's row of view 0's class token and of each token; -1 is a newline.
// t is the number of rows of a view, its class token included.
func (l *list) encoderRows(t int) []int32 {
	rows := make([]int32, 1, len(l.source)+1)
	for _, s := range l.source {
		if s >= 0 {
			s += s/int32(t-1) + 1
		}
		rows = append(rows, s)
	}
	return rows
}

// features returns the tokens' features after the projector.
func (l *list) features(v *model.Visual) []float32 {
	if l.packed != nil {
		return nn.Gathered(v.X, l.packed, v.C)
	}
	return nn.Gathered(v.ViewsX, l.source, v.C)
}

// parts returns the views with their tokens and the data of their class tokens.
func (l *list) parts(v *model.Visual) []reduce.View {
	var out []reduce.View
	w := len(v.LastQuery) / v.Views.Count
	for i, tokens := range l.views {
		row := i * v.T // of the class token
		if v.NoClass {
			row = 0 // zeros
		}
		view := reduce.View{Tokens: tokens, Class: v.Hidden[row*v.Cv : (row+1)*v.Cv]}
		if w > 0 {
			view.LastQuery = v.LastQuery[i*w : (i+1)*w]
			view.LastClass = v.LastKeys[i*v.T*w : (i*v.T+1)*w]
		}
		out = append(out, view)
	}
	return out
}

// place returns the position of a row of a reduced picture that begins at start.
func (p *picture) place(start float64, row *reduce.Row) nn.Pos {
	pos, all := p.at(start, row.Position), p.shape.Unpruned().Pos
	for axis := range pos {
		if v, ok := p.plan.Along(row, func(t int32) float64 { return all[t][axis] }); ok {
			pos[axis] = start + v
		}
	}
	return pos
}

// at returns the position of place i in a reduced picture that begins at start.
func (p *picture) at(start, i float64) nn.Pos {
	if p.list == nil || p.list.places == nil {
		return p.shape.Unpruned().At(start, i)
	}
	lo := int(i)
	a, b := p.list.places[lo], p.list.places[min(lo+1, len(p.list.places)-1)]
	return p.shape.At(start, float64(a)+(i-float64(lo))*float64(b-a))
}
