package main

import (
	"fmt"
	"strings"
)

// Constants shared with quant.go of package kernel.
const (
	aBlock   = 40 // bytes of a block of activations: 32 int8, float32 scale, int32 offset
	aScale   = 32
	aOffset  = 36
	q8Block  = 64 + 1024 // bytes of a block of a panel: 32 binary16 scales, 8 groups of [32][4]
	q4Block  = 64 + 512
	q4mBlock = 128 + 512 // 32 binary16 scales, 32 minima

	spanBlocks = 8 // blocks of activations that share a scale
)

// nibbles is a 4-bit format: prefix of the kernels' names, bytes of the scales and minima, bytes of
// a block.
type nibbles struct {
	name       string
	head, size int
	min        bool
}

var (
	q4  = nibbles{"q4", 64, q4Block, false}
	q4m = nibbles{"q4m", 128, q4mBlock, true}
)

// iq4Values equals iq4Values in quant.go.
var iq4Values = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// ahead is how many bytes ahead of use weights are prefetched in kernels of one or two rows, which
// read them straight from memory.
const ahead = 4096

func quant(a *asm) {
	fmt.Fprint(&a.text, "\nDATA nibbles<>+0(SB)/4, $0x0f0f0f0f\nGLOBL nibbles<>(SB), "+
		"RODATA|NOPTR, $4\n")
	for _, c := range [][2]string{{"high", "80"}, {"nibbles32", "0f"}} {
		name, b := c[0], c[1]
		fmt.Fprintln(&a.text)
		for i := range 4 {
			fmt.Fprintf(&a.text, "DATA %s<>+%d(SB)/8, $0x%s\n", name, 8*i, strings.Repeat(b, 8))
		}
		fmt.Fprintf(&a.text, "GLOBL %s<>(SB), RODATA|NOPTR, $32\n", name)
	}
	fmt.Fprint(&a.text, "\nDATA ones<>+0(SB)/4, $0x00010001\nGLOBL ones<>(SB), RODATA|NOPTR, $4\n")
	for rows := 1; rows <= 7; rows++ {
		vnni8(a, rows)
	}
	for rows := 1; rows <= 6; rows++ {
		vnni4(a, q4, rows)
		vnni4(a, q4m, rows)
	}
	for rows := 1; rows <= 4; rows++ {
		madd8(a, rows)
		madd4(a, q4, rows)
		madd4(a, q4m, rows)
	}
	for rows := 1; rows <= 6; rows++ {
		dot8(a, rows)
		dot4(a, q4, rows)
		dot4(a, q4m, rows)
	}
	widenIQ4(a)
	quantizeRow(a, avx512, "Span", spanBlocks)
	quantizeRow(a, avx2, "Row", 1)
	for _, s := range []isa{avx512, avx2} {
		quantizeWeights(a, s, "Q8")
		quantizeWeights(a, s, "Q4")
		quantizeWithMinima(a, s)
	}
}

const quantParams = "dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias " +
	"*float32, biasStep int, panels int, pf uintptr, pfStep int"

// rowsAt loads the strides and returns a function for the address of byte off of row r.
func rowsAt(a *asm, rows int) func(r, off int) string {
	a.load("x", "SI")
	a.load("ldx", "R8")
	if rows > 3 {
		a.op("LEAQ (R8)(R8*2), R9")
	}
	if rows > 5 {
		a.op("LEAQ (R8)(R8*4), R10")
	}
	return func(r, off int) string {
		index := []string{"", "(R8*1)", "(R8*2)", "(R9*1)", "(R8*4)", "(R10*1)", "(R9*2)"}[r]
		return fmt.Sprintf("%d(SI)%s", off, index)
	}
}

func quantOpen(a *asm, name string, rows int) func(r, off int) string {
	a.fn(fmt.Sprintf("%s%d", name, rows), fmt.Sprintf(
		"is a quantTile of %d rows.", rows), quantParams)
	at := rowsAt(a, rows)
	a.load("w", "BX")
	a.load("blocks", "CX")
	a.load("pf", "DX")
	a.load("pfStep", "R12")
	a.load("dst", "DI")
	a.load("ldd", "R11")
	a.op("SHLQ $2, R11")
	return at
}

// quantStart copies the bias at AX to rows of a panel at to, in nv vectors from register i on. It
// overwrites row.
func quantStart(a *asm, s isa, i, nv, rows int, to, row string) {
	for j := range nv {
		a.op("VMOVUPS %d(AX), %s", s.bytes()*j, s.r(i+j))
	}
	a.op("MOVQ %s, %s", to, row)
	for r := range rows {
		for j := range nv {
			a.op("VMOVUPS %s, %d(%s)", s.r(i+j), s.bytes()*j, row)
		}
		if r+1 < rows {
			a.op("ADDQ R11, %s", row)
		}
	}
}

// vnniRegs assigns registers: float accumulators, integer accumulators, then temporaries.
type vnniRegs struct{ rows int }

func (v vnniRegs) f(r, j int) string { return fmt.Sprintf("Z%d", 2*r+j) }
func (v vnniRegs) i(r, j int) string { return fmt.Sprintf("Z%d", 2*v.rows+2*r+j) }
func (v vnniRegs) t(i int) string    { return fmt.Sprintf("Z%d", 4*v.rows+i) }

// vnniBlock initialises the integer accumulators of a block.
func vnniBlock(a *asm, v vnniRegs, at func(r, off int) string) {
	for r := range v.rows {
		a.op("VPBROADCASTD %s, %s", at(r, aOffset), v.i(r, 0))
		a.op("VMOVDQA64 %s, %s", v.i(r, 0), v.i(r, 1))
	}
}

