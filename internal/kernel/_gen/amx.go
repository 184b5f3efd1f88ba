package main

import "fmt"

// The AMX kernels multiply weights strip by strip. A strip is 32 columns of a weight. A unit is a
// part of it, unpacked as two tiles of 16 columns, 1 KiB each: 32 of K in bfloat16, as [16 pairs of
// K][16 columns][2], or 64 of K in int8, as [16 groups of K][16 columns][4]. Tiles 0 to 3 are
// accumulators, 4 and 5 hold x, 6 and 7 the unit.
const (
	tileBytes = 1024
	unitBytes = 2 * tileBytes
)

func amx(a *asm) {
	amxPairs(a)
	for _, u := range byteUnpackers(avx512) {
		amxBytes(a, u)
	}
	amxRow(a)
	amxRowBytes(a)
	storeSums(a)
	for _, width := range []int{64, 32, 16} {
		amxAttention(a, width)
	}
	amxPeak(a, "tileLoopAMX", "TDPBF16PS", a.tileDotBF16)
	amxPeak(a, "tileLoopBytesAMX", "TDPBSSD", a.tileDotBytes)
}

// Stored weights of bfloat16: bytes of a unit, and the lines that are prefetched in a step that
// does not unpack; more make tiles wait for memory.
const (
	pairsUnit  = 16 * pairsRow
	pairsLines = 6
)

// amxPairs is the product of all rows of x with part of a strip. It unpacks a unit while the
// previous one is multiplied with the first rows: vector instructions run in parallel with tile
// instructions if there are few of them between two tile instructions. BX points at the weights of
// a unit, R10 at the unit.
func amxPairs(a *asm) {
	a.fn("amxPairs", "multiplies tiles·16 rows of x with steps units and adds the products to the "+
		"accumulators c of one strip, or sets them if first is not 0. It unpacks the first packed "+
		"units from the weights at w. Meanwhile it prefetches memory from next to end; with soon "+
		"also while it unpacks, because no step may follow.",
		"config *byte, x *byte, tiles int, steps int, units *byte, c *float32, first int, w "+
			"*byte, packed int, next uintptr, end uintptr, soon int")
	a.load("w", "BX")
	a.load("units", "R10")
	a.load("packed", "R11")
	a.load("next", "R13")
	a.load("end", "R12")
	a.load("config", "AX")
	a.tileConfig("AX")
	a.op("MOVQ $64, R8")
	a.load("c", "DX")
	a.load("x", "SI")
	a.load("tiles", "R9")
	a.op("TESTQ R11, R11")
	a.op("JNE unpack")
	a.label("pair")
	a.op("CMPQ R9, $2")
	a.op("JLT single")
	startRows(a, "Pair", 2)
	multiplyRows(a, "Pair", 2)
	a.op("SUBQ $2, R9")
	a.op("JMP pair")
	a.label("single")
	a.op("TESTQ R9, R9")
	a.op("JEQ release")
	startRows(a, "Single", 1)
	multiplyRows(a, "Single", 1)
	a.label("release")
	a.tileRelease()
	a.ret()
	a.label("unpack")
	for i := range 4 {
		unpackPairs(a, i)
	}
	prefetchUnit(a, "First")
	a.op("CMPQ R9, $2")
	a.op("JLT unpackSingle")
	unpackRows(a, "Pair", 2)
	a.label("unpackSingle")
	unpackRows(a, "Single", 1)
}

// startRows initialises the accumulators of n tiles of rows.
func startRows(a *asm, site string, n int) {
	a.load("steps", "CX")
	a.load("units", "DI")
	a.op("CMPQ first+%d(FP), $0", a.offset["first"])
	a.op("JNE zero%s", site)
	for i := range 2 * n {
		a.tileLoad(i*tileBytes, "DX", "R8", i)
	}
	a.op("JMP loop%s", site)
	a.label("zero" + site)
	for i := range 2 * n {
		a.tileZero(i)
	}
	a.label("loop" + site)
}

// multiplyRows multiplies n tiles of rows with the units from DI on.
func multiplyRows(a *asm, site string, n int) {
	a.label("multiply" + site)
	a.op("CMPQ R13, R12")
	a.op("JCC prefetched%s", site)
	prefetchLines(a, "R13", pairsLines)
	a.op("ADDQ $%d, R13", 64*pairsLines)
	a.label("prefetched" + site)
	step(a, n, func(int) {})
	a.op("DECQ CX")
	a.op("JNE multiply%s", site)
	for i := range 2 * n {
		a.tileStore(i, i*tileBytes, "DX", "R8")
	}
	a.op("ADDQ $%d, DX", 2*n*tileBytes)
	// x keeps its place in a page: after an odd number of units there is a gap
	a.load("steps", "AX")
	a.op("ANDQ $1, AX")
	a.op("SHLQ $11, AX")
	a.op("ADDQ AX, SI")
}

