package main

// The AMX kernels of 8 bits, in spans as spans.go explains. The sums of a pair of tiles in a span
// are scaled and added to the accumulators while the next pair is multiplied.
const (
	spanUnits   = 4
	chunkRows   = 16
	scratchSize = 4 * tileBytes
)

// quarter unpacks half a block of a unit, with the parameters at R11, to the unit at R10.
func (u byteUnpacker) quarter(a *asm, i int) {
	b := i / 2
	u.half(a, b, i%2, func(h, row int) int { return tileBytes*h + 64*(8*b+row) })
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
	u.constants(a)
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
	storePair(a)
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
	storePair(a)
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

// storePair stores the sums of a pair of tiles at R10.
func storePair(a *asm) {
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
	spanMost(a, avx512, 127)
	a.load("scale", "AX")
	a.op("VMOVSS X0, (AX)")
	spanBytes(a, avx512, unitBytes, func(int) {})
	a.ret()
}
