package nn

import (
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Linear is y = W·x + b with W [Out, In] in any format.
type Linear struct {
	In, Out int
	W       *kernel.Matrix
	B       []float32 // [Out]; nil if the layer has no bias
	Work    *Work     // counts the products; nil: not counted
	Gate    *Gate     // of W; nil: open
}

// Apply computes y[t,o] = Σᵢ W[o,i]·x[t,i] + b[o] for rows rows. x: [rows, In],
// y: [rows, Out], no overlap. 2·rows·In·Out flops.
func (l *Linear) Apply(p *kernel.Pool, y, x []float32, rows int) {
	l.Gate.Pass()
	if l.Work != nil {
		defer l.Work.product(l, rows, time.Now())
	}
	kernel.MatMul(p, y[:rows*l.Out], x[:rows*l.In], rows, l.W, l.B)
}

// Rounds reports whether Apply rounds x.
func (l *Linear) Rounds() bool { return l.W != nil && l.W.Format.Rounds() }
