package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
)

// Layout names the data layout of Q8, Q4, Q4M and BF16Dot. Data with another name must not be
// passed to this package.
func Layout() string { return "panels of 32 and pairs of 64" }

// WorkBytes returns the scratch memory of a product of m rows of a prompt with a weight of k
// columns in format f, for all threads. It is kept for the next product.
func WorkBytes(f Format, m, k int) int64 {
	on := computing()
	if on.tiled(f) { // plus two huge pages per thread
		if f == BF16Dot {
			return 2 * int64(m+31) * int64(k+31)
		}
		return int64(m+31) * int64(k+127)
	}
	switch f {
	case Q8, Q4, Q4M, IQ4:
		if on.spans(f) {
			return int64(m) * int64((k+spanDepth-1)/spanDepth) * int64(on.spanAct(f))
		}
		return int64(m) * int64(quantBlocks(k)) * actBlock
	case BF16Dot:
		return 4 * int64(m) * int64(pairsDepth(k)) // 2 if the processor has the instruction
	case Q12:
		return int64(m) * int64(wordsBlocks(k)) * wordActs
	}
	return 4 * int64(m) * int64(k)
}

// Encode converts w, in F32, F16 or BF16, to dst's format: Q8, Q4, Q4M, BF16Dot and Q12 as
// [Quantize] does, F16 and BF16 rounded to nearest, ties to even, F32 widened. Both must have the
// same shape, and dst.Data at least dst.Bytes() bytes, zero where the format pads. Rows of a weight
// may be encoded in parts that begin at multiples of 64. A value that is not finite, or out of
// range of dst's format, is an error that names its row and column or block.
func Encode(p *Pool, dst, w *Matrix) error {
	w.check("Encode")
	dst.check("Encode")
	if w.Format.packed() || dst.Format == IQ4 || dst.N != w.N || dst.K != w.K {
		return fmt.Errorf("kernel: encode: [%d %d] %v to [%d %d] %v, want one shape and "+
			"F32, F16 or BF16 to another format",
			w.N, w.K, w.Format, dst.N, dst.K, dst.Format)
	}
	var failed atomic.Pointer[error]
	switch dst.Format {
	case Q8, Q4, Q4M:
		quantizeInto(p, dst, w, &failed)
	case BF16Dot:
		pairInto(p, dst, w, &failed)
	case Q12:
		wordsInto(p, dst, w, &failed)
	default:
		roundInto(p, dst, w, &failed)
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// roundInto rounds w to a floating-point format.
func roundInto(p *Pool, dst, w *Matrix, failed *atomic.Pointer[error]) {
	size := dst.K * dst.Format.Size()
	p.Run((w.N+goPanel-1)/goPanel, func(task int) {
		row := make([]float32, w.K)
		for o := task * goPanel; o < min(w.N, (task+1)*goPanel); o++ {
			w.Row(row, o)
			if at := roundRow(dst.Data[o*size:(o+1)*size], row, dst.Format); at >= 0 {
				err := fmt.Errorf("kernel: encode: row %d, column %d: %v is not finite in %v", o,
					at, row[at], dst.Format)
				failed.CompareAndSwap(nil, &err)
				return
			}
		}
	})
}

// roundRow stores v in format f and returns the index of the first value that is not finite in f,
// or -1.
func roundRow(dst []byte, v []float32, f Format) int {
	switch f {
	case F32:
		for i, x := range v {
			b := math.Float32bits(x)
			if b&0x7f800000 == 0x7f800000 {
				return i
			}
			binary.LittleEndian.PutUint32(dst[4*i:], b)
		}
	case F16:
		for i, x := range v {
			h := toHalf(x)
			if h&0x7c00 == 0x7c00 {
				return i
			}
			binary.LittleEndian.PutUint16(dst[2*i:], h)
		}
	case BF16:
		for i, x := range v {
			b := math.Float32bits(x)
			h := b + 0x7fff + b>>16&1
			if b&0x7f800000 == 0x7f800000 || h&0x7f800000 == 0x7f800000 {
				return i
			}
			binary.LittleEndian.PutUint16(dst[2*i:], uint16(h>>16))
		}
	}
	return -1
}
