package gguf

import (
	"encoding/binary"

	"github.com/restore-vlm/restore/internal/kernel"
)

// The values of every type equal the results of ggml's code bit for bit: products and sums are
// rounded one by one, in its order. Source: ggml's ggml-quants.c, dequantize_row_*; checked against
// the files of the tests.

func half(b []byte) float32 { return kernel.Half(binary.LittleEndian.Uint16(b)) }

// eachBlock calls f for every block of size bytes and its n values.
func eachBlock(dst []float32, blocks []byte, n, size int, f func(y []float32, b []byte)) {
	for len(dst) > 0 {
		f(dst[:n:n], blocks[:size:size])
		dst, blocks = dst[n:], blocks[size:]
	}
}

// readQ40: y = d·(q − 8).
func readQ40(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 32, 18, func(y []float32, b []byte) {
		d := half(b)
		for i, q := range b[2:] {
			y[i] = float32(int(q&15)-8) * d
			y[i+16] = float32(int(q>>4)-8) * d
		}
	})
}

// readQ41: y = d·q + m.
func readQ41(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 32, 20, func(y []float32, b []byte) {
		d, m := half(b), half(b[2:])
		for i, q := range b[4:] {
			y[i] = float32(float32(q&15)*d) + m
			y[i+16] = float32(float32(q>>4)*d) + m
		}
	})
}

// readQ50: y = d·(q − 16), the fifth bits in a word of their own.
func readQ50(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 32, 22, func(y []float32, b []byte) {
		d, high := half(b), binary.LittleEndian.Uint32(b[2:])
		for i, q := range b[6:] {
			y[i] = float32(int(q&15)|int(high>>i<<4&16)-16) * d
			y[i+16] = float32(int(q>>4)|int(high>>(i+12)&16)-16) * d
		}
	})
}

// readQ51: y = d·q + m.
func readQ51(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 32, 24, func(y []float32, b []byte) {
		d, m, high := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:])
		for i, q := range b[8:] {
			y[i] = float32(float32(uint32(q&15)|high>>i<<4&16)*d) + m
			y[i+16] = float32(float32(uint32(q>>4)|high>>(i+12)&16)*d) + m
		}
	})
}

// readQ80: y = d·q.
func readQ80(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 32, 34, func(y []float32, b []byte) {
		d := half(b)
		for i, q := range b[2:] {
			y[i] = float32(int8(q)) * d
		}
	})
}

// readQ2K: sixteen sub-blocks of 16 with a 4-bit scale and a 4-bit minimum,
// y = (d·scale)·q − dmin·minimum.
func readQ2K(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 256, 84, func(y []float32, b []byte) {
		scales, qs, d, dmin := b[:16], b[16:80], half(b[80:]), half(b[82:])
		for s, scale := range scales {
			shift := s / 2 % 4 * 2
			q := qs[s/8*32+s%2*16:][:16]
			dl, ml := d*float32(scale&15), dmin*float32(scale>>4)
			for i := range q {
				y[16*s+i] = float32(dl*float32(q[i]>>shift&3)) - ml
			}
		}
	})
}

// readQ3K: sixteen sub-blocks of 16 with a 6-bit scale, y = d·(scale − 32)·(q − 4),
// the third bits in a mask.
func readQ3K(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 256, 110, func(y []float32, b []byte) {
		mask, qs, packed, d := b[:32], b[32:96], b[96:108], half(b[108:])
		for s := range 16 {
			low, high := packed[s%8], packed[8+s%4]>>(s/4*2)&3
			if s >= 8 {
				low >>= 4
			}
			dl := d * float32(int(low&15|high<<4)-32)
			shift, from := s/2%4*2, s%2*16
			for i := range 16 {
				q := int(qs[s/8*32+from+i] >> shift & 3)
				if mask[from+i]>>(s/2)&1 == 0 {
					q -= 4
				}
				y[16*s+i] = dl * float32(q)
			}
		}
	})
}

