package kernel

import (
	"fmt"
	"unsafe"
)

// Format is the storage format of the elements of a [Matrix].
type Format uint8

// Formats of a weight, all little-endian. [Quantize] makes those from Q8 on; products with them
// round the activations.
const (
	F32     Format = iota
	F16            // IEEE binary16
	BF16           // the upper half of a float32
	Q8             // blocks of 32 int8 with a scale, packed by Quantize
	Q4             // blocks of 32 4-bit values with a scale, packed by Quantize
	BF16Dot        // bfloat16, packed by Quantize, for products with bfloat16
	Q4M            // blocks of 32 4-bit values with a scale and a minimum, packed by Quantize
	IQ4            // blocks of 32 4-bit indices into a table, with a scale, packed by PackBlocks
	Q12            // blocks of 128 12-bit values with a scale, packed by Quantize

	formatCount = iota
)

// packed reports whether f is a format of Quantize or PackBlocks, not of checkpoints.
func (f Format) packed() bool { return f.blocks() || f == BF16Dot || f == Q12 }

// Rounds reports whether products with weights in f round activations too.
func (f Format) Rounds() bool { return f.packed() }

// blocks reports whether f has blocks of 32.
func (f Format) blocks() bool { return f == Q8 || f == Q4 || f == Q4M || f == IQ4 }

// Size returns the bytes of one element of F32, F16 or BF16.
func (f Format) Size() int {
	switch f {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	panic(fmt.Sprintf("kernel.Format: unknown format %d", f))
}

// String returns the name of the format: "F32", "F16" and "BF16" as in checkpoints, or "Q8", "Q4",
// "Q4M", "IQ4", "BF16Dot" or "Q12".
func (f Format) String() string {
	switch f {
	case F32:
		return "F32"
	case F16:
		return "F16"
	case BF16:
		return "BF16"
	case Q8:
		return "Q8"
	case Q4:
		return "Q4"
	case Q4M:
		return "Q4M"
	case IQ4:
		return "IQ4"
	case BF16Dot:
		return "BF16Dot"
	case Q12:
		return "Q12"
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// Matrix is a weight [N out, K in]. In F32, F16 and BF16, Data holds N·K elements row-major; in the
// other formats it is packed by [Quantize]. Data may have any alignment and may be read-only
// memory; it is never written.
type Matrix struct {
	Format Format
	N, K   int
	Data   []byte
	// Order, when not nil, gives the input of each of the K columns of Data: blocks of 32 columns
	// then hold inputs that are not adjacent. It is a permutation. Only formats with blocks may
	// have one.
	Order []int32
}

// MatrixF32 returns the [n, k] matrix over v, which it shares.
func MatrixF32(n, k int, v []float32) *Matrix {
	if n < 0 || k < 0 || len(v) < n*k {
		panic("kernel.MatrixF32: slice too short")
	}
	return &Matrix{Format: F32, N: n, K: k, Data: float32Bytes(v[:n*k])}
}

// Row writes row i, widened and scaled, to dst, which has K elements: an embedding's lookup.
func (w *Matrix) Row(dst []float32, i int) {
	if i < 0 || i >= w.N || len(dst) < w.K {
		panic("kernel.Matrix.Row: row or destination out of range")
	}
	switch w.Format {
	case Q8, Q4, Q4M, IQ4:
		w.dequantizeRow(dst, i)
		return
	case BF16Dot:
		w.pairsRow(dst, i)
		return
	case Q12:
		w.wordsRow(dst[:w.K], i, 0)
		return
	}
	size := w.K * w.Format.Size()
	Convert(dst[:w.K], w.Data[i*size:(i+1)*size], w.Format)
}

// Bytes returns the number of bytes of the weight in its format.
func (w *Matrix) Bytes() int {
	switch w.Format {
	case Q8, Q4, Q4M, IQ4:
		return quantSize(w.Format, w.N, w.K)
	case BF16Dot:
		return pairsSize(w.N, w.K)
	case Q12:
		return wordsSize(w.N, w.K)
	}
	return w.N * w.K * w.Format.Size()
}

// check panics if Data does not hold the weight.
func (w *Matrix) check(caller string) {
	if w.N < 0 || w.K < 0 || len(w.Data) < w.Bytes() {
		panic(fmt.Sprintf("kernel.%s: weight [%d %d] %v has %d bytes", caller, w.N, w.K,
			w.Format, len(w.Data)))
	}
	if w.Order != nil && (len(w.Order) != w.K || !w.Format.blocks()) {
		panic(fmt.Sprintf("kernel.%s: weight [%d %d] %v has an order of %d inputs", caller, w.N,
			w.K, w.Format, len(w.Order)))
	}
}

// orderedPart is the most columns whose inputs gather copies at a time.
const orderedPart = 512

// gather returns, for a weight with an order, the inputs of columns from … from+n-1, at most
// orderedPart of them, from a row x of all inputs.
func (w *Matrix) gather(to *[orderedPart]float32, x []float32, from, n int) []float32 {
	order, part := w.Order[from:from+n], to[:n]
	for len(order) >= 4 && len(part) >= 4 {
		a, b, c, d := x[order[0]], x[order[1]], x[order[2]], x[order[3]]
		part[0], part[1], part[2], part[3] = a, b, c, d
		order, part = order[4:], part[4:]
	}
	for i, at := range order {
		part[i] = x[at]
	}
	return to[:n]
}

func float32Bytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// grow returns buf with n elements, whose values are unspecified.
func grow[T any](buf []T, n int) []T {
	if cap(buf) < n {
		return make([]T, n)
	}
	return buf[:n]
}

// growWork is grow for the scratch memory of a product.
func growWork(buf []byte, n int) []byte {
	if cap(buf) < n {
		buf = workBytes(n)
	}
	return buf[:n]
}
