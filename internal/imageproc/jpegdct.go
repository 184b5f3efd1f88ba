package imageproc

// The inverse DCT is the integer one of libjpeg's default: the factorisation of Loeffler,
// Ligtenberg and Moschytz (ICASSP 1989), constants of 13 bits, columns first, whose results keep
// two bits. An output is an exact sum that is rounded once, so only each coefficient's factor
// counts: √2·cos(kπ/16) in 13 bits, or one unit more or less, where several rounded constants make
// the factor.
const (
	dctBits  = 13
	keptBits = 2 // of a column's results
)

// inverse sets the outputs 0 to 7 of eight coefficients, without rounding.
func inverse(x0, x1, x2, x3, x4, x5, x6, x7 int32) (y0, y1, y2, y3, y4, y5, y6, y7 int32) {
	a, b := (x0+x4)<<dctBits, (x0-x4)<<dctBits
	c, d := 10703*x2+4433*x6, 4433*x2-10704*x6
	e0, e1, e2, e3 := a+c, b+d, b-d, a-c
	o0 := 11363*x1 + 9633*x3 + 6437*x5 + 2260*x7
	o1 := 9633*x1 - 2259*x3 - 11362*x5 - 6436*x7
	o2 := 6437*x1 - 11362*x3 + 2261*x5 + 9633*x7
	o3 := 2260*x1 - 6436*x3 + 9633*x5 - 11363*x7
	return e0 + o0, e1 + o1, e2 + o2, e3 + o3, e3 - o3, e2 - o2, e1 - o1, e0 - o0
}

// inverseDCT writes the 8×8 samples of a block to dst, whose rows are stride apart. Coefficients b
// and their quantisation steps q are in rows.
func inverseDCT(dst []byte, stride int, b *[64]int16, q *[64]uint16) {
	const (
		halfColumn = 1 << (dctBits - keptBits - 1)
		toRow      = dctBits + keptBits + 3
		halfRow    = 128<<toRow + 1<<(toRow-1) // with the 128 that samples are shifted by
	)
	var w [64]int32
	for i := range 8 {
		x0 := int32(b[i]) * int32(q[i])
		if b[8+i]|b[16+i]|b[24+i]|b[32+i]|b[40+i]|b[48+i]|b[56+i] == 0 {
			for j := i; j < 64; j += 8 {
				w[j] = x0 << keptBits
			}
			continue
		}
		y0, y1, y2, y3, y4, y5, y6, y7 := inverse(x0, int32(b[8+i])*int32(q[8+i]),
			int32(b[16+i])*int32(q[16+i]), int32(b[24+i])*int32(q[24+i]),
			int32(b[32+i])*int32(q[32+i]), int32(b[40+i])*int32(q[40+i]),
			int32(b[48+i])*int32(q[48+i]), int32(b[56+i])*int32(q[56+i]))
		w[i] = (y0 + halfColumn) >> (dctBits - keptBits)
		w[8+i] = (y1 + halfColumn) >> (dctBits - keptBits)
		w[16+i] = (y2 + halfColumn) >> (dctBits - keptBits)
		w[24+i] = (y3 + halfColumn) >> (dctBits - keptBits)
		w[32+i] = (y4 + halfColumn) >> (dctBits - keptBits)
		w[40+i] = (y5 + halfColumn) >> (dctBits - keptBits)
		w[48+i] = (y6 + halfColumn) >> (dctBits - keptBits)
		w[56+i] = (y7 + halfColumn) >> (dctBits - keptBits)
	}
	for i := range 8 {
		r, d := w[8*i:8*i+8:8*i+8], dst[i*stride:i*stride+8:i*stride+8]
		y0, y1, y2, y3, y4, y5, y6, y7 := inverse(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
		d[0], d[1] = clampByte((y0+halfRow)>>toRow), clampByte((y1+halfRow)>>toRow)
		d[2], d[3] = clampByte((y2+halfRow)>>toRow), clampByte((y3+halfRow)>>toRow)
		d[4], d[5] = clampByte((y4+halfRow)>>toRow), clampByte((y5+halfRow)>>toRow)
		d[6], d[7] = clampByte((y6+halfRow)>>toRow), clampByte((y7+halfRow)>>toRow)
	}
}
