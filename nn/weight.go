package nn

import (
	"fmt"

	"github.com/restore-vlm/restore/kernel"
	"github.com/restore-vlm/restore/tensor"
)

// Matrix is a weight of a product or a table.
type Matrix = kernel.Matrix

// Memory holds weights outside of the heap.
type Memory = kernel.Memory

// formats are the types of a weight's tensor and the formats of its matrix.
var formats = map[tensor.DType]kernel.Format{
	tensor.F32: kernel.F32, tensor.F16: kernel.F16, tensor.BF16: kernel.BF16, tensor.Q8: kernel.Q8, tensor.Q4: kernel.Q4,
	tensor.BF16Dot: kernel.BF16Dot,
}

// IsWeight reports whether a layer can compute with weights of type d.
func IsWeight(d tensor.DType) bool {
	_, ok := formats[d]
	return ok
}

// Weights views t as an [out, in] matrix of the same type, one of F32, F16, BF16,
// Q8, Q4 and BF16Dot, without a copy. nil stays nil.
func Weights(t *tensor.Tensor, out, in int) *kernel.Matrix {
	if t == nil {
		return nil
	}
	return &kernel.Matrix{Format: formats[t.DType], N: out, K: in, Data: t.Data}
}

// WeightBytes is the size of an [out, in] weight of type d.
func WeightBytes(d tensor.DType, out, in int) int {
	return (&kernel.Matrix{Format: formats[d], N: out, K: in}).Bytes()
}

// convertPart is about how many bytes of the source are converted at a time.
const convertPart = 32 << 20

// Convert returns w as a matrix of type d in memory of m. It goes by parts;
// after each, done is told the bytes of w that will not be read again. A value
// that is not finite in d is an error that names its place.
func Convert(p *Pool, m *Memory, w *kernel.Matrix, d tensor.DType, done func(bytes int)) (*kernel.Matrix, error) {
	out := &kernel.Matrix{Format: formats[d], N: w.N, K: w.K}
	out.Data = m.Bytes(out.Bytes())
	row := w.K * w.Format.Size()
	step := max(64, convertPart/max(1, row)&^63) // rows of whole panels
	at := 0
	for lo := 0; lo < w.N; lo += step {
		n := min(step, w.N-lo)
		dst := &kernel.Matrix{Format: out.Format, N: n, K: w.K, Data: out.Data[at:]}
		src := &kernel.Matrix{Format: w.Format, N: n, K: w.K, Data: w.Data[lo*row : (lo+n)*row]}
		if err := kernel.Encode(p, dst, src); err != nil {
			return nil, fmt.Errorf("rows from %d: %w", lo, err)
		}
		at += dst.Bytes()
		done(len(src.Data))
	}
	return out, nil
}
