package nn

import "github.com/restore-vlm/restore/kernel"

// Linear is y = W·x + b with W [Out, In] in its stored type.
type Linear struct {
	In, Out int
	W       *kernel.Matrix
	B       []float32 // [Out], nil when the layer has no bias
}

// Apply computes y[t,o] = Σᵢ W[o,i]·x[t,i] + b[o] for rows rows. x: [rows, In],
// y: [rows, Out], no overlap. 2·rows·In·Out flops.
func (l *Linear) Apply(p *kernel.Pool, y, x []float32, rows int) {
	kernel.MatMul(p, y[:rows*l.Out], x[:rows*l.In], rows, l.W, l.B)
}