// vnniScale adds a block's integer sums times the weights' scales to the float accumulators.
func vnniScale(a *asm, v vnniRegs) {
	a.op("VCVTPH2PS (BX), %s", v.t(0))
	a.op("VCVTPH2PS 32(BX), %s", v.t(1))
	for r := range v.rows {
		for j := range 2 {
			a.op("VCVTDQ2PS %s, %s", v.i(r, j), v.i(r, j))
			a.op("VFMADD231PS %s, %s, %s", v.i(r, j), v.t(j), v.f(r, j))
		}
	}
}

// vnniFetch prefetches what a later tile needs, one of the 9 times in a block, or 10 with minima,
// so that a tile can fetch all of a block of 4 bits, a line at a time. Kernels of one and two rows
// fetch their own.
func vnniFetch(a *asm, v vnniRegs) {
	if v.rows > 2 {
		a.op("PREFETCHT1 (DX)")
		a.op("ADDQ R12, DX")
	}
}

// vnniEnd ends a block, a span and a panel.
func vnniEnd(a *asm, v vnniRegs, at func(r, off int) string, bytes int) {
	vnniFetch(a, v)
	if bytes == q4mBlock {
		vnniFetch(a, v)
	}
	a.op("ADDQ $%d, SI", aBlock)
	a.op("ADDQ $%d, BX", bytes)
	a.op("DECQ R13")
	a.op("JNE loop")
	a.op("MOVQ DI, AX")
	for r := range v.rows {
		scale := v.t(r % 2)
		a.op("VBROADCASTSS %s, %s", at(r, aScale-aBlock), scale) // of the block before
		for j := range 2 {
			a.op("VFMADD213PS %d(AX), %s, %s", 64*j, scale, v.f(r, j))
			a.op("VMOVUPS %s, %d(AX)", v.f(r, j), 64*j)
		}
		if r+1 < v.rows {
			a.op("ADDQ R11, AX")
		}
	}
	a.op("TESTQ CX, CX")
	a.op("JNE span")
	a.load("x", "SI")
	a.load("blocks", "CX")
	a.op("ADDQ $128, DI")
	a.op("DECQ panels+%d(FP)", a.offset["panels"])
	a.op("JNE panel")
	a.ret()
}

// vnniBegin begins a panel, whose outputs start at the bias, a span and a block. R13 counts the
// blocks of the span, CX those after it.
func vnniBegin(a *asm, v vnniRegs) {
	a.label("panel")
	a.load("bias", "AX")
	quantStart(a, avx512, 4*v.rows, 2, v.rows, "DI", "AX")
	a.load("biasStep", "R13")
	a.op("ADDQ R13, bias+%d(FP)", a.offset["bias"])
	a.label("span")
	takeSpan(a, spanBlocks, "R13")
	for r := range v.rows {
		for j := range 2 {
			a.op("VPXORD %s, %s, %s", v.f(r, j), v.f(r, j), v.f(r, j))
		}
	}
	a.label("loop")
}

// takeSpan takes the next blocks, at most a span's, from the number in CX.
func takeSpan(a *asm, blocks int, to string) {
	a.op("MOVQ $%d, %s", blocks, to)
	a.op("CMPQ CX, %s", to)
	a.op("CMOVQLT CX, %s", to)
	a.op("SUBQ %s, CX", to)
}

// vnni8 keeps the integer sums of a block and the float sums of a span of 7 rows by 32 columns in
// registers.
func vnni8(a *asm, rows int) {
	at := quantOpen(a, "q8VNNI", rows)
	v := vnniRegs{rows}
	vnniBegin(a, v)
	vnniBlock(a, v, at)
	for g := range 8 {
		for j := range 2 {
			a.op("VMOVDQU32 %d(BX), %s", 64+128*g+64*j, v.t(j))
		}
		for r := range rows {
			b := v.t(2 + r%2)
			a.op("VPBROADCASTD %s, %s", at(r, 4*g), b)
			for j := range 2 {
				a.op("VPDPBUSD %s, %s, %s", b, v.t(j), v.i(r, j))
			}
		}
		if rows <= 2 {
			a.op("PREFETCHT0 %d(BX)", ahead+128*g)
			a.op("PREFETCHT0 %d(BX)", ahead+128*g+64)
		}
		vnniFetch(a, v)
	}
	if rows <= 2 {
		a.op("PREFETCHT0 %d(BX)", ahead+1024)
	}
	vnniScale(a, v)
	vnniEnd(a, v, at, q8Block)
}

