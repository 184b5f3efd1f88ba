package main

import (
	"fmt"
	"math"
)

// Products in spans. A span is 256 of K: x has one scale for each row and span, a weight one for
// each column and span, which the largest value of the span needs. Unpacking a weight multiplies
// each value by the ratio of its block's scale and the span's, in words: the upper byte of q·r +
// 128 is the result, rounded. Sums of a span are exact in int32; they are scaled and added to the
// accumulators in float32. Tiles of AMX (amxbytes.go) and vectors with VNNI, here, give the same
// bits.
//
// With VNNI a weight is unpacked to value + 128, a strip of 32 columns and a span at a time, as
// [64 groups of K][32 columns][4]. A row of x in a span is a record of 256 int8, the scale and
// -128 times the sum of the int8, which cancels the offset of the weights.
const (
	paramBytes = 256 // of a block: two halves of 16 ratios and 16 offsets
	spanAct    = 256 + 8
	spanScale  = 256
	spanOffset = 260
	spanRows   = 12 // at most, of a tile
	// spanLines are the lines of weights to prefetch in a block: three tiles of eight blocks fetch
	// a span of any format
	spanLines = 6
)

func spans(a *asm) {
	for _, u := range []byteUnpacker{bytes4(q4), bytes4(q4m), bytes8()} {
		spanScales(a, u)
		spanUnpack(a, u)
	}
	for rows := 1; rows <= spanRows; rows++ {
		spanTile(a, rows)
	}
	spanRow(a)
}

// A byteUnpacker turns the stored form of a strip into units of int8. Its values have offset added,
// or else a minimum.
type byteUnpacker struct {
	name   string
	size   int // of a block
	offset int
	min    bool
	lines  int    // prefetched in a step of AMX that does not unpack
	mask   uint32 // of the values in the lower half of every word
	// factor is a span's scale divided by its blocks' largest scale or, with a minimum, largest
	// value: whole values stay exact where the blocks' scales agree
	factor float64
	// part unpacks half i of block b at BX, for half h of the strip, to at(h, group) from R10 on
	part func(a *asm, b, i, h int, at func(h, group int) int)
}

// Registers of unpacking.
const (
	zRatio, zShift = 16, 18 // two each, for the halves of a strip
	zMask, zUpper  = 20, 21
)

// half unpacks half i of block b, with the parameters of the first block at R11.
func (u byteUnpacker) half(a *asm, b, i int, at func(h, group int) int) {
	for h := range 2 {
		if i == 0 {
			a.op("VMOVDQU32 %d(R11), Z%d", b*paramBytes+128*h, zRatio+h)
			a.op("VMOVDQU32 %d(R11), Z%d", b*paramBytes+128*h+64, zShift+h)
		}
		u.part(a, b, i, h, at)
	}
}

// joinBytes scales the values in the words of even (of bytes 0 and 2) and odd, for half h of a
// strip, and stores the upper bytes of the results at offset to from R10.
func joinBytes(a *asm, even, odd, h, to int) {
	for _, z := range []int{even, odd} {
		a.op("VPMULLW Z%d, Z%d, Z%d", zRatio+h, z, z)
		a.op("VPADDW Z%d, Z%d, Z%d", zShift+h, z, z)
	}
	a.op("VPSRLW $8, Z%d, Z%d", even, even)
	a.op("VPTERNLOGD $0xf8, Z%d, Z%d, Z%d", zUpper, odd, even) // even | odd&upper
	a.op("VMOVDQU32 Z%d, %d(R10)", even, to)
}

// bytes4 unpacks two of K from every byte.
func bytes4(q nibbles) byteUnpacker {
	u := byteUnpacker{name: "Q4", size: q.size, offset: 8, lines: 5, mask: 0x000f000f,
		factor: 1. / 15}
	if q.min {
		u.name, u.offset, u.min, u.factor = "Q4M", 0, true, 1./127
	}
	u.part = func(a *asm, b, i, h int, at func(h, group int) int) {
		for pair := 2 * i; pair < 2*i+2; pair++ {
			const x, even, odd, evenHigh, oddHigh = 8, 0, 1, 2, 3
			a.op("VMOVDQU32 %d(BX), Z%d", b*q.size+q.head+128*pair+64*h, x)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, x, even)
			a.op("VPSRLW $8, Z%d, Z%d", x, odd)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, odd, odd)
			a.op("VPSRLW $4, Z%d, Z%d", x, evenHigh)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, evenHigh, evenHigh)
			a.op("VPSRLW $12, Z%d, Z%d", x, oddHigh)
			joinBytes(a, even, odd, h, at(h, 2*pair))
			joinBytes(a, evenHigh, oddHigh, h, at(h, 2*pair+1))
		}
	}
	return u
}

