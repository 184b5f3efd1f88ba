package clip

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// EncodeWithin runs one picture, px [views, 3, rows·patch, cols·patch], through the first blocks
// blocks with w between them, and returns its remaining patches [Σ rows, hidden], view by view. A
// trace gets the rows before block 0 and after each block, including those after the features, as
// vit_hidden.0, vit_hidden.1, …: all views concatenated, with class tokens.
func (e *Encoder) EncodeWithin(
	r *model.Run, px []float32, views, blocks int, w *methods.Encoding,
) ([]float32, error) {
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
			out = nn.WithoutFirst(x, w.Rows(), d)
			w.HandOn()
		}
		if b == last {
			return out, nil
		}
		if err := r.Pause(); err != nil {
			return nil, err
		}
		l, class := &e.layers[b], w.ReadsClass(b)
		rows := w.Rows()
		s := e.project(r, l, x, len(x)/d)
		seen := make([]methods.EncoderView, len(rows))
		at := 0
		for i, n := range rows {
			lo, hi := at*d, (at+n)*d
			v := methods.EncoderView{
				X: x[lo:hi], Width: d, Heads: e.Heads, HeadDim: e.attn.HeadDim, Keys: s.k[lo:hi],
				Values: s.v[lo:hi],
			}
			if class {
				v.Class = make([]float32, e.Heads*n)
			}
			e.attn.Sized(r.Pool, s.a[lo:hi], s.q[lo:hi], s.k[lo:hi], s.v[lo:hi], n, w.LogSize(i),
				v.Class)
			seen[i], at = v, at+n
		}
		l.o.Apply(r.Pool, s.n, s.a, len(x)/d)
		nn.AddScaled(r.Pool, x, s.n, l.scale1)
		mixes, err := w.Act(r.Pool, b, methods.Between, seen)
		if err != nil {
			return nil, err
		}
		x = nn.BlendParts(r.Pool, x, rows, mixes, d)
		e.mlp(r, l, x, s.n, len(x)/d)
		if mixes == nil { // a method acts in only one of the two places
			if mixes, err = w.Act(r.Pool, b, methods.Behind, seen); err != nil {
				return nil, err
			}
			x = nn.BlendParts(r.Pool, x, rows, mixes, d)
		}
		hidden(b+1, x)
	}
}
