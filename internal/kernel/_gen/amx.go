package main

import (
	"fmt"
	"math"
)

// The AMX kernels multiply bfloat16. A strip is 32 columns of a weight. A unit is 32 of K of a
// strip, unpacked as two tiles of [16 pairs of K][16 columns][2], 1 KiB each. Tiles 0 to 3 are
// accumulators, 4 and 5 hold x, 6 and 7 the unit.
const (
	tileBytes = 1024
	unitBytes = 2 * tileBytes
)

// An unpacker turns the stored form of a strip into units while the previous unit is multiplied
// with the first rows. Vector instructions run in parallel with tile instructions if there are few
// of them between two tile instructions. BX points at the weights of a unit, R10 at the unit.
type unpacker struct {
	name, doc string
	bytes     int // of weights per unit
	lines     int // prefetched in a step that does not unpack; more make tiles wait for memory
	setup     func(a *asm)
	quarter   func(a *asm, i int) // unpacks a quarter of a unit
}

func amx(a *asm) {
	fmt.Fprintln(&a.text)
	for i := range 8 { // words 1, 1, 3, 3 ...: the odd ones are not used
		fmt.Fprintf(&a.text, "DATA upperWords<>+%d(SB)/8, $0x%04x%04x%04x%04x\n", 8*i, 4*i+3, 4*i+3,
			4*i+1, 4*i+1)
	}
	fmt.Fprint(&a.text, "GLOBL upperWords<>(SB), RODATA|NOPTR, $64\n\n")
	for i := range 16 {
		fmt.Fprintf(&a.text, "DATA values4<>+%d(SB)/4, $0x%08x\n", 4*i,
			math.Float32bits(float32(i-8)))
	}
	fmt.Fprint(&a.text, "GLOBL values4<>(SB), RODATA|NOPTR, $64\n\n")
	for i := range 16 {
		fmt.Fprintf(&a.text, "DATA values4m<>+%d(SB)/4, $0x%08x\n", 4*i,
			math.Float32bits(float32(i)))
	}
	fmt.Fprint(&a.text, "GLOBL values4m<>(SB), RODATA|NOPTR, $64\n")
	for _, u := range []unpacker{unpack4(q4), unpack4(q4m), unpack8(), unpackPairs()} {
		amxStrip(a, u)
	}
	amxRow(a)
	amxStore(a)
	amxPeak(a)
}