// bytes8 unpacks Q8.
func bytes8() byteUnpacker {
	u := byteUnpacker{name: "Q8", size: q8Block, offset: 128, lines: 9, mask: 0x00ff00ff, factor: 1}
	u.part = func(a *asm, b, i, h int, at func(h, group int) int) {
		for group := 4 * i; group < 4*i+4; group++ {
			const x, even = 8, 0
			a.op("VMOVDQU32 %d(BX), Z%d", b*q8Block+64+128*group+64*h, x)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, x, even)
			a.op("VPSRLW $8, Z%d, Z%d", x, x)
			joinBytes(a, even, x, h, at(h, group))
		}
	}
	return u
}

// spanScales computes the scales of a span, and the parameters that unpack its blocks.
func spanScales(a *asm, u byteUnpacker) {
	a.fn("spanScales"+u.name, "sets scales to the 32 scales of up to 8 blocks of a strip at w, "+
		"and params to the ratios of each block's scales, 256 times, and their offsets, with "+
		"round added.",
		"params *byte, scales *float32, w *byte, blocks int, round int")
	const zAbs, zLeast, z256, zFactor, zRound, z15, zFloor = 20, 21, 22, 23, 24, 25, 26
	broadcast := func(bits uint32, z int) { a.constant(avx512, bits, z) }
	broadcast(0x7fffffff, zAbs)
	broadcast(math.Float32bits(1e-30), zLeast)
	broadcast(math.Float32bits(256), z256)
	broadcast(math.Float32bits(float32(u.factor)), zFactor)
	a.op("VPBROADCASTD round+%d(FP), Z%d", a.offset["round"], zRound)
	broadcast(math.Float32bits(15), z15)
	broadcast(0xffffffff-253, zFloor) // -254
	a.op("MOVL $0x55555555, AX")
	a.op("KMOVD AX, K1")
	a.load("w", "BX")
	a.load("params", "R10")
	a.load("scales", "R11")
	for h := range 2 {
		site := []string{"Low", "High"}[h]
		a.op("MOVQ BX, SI")
		a.load("blocks", "CX")
		a.op("VMOVDQA64 Z%d, Z0", zLeast)
		a.label("most" + site)
		a.op("VCVTPH2PS %d(SI), Z1", 32*h)
		if u.min {
			a.op("VCVTPH2PS %d(SI), Z2", 64+32*h)
			a.op("VFMADD213PS Z2, Z%d, Z1", z15) // the largest value
			a.op("VPANDD Z%d, Z2, Z2", zAbs)
			a.op("VPMAXUD Z2, Z0, Z0")
		}
		a.op("VPANDD Z%d, Z1, Z1", zAbs)
		a.op("VPMAXUD Z1, Z0, Z0") // of the bits: a NaN wins
		a.op("ADDQ $%d, SI", u.size)
		a.op("DECQ CX")
		a.op("JNE most%s", site)
		a.op("VMULPS Z%d, Z0, Z0", zFactor)
		a.op("VMOVUPS Z0, %d(R11)", 64*h)
		a.op("VDIVPS Z0, Z%d, Z0", z256)
		a.op("MOVQ BX, SI")
		a.op("MOVQ R10, DI")
		a.load("blocks", "CX")
		a.label("ratio" + site)
		a.op("VCVTPH2PS %d(SI), Z1", 32*h)
		a.op("VMULPS Z0, Z1, Z1")
		a.op("VCVTPS2DQ Z1, Z1")
		switch {
		case u.min:
			a.op("VCVTPH2PS %d(SI), Z2", 64+32*h)
			a.op("VMULPS Z0, Z2, Z2")
			a.op("VCVTPS2DQ Z2, Z2")
			a.op("VPADDD Z%d, Z2, Z2", zRound)
		default:
			if u.offset == 128 { // -128 times less would be out of range
				a.op("VPMAXSD Z%d, Z1, Z1", zFloor)
			}
			a.op("VPSLLD $%d, Z1, Z2", map[int]int{8: 3, 128: 7}[u.offset])
			a.op("VPSUBD Z2, Z%d, Z2", zRound)
		}
		for i, z := range []int{1, 2} { // into both words
			a.op("VPSLLD $16, Z%d, Z3", z)
			a.op("VMOVDQU16 Z%d, K1, Z3", z)
			a.op("VMOVDQU32 Z3, %d(DI)", 128*h+64*i)
		}
		a.op("ADDQ $%d, SI", u.size)
		a.op("ADDQ $%d, DI", paramBytes)
		a.op("DECQ CX")
		a.op("JNE ratio%s", site)
	}
	a.ret()
}

