package main

import "fmt"

// Strips are the tiles of planBlocks without VNNI: up to six rows of packed activations by 16
// columns (half a panel), whose weights were widened once for all rows. That is eight loads for
// twelve vector products. A block of weights is
//
//	[16] float32 scales
//	4 bits: [16] float32, the scales times -12582912 or, with minima, these
//	4 bits: 8 groups of [16 columns][4 along K] bytes
//	8 bits: 16 pairs of [16 columns][2 along K] int16, of which the first 8 are
//	    values 0 and 2 of a group, the others values 1 and 3
//
// and a block of activations [rows][32] of int8, or of int16 in the order of the weight, [rows]
// float32 scales, and for 4 bits [rows] int32 offsets plus 0x4B400000 or, with minima, [rows]
// float32 sums.
const (
	stripRows  = 6
	stripVecs  = 2
	strip8     = 64 + 1024
	strip4     = 128 + 512
	stripSums  = 128 // bytes between two rows of sums
	stripMagic = 0x4b400000
)

const stripParams = "sums *float32, x *byte, w *byte, blocks int, pf uintptr, pfStep int"

func strips(a *asm) {
	constant := func(name, word string) {
		fmt.Fprintln(&a.text)
		for i := range 8 {
			fmt.Fprintf(&a.text, "DATA %s<>+%d(SB)/4, $0x%s\n", name, 4*i, word)
		}
		fmt.Fprintf(&a.text, "GLOBL %s<>(SB), RODATA|NOPTR, $32\n", name)
	}
	constant("stripOnes", "00010001")
	constant("stripMinus", fmt.Sprintf("%08x", stripMagic|1<<31))
	constant("stripNibbles", "0f0f0f0f")
	constant("stripHigh", "80808080")
	fmt.Fprintln(&a.text)
	for i, v := range iq4Values {
		fmt.Fprintf(&a.text, "DATA stripIQ4<>+%d(SB)/1, $0x%02x\n", i, uint8(v))
	}
	fmt.Fprintln(&a.text, "GLOBL stripIQ4<>(SB), RODATA|NOPTR, $16")
	for rows := 1; rows <= stripRows; rows++ {
		stripWords(a, rows)
		stripBytes(a, "q4Strip", rows, false)
		stripBytes(a, "q4mStrip", rows, true)
	}
	widenStrips(a)
	packStrips(a)
}

func stripOpen(a *asm, name string, rows int) {
	a.fn(fmt.Sprintf("%s%d", name, rows), fmt.Sprintf("is a quantStrip of %d rows.", rows),
		stripParams)
	a.load("sums", "DI")
	a.load("x", "SI")
	a.load("w", "BX")
	a.load("blocks", "CX")
	a.load("pf", "DX")
	a.load("pfStep", "R12")
	a.label("loop")
}

