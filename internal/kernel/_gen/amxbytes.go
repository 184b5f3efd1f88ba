package main

import "math"

// The AMX kernels of 8 bits. A span is 256 of K: x has one scale for each row and span, a weight
// one for each column and span, which the largest value of the span needs. Unpacking a weight
// multiplies each value by the ratio of its block's scale and the span's, in words: the upper byte
// of q·r + 128 is the result, rounded. Sums of a span are exact in int32; they are scaled and added
// to the accumulators in float32 while the next pair of tiles is multiplied.
const (
	spanUnits   = 4
	paramBytes  = 256 // of a block: two halves of 16 ratios and 16 offsets
	chunkRows   = 16
	scratchSize = 4 * tileBytes
)

// A byteUnpacker turns the stored form of a strip into units of int8. Its values have offset added,
// or else a minimum.
type byteUnpacker struct {
	name   string
	size   int // of a block
	offset int
	min    bool
	lines  int    // prefetched in a step that does not unpack
	mask   uint32 // of the values in the lower half of every word
	// factor is a span's scale divided by its blocks' largest scale or, with a minimum, largest
	// value: whole values stay exact where the blocks' scales agree
	factor float64
	// part unpacks half i of block b of a unit, for half h of the strip
	part func(a *asm, b, i, h int)
}

// Registers of the AMX kernels of 8 bits.
const (
	zRatio, zShift = 16, 18 // two each, for the halves of a strip
	zMask, zUpper  = 20, 21
)

// quarter unpacks half a block of a unit, with the parameters at R11.
func (u byteUnpacker) quarter(a *asm, i int) {
	b := i / 2
	for h := range 2 {
		if i%2 == 0 {
			a.op("VMOVDQU32 %d(R11), Z%d", b*paramBytes+128*h, zRatio+h)
			a.op("VMOVDQU32 %d(R11), Z%d", b*paramBytes+128*h+64, zShift+h)
		}
		u.part(a, b, i%2, h)
	}
}

// joinBytes scales the values in the words of even (of bytes 0 and 2) and odd, and stores the upper
// bytes of the results in a row of the unit.
func joinBytes(a *asm, even, odd, h, row int) {
	for _, z := range []int{even, odd} {
		a.op("VPMULLW Z%d, Z%d, Z%d", zRatio+h, z, z)
		a.op("VPADDW Z%d, Z%d, Z%d", zShift+h, z, z)
	}
	a.op("VPSRLW $8, Z%d, Z%d", even, even)
	a.op("VPTERNLOGD $0xf8, Z%d, Z%d, Z%d", zUpper, odd, even) // even | odd&upper
	a.op("VMOVDQU32 Z%d, %d(R10)", even, tileBytes*h+64*row)
}

// bytes4 unpacks two of K from every byte.
func bytes4(q nibbles) byteUnpacker {
	u := byteUnpacker{name: "Q4", size: q.size, offset: 8, lines: 5, mask: 0x000f000f,
		factor: 1. / 15}
	if q.min {
		u.name, u.offset, u.min, u.factor = "Q4M", 0, true, 1./127
	}
	u.part = func(a *asm, b, i, h int) {
		for pair := 2 * i; pair < 2*i+2; pair++ {
			const x, even, odd, evenHigh, oddHigh = 8, 0, 1, 2, 3
			a.op("VMOVDQU32 %d(BX), Z%d", b*q.size+q.head+128*pair+64*h, x)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, x, even)
			a.op("VPSRLW $8, Z%d, Z%d", x, odd)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, odd, odd)
			a.op("VPSRLW $4, Z%d, Z%d", x, evenHigh)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, evenHigh, evenHigh)
			a.op("VPSRLW $12, Z%d, Z%d", x, oddHigh)
			joinBytes(a, even, odd, h, 8*b+2*pair)
			joinBytes(a, evenHigh, oddHigh, h, 8*b+2*pair+1)
		}
	}
	return u
}

// bytes8 unpacks Q8.
func bytes8() byteUnpacker {
	u := byteUnpacker{name: "Q8", size: q8Block, offset: 128, lines: 9, mask: 0x00ff00ff, factor: 1}
	u.part = func(a *asm, b, i, h int) {
		for group := 4 * i; group < 4*i+4; group++ {
			const x, even = 8, 0
			a.op("VMOVDQU32 %d(BX), Z%d", b*q8Block+64+128*group+64*h, x)
			a.op("VPANDD Z%d, Z%d, Z%d", zMask, x, even)
			a.op("VPSRLW $8, Z%d, Z%d", x, x)
			joinBytes(a, even, x, h, 8*b+group)
		}
	}
	return u
}