// vnni4 unpacks two groups from a vector of nibbles.
func vnni4(a *asm, q nibbles, rows int) {
	at := quantOpen(a, q.name+"VNNI", rows)
	v := vnniRegs{rows}
	mask := v.t(6)
	a.op("VPBROADCASTD nibbles<>(SB), %s", mask)
	vnniBegin(a, v)
	if q.min {
		vnniClear(a, v)
	} else {
		vnniBlock(a, v, at)
	}
	for pair := range 4 {
		for j := range 2 {
			a.op("VMOVDQU32 %d(BX), %s", q.head+128*pair+64*j, v.t(j))
			a.op("VPSRLD $4, %s, %s", v.t(j), v.t(2+j))
			a.op("VPANDD %s, %s, %s", mask, v.t(j), v.t(j))
			a.op("VPANDD %s, %s, %s", mask, v.t(2+j), v.t(2+j))
		}
		for half := range 2 {
			for r := range rows {
				b := v.t(4 + r%2)
				a.op("VPBROADCASTD %s, %s", at(r, 8*pair+4*half), b)
				for j := range 2 {
					a.op("VPDPBUSD %s, %s, %s", b, v.t(2*half+j), v.i(r, j))
				}
			}
			vnniFetch(a, v)
		}
		if rows <= 2 {
			a.op("PREFETCHT0 %d(BX)", ahead+128*pair)
			a.op("PREFETCHT0 %d(BX)", ahead+128*pair+64)
		}
	}
	if rows <= 2 {
		for line := 512; line < q.size; line += 64 {
			a.op("PREFETCHT0 %d(BX)", ahead+line)
		}
	}
	vnniScale(a, v)
	if q.min {
		vnniMinima(a, v, at)
	}
	vnniEnd(a, v, at, q.size)
}

// vnniClear clears the sums of a block whose weights have no offset.
func vnniClear(a *asm, v vnniRegs) {
	for r := range v.rows {
		for j := range 2 {
			a.op("VPXORD %s, %s, %s", v.i(r, j), v.i(r, j), v.i(r, j))
		}
	}
}

// vnniMinima adds the minima times the sums of the integers of the activations.
func vnniMinima(a *asm, v vnniRegs, at func(r, off int) string) {
	a.op("VCVTPH2PS 64(BX), %s", v.t(0))
	a.op("VCVTPH2PS 96(BX), %s", v.t(1))
	for r := range v.rows {
		a.op("VBROADCASTSS %s, %s", at(r, aOffset), v.t(2+r%2))
		for j := range 2 {
			a.op("VFMADD231PS %s, %s, %s", v.t(2+r%2), v.t(j), v.f(r, j))
		}
	}
}

// The AVX2 kernels of three or more rows compute the 16 columns of a panel's first half, then those
// of the second half. For the second half, BX is 64 bytes further for the groups, and R13 takes
// half of that back for the scales. The kernels of one and two rows compute all 32 columns at once.
// They take a block of each of up to four panels in turn, because a processor reads several streams
// from memory faster than one. The float accumulators are in dst.
type maddRegs struct {
	rows, nv  int
	bytes     int  // of a block
	continues bool // sums in dst, if bias is nil
}

// maddPanels is the most panels that kernels of one and two rows read at once.
const maddPanels = 4

func newMaddRegs(rows, bytes int, continues bool) maddRegs {
	if rows <= 2 {
		return maddRegs{rows, 4, bytes, continues}
	}
	return maddRegs{rows, 2, bytes, continues}
}

// acc returns the accumulator of row r and vector j.
func (m maddRegs) acc(r, j int) string { return fmt.Sprintf("Y%d", m.nv*r+j) }

// free returns the first register after the accumulators.
func (m maddRegs) free() int { return max(8, m.rows*m.nv) }

func maddBegin(a *asm, m maddRegs) {
	a.load("bias", "AX")
	if m.nv == 4 {
		maddGroup(a, m)
		return
	}
	a.label("panel")
	a.op("XORQ R13, R13")
	a.label("half")
	if m.continues {
		a.op("TESTQ AX, AX")
		a.op("JEQ loop")
	}
	quantStart(a, avx2, 0, m.nv, m.rows, "DI", "AX")
	a.label("loop")
}

// maddGroup begins a group of panels: R9 is their number, R10 the bytes of a panel, R13 the panels
// that a block has left.
func maddGroup(a *asm, m maddRegs) {
	a.op("IMUL3Q $%d, CX, R10", m.bytes)
	a.label("panel")
	a.load("panels", "R9")
	a.op("CMPQ R9, $%d", maddPanels)
	a.op("JLE few")
	a.op("MOVQ $%d, R9", maddPanels)
	a.label("few")
	if m.continues {
		a.op("TESTQ AX, AX")
		a.op("JEQ loop")
	}
	a.op("MOVQ R9, R13")
	a.op("MOVQ DI, DX")
	a.label("start")
	quantStart(a, avx2, 0, m.nv, m.rows, "DX", "R12")
	a.op("ADDQ $128, DX")
	a.load("biasStep", "R12")
	a.op("ADDQ R12, AX")
	a.op("DECQ R13")
	a.op("JNE start")
	a.op("MOVQ AX, bias+%d(FP)", a.offset["bias"])
	a.label("loop")
	a.op("MOVQ R9, R13")
	a.label("inner")
}

// maddNext ends a block of a panel, of a group and the group.
func maddNext(a *asm, m maddRegs) {
	a.op("PREFETCHT0 %d(BX)", ahead+m.bytes-64)
	a.op("ADDQ R10, BX")
	a.op("ADDQ $128, DI")
	a.op("DECQ R13")
	a.op("JNE inner")
	a.op("MOVQ R9, AX")
	a.op("IMULQ R10, AX")
	a.op("SUBQ AX, BX")
	a.op("ADDQ $%d, BX", m.bytes)
	a.op("MOVQ R9, AX")
	a.op("SHLQ $7, AX")
	a.op("SUBQ AX, DI")
	a.op("ADDQ $%d, SI", aBlock)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.op("ADDQ AX, DI")
	a.op("LEAQ -1(R9), AX") // BX is at the second panel
	a.op("IMULQ R10, AX")
	a.op("ADDQ AX, BX")
	a.load("bias", "AX")
	a.load("x", "SI")
	a.load("blocks", "CX")
	a.op("SUBQ R9, panels+%d(FP)", a.offset["panels"])
	a.op("JNE panel")
	a.ret()
}