func stripEnd(a *asm, x, w int) {
	a.op("PREFETCHT1 (DX)")
	a.op("ADDQ R12, DX")
	a.op("ADDQ $%d, SI", x)
	a.op("ADDQ $%d, BX", w)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// stripProducts adds the products of n groups or pairs of the weight for all rows. If set, the
// first multiply initialises the sums.
func stripProducts(a *asm, rows, n, head, xStep int, multiply, add string, set bool) {
	for g := range n {
		for j := range stripVecs {
			a.op("VMOVDQU %d(BX), Y%d", head+64*g+32*j, 12+j)
		}
		for r := range rows {
			a.op("VPBROADCASTD %d(SI), Y14", xStep*r+4*g)
			for j := range stripVecs {
				acc := stripVecs*r + j
				if set && g == 0 {
					a.op("%s Y14, Y%d, Y%d", multiply, 12+j, acc)
					continue
				}
				a.op("%s Y14, Y%d, Y%d", multiply, 12+j, 15-j)
				a.op("%s Y%d, Y%d, Y%d", add, 15-j, acc, acc)
			}
		}
	}
}

// stripWords multiplies int16. The results are exact in 32 bits and need no offsets.
func stripWords(a *asm, rows int) {
	stripOpen(a, "q8Strip", rows)
	stripProducts(a, rows, 16, 64, 64, "VPMADDWD", "VPADDD", true)
	for j := range stripVecs {
		a.op("VMOVUPS %d(BX), Y%d", 32*j, 12+j)
	}
	for r := range rows {
		a.op("VBROADCASTSS %d(SI), Y%d", 64*rows+4*r, 14+r%2)
		for j := range stripVecs {
			acc := stripVecs*r + j
			a.op("VCVTDQ2PS Y%d, Y%d", acc, acc)
			a.op("VMULPS Y%d, Y%d, Y%d", 12+j, acc, acc)
			a.op("VFMADD213PS %d(DI), Y%d, Y%d", stripSums*r+32*j, 14+r%2, acc)
			a.op("VMOVUPS Y%d, %d(DI)", acc, stripSums*r+32*j)
		}
	}
	stripEnd(a, 68*rows, strip8)
}

// stripBytes sums a block in 16 bits: 8 pairs of at most 2·15·127. Constants come from memory until
// the sums of a row are stored, and leave it registers.
func stripBytes(a *asm, name string, rows int, minima bool) {
	stripOpen(a, name, rows)
	stripProducts(a, rows, 8, strip4-512, 32, "VPMADDUBSW", "VPADDW", true)
	for j := range stripVecs {
		a.op("VMOVUPS %d(BX), Y%d", 32*j, 14+j)
	}
	constants := [...]string{"stripOnes<>(SB)", "64(BX)", "96(BX)"}
	for r := range rows {
		if r > 0 && r+1 < rows { // at least two rows use them
			for i := stripVecs * (r - 1); i < min(stripVecs*r, len(constants)); i++ {
				a.op("VMOVUPS %s, Y%d", constants[i], i)
				constants[i] = fmt.Sprintf("Y%d", i)
			}
		}
		a.op("VBROADCASTSS %d(SI), Y12", 32*rows+4*r)
		a.op("VBROADCASTSS %d(SI), Y13", 36*rows+4*r)
		for j := range stripVecs {
			acc := stripVecs*r + j
			a.op("VPMADDWD %s, Y%d, Y%d", constants[0], acc, acc)
			if minima {
				a.op("VCVTDQ2PS Y%d, Y%d", acc, acc)
				a.op("VMULPS Y%d, Y%d, Y%d", 14+j, acc, acc)
			} else {
				a.op("VPADDD Y13, Y%d, Y%d", acc, acc)
				a.op("VFMADD213PS %s, Y%d, Y%d", constants[1+j], 14+j, acc)
			}
			a.op("VFMADD213PS %d(DI), Y12, Y%d", stripSums*r+32*j, acc)
			if minima {
				a.op("VFMADD231PS %s, Y13, Y%d", constants[1+j], acc)
			}
			a.op("VMOVUPS Y%d, %d(DI)", acc, stripSums*r+32*j)
		}
	}
	stripEnd(a, 40*rows, strip4)
}

// widenStrips emits kernels that write panels as two strips.
func widenStrips(a *asm) {
	open := func(name, what string) {
		a.fn(name, "writes blocks of a panel in "+what+" as two strips, half bytes apart.",
			"dst *byte, half int, src *byte, blocks int")
		a.load("dst", "DI")
		a.load("half", "R8")
		a.load("src", "SI")
		a.load("blocks", "CX")
	}
	at := func(off, j int) string { // of vector j of the 4 across the panel
		index := ""
		if j >= stripVecs {
			index = "(R8*1)"
		}
		return fmt.Sprintf("%d(DI)%s", off+32*(j%stripVecs), index)
	}
	scales := func() {
		for j := range 4 {
			a.op("VCVTPH2PS %d(SI), Y0", 16*j)
			a.op("VMOVUPS Y0, %s", at(0, j))
		}
	}
	end := func(src, dst int) {
		a.op("ADDQ $%d, SI", src)
		a.op("ADDQ $%d, DI", dst)
		a.op("DECQ CX")
		a.op("JNE loop")
		a.ret()
	}
	words := func(y, g, j int) { // of int8 in register y
		a.op("VPSLLW $8, Y%d, Y%d", y, y+1)
		a.op("VPSRAW $8, Y%d, Y%d", y, y)
		a.op("VPSRAW $8, Y%d, Y%d", y+1, y+1)
		a.op("VMOVDQU Y%d, %s", y+1, at(64+64*g, j))
		a.op("VMOVDQU Y%d, %s", y, at(64+64*(8+g), j))
	}

	open("widenStripQ8", "Q8")
	a.op("VMOVDQU stripHigh<>(SB), Y13")
	a.label("loop")
	scales()
	for g := range 8 {
		for j := range 4 {
			a.op("VPXOR %d(SI), Y13, Y%d", 64+128*g+32*j, 2*j)
			words(2*j, g, j)
		}
	}
	end(q8Block, strip8)

	open("widenStripIQ4", "IQ4")
	a.op("VMOVDQU stripNibbles<>(SB), Y14")
	a.op("VBROADCASTI128 stripIQ4<>(SB), Y15")
	a.label("loop")
	scales()
	for pair := range 4 {
		for j := range 4 {
			y := 4 * (j % 2)
			a.op("VMOVDQU %d(SI), Y%d", 64+128*pair+32*j, y)
			a.op("VPSRLD $4, Y%d, Y%d", y, y+2)
			for i := range 2 {
				a.op("VPAND Y14, Y%d, Y%d", y+2*i, y+2*i)
				a.op("VPSHUFB Y%d, Y15, Y%d", y+2*i, y+2*i)
				words(y+2*i, 2*pair+i, j)
			}
		}
	}
	end(q4Block, strip8)

	for _, q := range []nibbles{q4, q4m} {
		name := "Q4"
		if q.min {
			name = "Q4M"
		}
		open("widenStrip"+name, name)
		a.op("VMOVDQU stripNibbles<>(SB), Y14")
		a.label("loop")
		scales()
		for j := range 4 {
			if q.min {
				a.op("VCVTPH2PS %d(SI), Y0", 64+16*j)
			} else {
				a.op("VCVTPH2PS %d(SI), Y0", 16*j)
				a.op("VMULPS stripMinus<>(SB), Y0, Y0")
			}
			a.op("VMOVUPS Y0, %s", at(64, j))
			for pair := range 4 {
				y := 2 * pair
				a.op("VMOVDQU %d(SI), Y%d", q.head+128*pair+32*j, y)
				a.op("VPSRLD $4, Y%d, Y%d", y, y+1)
				for i := range 2 {
					a.op("VPAND Y14, Y%d, Y%d", y+i, y+i)
					a.op("VMOVDQU Y%d, %s", y+i, at(strip4-512+64*(2*pair+i), j))
				}
			}
		}
		end(q.size, strip4)
	}
}

// packStrips emits kernels that copy a row of quantised activations into a strip's layout.
func packStrips(a *asm) {
	open := func(name, doc string) {
		a.fn(name, doc, "dst *byte, scales *byte, step int, src *byte, blocks int, offsets int, "+
			"magic int")
		a.load("dst", "DI")
		a.load("scales", "DX")
		a.load("step", "R8")
		a.load("src", "SI")
		a.load("blocks", "CX")
		a.label("loop")
		a.op("VMOVDQU (SI), Y0")
		a.op("MOVL %d(SI), AX", aScale)
		a.op("MOVL AX, (DX)")
	}
	end := func() {
		a.op("ADDQ R8, DI")
		a.op("ADDQ R8, DX")
		a.op("ADDQ $%d, SI", aBlock)
		a.op("DECQ CX")
		a.op("JNE loop")
		a.ret()
	}
	open("packStrip4", "copies blocks of a row, step bytes apart, with the scales, and the "+
		"offsets\n// plus magic so many bytes after them.")
	a.op("VMOVDQU Y0, (DI)")
	a.load("offsets", "R9")
	a.load("magic", "AX")
	a.op("ADDL %d(SI), AX", aOffset)
	a.op("MOVL AX, (DX)(R9*1)")
	end()
	open("packStrip8", "is packStrip4 that widens to int16, without offsets.")
	a.op("VPSLLW $8, Y0, Y1")
	a.op("VPSRAW $8, Y0, Y0")
	a.op("VPSRAW $8, Y1, Y1")
	a.op("VMOVDQU Y1, (DI)")
	a.op("VMOVDQU Y0, 32(DI)")
	end()
}
