package nn

import (
	"errors"
	"fmt"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Matrix is the weight of a product, or a table.
type Matrix = kernel.Matrix

// Memory holds weights outside the heap.
type Memory = kernel.Memory

// Features are instructions that products use.
type Features = kernel.Features

// Rounding is how far attention may round what it multiplies.
type Rounding = kernel.Rounding

// The roundings of attention.
const (
	Exact      = kernel.Exact
	RoundPairs = kernel.RoundPairs
	RoundWords = kernel.RoundWords
	RoundBytes = kernel.RoundBytes
)

// formats maps the types of weight tensors to the formats of their matrices.
var formats = map[tensor.DType]kernel.Format{
	tensor.F32: kernel.F32, tensor.F16: kernel.F16, tensor.BF16: kernel.BF16, tensor.Q8: kernel.Q8,
	tensor.Q4:  kernel.Q4,
	tensor.Q4M: kernel.Q4M, tensor.IQ4: kernel.IQ4,
	tensor.BF16Dot: kernel.BF16Dot, tensor.Q12: kernel.Q12,
}

// IsWeight reports whether layers can compute with weights of type d.
func IsWeight(d tensor.DType) bool {
	_, ok := formats[d]
	return ok
}

// Weights returns t, a weight of a model, as an [out, in] matrix of the same type, without a copy.
// The type is F32, F16, BF16, Q8, Q4, Q4M, IQ4, BF16Dot or Q12. nil stays nil.
func Weights(t *tensor.Tensor, out, in int) *kernel.Matrix {
	if t == nil {
		return nil
	}
	return &kernel.Matrix{Format: formats[t.DType], N: out, K: in, Data: t.Data, Order: t.Order}
}

// TypeOf returns the type of a matrix's elements.
func TypeOf(w *kernel.Matrix) tensor.DType {
	for d, f := range formats {
		if f == w.Format {
			return d
		}
	}
	return tensor.F32
}

// FormatOf returns the format of a matrix of type d, F32 if d is no type of weights.
func FormatOf(d tensor.DType) kernel.Format { return formats[d] }

// WeightBytes returns the size of an [out, in] weight of type d.
func WeightBytes(d tensor.DType, out, in int) int {
	return (&kernel.Matrix{Format: formats[d], N: out, K: in}).Bytes()
}

// convertPart is approximately how many bytes of the source are converted at a time.
const convertPart = 32 << 20

// Convert returns w as a matrix of type d in memory of m. It converts in parts. After each part, it
// calls done with the bytes of w that it will not read again. A value that is not finite in d is an
// error that names its place.
func Convert(
	p *Pool, m *Memory, w *kernel.Matrix, d tensor.DType, done func(bytes int),
) (*kernel.Matrix, error) {
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

// Read returns an [n, k] weight as a matrix of type d in memory of m. read writes the rows from row
// on to dst, k values each; several threads call it at once. Read works in parts. After each part,
// it calls done with the rows that it will not read again. A value that is not finite in d is an
// error that names its place.
func Read(
	p *Pool, m *Memory, n, k int, d tensor.DType, read func(dst []float32, row int) error,
	done func(rows int),
) (*kernel.Matrix, error) {
	out := &kernel.Matrix{Format: formats[d], N: n, K: k}
	out.Data = m.Bytes(out.Bytes())
	step := max(64, convertPart/max(1, 4*k)&^63) // rows of whole panels
	values := make([]float32, min(step, n)*k)
	at := 0
	for lo := 0; lo < n; lo += step {
		rows := min(step, n-lo)
		const some = 16
		failed := make([]error, (rows+some-1)/some)
		p.Run(len(failed), func(i int) {
			first, end := i*some, min((i+1)*some, rows)
			failed[i] = read(values[first*k:end*k], lo+first)
		})
		if err := errors.Join(failed...); err != nil {
			return nil, err
		}
		dst := &kernel.Matrix{Format: out.Format, N: rows, K: k, Data: out.Data[at:]}
		if err := kernel.Encode(p, dst, kernel.MatrixF32(rows, k, values[:rows*k])); err != nil {
			return nil, fmt.Errorf("rows from %d: %w", lo, err)
		}
		at += dst.Bytes()
		done(rows)
	}
	return out, nil
}

// Blocks returns an [n, k] weight that is already quantised as a matrix of type d (Q8, Q4, Q4M or
// IQ4) in memory of m, with unchanged blocks. read is [kernel.Blocks]. Blocks works in parts. After
// each part, it calls done with the rows that it will not read again. order is the matrix's order.
func Blocks(
	p *Pool, m *Memory, n, k int, d tensor.DType, order []int32, read kernel.Blocks,
	done func(rows int),
) (*kernel.Matrix, error) {
	out := &kernel.Matrix{Format: formats[d], N: n, K: k, Order: order}
	out.Data = m.Bytes(out.Bytes())
	step := max(64, convertPart/max(1, k)&^63) // rows of whole panels
	at := 0
	for lo := 0; lo < n; lo += step {
		dst := &kernel.Matrix{Format: out.Format, N: min(step, n-lo), K: k, Data: out.Data[at:]}
		part := func(scales, minima []float32, q []uint8, row int) error {
			return read(scales, minima, q, lo+row)
		}
		if err := kernel.PackBlocks(p, dst, part); err != nil {
			return nil, fmt.Errorf("rows from %d: %w", lo, err)
		}
		at += dst.Bytes()
		done(dst.N)
	}
	return out, nil
}