// maddEnd scales the 32-bit sums and adds them to dst.
func maddEnd(a *asm, m maddRegs, at func(r, off int) string) {
	minima, bytes := m.bytes == q4mBlock, m.bytes
	half := ""
	if m.nv == 2 {
		half = "(R13*1)"
	}
	d := m.free()
	for j := range m.nv {
		a.op("VCVTPH2PS %d(BX)%s, Y%d", 16*j, half, d+j)
	}
	scale, minimum := d+m.nv, d+m.nv+1
	a.op("MOVQ DI, AX")
	for r := range m.rows {
		a.op("VBROADCASTSS %s, Y%d", at(r, aScale), scale)
		for j := range m.nv {
			acc := m.acc(r, j)
			a.op("VCVTDQ2PS %s, %s", acc, acc)
			a.op("VMULPS Y%d, %s, %s", d+j, acc, acc)
			a.op("VFMADD213PS %d(AX), Y%d, %s", 32*j, scale, acc)
			if !minima {
				a.op("VMOVUPS %s, %d(AX)", acc, 32*j)
			}
		}
		if minima {
			a.op("VBROADCASTSS %s, Y%d", at(r, aOffset), scale)
			for j := range m.nv {
				a.op("VCVTPH2PS %d(BX)%s, Y%d", 64+16*j, half, minimum)
				a.op("VFMADD231PS Y%d, Y%d, %s", scale, minimum, m.acc(r, j))
				a.op("VMOVUPS %s, %d(AX)", m.acc(r, j), 32*j)
			}
		}
		if r+1 < m.rows {
			a.op("ADDQ R11, AX")
		}
	}
	if m.nv == 4 {
		maddNext(a, m)
		return
	}
	a.op("CMPQ R12, $%d", bytes/2)
	a.op("JEQ stream")
	a.op("PREFETCHT1 (DX)")
	a.op("PREFETCHT1 64(DX)")
	a.label("streamed")
	a.op("ADDQ R12, DX")
	a.op("ADDQ $%d, SI", aBlock)
	a.op("ADDQ $%d, BX", bytes)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.op("TESTQ R13, R13")
	a.op("JNE done")
	a.op("MOVQ $-32, R13")
	a.load("x", "SI")
	a.load("w", "BX")
	a.op("ADDQ $64, BX")
	a.load("blocks", "CX")
	a.load("bias", "AX")
	if m.continues {
		a.op("ADDQ $64, DI")
		a.op("TESTQ AX, AX")
		a.op("JEQ half")
		a.op("ADDQ $64, AX")
	} else {
		a.op("ADDQ $64, AX")
		a.op("ADDQ $64, DI")
	}
	a.op("JMP half")
	a.label("done")
	a.op("SUBQ $64, BX")
	a.op("MOVQ BX, w+%d(FP)", a.offset["w"])
	a.op("ADDQ $64, DI")
	a.load("bias", "AX")
	a.load("biasStep", "R13")
	a.op("ADDQ R13, AX")
	a.op("MOVQ AX, bias+%d(FP)", a.offset["bias"])
	a.load("x", "SI")
	a.load("blocks", "CX")
	a.op("DECQ panels+%d(FP)", a.offset["panels"])
	a.op("JNE panel")
	a.ret()
	a.label("stream") // half a block for each half of the columns
	for line := 0; line < bytes/2; line += 64 {
		a.op("PREFETCHT1 %d(DX)", line)
	}
	a.op("JMP streamed")
}

// prefetchOwn prefetches weights that a kernel of one or two rows will read later.
func (m maddRegs) prefetchOwn(a *asm, group int) {
	if m.nv == 4 {
		a.op("PREFETCHT0 %d(BX)", ahead+128*group)
		a.op("PREFETCHT0 %d(BX)", ahead+128*group+64)
	}
}

// dot8 and dot4 are the AVX-VNNI kernels, whose sums start at the offset.
func dot8(a *asm, rows int) {
	at := quantOpen(a, "q8AVXVNNI", rows)
	m := newMaddRegs(rows, q8Block, false)
	maddBegin(a, m)
	dotStart(a, m, at)
	for g := range 8 {
		w := m.free()
		for j := range 2 {
			if m.nv == 2 {
				a.op("VMOVDQU %d(BX), Y%d", 64+128*g+32*j, w+j)
			}
		}
		for r := range rows {
			a.op("VPBROADCASTD %s, Y%d", at(r, 4*g), w+2)
			for j := range m.nv {
				from := w + j%2
				if m.nv == 4 {
					from = w
					a.op("VMOVDQU %d(BX), Y%d", 64+128*g+32*j, w)
				}
				a.vpdpbusd(avx2, w+2, from, m.nv*r+j)
			}
		}
		m.prefetchOwn(a, g)
	}
	maddEnd(a, m, at)
}