// spanUnpack unpacks blocks of a strip.
func spanUnpack(a *asm, u byteUnpacker) {
	a.fn("spanUnpack"+u.name, "unpacks blocks of a strip at w to bytes, with the parameters that "+
		"spanScales"+u.name+" computed.", "to *byte, w *byte, params *byte, blocks int")
	a.constant(avx512, u.mask, zMask)
	a.constant(avx512, 0xff00ff00, zUpper)
	a.load("to", "R10")
	a.load("w", "BX")
	a.load("params", "R11")
	a.load("blocks", "CX")
	a.label("loop")
	for i := range 2 {
		u.half(a, 0, i, func(h, group int) int { return 128*group + 64*h })
	}
	a.op("ADDQ $%d, BX", u.size)
	a.op("ADDQ $%d, R11", paramBytes)
	a.op("ADDQ $1024, R10")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// spanTile multiplies tiles of the same number of rows with an unpacked span of a strip. Integer
// accumulators of 12 rows and 32 columns take 24 registers.
func spanTile(a *asm, rows int) {
	const zWeight, zX, spare = 24, 26, 6
	a.fn(fmt.Sprintf("spanTile%d", rows), fmt.Sprintf("is a spanTile of %d rows.", rows),
		"c *float32, x *byte, w *byte, scales *float32, blocks int, tiles int, first int, "+
			"next uintptr, end uintptr, dst *float32, ldd int, bias *float32")
	a.load("first", "AX")
	a.op("DECQ AX")
	a.op("KMOVW AX, K2") // no lanes of accumulators that do not exist yet
	a.load("dst", "AX")
	a.op("SHLQ $2, ldd+%d(FP)", a.offset["ldd"])
	a.load("c", "DI")
	a.load("x", "R8")
	a.load("scales", "R9")
	a.load("tiles", "DX")
	a.load("next", "R11")
	a.load("end", "R12")
	acc := func(r, j int) int { return 2*r + j }
	a.label("tile")
	a.load("w", "BX")
	a.load("blocks", "CX")
	a.op("MOVQ R8, SI")
	a.op("MOVQ DI, R13")
	a.op("LEAQ %d(R8), R10", spanAct*rows)
	for r := range rows {
		a.op("VPBROADCASTD %d(R8), Z%d", spanAct*r+spanOffset, acc(r, 0))
		a.op("VMOVDQA64 Z%d, Z%d", acc(r, 0), acc(r, 1))
	}
	a.label("block")
	a.op("CMPQ R11, R12")
	a.op("JCC fetched")
	prefetchLines(a, "R11", spanLines)
	a.op("ADDQ $%d, R11", 64*spanLines)
	a.label("fetched")
	for line := range 3 { // the accumulators, which follow one another
		a.op("PREFETCHT0 %d(R13)", 64*line)
	}
	a.op("ADDQ $192, R13")
	lines := (spanAct*rows + 511) / 512
	for line := range lines { // x of the next tile
		a.op("PREFETCHT0 %d(R10)", 64*line)
	}
	a.op("ADDQ $%d, R10", 64*lines)
	a.op("TESTQ AX, AX")
	a.op("JNE soon")
	a.label("ready")
	for g := range 8 {
		for j := range 2 {
			a.op("VMOVDQU32 %d(BX), Z%d", 128*g+64*j, zWeight+j)
		}
		for r := range rows {
			x := zX + r%spare
			a.op("VPBROADCASTD %d(SI), Z%d", spanAct*r+4*g, x)
			for j := range 2 {
				a.op("VPDPBUSD Z%d, Z%d, Z%d", x, zWeight+j, acc(r, j))
			}
		}
	}
	a.op("ADDQ $32, SI")
	a.op("ADDQ $1024, BX")
	a.op("DECQ CX")
	a.op("JNE block")
	for j := range 2 {
		a.op("VMOVUPS %d(R9), Z%d", 64*j, zWeight+j)
	}
	scaled := func(r, j int) int {
		sum, old := acc(r, j), zX+(2*r+j)%(spare-2)
		a.op("VCVTDQ2PS Z%d, Z%d", sum, sum)
		a.op("VMULPS Z%d, Z%d, Z%d", zWeight+j, sum, sum)
		a.op("VMOVUPS.Z %d(DI), K2, Z%d", 128*r+64*j, old)
		a.op("VFMADD231PS.BCST %d(R8), Z%d, Z%d", spanAct*r+spanScale, sum, old)
		return old
	}
	a.op("TESTQ AX, AX")
	a.op("JNE last")
	for r := range rows {
		for j := range 2 {
			a.op("VMOVUPS Z%d, %d(DI)", scaled(r, j), 128*r+64*j)
		}
	}
	a.label("next")
	a.op("ADDQ $%d, R8", spanAct*rows)
	a.op("ADDQ $%d, DI", 128*rows)
	a.op("DECQ DX")
	a.op("JNE tile")
	a.ret()
	a.label("soon") // two rows of dst
	for range 2 {
		a.bytes([]byte{0x0f, 0x0d, 0x08}, "PREFETCHW (AX)")
		a.bytes([]byte{0x0f, 0x0d, 0x48, 0x40}, "PREFETCHW 64(AX)")
		a.op("ADDQ ldd+%d(FP), AX", a.offset["ldd"])
	}
	a.op("JMP ready")
	a.label("last")
	a.load("bias", "AX")
	a.load("dst", "SI")
	a.load("ldd", "BX")
	for j := range 2 {
		a.op("VMOVUPS %d(AX), Z%d", 64*j, zX+spare-2+j)
	}
	for r := range rows {
		for j := range 2 {
			sum := scaled(r, j)
			a.op("VADDPS Z%d, Z%d, Z%d", zX+spare-2+j, sum, sum)
			a.op("VMOVUPS Z%d, %d(SI)", sum, 64*j)
		}
		a.op("ADDQ BX, SI")
	}
	a.op("MOVQ SI, dst+%d(FP)", a.offset["dst"])
	a.op("MOVQ SI, AX")
	a.op("JMP next")
}

// spanRow rounds a span of one row of x.
func spanRow(a *asm) {
	a.fn("spanRow", "rounds 64·steps elements to a record of int8 with the scale max|x|/127 and "+
		"-128 times their sum. A scale is at least 1e-30/127, and not finite if an element is not.",
		"dst *byte, x *float32, steps int")
	a.load("dst", "DI")
	spanMost(a)
	a.op("VMOVSS X0, %d(DI)", spanScale)
	a.op("MOVQ DI, R8")
	a.op("VPXORD Z6, Z6, Z6")
	spanBytes(a, 64, func(z int) { a.op("VPADDD Z%d, Z6, Z6", z) })
	a.op("VEXTRACTI64X4 $1, Z6, Y7")
	a.op("VPADDD Y7, Y6, Y6")
	a.fold("VEXTRACTI128", "VPADDD", 6, 7)
	a.op("VMOVD X6, AX")
	a.op("IMULL $-128, AX")
	a.op("MOVL AX, %d(R8)", spanOffset)
	a.ret()
}

// spanMost leaves a span's scale max|x|/127 in X0 and 127/max|x| in every lane of Z2, SI at x and
// CX its steps of 64.
func spanMost(a *asm) {
	a.load("x", "SI")
	a.load("steps", "CX")
	a.constant(avx512, 0x7fffffff, 20)
	a.constant(avx512, math.Float32bits(1e-30), 0)
	a.label("most")
	for i := range 4 {
		a.op("VPANDD %d(SI), Z20, Z%d", 64*i, 1+i)
		a.op("VPMAXUD Z%d, Z0, Z0", 1+i)
	}
	a.op("ADDQ $256, SI")
	a.op("DECQ CX")
	a.op("JNE most")
	a.op("VEXTRACTI64X4 $1, Z0, Y1")
	a.op("VPMAXUD Y1, Y0, Y0")
	a.fold("VEXTRACTI128", "VPMAXUD", 0, 1)
	a.op("MOVL $0x%08x, AX", math.Float32bits(127))
	a.op("VMOVD AX, X1")
	a.op("VDIVSS X0, X1, X2") // 127/max
	a.op("VDIVSS X1, X0, X0") // max/127
	a.op("VBROADCASTSS X2, Z2")
	a.load("x", "SI")
	a.load("steps", "CX")
}

// spanBytes rounds steps of 64 elements after spanMost; the bytes of each go step bytes further.
// each is called for a register with 16 rounded elements.
func spanBytes(a *asm, step int, each func(z int)) {
	a.label("round")
	for i := range 4 {
		z := 7 + i
		a.op("VMULPS %d(SI), Z2, Z%d", 64*i, z)
		a.op("VCVTPS2DQ Z%d, Z%d", z, z)
		a.op("VPMOVDB Z%d, %d(DI)", z, 16*i)
		each(z)
	}
	a.op("ADDQ $256, SI")
	a.op("ADDQ $%d, DI", step)
	a.op("DECQ CX")
	a.op("JNE round")
}
