package kernel

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Blocks reads one row of a weight that is already quantised, in blocks of 32: each block's scale,
// in Q4M also its minimum, and the stored values. These are value + 128 in Q8, value + 8 in Q4, 0
// to 15 in Q4M (w = scale·q + minimum), and table indices in IQ4. minima is nil except in Q4M. Q4M
// can hold Q4_1, Q4_K (scale d·s, minimum −dmin·m of each 32) and AWQ or GPTQ (minimum
// −zero·scale), up to the rounding of both to binary16. IQ4 can hold IQ4_NL and IQ4_XS, the latter
// without its scale of scales.
type Blocks func(scales, minima []float32, q []uint8, row int) error

// PackBlocks writes blocks to dst, which is Q8, Q4, Q4M or IQ4, unchanged except that scales and
// minima are rounded to binary16. K must be a multiple of 32, and dst.Data must have at least
// dst.Bytes() bytes. Several threads call read at once. A scale or minimum that is not finite in
// binary16, or a value above 15 in 4 bits, is an error that names its row and block.
func PackBlocks(p *Pool, dst *Matrix, read Blocks) error {
	dst.check("PackBlocks")
	f := dst.Format
	if !f.blocks() || dst.K%quantBlock != 0 {
		return fmt.Errorf(
			"kernel: pack blocks: [%d %d] %v, want Q8, Q4, Q4M or IQ4 and rows of a multiple of %d",
			dst.N, dst.K, f, quantBlock)
	}
	blocks := quantBlocks(dst.K)
	size := quantBlockSize(f)
	var failed atomic.Pointer[error]
	fail := func(err error) { failed.CompareAndSwap(nil, &err) }
	p.Run((dst.N+quantPanel-1)/quantPanel, func(panel int) {
		to := dst.Data[panel*blocks*size : (panel+1)*blocks*size]
		scales, q := make([]float32, blocks), make([]uint8, blocks*quantBlock)
		var minima []float32
		if f == Q4M {
			minima = make([]float32, blocks)
		}
		for r := range quantPanel {
			o := panel*quantPanel + r
			if o < dst.N {
				if err := read(scales, minima, q, o); err != nil {
					fail(err)
					return
				}
			} else {
				clear(scales)
				clear(minima)
				clear(q)
			}
			for b, s := range scales {
				d, m := toHalf(s), uint16(0)
				if f == Q4M {
					m = toHalf(minima[b])
				}
				values, problem := q[b*quantBlock:(b+1)*quantBlock], ""
				switch {
				case d&0x7c00 == 0x7c00:
					problem = fmt.Sprintf("the scale %v is not finite in binary16", s)
				case m&0x7c00 == 0x7c00:
					problem = fmt.Sprintf("the minimum %v is not finite in binary16", minima[b])
				case f != Q8 && slices.Max(values) > 15:
					problem = fmt.Sprintf("the value %d has more than 4 bits", slices.Max(values))
				}
				if problem != "" {
					fail(fmt.Errorf("kernel: pack blocks: row %d, columns %d to %d: %s",
						o, b*quantBlock, b*quantBlock+quantBlock-1, problem))
					return
				}
				putQuantBlock(to[b*size:], f, r, d, m, values)
			}
		}
	})
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