// scaleMin returns the 6-bit scale and minimum of sub-block s of eight.
func scaleMin(packed []byte, s int) (scale, least byte) {
	if s < 4 {
		return packed[s] & 63, packed[s+4] & 63
	}
	return packed[s+4]&15 | packed[s-4]>>6<<4, packed[s+4]>>4 | packed[s]>>6<<4
}

// readQ4K: eight sub-blocks of 32 with a 6-bit scale and a 6-bit minimum,
// y = (d·scale)·q − dmin·minimum.
func readQ4K(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 256, 144, func(y []float32, b []byte) {
		d, dmin, packed, qs := half(b), half(b[2:]), b[4:16], b[16:]
		for s := range 8 {
			scale, least := scaleMin(packed, s)
			dl, ml := d*float32(scale), dmin*float32(least)
			for i, q := range qs[s/2*32:][:32] {
				y[32*s+i] = float32(dl*float32(q>>(s%2*4)&15)) - ml
			}
		}
	})
}

// readQ5K is readQ4K with the fifth bits in a mask.
func readQ5K(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 256, 176, func(y []float32, b []byte) {
		d, dmin, packed, mask, qs := half(b), half(b[2:]), b[4:16], b[16:48], b[48:]
		for s := range 8 {
			scale, least := scaleMin(packed, s)
			dl, ml := d*float32(scale), dmin*float32(least)
			for i, q := range qs[s/2*32:][:32] {
				y[32*s+i] = float32(dl*float32(q>>(s%2*4)&15|mask[i]>>s&1<<4)) - ml
			}
		}
	})
}

// readQ6K: sixteen sub-blocks of 16 with an 8-bit scale, y = (d·scale)·(q − 32), the
// upper two bits in bytes of their own.
func readQ6K(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 256, 210, func(y []float32, b []byte) {
		low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
		for n := range 2 {
			y, low, high := y[128*n:][:128], low[64*n:][:64], high[32*n:][:32]
			var dl [8]float32
			for s := range dl {
				dl[s] = d * float32(int8(scales[8*n+s]))
			}
			for i, h := range high {
				s := i / 16
				y[i] = dl[s] * float32(int(low[i]&15|h&3<<4)-32)
				y[i+32] = dl[s+2] * float32(int(low[i+32]&15|h>>2&3<<4)-32)
				y[i+64] = dl[s+4] * float32(int(low[i]>>4|h>>4&3<<4)-32)
				y[i+96] = dl[s+6] * float32(int(low[i+32]>>4|h>>6<<4)-32)
			}
		}
	})
}

// iq4 are the values of the 4-bit indices of IQ4_NL and IQ4_XS.
var iq4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// readIQ4NL: y = d·iq4[q].
func readIQ4NL(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 32, 18, func(y []float32, b []byte) {
		d := half(b)
		for i, q := range b[2:] {
			y[i] = d * iq4[q&15]
			y[i+16] = d * iq4[q>>4]
		}
	})
}

// scaleIQ4XS returns the scale of sub-block s of eight.
func scaleIQ4XS(b []byte, s int) float32 {
	high, low := binary.LittleEndian.Uint16(b[2:]), b[4:8]
	scale := int(low[s/2]>>(s%2*4)&15) | int(high>>(2*s)&3)<<4
	return half(b) * float32(scale-32)
}

// readIQ4XS: eight sub-blocks of 32 with a 6-bit scale, y = d·(scale − 32)·iq4[q].
func readIQ4XS(dst []float32, blocks []byte) {
	eachBlock(dst, blocks, 256, 136, func(y []float32, b []byte) {
		for s := range 8 {
			dl := scaleIQ4XS(b, s)
			for i, q := range b[8+16*s:][:16] {
				y[32*s+i] = dl * iq4[q&15]
				y[32*s+i+16] = dl * iq4[q>>4]
			}
		}
	})
}