// amxScales computes the scales of a span, and the parameters that unpack its blocks.
func amxScales(a *asm, u byteUnpacker) {
	a.fn("amxScales"+u.name, "sets scales to the 32 scales of up to 8 blocks of a strip at w, and "+
		"params to the ratios of each block's scales, 256 times, and their offsets.",
		"params *byte, scales *float32, w *byte, blocks int")
	const zAbs, zLeast, z256, zFactor, z128, z15, zFloor = 20, 21, 22, 23, 24, 25, 26
	broadcast := func(bits uint32, z int) { a.constant(avx512, bits, z) }
	broadcast(0x7fffffff, zAbs)
	broadcast(math.Float32bits(1e-30), zLeast)
	broadcast(math.Float32bits(256), z256)
	broadcast(math.Float32bits(float32(u.factor)), zFactor)
	broadcast(128, z128)
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
			a.op("VPADDD Z%d, Z2, Z2", z128)
		default:
			if u.offset == 128 { // -128 times less would be out of range
				a.op("VPMAXSD Z%d, Z1, Z1", zFloor)
			}
			a.op("VPSLLD $%d, Z1, Z2", map[int]int{8: 3, 128: 7}[u.offset])
			a.op("VPSUBD Z2, Z%d, Z2", z128)
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

// amxBytes is the product of pairs of tiles of rows of x with part of a strip.
func amxBytes(a *asm, u byteUnpacker) {
	a.fn("amxBytes"+u.name, "is an amxSpans of weights in "+u.name+".",
		"config *byte, x *byte, stride int, units *byte, c *float32, sums *float32, w *byte, "+
			"params *byte, scales *float32, rows *float32, nextRows int, pairs int, steps int, "+
			"first int, next uintptr, end uintptr, soon int, at *byte, span int")
	a.load("config", "AX")
	a.tileConfig("AX")
	a.load("first", "AX")
	a.op("DECQ AX")
	a.op("KMOVW AX, K2") // no lanes of accumulators that do not exist yet
	a.constant(avx512, u.mask, zMask)
	a.constant(avx512, 0xff00ff00, zUpper)
	a.op("MOVQ $64, R8")
	a.load("w", "BX")
	a.load("params", "R11")
	a.label("block")
	a.load("steps", "CX")
	a.op("CMPQ CX, $%d", spanUnits)
	a.op("JLE some")
	a.op("MOVQ $%d, CX", spanUnits)
	a.label("some")
	a.op("MOVQ CX, span+%d(FP)", a.offset["span"])
	a.load("units", "R10")
	for i := range 4 {
		u.quarter(a, i)
	}
	fetchUnit(a, u, "First")
	a.load("x", "SI")
	a.op("MOVQ SI, at+%d(FP)", a.offset["at"])
	a.load("units", "DI")
	a.load("pairs", "R9")
	for i := range 4 {
		a.tileZero(i)
	}
	a.label("unpack")
	a.op("ADDQ $%d, BX", 2*u.size)
	a.op("ADDQ $%d, R11", 2*paramBytes)
	a.op("DECQ CX")
	a.op("JEQ unpacked")
	a.op("ADDQ $%d, R10", unitBytes)
	fetchUnit(a, u, "Next")
	byteStep(a, func(i int) { u.quarter(a, i) })
	a.op("JMP unpack")
	a.label("unpacked")
	byteStep(a, func(int) {})
	a.op("MOVQ BX, w+%d(FP)", a.offset["w"])
	a.op("MOVQ R11, params+%d(FP)", a.offset["params"])
	a.load("sums", "R10")
	storeSums(a)
	a.load("rows", "R11")
	a.load("c", "R12")
	a.load("scales", "R13")
	a.load("next", "BX")
	a.label("pair")
	a.op("DECQ R9")
	a.op("JEQ finish")
	a.load("at", "SI")
	a.op("ADDQ stride+%d(FP), SI", a.offset["stride"])
	a.op("MOVQ SI, at+%d(FP)", a.offset["at"])
	a.load("units", "DI")
	a.load("span", "CX")
	for i := range 4 {
		a.tileZero(i)
	}
	a.label("step")
	a.op("CMPQ BX, end+%d(FP)", a.offset["end"])
	a.op("JCC fetched")
	prefetchLines(a, "BX", u.lines)
	a.op("ADDQ $%d, BX", 64*u.lines)
	a.label("fetched")
	byteStep(a, func(i int) { addSums(a, 4*i, 4*i+4) })
	nextSums(a)
	a.op("DECQ CX")
	a.op("JNE step")
	a.op("MOVQ $%d, CX", spanUnits)
	a.op("SUBQ span+%d(FP), CX", a.offset["span"])
	a.op("JEQ added")
	a.label("rest")
	addSums(a, 0, chunkRows)
	nextSums(a)
	a.op("DECQ CX")
	a.op("JNE rest")
	a.label("added")
	a.op("ADDQ $%d, R12", scratchSize)
	a.op("ADDQ $128, R11")
	a.op("XORQ $%d, R10", scratchSize)
	storeSums(a)
	a.op("JMP pair")
	a.label("finish")
	a.op("MOVQ BX, next+%d(FP)", a.offset["next"])
	a.op("MOVQ $%d, CX", spanUnits)
	a.label("last")
	addSums(a, 0, chunkRows)
	nextSums(a)
	a.op("DECQ CX")
	a.op("JNE last")
	a.load("span", "AX")
	a.op("SUBQ AX, steps+%d(FP)", a.offset["steps"])
	a.op("JEQ release")
	a.op("SHLQ $11, AX")
	a.op("ADDQ AX, x+%d(FP)", a.offset["x"])
	a.load("nextRows", "AX")
	a.op("ADDQ AX, rows+%d(FP)", a.offset["rows"])
	a.op("ADDQ $128, scales+%d(FP)", a.offset["scales"])
	a.op("KXNORW K2, K2, K2")
	a.load("w", "BX")
	a.load("params", "R11")
	a.op("JMP block")
	a.label("release")
	a.tileRelease()
	a.ret()
}

// fetchUnit prefetches the bytes of one unit if soon is set, as prefetchUnit.
func fetchUnit(a *asm, u byteUnpacker, site string) {
	a.op("CMPQ soon+%d(FP), $0", a.offset["soon"])
	a.op("JEQ later%s", site)
	a.load("next", "AX")
	prefetchLines(a, "AX", 2*u.size/64)
	a.op("ADDQ $%d, next+%d(FP)", 2*u.size, a.offset["next"])
	a.label("later" + site)
}

// byteStep multiplies two tiles of rows with one unit. between emits other instructions, a quarter
// at a time, to place between these.
func byteStep(a *asm, between func(quarter int)) {
	a.tileStream(0, "SI", "R8", 4)
	a.tileLoad(0, "DI", "R8", 6)
	a.tileDotBytes(6, 4, 0)
	between(0)
	a.tileLoad(tileBytes, "DI", "R8", 7)
	a.tileDotBytes(7, 4, 1)
	between(1)
	a.tileStream(tileBytes, "SI", "R8", 5)
	a.tileDotBytes(6, 5, 2)
	between(2)
	a.tileDotBytes(7, 5, 3)
	between(3)
	a.op("ADDQ $%d, SI", 2*tileBytes)
	a.op("ADDQ $%d, DI", unitBytes)
}

// storeSums stores the sums of a pair of tiles at R10.
func storeSums(a *asm) {
	for i := range 4 {
		a.tileStore(i, i*tileBytes, "R10", "R8")
	}
}

// addSums adds rows from … to-1 of the sums of one tile at R10 to the accumulators at R12, times
// the scales of the rows, R11, and of the columns, R13.
func addSums(a *asm, from, to int) {
	for r := from; r < to; r++ {
		sum, acc := 2*(r%4), 2*(r%4)+1
		a.op("VCVTDQ2PS %d(R10), Z%d", 64*r, sum)
		a.op("VMULPS (R13), Z%d, Z%d", sum, sum)
		a.op("VMOVUPS.Z %d(R12), K2, Z%d", 64*r, acc)
		a.op("VFMADD231PS.BCST %d(R11), Z%d, Z%d", 4*r, sum, acc)
		a.op("VMOVUPS Z%d, %d(R12)", acc, 64*r)
	}
}

// nextSums goes to the next tile of a pair: first both tiles of rows with the first columns, so
// that the stores do not have the page offsets of the next step's loads. After four it is back at
// the first.
func nextSums(a *asm) {
	a.op("MOVQ R12, AX")
	a.op("ANDQ $%d, AX", 2*tileBytes)
	a.op("SHRQ $1, AX")
	a.op("XORQ $64, R11")
	a.op("XORQ $%d, AX", 2*tileBytes)
	a.op("XORQ AX, R10")
	a.op("XORQ AX, R12")
	a.op("ANDQ $%d, AX", tileBytes)
	a.op("SHRQ $4, AX")
	a.op("XORQ AX, R13")
}

// amxRowBytes rounds a span of one row of x to int8, 64 bytes for each of consecutive tiles.
func amxRowBytes(a *asm) {
	a.fn("amxRowBytes", "rounds 64·steps elements to int8, with the scale max|x|/127 that it "+
		"stores; each 64 go to a tile of their own, 2 KiB apart. A scale is at least 1e-30/127, "+
		"and not finite if an element is not.", "dst *byte, x *float32, steps int, scale *float32")
	a.load("dst", "DI")
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
	a.load("scale", "AX")
	a.op("VMOVSS X0, (AX)")
	a.op("VBROADCASTSS X2, Z0")
	a.load("x", "SI")
	a.load("steps", "CX")
	a.label("round")
	for i := range 4 {
		a.op("VMULPS %d(SI), Z0, Z%d", 64*i, 1+i)
		a.op("VCVTPS2DQ Z%d, Z%d", 1+i, 1+i)
		a.op("VPMOVDB Z%d, %d(DI)", 1+i, 16*i)
	}
	a.op("ADDQ $256, SI")
	a.op("ADDQ $%d, DI", 2*tileBytes)
	a.op("DECQ CX")
	a.op("JNE round")
	a.ret()
}