func dot4(a *asm, q nibbles, rows int) {
	at := quantOpen(a, q.name+"AVXVNNI", rows)
	m := newMaddRegs(rows, q.size, false)
	maddBegin(a, m)
	if q.min {
		maddClear(a, m)
	} else {
		dotStart(a, m, at)
	}
	w := m.free()
	for pair := range 4 {
		for half := range 2 {
			for j := range m.nv {
				from := fmt.Sprintf("%d(BX)", q.head+128*pair+32*j)
				if half == 1 {
					a.op("VMOVDQU %s, Y%d", from, w+j)
					a.op("VPSRLD $4, Y%d, Y%d", w+j, w+j)
					a.op("VPAND nibbles32<>(SB), Y%d, Y%d", w+j, w+j)
				} else {
					a.op("VMOVDQU %s, Y%d", from, w+j)
					a.op("VPAND nibbles32<>(SB), Y%d, Y%d", w+j, w+j)
				}
			}
			for r := range rows {
				a.op("VPBROADCASTD %s, Y%d", at(r, 8*pair+4*half), w+m.nv)
				for j := range m.nv {
					a.vpdpbusd(avx2, w+m.nv, w+j, m.nv*r+j)
				}
			}
		}
		m.prefetchOwn(a, pair)
	}
	maddEnd(a, m, at)
}

func dotStart(a *asm, m maddRegs, at func(r, off int) string) {
	for r := range m.rows {
		a.op("VPBROADCASTD %s, %s", at(r, aOffset), m.acc(r, 0))
		for j := 1; j < m.nv; j++ {
			a.op("VMOVDQA %s, %s", m.acc(r, 0), m.acc(r, j))
		}
	}
}

func maddClear(a *asm, m maddRegs) {
	for i := range m.rows * m.nv {
		a.op("VPXOR Y%d, Y%d, Y%d", i, i, i)
	}
}

// madd8 multiplies |w| by x with the sign of w. Pairs of 16-bit sums stay below 2·128·127; the
// instruction saturates at 32767.
func madd8(a *asm, rows int) {
	at := quantOpen(a, "q8AVX2", rows)
	m := newMaddRegs(rows, q8Block, true)
	a.op("VPBROADCASTD ones<>(SB), Y15")
	maddBegin(a, m)
	weight := func(g, j, w, magnitude int) {
		a.op("VMOVDQU %d(BX), Y%d", 64+128*g+32*j, w)
		a.op("VPXOR high<>(SB), Y%d, Y%d", w, w) // u8 w+128 to int8 w
		a.op("VPABSB Y%d, Y%d", w, magnitude)
	}
	product := func(first bool, x, w, magnitude, t int, acc string) {
		a.op("VPSIGNB Y%d, Y%d, Y%d", w, x, t)
		a.op("VPMADDUBSW Y%d, Y%d, Y%d", t, magnitude, t)
		if first {
			a.op("VPMADDWD Y15, Y%d, %s", t, acc)
			return
		}
		a.op("VPMADDWD Y15, Y%d, Y%d", t, t)
		a.op("VPADDD Y%d, %s, %s", t, acc, acc)
	}
	for g := range 8 {
		if m.nv == 2 {
			weight(g, 0, 8, 9)
			weight(g, 1, 10, 11)
			for r := range rows {
				a.op("VPBROADCASTD %s, Y12", at(r, 4*g))
				product(g == 0, 12, 8, 9, 13, m.acc(r, 0))
				product(g == 0, 12, 10, 11, 14, m.acc(r, 1))
			}
			continue
		}
		for r := range rows {
			a.op("VPBROADCASTD %s, Y%d", at(r, 4*g), 12+r)
		}
		for j := range m.nv {
			w := 8 + 2*(j%2)
			weight(g, j, w, w+1)
			for r := range rows {
				product(g == 0, 12+r, w, w+1, 14, m.acc(r, j))
			}
		}
		m.prefetchOwn(a, g)
	}
	maddEnd(a, m, at)
}

// madd4 sums a whole block in 16 bits: 8 pairs of at most 2·15·127.
func madd4(a *asm, q nibbles, rows int) {
	at := quantOpen(a, q.name+"AVX2", rows)
	m := newMaddRegs(rows, q.size, true)
	a.op("VPBROADCASTD nibbles<>(SB), Y15")
	maddBegin(a, m)
	weight := func(pair, j, low, high int) {
		a.op("VMOVDQU %d(BX), Y%d", q.head+128*pair+32*j, low)
		a.op("VPSRLD $4, Y%d, Y%d", low, high)
		a.op("VPAND Y15, Y%d, Y%d", low, low)
		a.op("VPAND Y15, Y%d, Y%d", high, high)
	}
	product := func(first bool, x, w, t int, acc string) {
		if first {
			a.op("VPMADDUBSW Y%d, Y%d, %s", x, w, acc)
			return
		}
		a.op("VPMADDUBSW Y%d, Y%d, Y%d", x, w, t)
		a.op("VPADDW Y%d, %s, %s", t, acc, acc)
	}
	for pair := range 4 {
		if m.nv == 2 {
			weight(pair, 0, 8, 10)
			weight(pair, 1, 9, 11)
			for half := range 2 {
				for r := range rows {
					a.op("VPBROADCASTD %s, Y12", at(r, 8*pair+4*half))
					product(pair+half == 0, 12, 8+2*half, 13, m.acc(r, 0))
					product(pair+half == 0, 12, 9+2*half, 14, m.acc(r, 1))
				}
			}
			continue
		}
		for r := range rows {
			a.op("VPBROADCASTD %s, Y%d", at(r, 8*pair), 8+2*r)
			a.op("VPBROADCASTD %s, Y%d", at(r, 8*pair+4), 9+2*r)
		}
		for j := range m.nv {
			weight(pair, j, 12, 13)
			for r := range rows {
				product(pair == 0, 8+2*r, 12, 14, m.acc(r, j))
				product(false, 9+2*r, 13, 14, m.acc(r, j))
			}
		}
		m.prefetchOwn(a, pair)
	}
	a.op("VPBROADCASTD ones<>(SB), Y14")
	for r := range rows {
		if !q.min {
			a.op("VPBROADCASTD %s, Y12", at(r, aOffset))
		}
		for j := range m.nv {
			a.op("VPMADDWD Y14, %s, %s", m.acc(r, j), m.acc(r, j))
			if !q.min {
				a.op("VPADDD Y12, %s, %s", m.acc(r, j), m.acc(r, j))
			}
		}
	}
	maddEnd(a, m, at)
}

