package engine

import (
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// list is what a reducer sees of a picture that was encoded in views.
type list struct {
	source []int32 // number of each token's patch (see model.Views), −1 a newline
	packed []int32 // rows of the picture's tokens; nil: source counts rows of the views' features
	// the picture's token that each stands for, where positions count all of them; nil: positions
	// count the list
	places []int32
	views  [][]int32
}

// listOf chooses the tokens that compete under o.
func listOf(v *model.Shape, o *methods.Options, m *reduce.Method) *list {
	l := &list{}
	patches := v.T - 1
	if m.Site == reduce.InsideEncoder || o.Compat == "released" && !o.Restore && m.PerView &&
		o.Newlines == "" {
		l.source = v.Views.All // the encoder, and code for tiles, cut no padding off
	} else {
		l.packed = []int32{}
		for i, s := range v.Views.Source {
			if s >= 0 || o.Newlines == "keep" {
				l.source, l.packed = append(l.source, s), append(l.packed, int32(i))
			}
		}
		if o.Newlines == "skip" {
			l.places = l.packed
		}
	}
	l.views = make([][]int32, v.Views.Count)
	for i, s := range l.source {
		if s >= 0 {
			view := int(s) / patches
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

// input gathers what reducers read of the list's tokens.
func (l *list) input(v *model.Visual) *reduce.Input {
	n, t := len(l.source), v.T
	in := &reduce.Input{
		N: n, C: v.C, Heads: v.Heads, Cv: v.Cv, KeyDim: v.KeyDim, X: make([]float32, n*v.C),
	}
	if l.packed != nil {
		nn.Gather(in.X, v.X, l.packed, v.C)
	} else {
		nn.Gather(in.X, v.ViewsX, l.source, v.C)
	}
	// of encoder rows, class tokens included; view 0's class token leads
	rows := make([]int32, 1, n+1)
	for _, s := range l.source {
		if s >= 0 {
			s += s/int32(t-1) + 1
		}
		rows = append(rows, s)
	}
	in.Hidden = make([]float32, (n+1)*v.Cv)
	nn.GatherFill(in.Hidden, v.Hidden, rows, v.Cv, nil)
	if v.ClsAttn != nil {
		in.ClsAttn = make([]float32, v.Heads*(n+1))
		nn.GatherHeads(in.ClsAttn, v.ClsAttn, rows, v.Heads, t, 1)
	}
	if v.Keys != nil {
		in.Keys = make([]float32, v.Heads*(n+1)*v.KeyDim)
		nn.GatherHeads(in.Keys, v.Keys, rows, v.Heads, t, v.KeyDim)
	}
	w := len(v.LastQuery) / v.Views.Count
	if w > 0 {
		in.LastQuery, in.LastKeys = v.LastQuery[:w], make([]float32, (n+1)*w)
		nn.GatherFill(in.LastKeys, v.LastKeys, rows, w, nil)
	}
	for i, tokens := range l.views {
		view := reduce.View{Tokens: tokens, Class: v.Hidden[i*t*v.Cv : (i*t+1)*v.Cv]}
		if w > 0 {
			view.LastQuery, view.LastClass = v.LastQuery[i*w:(i+1)*w], v.LastKeys[i*t*w:(i*t+1)*w]
		}
		in.Views = append(in.Views, view)
	}
	return in
}

// place returns the position of a row of the reduced picture, which starts at
// start.
func (p *picture) place(start float64, row *reduce.Row) nn.Pos {
	pos := p.at(start, row.Position)
	for axis := range pos {
		if v, ok := p.plan.Along(row, func(t int32) float64 { return p.shape.Pos[t][axis] }); ok {
			pos[axis] = start + v
		}
	}
	return pos
}

// at returns the position of a reduced picture's row that sits at place i, the
// picture starting at start.
func (p *picture) at(start, i float64) nn.Pos {
	if p.list == nil || p.list.places == nil {
		return p.shape.At(start, i)
	}
	lo := int(i)
	a, b := p.list.places[lo], p.list.places[min(lo+1, len(p.list.places)-1)]
	return p.shape.At(start, float64(a)+(i-float64(lo))*float64(b-a))
}
