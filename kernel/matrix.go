package kernel

import (
	"fmt"
	"unsafe"
)

// Format is how the elements of a [Matrix] are stored.
type Format uint8

// The formats that a product reads in place, all little-endian.
const (
	F32  Format = iota
	F16         // IEEE binary16
	BF16        // the upper half of a float32
)

// Size is the number of bytes of one element.
func (f Format) Size() int {
	switch f {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	panic(fmt.Sprintf("kernel.Format: unknown format %d", f))
}

// String is the name that a checkpoint uses: "F32", "F16" or "BF16".
func (f Format) String() string {
	switch f {
	case F32:
		return "F32"
	case F16:
		return "F16"
	case BF16:
		return "BF16"
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// Matrix is a weight [N out, K in], row-major in its stored type. Data holds
// N·K elements little-endian, may have any alignment and may be read-only
// memory; it is never written.
type Matrix struct {
	Format Format
	N, K   int
	Data   []byte
}

// MatrixF32 is the [n, k] matrix over v, which it shares.
func MatrixF32(n, k int, v []float32) *Matrix {
	if n < 0 || k < 0 || len(v) < n*k {
		panic("kernel.MatrixF32: slice too short")
	}
	return &Matrix{Format: F32, N: n, K: k, Data: float32Bytes(v[:n*k])}
}

// Row widens row i into dst, which has K elements: an embedding's lookup.
func (w *Matrix) Row(dst []float32, i int) {
	if i < 0 || i >= w.N || len(dst) < w.K {
		panic("kernel.Matrix.Row: row or destination out of range")
	}
	size := w.K * w.Format.Size()
	Convert(dst[:w.K], w.Data[i*size:(i+1)*size], w.Format)
}

// check panics unless Data holds N·K elements.
func (w *Matrix) check(caller string) {
	if w.N < 0 || w.K < 0 || len(w.Data)/w.Format.Size() < w.N*w.K {
		panic(fmt.Sprintf("kernel.%s: weight [%d %d] %v has %d bytes", caller, w.N, w.K, w.Format, len(w.Data)))
	}
}

func float32Bytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