// widenIQ4 replaces the table indices of IQ4 blocks by their values and writes them as blocks of
// Q8.
func widenIQ4(a *asm) {
	fmt.Fprintln(&a.text)
	for i, v := range iq4Values {
		fmt.Fprintf(&a.text, "DATA iq4Stored<>+%d(SB)/1, $0x%02x\n", i, int(v)+128)
	}
	fmt.Fprintln(&a.text, "GLOBL iq4Stored<>(SB), RODATA|NOPTR, $16")
	a.fn("widenIQ4AVX2", "is widenIQ4Go.", "dst *byte, src *byte, blocks int")
	a.op("VBROADCASTI128 iq4Stored<>(SB), Y15")
	a.load("dst", "DI")
	a.load("src", "SI")
	a.load("blocks", "CX")
	a.op("VMOVDQU nibbles32<>(SB), Y14")
	a.label("loop")
	for j := range 2 {
		a.op("VMOVDQU %d(SI), Y%d", 32*j, j)
		a.op("VMOVDQU Y%d, %d(DI)", j, 32*j)
	}
	for j := range 16 {
		to := 64 + 256*(j/4) + 32*(j%4)
		low, high := 2*(j%4), 2*(j%4)+1
		a.op("VMOVDQU %d(SI), Y%d", 64+32*j, low)
		a.op("VPSRLD $4, Y%d, Y%d", low, high)
		for i, y := range []int{low, high} {
			a.op("VPAND Y14, Y%d, Y%d", y, y)
			a.op("VPSHUFB Y%d, Y15, Y%d", y, y)
			a.op("VMOVDQU Y%d, %d(DI)", y, to+128*i)
		}
	}
	a.op("ADDQ $%d, SI", q4Block)
	a.op("ADDQ $%d, DI", q8Block)
	a.op("DECQ CX")
	a.op("JNZ loop")
	a.ret()
}

// quantizeRow turns blocks of 32 activations into int8, with a scale for at most span blocks. A
// scale of one block multiplies the sums for minima too.
func quantizeRow(a *asm, s isa, name string, span int) {
	a.fn("quantize"+name+s.name, fmt.Sprintf("is quantizeRowGo for spans of %d.", span),
		"dst *byte, x *float32, blocks int, offset int")
	a.load("dst", "DI")
	a.load("x", "SI")
	a.load("blocks", "CX")
	a.load("offset", "R8")
	abs, least := s.r(12), s.r(13)
	a.op("MOVL $0x7fffffff, AX")
	a.op("VMOVD AX, X12")
	a.op("VPBROADCASTD X12, %s", abs)
	a.op("MOVL $0x0da24260, AX") // 1e-30
	a.op("VMOVD AX, X13")
	a.op("VPBROADCASTD X13, %s", least)
	a.op("MOVL $0x42fe0000, AX") // 127
	a.op("VMOVD AX, X14")
	a.op("MOVL $-127, AX")
	a.op("VMOVD AX, X15")
	a.op("VPBROADCASTD X15, %s", s.r(11))
	nv, and := s.vectors(), s.bitwise("VPAND")
	a.label("span")
	takeSpan(a, span, "R9")
	a.op("MOVQ R9, R10")
	a.op("MOVQ SI, R11")
	a.op("VMOVAPS %s, %s", least, s.r(4))
	a.label("most")
	for j := range nv {
		a.op("%s %d(R11), %s, %s", and, j*s.bytes(), abs, s.r(5))
		a.op("VPMAXSD %s, %s, %s", s.r(5), s.r(4), s.r(4))
	}
	a.op("ADDQ $128, R11")
	a.op("DECQ R10")
	a.op("JNE most")
	foldAll(a, s, "VPMAXSD", 4, 5)
	a.op("VDIVSS X14, X4, X6") // scale = max/127
	a.op("VDIVSS X4, X14, X5") // 127/max
	a.op("VBROADCASTSS X5, %s", s.r(5))
	a.label("block")
	for j := range nv {
		a.op("VMULPS %d(SI), %s, %s", j*s.bytes(), s.r(5), s.r(j))
		a.op("VCVTPS2DQ %s, %s", s.r(j), s.r(j))
		a.op("VPMAXSD %s, %s, %s", s.r(11), s.r(j), s.r(j)) // values that were not finite
	}
	if s.n == 16 {
		a.op("VPMOVDB Z0, (DI)")
		a.op("VPMOVDB Z1, 16(DI)")
		a.op("VPADDD Z1, Z0, Z0")
	} else {
		a.op("VPADDD Y1, Y0, Y9")
		a.op("VPADDD Y3, Y2, Y7")
		packBytes(a, 0, 8, 0)
		a.op("VPADDD Y7, Y9, Y0")
	}
	a.op("VMOVSS X6, %d(DI)", aScale)
	foldAll(a, s, "VPADDD", 0, 1)
	a.op("VMOVD X0, AX")
	a.op("TESTQ R8, R8")
	a.op("JEQ sum")
	a.op("IMULL R8, AX")
	a.op("NEGL AX")
	a.op("MOVL AX, %d(DI)", aOffset)
	a.label("next")
	a.op("ADDQ $%d, DI", aBlock)
	a.op("ADDQ $128, SI")
	a.op("DECQ R9")
	a.op("JNE block")
	a.op("TESTQ CX, CX")
	a.op("JNE span")
	a.ret()
	a.label("sum") // for weights with minima
	a.op("VCVTSI2SSL AX, X1, X1")
	if span == 1 {
		a.op("VMULSS X6, X1, X1")
	}
	a.op("VMOVSS X1, %d(DI)", aOffset)
	a.op("JMP next")
}

