package nn

import (
	"github.com/restore-vlm/restore/kernel"
	"github.com/restore-vlm/restore/tensor"
)

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

// Weights views t as the [out, in] matrix of a Linear, in its stored type (F32,
// F16 or BF16) and without a copy. nil stays nil.
func Weights(t *tensor.Tensor, out, in int) *kernel.Matrix {
	if t == nil {
		return nil
	}
	f := kernel.F32
	switch t.DType {
	case tensor.F16:
		f = kernel.F16
	case tensor.BF16:
		f = kernel.BF16
	}
	return &kernel.Matrix{Format: f, N: out, K: in, Data: t.Data}
}
