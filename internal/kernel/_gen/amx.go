package main

import (
	"fmt"
	"math"
)

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
	amxProbs(a)
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
		"with a panel of %d columns. A tile has 32 rows; k is rounded up to 16 pairs.", width),
		"a *float32, lda int, b *float32, ldb int, c *float32, ldc int, k int, tiles int, add int")
	a.op("LEAQ ·tileConfig(SB), AX")
	a.tileConfig("AX")
	for _, p := range [][2]string{
		{"a", "SI"}, {"lda", "R8"}, {"ldb", "R9"}, {"c", "DX"}, {"ldc", "R10"},
	} {
		a.load(p[0], p[1])
	}
	for _, stride := range []string{"R8", "R9", "R10"} {
		a.op("SHLQ $2, %s", stride)
	}
	for _, rows := range [][2]string{{"R8", "R12"}, {"R10", "R13"}} { // of a tile
		a.op("MOVQ %s, %s", rows[0], rows[1])
		a.op("SHLQ $4, %s", rows[1])
	}
	a.label("tile")
	a.op("LEAQ (DX)(R13*1), R11")
	cols := min(width/16, 2)
	for from := 0; from < width; from += 16 * cols {
		attnSums(a, cols, from)
	}
	a.op("LEAQ (SI)(R12*2), SI")
	a.op("LEAQ (DX)(R13*2), DX")
	a.op("DECQ %s", a.slot("tiles"))
	a.op("JNE tile")
	a.tileRelease()
	a.op("RET")
	for from := 0; from < width; from += 16 * cols {
		a.label(fmt.Sprintf("zero%d", from))
		for acc := range 2 * cols {
			a.tileZero(acc)
		}
		a.op("JMP start%d", from)
	}
}

// attnSums computes two tiles of rows of C by cols of columns, from the given column on.
func attnSums(a *asm, cols, from int) {
	sums := func(f func(acc, off int, base string)) {
		for acc := range 2 * cols {
			f(acc, 4*from+64*(acc%cols), []string{"DX", "R11"}[acc/cols])
		}
	}
	a.op("CMPQ %s, $0", a.slot("add"))
	a.op("JEQ zero%d", from)
	sums(func(acc, off int, base string) { a.tileLoad(off, base, "R10", acc) })
	a.label(fmt.Sprintf("start%d", from))
	a.load("b", "BX")
	a.load("k", "CX")
	a.op("MOVQ SI, AX")
	a.label(fmt.Sprintf("step%d", from))
	const x, w = 4, 6
	a.tileLoad(0, "AX", "R8", x)
	for c := range cols {
		a.tileLoad(4*from+64*c, "BX", "R9", w+c)
		a.tileDotBF16(w+c, x, c)
	}
	a.op("ADDQ R12, AX")
	a.tileLoad(0, "AX", "R8", x+1)
	for c := range cols {
		a.tileDotBF16(w+c, x+1, cols+c)
	}
	a.op("SUBQ R12, AX")
	a.op("ADDQ $64, AX")
	a.op("LEAQ (BX)(R9*8), BX")
	a.op("LEAQ (BX)(R9*8), BX")
	a.op("SUBQ $16, CX")
	a.op("JGT step%d", from)
	sums(func(acc, off int, base string) { a.tileStore(acc, off, base, "R10") })
}

// amxProbs computes the scores of one group of 32 keys while vector instructions turn the scores of
// the group before into probabilities. Vector instructions stand between all tile instructions: the
// processor looks ahead over a few rows only, and where tiles are slow, two in a row make it wait.
func amxProbs(a *asm) {
	a.fn("attnProbsAMX", "sets 32 rows of groups·32 bfloat16 elements of p, which are ldp float32 "+
		"apart, to 2^(x - m[row]), rounded, where x is what attnPairs64AMX computes with panels "+
		"of 64 keys, which are panel float32 apart, and adds them, not rounded, to the 16 sums of "+
		"the row. What is below 2^-126 becomes that. The error is attnExpRound's before rounding. "+
		"In groups after the first whole ones, elements become 0 whose bit in masks is "+
		"not set; masks has 32 bits for each row of such a group. scratch has attnProbsScratch "+
		"elements. Beside the products of a group, all 32 rows of another become probabilities: "+
		"loads, dots and stores of them beside each of the four loads and the four products of "+
		"16 pairs of k, and the two first stores, at least 16 before these. active, lag, other "+
		"and half are the function's own.",
		"a *float32, lda int, b *float32, panel int, p *float32, ldp int, sums *float32, "+
			"m *float32, scratch *float32, masks *uint32, k int, groups int, whole int, "+
			"loads int, dots int, stores int, active int, lag int, other int, "+
			"half int")
	slot := a.slot
	a.op("LEAQ ·tileConfig(SB), AX")
	a.tileConfig("AX")
	for i, c := range append([]float64{-126}, expRoundPoly...) {
		a.constant(avx512, math.Float32bits(float32(c)), probsConstants+i)
	}
	a.load("lda", "R8")
	a.op("SHLQ $2, R8")
	a.op("SHLQ $6, %s", slot("lda")) // of a tile's rows
	a.op("MOVQ $%d, R9", probsPanelRow)
	a.load("ldp", "R12")
	a.op("SHLQ $2, R12")
	a.load("scratch", "DX")
	a.op("MOVQ $%d, %s", probsScores, slot("other"))
	a.op("SHLQ $2, %s", slot("panel"))
	a.op("SUBQ $128, %s", slot("panel"))
	a.op("MOVQ $128, %s", slot("half"))
	a.op("MOVQ $0, %s", slot("active"))
	a.op("MOVQ $2, %s", slot("lag"))
	a.label("group")
	a.load("a", "AX")
	a.load("b", "DI")
	a.load("k", "CX")
	for acc := range 4 {
		a.tileZero(acc)
	}
	a.label("step")
	sites := 0
	rows := func(kind string) {
		sites++
		a.load(kind, "R10")
		a.op("ANDQ %s, R10", slot("active"))
		probsRows(a, fmt.Sprint(sites))
	}
	const x, w = 4, 6
	load := func(off int, base, stride string, tile int) {
		a.tileLoad(off, base, stride, tile)
		rows("loads")
	}
	dot := func(w, x, acc int) {
		a.tileDotBF16(w, x, acc)
		rows("dots")
	}
	load(0, "AX", "R8", x)
	load(0, "DI", "R9", w)
	dot(w, x, 0)
	load(64, "DI", "R9", w+1)
	dot(w+1, x, 1)
	a.op("ADDQ %s, AX", slot("lda"))
	load(0, "AX", "R8", x+1)
	dot(w, x+1, 2)
	dot(w+1, x+1, 3)
	a.op("SUBQ %s, AX", slot("lda"))
	a.op("ADDQ $64, AX")
	a.op("ADDQ $%d, DI", 16*probsPanelRow)
	a.op("SUBQ $16, CX")
	a.op("JGT step")
	a.op("MOVQ $128, AX")
	for acc := range 4 {
		a.tileStore(acc, acc/2*2*tileBytes+acc%2*64, "DX", "AX")
		if acc < 2 { // their rows were read before
			rows("stores")
		}
	}
	probsNext(a, "Group")
	a.load("half", "AX") // to the other half of the panel, or to the next panel
	a.load("panel", "R10")
	a.op("ADDQ AX, %s", slot("b"))
	a.op("MOVQ AX, %s", slot("panel"))
	a.op("MOVQ R10, %s", slot("half"))
	a.op("DECQ %s", slot("groups"))
	a.op("JNE group")
	a.op("MOVQ $2, %s", slot("groups"))
	a.label("last")
	a.op("MOVQ $32, R10")
	a.op("ANDQ %s, R10", slot("active"))
	probsRows(a, "Last")
	probsNext(a, "Last")
	a.op("DECQ %s", slot("groups"))
	a.op("JNE last")
	a.tileRelease()
	a.ret()
}