// amxStrip is the product of all rows of x with part of a strip.
func amxStrip(a *asm, u unpacker) {
	a.fn("amxStrip"+u.name, "is an amxStrip of weights in "+u.doc+".",
		"config *byte, x *byte, tiles int, steps int, units *byte, c *float32, first int, w "+
			"*byte, packed int, next uintptr, end uintptr, soon int")
	a.load("w", "BX")
	a.load("units", "R10")
	a.load("packed", "R11")
	a.load("next", "R13")
	a.load("end", "R12")
	u.setup(a)
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
	multiplyRows(a, u, "Pair", 2)
	a.op("SUBQ $2, R9")
	a.op("JMP pair")
	a.label("single")
	a.op("TESTQ R9, R9")
	a.op("JEQ release")
	startRows(a, "Single", 1)
	multiplyRows(a, u, "Single", 1)
	a.label("release")
	a.tileRelease()
	a.ret()
	a.label("unpack")
	for i := range 4 {
		u.quarter(a, i)
	}
	prefetchUnit(a, u, "First")
	a.op("CMPQ R9, $2")
	a.op("JLT unpackSingle")
	unpackRows(a, u, "Pair", 2)
	a.label("unpackSingle")
	unpackRows(a, u, "Single", 1)
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
func multiplyRows(a *asm, u unpacker, site string, n int) {
	a.label("multiply" + site)
	a.op("CMPQ R13, R12")
	a.op("JCC prefetched%s", site)
	for line := range u.lines {
		a.op("PREFETCHT1 %d(R13)", 64*line)
	}
	a.op("ADDQ $%d, R13", 64*u.lines)
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
func unpackRows(a *asm, u unpacker, site string, n int) {
	startRows(a, "Unpack"+site, n)
	a.op("DECQ R11")
	a.op("JEQ multiply%s", site)
	a.op("ADDQ $%d, BX", u.bytes)
	a.op("ADDQ $%d, R10", unitBytes)
	prefetchUnit(a, u, "Unpack"+site)
	step(a, n, func(i int) { u.quarter(a, i) })
	a.op("DECQ CX")
	a.op("JMP loopUnpack%s", site)
}

// prefetchUnit prefetches the bytes of one unit if soon is set, that is, if units are prefetched
// while others are unpacked.
func prefetchUnit(a *asm, u unpacker, site string) {
	a.op("CMPQ soon+%d(FP), $0", a.offset["soon"])
	a.op("JEQ later%s", site)
	for line := 0; line < u.bytes; line += 64 {
		a.op("PREFETCHT1 %d(R13)", line)
	}
	a.op("ADDQ $%d, R13", u.bytes)
	a.label("later" + site)
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

// broadcast fills register i with 32 bits.
func broadcast(a *asm, bits uint32, i int) {
	a.op("MOVL $0x%08x, AX", bits)
	a.op("VMOVD AX, X%d", i)
	a.op("VPBROADCASTD X%d, Z%d", i, i)
}

// Registers of an unpacker. 0 to 15 belong to one part, and so do 16 to 19, the scales of the
// strip's two halves. Those from 20 on keep their values.
const (
	zScale = 16
	zRound = 20 // half of the last bit of bfloat16
	zWords = 21 // indices that move the upper word of every 32 bits to the lower
	zTable = 22
)

func unpackConstants(a *asm) {
	broadcast(a, 0x8000, zRound)
	a.op("VMOVDQU32 upperWords<>(SB), Z%d", zWords)
	a.op("MOVL $0x55555555, AX")
	a.op("KMOVD AX, K1")
}

// pairWords rounds the float32 in registers lo and hi to bfloat16, halves away from zero, and
// stores them as pairs.
func pairWords(a *asm, lo, hi, off int) {
	a.op("VPADDD Z%d, Z%d, Z%d", zRound, lo, lo)
	a.op("VPADDD Z%d, Z%d, Z%d", zRound, hi, hi)
	a.op("VPERMW Z%d, Z%d, K1, Z%d", lo, zWords, hi)
	a.op("VMOVDQU32 Z%d, %d(R10)", hi, off)
}

// unpack4 unpacks two of K from every byte: a quarter is 8 of K.
func unpack4(q nibbles) unpacker {
	name, values := "Q4", "values4"
	if q.min {
		name, values = "Q4M", "values4m"
	}
	return unpacker{
		name: name, doc: name, bytes: q.size, lines: 2,
		setup: func(a *asm) {
			unpackConstants(a)
			a.op("VMOVUPS %s<>(SB), Z%d", values, zTable)
		},
		quarter: func(a *asm, i int) {
			for h := range 2 {
				const x = 8
				scale, minimum := zScale+h, zScale+2+h
				if i == 0 {
					a.op("VCVTPH2PS %d(BX), Z%d", 32*h, scale)
					if q.min {
						a.op("VCVTPH2PS %d(BX), Z%d", 64+32*h, minimum)
					}
				}
				a.op("VMOVDQU32 %d(BX), Z%d", q.head+128*i+64*h, x)
				for row, shifts := range [4][2]int{{0, 8}, {16, 24}, {4, 12}, {20, 28}} {
					for j, s := range shifts {
						t, from := 2*(row%2)+j, x
						if s > 0 {
							a.op("VPSRLD $%d, Z%d, Z%d", s, x, t)
							from = t
						}
						a.op("VPERMPS Z%d, Z%d, Z%d", zTable, from, t)
						if q.min {
							a.op("VFMADD213PS Z%d, Z%d, Z%d", minimum, scale, t)
						} else {
							a.op("VMULPS Z%d, Z%d, Z%d", scale, t, t)
						}
					}
					pairWords(a, 2*(row%2), 2*(row%2)+1, 256*i+64*row+tileBytes*h)
				}
			}
		},
	}
}

// unpack8 turns a byte b into the float 32768+b by putting it into the mantissa. The multiply-add
// with the scale also subtracts the scale times 32768+128, exactly.
func unpack8() unpacker {
	const zMask, zExponent, zOffset = zTable, zTable + 1, zTable + 2
	return unpacker{
		name: "Q8", doc: "Q8", bytes: q8Block, lines: 3,
		setup: func(a *asm) {
			unpackConstants(a)
			broadcast(a, 0xff00, zMask)
			broadcast(a, math.Float32bits(32768), zExponent)
			broadcast(a, math.Float32bits(-32768-128), zOffset)
		},
		quarter: func(a *asm, i int) {
			for group := 2 * i; group < 2*i+2; group++ {
				for h := range 2 {
					const x = 8
					scale, offset := zScale+h, zScale+2+h
					if group == 0 {
						a.op("VCVTPH2PS %d(BX), Z%d", 32*h, scale)
						a.op("VMULPS Z%d, Z%d, Z%d", scale, zOffset, offset)
					}
					a.op("VMOVDQU32 %d(BX), Z%d", 64+128*group+64*h, x)
					a.op("VPSLLD $8, Z%d, Z0", x)
					a.op("VMOVDQA64 Z%d, Z1", x)
					a.op("VPSRLD $8, Z%d, Z2", x)
					a.op("VPSRLD $16, Z%d, Z3", x)
					for t := range 4 {
						// t&mask | exponent
						a.op("VPTERNLOGD $0xea, Z%d, Z%d, Z%d", zExponent, zMask, t)
						a.op("VFMADD213PS Z%d, Z%d, Z%d", offset, scale, t)
					}
					pairWords(a, 0, 1, 128*group+tileBytes*h)
					pairWords(a, 2, 3, 128*group+64+tileBytes*h)
				}
			}
		},
	}
}

// unpackPairs copies 32 columns of a panel of 64.
func unpackPairs() unpacker {
	return unpacker{
		name: "Pairs", doc: "BF16Dot", bytes: 16 * pairsRow, lines: 6,
		setup: func(*asm) {},
		quarter: func(a *asm, i int) {
			for row := 4 * i; row < 4*i+4; row++ {
				for h := range 2 {
					a.op("VMOVDQU32 %d(BX), Z%d", pairsRow*row+64*h, h)
					a.op("VMOVDQU32 Z%d, %d(R10)", h, 64*row+tileBytes*h)
				}
			}
		},
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

// amxStore adds the bias to rows of accumulators, for one or more adjacent strips, size bytes
// apart.
func amxStore(a *asm) {
	a.fn(
		"amxStore", "is dst[i·ldd+j] = c[i,j] + bias[j] for up to 16 rows of strips of 32 columns.",
		"dst *float32, ldd int, c *float32, size int, strips int, rows int, bias *float32")
	a.load("dst", "DI")
	a.load("ldd", "R8")
	a.op("SHLQ $2, R8")
	a.load("c", "SI")
	a.load("size", "R9")
	a.load("rows", "CX")
	a.label("row")
	a.load("strips", "DX")
	a.load("bias", "AX")
	a.op("MOVQ SI, R10")
	a.op("MOVQ DI, R11")
	a.label("strip")
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

// amxPeak multiplies tiles that stay in registers. Their values matter: multiplying zeros is
// faster, because less switches in the processor.
func amxPeak(a *asm) {
	a.fn("tileLoopAMX", "runs n rounds of four independent TDPBF16PS of whole tiles, whose "+
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
		a.tileDotBF16(6+i%2, 4+i/2, i)
	}
	a.op("DECQ CX")
	a.op("JNE loop")
	a.tileRelease()
	a.op("RET")
}