// unpackRows is multiplyRows, but also unpacks each unit one step before its use. multiplyRows
// computes the last units.
func unpackRows(a *asm, site string, n int) {
	startRows(a, "Unpack"+site, n)
	a.op("DECQ R11")
	a.op("JEQ multiply%s", site)
	a.op("ADDQ $%d, BX", pairsUnit)
	a.op("ADDQ $%d, R10", unitBytes)
	prefetchUnit(a, "Unpack"+site)
	step(a, n, func(i int) { unpackPairs(a, i) })
	a.op("DECQ CX")
	a.op("JMP loopUnpack%s", site)
}

// prefetchUnit prefetches the bytes of one unit if soon is set, that is, if units are prefetched
// while others are unpacked.
func prefetchUnit(a *asm, site string) {
	a.op("CMPQ soon+%d(FP), $0", a.offset["soon"])
	a.op("JEQ later%s", site)
	prefetchLines(a, "R13", pairsUnit/64)
	a.op("ADDQ $%d, R13", pairsUnit)
	a.label("later" + site)
}

// prefetchLines prefetches cache lines from the address in reg on.
func prefetchLines(a *asm, reg string, lines int) {
	for line := range lines {
		a.op("PREFETCHT1 %d(%s)", 64*line, reg)
	}
}

// step multiplies n tiles of rows with one unit. between emits other instructions, a quarter at a
// time, to place between these.
func step(a *asm, n int, between func(quarter int)) {
	a.op("MOVQ CX, AX") // the next accumulators: 256 bytes a step
	a.op("SHLQ $8, AX")
	for line := range 4 {
		a.op("PREFETCHT0 %d(DX)(AX*1)", 2*n*tileBytes-256+64*line)
	}
	between(0)
	a.tileStream(0, "SI", "R8", 4)
	a.tileLoad(0, "DI", "R8", 6)
	a.tileDotBF16(6, 4, 0)
	between(1)
	a.tileLoad(tileBytes, "DI", "R8", 7)
	a.tileDotBF16(7, 4, 1)
	between(2)
	if n == 2 {
		a.tileStream(tileBytes, "SI", "R8", 5)
		a.tileDotBF16(6, 5, 2)
	}
	between(3)
	if n == 2 {
		a.tileDotBF16(7, 5, 3)
	}
	a.op("ADDQ $%d, SI", 2*tileBytes)
	a.op("ADDQ $%d, DI", unitBytes)
}

// unpackPairs copies a quarter of a unit from a panel of 64 columns.
func unpackPairs(a *asm, i int) {
	for row := 4 * i; row < 4*i+4; row++ {
		for h := range 2 {
			a.op("VMOVDQU32 %d(BX), Z%d", pairsRow*row+64*h, h)
			a.op("VMOVDQU32 Z%d, %d(R10)", h, 64*row+tileBytes*h)
		}
	}
}