// probsNext goes to the scores of the next group, which were stored a group ago. The first time
// there are none.
func probsNext(a *asm, site string) {
	a.op("ADDQ %s, DX", a.slot("other"))
	a.op("NEGQ %s", a.slot("other"))
	a.op("DECQ %s", a.slot("lag"))
	a.op("JGT none%s", site)
	a.op("MOVQ $-1, %s", a.slot("active"))
	a.op("DECQ %s", a.slot("whole"))
	a.op("MOVQ DX, BX")
	a.load("p", "R11")
	a.op("ADDQ $64, %s", a.slot("p"))
	a.load("sums", "R13")
	a.load("m", "SI")
	a.label("none" + site)
}

const (
	probsConstants = 24            // registers
	probsPanelRow  = 256           // bytes
	probsScores    = 4 * tileBytes // of a group
)

// probsRows turns R10 rows of scores at BX into probabilities at R11 and adds them to the sums at
// R13. The largest are at SI.
func probsRows(a *asm, site string) {
	loop := func(label string, masked bool) {
		a.label(label)
		if masked {
			a.op("KMOVW (R9), K1")
			a.op("KMOVW 2(R9), K2")
			a.op("ADDQ $4, R9")
		}
		for i := range 2 {
			y, f, p := i, 2+i, 4+i
			a.op("VMOVUPS %d(BX), Z%d", 64*i, y)
			a.op("VSUBPS.BCST (SI), Z%d, Z%d", y, y)
			a.op("VMAXPS Z%d, Z%d, Z%d", y, probsConstants, y) // keeps a NaN
			a.op("VREDUCEPS $9, Z%d, Z%d", y, f)
			a.op("VMOVAPS Z%d, Z%d", probsConstants+len(expRoundPoly), p)
			for c := len(expRoundPoly) - 1; c > 0; c-- {
				a.op("VFMADD213PS Z%d, Z%d, Z%d", probsConstants+c, f, p)
			}
			if masked {
				a.op("VSCALEFPS.Z Z%d, Z%d, K%d, Z%d", y, p, 1+i, p)
			} else {
				a.op("VSCALEFPS Z%d, Z%d, Z%d", y, p, p)
			}
		}
		const p, sum, out = 4, 6, 7
		a.op("VADDPS Z%d, Z%d, Z%d", p, p+1, sum)
		a.op("VADDPS (R13), Z%d, Z%d", sum, sum)
		a.vcvtne2ps2bf16(p, p+1, out)
		a.op("VMOVUPS Z%d, (R11)", out)
		a.op("VMOVUPS Z%d, (R13)", sum)
		a.op("ADDQ R12, R11")
		a.op("ADDQ $128, BX")
		a.op("ADDQ $64, R13")
		a.op("ADDQ $4, SI")
		a.op("DECQ R10")
		a.op("JNE %s", label)
	}
	a.op("TESTQ R10, R10")
	a.op("JEQ done%s", site)
	a.op("CMPQ %s, $0", a.slot("whole"))
	a.op("JLT masked%s", site)
	loop("rows"+site, false)
	a.op("JMP done%s", site)
	a.label("masked" + site)
	a.load("masks", "R9")
	loop("maskedRows"+site, true)
	a.op("MOVQ R9, %s", a.slot("masks"))
	a.op("MOVQ $%d, R9", probsPanelRow)
	a.label("done" + site)
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
