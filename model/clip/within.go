package clip

import (
	"fmt"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
)

// EncodeWithin runs one picture, px [views, 3, rows·patch, cols·patch], through
// the first blocks blocks with w at work between them, and returns what is left
// of its patches [Σ rows, hidden], view by view. A trace gets the rows before
// block 0 and after each block, those behind the features too, of all views one after another, class tokens
// included, as vit_hidden.0, vit_hidden.1, …
func (e *Encoder) EncodeWithin(r *model.Run, px []float32, views, blocks int, w *reduce.Encoding) ([]float32, error) {
	d := e.Hidden
	x := e.embed(r, px, views)
	hidden := func(b int, x []float32) {
		if r.Trace != nil {
			r.Trace(fmt.Sprintf("vit_hidden.%d", b), []int{len(x) / d, d}, x)
		}
	}
	hidden(0, x)
	var out []float32
	last := blocks
	if r.Trace != nil {
		last = len(e.layers)
	}
	for b := 0; ; b++ {
		if b == blocks {
			out = patches(x, w.Rows(), d)
			w.HandOn()
		}
		if b == last {
			return out, nil
		}
		if err := r.Err(); err != nil {
			return nil, err
		}
		l, class := &e.layers[b], w.ReadsClass(b)
		rows := w.Rows()
		s := e.project(r, l, x, len(x)/d)
		seen := make([]reduce.EncoderView, len(rows))
		at := 0
		for i, n := range rows {
			lo, hi := at*d, (at+n)*d
			v := reduce.EncoderView{X: x[lo:hi], Width: d, Heads: e.Heads, HeadDim: e.attn.HeadDim, Keys: s.k[lo:hi], Values: s.v[lo:hi]}
			if class {
				v.Class = make([]float32, e.Heads*n)
			}
			e.attn.Sized(r.Pool, s.a[lo:hi], s.q[lo:hi], s.k[lo:hi], s.v[lo:hi], n, w.LogSize(i), v.Class)
			seen[i], at = v, at+n
		}
		l.o.Apply(r.Pool, s.n, s.a, len(x)/d)
		nn.Add(r.Pool, x, s.n)
		mixes, err := w.Act(r.Pool, b, reduce.Between, seen)
		if err != nil {
			return nil, err
		}
		x = blend(r, x, rows, mixes, d)
		e.mlp(r, l, x, s.n, len(x)/d)
		if mixes == nil { // a method acts in one of the two places
			if mixes, err = w.Act(r.Pool, b, reduce.Behind, seen); err != nil {
				return nil, err
			}
			x = blend(r, x, rows, mixes, d)
		}
		hidden(b+1, x)
	}
}

// patches returns the rows of x that are no view's class token.
func patches(x []float32, rows []int, width int) []float32 {
	out := make([]float32, 0, len(x))
	at := 0
	for _, n := range rows {
		out = append(out, x[(at+1)*width:(at+n)*width]...)
		at += n
	}
	return out
}

// blend makes each view's rows of x from mixes of its rows; nil leaves them.
func blend(r *model.Run, x []float32, rows []int, mixes [][]nn.Mix, width int) []float32 {
	if mixes == nil {
		return x
	}
	made := make([]float32, 0, len(x))
	at := 0
	for i, n := range rows {
		view := x[at*width : (at+n)*width]
		if m := mixes[i]; m == nil {
			made = append(made, view...)
		} else {
			lo := len(made)
			made = made[:lo+len(m)*width]
			nn.Blend(r.Pool, made[lo:], view, m, width)
		}
		at += n
	}
	copy(x, made)
	return x[:len(made)]
}
