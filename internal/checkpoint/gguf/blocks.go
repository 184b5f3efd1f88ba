package gguf

import "encoding/binary"

// Blocks that fit the kernels' blocks of 32 unchanged, except that scales and minima are rounded to
// binary16, which most already are: y = d·(q − 8) in Q4, y = d·(q − 128) in Q8, y = d·q + m in Q4M,
// y = d·table[q] in IQ4.

func blocksQ40(scales, _ []float32, q []uint8, b []byte) {
	scales[0] = half(b)
	for i, x := range b[2:] {
		q[i], q[i+16] = x&15, x>>4
	}
}

func blocksQ41(scales, minima []float32, q []uint8, b []byte) {
	scales[0], minima[0] = half(b), half(b[2:])
	for i, x := range b[4:] {
		q[i], q[i+16] = x&15, x>>4
	}
}

// blocksQ50 keeps the values −16 to 15.
func blocksQ50(scales, _ []float32, q []uint8, b []byte) {
	scales[0] = half(b)
	high := binary.LittleEndian.Uint32(b[2:])
	for i, x := range b[6:] {
		q[i] = 128 - 16 + (x&15 | uint8(high>>i<<4&16))
		q[i+16] = 128 - 16 + (x>>4 | uint8(high>>(i+12)&16))
	}
}

func blocksQ80(scales, _ []float32, q []uint8, b []byte) {
	scales[0] = half(b)
	for i, x := range b[2:] {
		q[i] = x ^ 128
	}
}

// blocksQ4K rounds the products of scales, which have up to 17 bits.
func blocksQ4K(scales, minima []float32, q []uint8, b []byte) {
	d, dmin, packed, qs := half(b), half(b[2:]), b[4:16], b[16:]
	for s := range 8 {
		scale, least := scaleMin(packed, s)
		scales[s], minima[s] = d*float32(scale), -dmin*float32(least)
	}
	for pair := range 4 {
		low, high := q[64*pair:][:32], q[64*pair+32:][:32]
		for i, x := range qs[32*pair:][:32] {
			low[i], high[i] = x&15, x>>4
		}
	}
}

func blocksIQ4NL(scales, _ []float32, q []uint8, b []byte) {
	scales[0] = half(b)
	for i, x := range b[2:] {
		q[i], q[i+16] = x&15, x>>4
	}
}

// blocksIQ4XS is blocksIQ4NL with a scale for each 32, whose product is rounded.
func blocksIQ4XS(scales, _ []float32, q []uint8, b []byte) {
	for s := range scales {
		scales[s] = scaleIQ4XS(b, s)
		for i, x := range b[8+16*s:][:16] {
			q[32*s+i], q[32*s+i+16] = x&15, x>>4
		}
	}
}