// amxRow rounds one row of x to bfloat16, 64 bytes for each of consecutive tiles.
func amxRow(a *asm) {
	a.fn("amxRow", "rounds 32·steps elements to bfloat16; each 32 go to a tile of their "+
		"own, 2 KiB apart.", "dst *byte, x *float32, steps int")
	a.load("dst", "DI")
	a.load("x", "SI")
	a.load("steps", "CX")
	a.label("loop")
	a.op("VMOVUPS (SI), Z0")
	a.op("VMOVUPS 64(SI), Z1")
	a.evex(3, 0x72, 2, 1, 0, "VCVTNE2PS2BF16 Z0, Z1, Z2")
	a.op("VMOVDQU32 Z2, (DI)")
	a.op("ADDQ $128, SI")
	a.op("ADDQ $%d, DI", 2*tileBytes)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// amxAttention is a product of rows of pairs with a panel.
func amxAttention(a *asm, width int) {
	a.fn(fmt.Sprintf("attnPairs%dAMX", width), fmt.Sprintf("is an attnTile of pairs of bfloat16 "+
		"with a panel of %d columns. A tile has 16 rows; k is rounded up to 16 pairs.", width),
		"a *float32, lda int, b *float32, ldb int, c *float32, ldc int, k int, tiles int, add int")
	a.op("LEAQ ·tileConfig(SB), AX")
	a.tileConfig("AX")
	for _, p := range [][2]string{
		{"a", "SI"}, {"lda", "R8"}, {"b", "DI"}, {"ldb", "R9"}, {"c", "DX"}, {"ldc", "R10"},
		{"tiles", "R11"},
	} {
		a.load(p[0], p[1])
	}
	for _, stride := range []string{"R8", "R9", "R10"} {
		a.op("SHLQ $2, %s", stride)
	}
	a.op("MOVQ R9, R12")
	a.op("SHLQ $4, R12")
	cols := width / 16
	a.label("tile")
	a.op("CMPQ add+%d(FP), $0", a.offset["add"])
	a.op("JEQ zero")
	for i := range cols {
		a.tileLoad(64*i, "DX", "R10", i)
	}
	a.label("start")
	a.op("MOVQ SI, AX")
	a.op("MOVQ DI, BX")
	a.load("k", "CX")
	a.label("step")
	a.tileLoad(0, "AX", "R8", 4)
	for i := range cols {
		a.tileLoad(64*i, "BX", "R9", 5+i%2)
		a.tileDotBF16(5+i%2, 4, i)
	}
	a.op("ADDQ $64, AX")
	a.op("ADDQ R12, BX")
	a.op("SUBQ $16, CX")
	a.op("JGT step")
	for i := range cols {
		a.tileStore(i, 64*i, "DX", "R10")
	}
	for _, p := range [][2]string{{"R8", "SI"}, {"R10", "DX"}} { // 16 rows
		a.op("MOVQ %s, AX", p[0])
		a.op("SHLQ $4, AX")
		a.op("ADDQ AX, %s", p[1])
	}
	a.op("DECQ R11")
	a.op("JNE tile")
	a.tileRelease()
	a.op("RET")
	a.label("zero")
	for i := range cols {
		a.tileZero(i)
	}
	a.op("JMP start")
}

// amxPeak multiplies tiles that stay in registers. Their values matter: multiplying zeros is
// faster, because less switches in the processor.
func amxPeak(a *asm, name, instruction string, dot func(w, x, acc int)) {
	a.fn(name, "runs n rounds of four independent "+instruction+" of whole tiles, whose "+
		"operands are at data.", "config *byte, data *byte, n int")
	a.load("config", "AX")
	a.tileConfig("AX")
	a.load("data", "SI")
	a.load("n", "CX")
	a.op("MOVQ $64, R8")
	for i := range 4 {
		a.tileZero(i)
		a.tileLoad(i*tileBytes, "SI", "R8", 4+i)
	}
	a.label("loop")
	for i := range 4 {
		dot(6+i%2, 4+i/2, i)
	}
	a.op("DECQ CX")
	a.op("JNE loop")
	a.tileRelease()
	a.op("RET")
}

// storeSums adds the bias to rows of accumulators of adjacent strips, size bytes apart.
func storeSums(a *asm) {
	a.fn("amxStore", "is dst[i·ldd+j] = c[i,j] + bias[j] for up to 16 rows of strips of 32 "+
		"columns.",
		"dst *float32, ldd int, c *float32, size int, strips int, rows int, bias *float32")
	a.load("dst", "DI")
	a.load("ldd", "R8")
	a.op("SHLQ $2, R8")
	a.load("c", "SI")
	a.load("size", "R9")
	a.load("rows", "CX")
	a.op("LEAQ (R8*8), R12") // the lines of a row eight ahead: rows may be a page apart
	a.label("row")
	a.load("strips", "DX")
	a.load("bias", "AX")
	a.op("MOVQ SI, R10")
	a.op("MOVQ DI, R11")
	a.label("strip")
	a.bytes([]byte{0x43, 0x0f, 0x0d, 0x0c, 0x23}, "PREFETCHW (R11)(R12*1)")
	a.bytes([]byte{0x43, 0x0f, 0x0d, 0x4c, 0x23, 0x40}, "PREFETCHW 64(R11)(R12*1)")
	a.op("VMOVUPS (AX), Z0")
	a.op("VMOVUPS 64(AX), Z1")
	a.op("VADDPS (R10), Z0, Z0")
	a.op("VADDPS %d(R10), Z1, Z1", tileBytes)
	a.op("VMOVUPS Z0, (R11)")
	a.op("VMOVUPS Z1, 64(R11)")
	a.op("ADDQ R9, R10")
	a.op("ADDQ $128, AX")
	a.op("ADDQ $128, R11")
	a.op("DECQ DX")
	a.op("JNE strip")
	a.op("ADDQ $64, SI")
	a.op("ADDQ R8, DI")
	a.op("DECQ CX")
	a.op("JNE row")
	a.ret()
}