// quantizeWeights turns blocks of 32 weights into stored bytes and a float32 scale. A NaN or
// infinity makes the scale non-finite, where the caller finds it.
func quantizeWeights(a *asm, s isa, format string) {
	a.fn("quantize"+format+s.name,
		"is quantizeBlockGo for consecutive blocks, with the scales in float32.",
		"q *byte, scales *float32, v *float32, blocks int")
	a.load("q", "DI")
	a.load("scales", "DX")
	a.load("v", "SI")
	a.load("blocks", "CX")
	nv := 32 / s.n
	and := s.bitwise("VPAND")
	broadcast := func(bits uint32, reg int) {
		a.op("MOVL $0x%08x, AX", bits)
		a.op("VMOVD AX, X%d", reg)
		a.op("VPBROADCASTD X%d, %s", reg, s.r(reg))
	}
	broadcast(0x7fffffff, 15)
	if format == "Q8" {
		broadcast(0x42fe0000, 14) // 127
		broadcast(128, 13)
	} else {
		broadcast(0xc1000000, 14) // -8
		broadcast(0x41080000, 13) // 8.5
		broadcast(15, 12)
	}
	broadcast(0x3f800000, 11)
	a.label("loop")
	for j := range nv {
		a.op("VMOVUPS %d(SI), %s", j*s.bytes(), s.r(j))
		a.op("%s %s, %s, %s", and, s.r(15), s.r(j), s.r(4+j%2))
		if j == 0 {
			a.op("VMOVAPS %s, %s", s.r(4), s.r(6))
		} else {
			a.op("VPMAXSD %s, %s, %s", s.r(4+j%2), s.r(6), s.r(6))
		}
	}
	if s.n == 16 {
		a.op("VEXTRACTI64X4 $1, Z6, Y7")
		a.op("VPMAXSD Y7, Y6, Y6")
	}
	a.fold("VEXTRACTI128", "VPMAXSD", 6, 7) // the greatest magnitude, in every lane
	if format == "Q4" {
		// the sign of the first value of that magnitude
		a.op("VPBROADCASTD X6, %s", s.r(7))
		a.op("XORQ R8, R8")
		a.op("XORQ R9, R9")
		for j := nv - 1; j >= 0; j-- {
			a.op("%s %s, %s, %s", and, s.r(15), s.r(j), s.r(8))
			if s.n == 16 {
				a.op("VPCMPEQD Z8, Z7, K1")
				a.op("KMOVW K1, R10")
				a.op("VPMOVD2M Z%d, K1", j)
				a.op("KMOVW K1, R11")
			} else {
				a.op("VPCMPEQD Y8, Y7, Y8")
				a.op("VMOVMSKPS Y8, R10")
				a.op("VMOVMSKPS Y%d, R11", j)
			}
			a.op("SHLQ $%d, R8", s.n)
			a.op("SHLQ $%d, R9", s.n)
			a.op("ORQ R10, R8")
			a.op("ORQ R11, R9")
		}
		a.op("BSFQ R8, R8") // never 0: one of the lanes has the maximum
		a.op("BTQ R8, R9")
		a.op("SBBQ R8, R8")
		a.op("SHLQ $31, R8") // the sign bit, and ones above it
		a.op("VMOVD R8, X7")
		a.op("VPXOR X7, X6, X6")
	}
	a.op("VDIVSS X14, X6, X6") // d
	a.op("VMOVSS X6, (DX)")
	a.op("VDIVSS X6, X11, X7") // 1/d, and 0 for 0
	a.op("VPXOR X8, X8, X8")
	a.op("VCMPSS $4, X8, X6, X8")
	a.op("VPAND X8, X7, X7")
	a.op("VBROADCASTSS X7, %s", s.r(7))
	for j := range nv {
		y, t := s.r(j), s.r(8)
		a.op("VMULPS %s, %s, %s", s.r(7), y, y)
		if format == "Q8" {
			// half away from zero: the fraction is exact, twice it is -1, 0 or 1 and a fraction
			round := "VROUNDPS $3, %s, %s"
			if s.n == 16 {
				round = "VRNDSCALEPS $3, %s, %s"
			}
			a.op(round, y, t)
			a.op("VSUBPS %s, %s, %s", t, y, y)
			a.op("VADDPS %s, %s, %s", y, y, y)
			a.op("VCVTTPS2DQ %s, %s", y, y)
			a.op("VCVTTPS2DQ %s, %s", t, t)
			a.op("VPADDD %s, %s, %s", t, y, y)
			a.op("VPADDD %s, %s, %s", s.r(13), y, y)
		} else {
			a.op("VADDPS %s, %s, %s", s.r(13), y, y)
			a.op("VCVTTPS2DQ %s, %s", y, y)
			a.op("VPMINSD %s, %s, %s", s.r(12), y, y)
		}
	}
	if s.n == 16 {
		a.op("VPMOVDB Z0, (DI)")
		a.op("VPMOVDB Z1, 16(DI)")
	} else {
		a.op("VPACKSSDW Y1, Y0, Y0")
		a.op("VPACKSSDW Y3, Y2, Y2")
		a.op("VPACKUSWB Y2, Y0, Y0")
		a.op("VEXTRACTI128 $1, Y0, X1")
		a.op("VPUNPCKLDQ X1, X0, X2")
		a.op("VPUNPCKHDQ X1, X0, X3")
		a.op("VMOVDQU X2, (DI)")
		a.op("VMOVDQU X3, 16(DI)")
	}
	a.op("ADDQ $32, DI")
	a.op("ADDQ $4, DX")
	a.op("ADDQ $128, SI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// quantizeWithMinima turns blocks of 32 weights into values from 0 to 15, a scale and a minimum,
// both float32 rounded to binary16. A value that is not finite makes one of them non-finite.
func quantizeWithMinima(a *asm, s isa) {
	a.fn("quantizeQ4M"+s.name, "is quantizeMinimaGo for consecutive blocks.",
		"q *byte, scales *float32, minima *float32, v *float32, blocks int")
	a.load("q", "DI")
	a.load("scales", "DX")
	a.load("minima", "R8")
	a.load("v", "SI")
	a.load("blocks", "CX")
	nv := 32 / s.n
	broadcast := func(bits uint32, reg int) {
		a.op("MOVL $0x%08x, AX", bits)
		a.op("VMOVD AX, X%d", reg)
		a.op("VPBROADCASTD X%d, %s", reg, s.r(reg))
	}
	broadcast(0x3f800000, 11) // 1
	broadcast(15, 12)
	broadcast(0x3f000000, 13) // 0.5
	broadcast(0x41700000, 14) // 15
	a.op("VPXOR X15, X15, X15")
	a.label("loop")
	for j := range nv {
		a.op("VMOVUPS %d(SI), %s", j*s.bytes(), s.r(j))
		if j == 0 {
			a.op("VMOVAPS %s, %s", s.r(0), s.r(4))
			a.op("VMOVAPS %s, %s", s.r(0), s.r(5))
			a.op("VMULPS %s, %s, %s", s.r(15), s.r(0), s.r(6))
			continue
		}
		a.op("VMINPS %s, %s, %s", s.r(4), s.r(j), s.r(4))
		a.op("VMAXPS %s, %s, %s", s.r(5), s.r(j), s.r(5))
		// 0 times a NaN is NaN, which min and max may lose
		a.op("VFMADD231PS %s, %s, %s", s.r(15), s.r(j), s.r(6))
	}
	const t = 8
	for i, op := range []string{"VMINPS", "VMAXPS", "VADDPS"} {
		x := 4 + i
		if s.n == 16 {
			a.op("VEXTRACTF64X4 $1, Z%d, Y%d", x, t)
			a.op("%s Y%d, Y%d, Y%d", op, t, x, x)
		}
		a.fold("VEXTRACTF128", op, x, t)
	}
	a.op("VSUBSS X4, X5, X5")
	a.op("VADDSS X6, X5, X5")
	a.op("VDIVSS X14, X5, X5")
	for _, r := range []int{4, 5} { // rounded to binary16
		a.op("VCVTPS2PH $0, X%d, X%d", r, r)
		a.op("VCVTPH2PS X%d, X%d", r, r)
	}
	a.op("VADDSS X15, X4, X4") // a minimum of -0 is 0
	a.op("VMOVSS X4, (R8)")
	a.op("VMOVSS X5, (DX)")
	a.op("VDIVSS X5, X11, X7") // 1/d, and 0 for 0
	a.op("VCMPSS $4, X15, X5, X8")
	a.op("VPAND X8, X7, X7")
	a.op("VBROADCASTSS X7, %s", s.r(7))
	a.op("VBROADCASTSS X4, %s", s.r(4))
	for j := range nv {
		y := s.r(j)
		a.op("VSUBPS %s, %s, %s", s.r(4), y, y)
		a.op("VMULPS %s, %s, %s", s.r(7), y, y)
		a.op("VADDPS %s, %s, %s", s.r(13), y, y)
		a.op("VCVTTPS2DQ %s, %s", y, y)
		a.op("VPMINSD %s, %s, %s", s.r(12), y, y)
		zero := "Y15"
		if s.n == 16 {
			zero = "Z15"
		}
		a.op("VPMAXSD %s, %s, %s", zero, y, y)
	}
	if s.n == 16 {
		a.op("VPMOVDB Z0, (DI)")
		a.op("VPMOVDB Z1, 16(DI)")
	} else {
		a.op("VPACKSSDW Y1, Y0, Y0")
		a.op("VPACKSSDW Y3, Y2, Y2")
		a.op("VPACKUSWB Y2, Y0, Y0")
		a.op("VEXTRACTI128 $1, Y0, X1")
		a.op("VPUNPCKLDQ X1, X0, X2")
		a.op("VPUNPCKHDQ X1, X0, X3")
		a.op("VMOVDQU X2, (DI)")
		a.op("VMOVDQU X3, 16(DI)")
	}
	a.op("ADDQ $32, DI")
	a.op("ADDQ $4, DX")
	a.op("ADDQ $4, R8")
	a.op("ADDQ $128, SI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}
