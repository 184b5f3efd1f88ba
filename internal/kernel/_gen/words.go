package main

import "fmt"

// Words are int16. A block of weights is
//
//	[16] float32 scales
//	64 pairs of [16 columns][2 along K] int16
//
// and a block of activations [rows][128] int16, then [rows] float32 scales. The sum of a block fits
// 32 bits.
const (
	wordBlock = 128 // values along K
	wordRows  = 6
	wordVecs  = 2
	wordRound = 16 // pairs of a round of the loop
)

func words(a *asm) {
	for rows := 1; rows <= wordRows; rows++ {
		wordTile(a, rows)
	}
	wordScores(a)
	quantizeWords(a)
}

func wordTile(a *asm, rows int) {
	a.fn(fmt.Sprintf("wordTile%d", rows), fmt.Sprintf("is a wordTile of %d rows.", rows),
		"c *float32, ldc int, from *float32, ldf int, x *byte, w *byte, blocks int, pf uintptr, "+
			"pfStep int")
	a.load("c", "DI")
	a.load("ldc", "R10")
	a.load("from", "R11")
	a.load("ldf", "R13")
	a.load("x", "SI")
	a.load("w", "BX")
	a.load("blocks", "CX")
	a.load("pf", "DX")
	a.load("pfStep", "R12")
	a.label("block")
	a.op("MOVQ BX, R8") // its scales
	a.op("ADDQ $64, BX")
	for i := range wordVecs * rows {
		a.op("%s", avx2.zero(i))
	}
	a.op("MOVQ $%d, R9", wordBlock/2/wordRound)
	a.label("loop")
	madd{
		isa: avx2, multiply: "VPMADDWD", add: "VPADDD", spare: [4]int{12, 13, 14, 15},
		weights: func(g, j int) int { return 64*g + 32*j },
		x:       func(r, g int) int { return 2*wordBlock*r + 4*g },
	}.products(a, rows, wordRound)
	a.op("PREFETCHT1 (DX)")
	a.op("ADDQ R12, DX")
	a.op("ADDQ $%d, BX", 64*wordRound)
	a.op("ADDQ $%d, SI", 4*wordRound)
	a.op("DECQ R9")
	a.op("JNE loop")
	// SI is at the end of the first row
	for j := range wordVecs {
		a.op("VMOVUPS %d(R8), Y%d", 32*j, 12+j)
	}
	a.op("MOVQ DI, AX")
	for r := range rows {
		a.op("VBROADCASTSS %d(SI), Y%d", 2*wordBlock*(rows-1)+4*r, 14+r%2)
		for j := range wordVecs {
			acc := wordVecs*r + j
			a.op("VCVTDQ2PS Y%d, Y%d", acc, acc)
			a.op("VMULPS Y%d, Y%d, Y%d", 12+j, acc, acc)
			a.op("VFMADD213PS %d(R11), Y%d, Y%d", 32*j, 14+r%2, acc)
			a.op("VMOVUPS Y%d, %d(AX)", acc, 32*j)
		}
		a.op("ADDQ R13, R11")
		a.op("ADDQ R10, AX")
	}
	a.op("MOVQ DI, R11") // the other blocks continue
	a.op("MOVQ R10, R13")
	a.op("ADDQ $%d, SI", 2*wordBlock*(rows-1)+4*rows)
	a.op("DECQ CX")
	a.op("JNE block")
	a.ret()
}

// wordScores is a tile of one block that may have less than wordBlock values along K.
func wordScores(a *asm) {
	const rows, round = wordRows, 4
	a.fn("wordScores", fmt.Sprintf("sets c, %[1]d·tiles rows of %[2]d columns ldc bytes apart, to "+
		"products of one block: x has [%[1]d][%[3]d] int16 and [%[1]d] float32 scales a tile, w "+
		"[%[2]d] float32 scales and [%[4]d·rounds pairs][%[2]d][2] int16.",
		rows, 8*wordVecs, wordBlock, round),
		"c *float32, ldc int, x *byte, w *byte, rounds int, tiles int")
	a.load("c", "DI")
	a.load("ldc", "R10")
	a.load("x", "DX")
	a.load("w", "R8")
	a.load("tiles", "CX")
	a.label("tile")
	a.op("MOVQ DX, SI")
	a.op("LEAQ 64(R8), BX")
	for i := range wordVecs * rows {
		a.op("%s", avx2.zero(i))
	}
	a.load("rounds", "R9")
	a.label("loop")
	madd{
		isa: avx2, multiply: "VPMADDWD", add: "VPADDD", spare: [4]int{12, 13, 14, 15},
		weights: func(g, j int) int { return 64*g + 32*j },
		x:       func(r, g int) int { return 2*wordBlock*r + 4*g },
	}.products(a, rows, round)
	a.op("ADDQ $%d, BX", 64*round)
	a.op("ADDQ $%d, SI", 4*round)
	a.op("DECQ R9")
	a.op("JNE loop")
	for j := range wordVecs {
		a.op("VMOVUPS %d(R8), Y%d", 32*j, 12+j)
	}
	for r := range rows {
		a.op("VBROADCASTSS %d(DX), Y%d", 2*wordBlock*rows+4*r, 14+r%2)
		for j := range wordVecs {
			acc := wordVecs*r + j
			a.op("VCVTDQ2PS Y%d, Y%d", acc, acc)
			a.op("VMULPS Y%d, Y%d, Y%d", 12+j, acc, acc)
			a.op("VMULPS Y%d, Y%d, Y%d", 14+r%2, acc, acc)
			a.op("VMOVUPS Y%d, %d(DI)", acc, 32*j)
		}
		a.op("ADDQ R10, DI")
	}
	a.op("ADDQ $%d, DX", (2*wordBlock+4)*rows)
	a.op("DECQ CX")
	a.op("JNE tile")
	a.ret()
}

// quantizeWords rounds blocks to int16.
func quantizeWords(a *asm) {
	a.fn("quantizeWordsAVX2", "is quantizeWordsGo.",
		"dst *byte, scales *byte, step int, x *float32, blocks int, most int")
	a.load("dst", "DI")
	a.load("scales", "DX")
	a.load("step", "R8")
	a.load("x", "SI")
	a.load("blocks", "CX")
	a.load("most", "AX")
	a.op("VXORPS X14, X14, X14")
	a.op("VCVTSI2SSL AX, X14, X14")
	a.constant(avx2, 0x7fffffff, 12)
	a.constant(avx2, 0x0da24260, 13) // 1e-30
	a.label("loop")
	for i := range 4 { // the greatest magnitude as bits, which have the same order
		a.op("VMOVDQU Y13, Y%d", i)
	}
	for i := range wordBlock / 8 {
		a.op("VPAND %d(SI), Y12, Y%d", 32*i, 4+i%4)
		a.op("VPMAXSD Y%d, Y%d, Y%d", 4+i%4, i%4, i%4)
	}
	a.op("VPMAXSD Y1, Y0, Y0")
	a.op("VPMAXSD Y3, Y2, Y2")
	a.op("VPMAXSD Y2, Y0, Y0")
	a.fold("VEXTRACTI128", "VPMAXSD", 0, 1)
	a.op("VDIVSS X14, X0, X1") // scale = max/most
	a.op("VMOVSS X1, (DX)")
	a.op("VDIVSS X0, X14, X1") // most/max
	a.op("VBROADCASTSS X1, Y15")
	for i := range wordBlock / 16 {
		y := 2 * (i % 4)
		for j := range 2 {
			a.op("VMULPS %d(SI), Y15, Y%d", 64*i+32*j, y+j)
			a.op("VCVTPS2DQ Y%d, Y%d", y+j, y+j)
		}
		a.op("VPACKSSDW Y%d, Y%d, Y%d", y+1, y, y)
		a.op("VPERMQ $0xd8, Y%d, Y%d", y, y)
		a.op("VMOVDQU Y%d, %d(DI)", y, 32*i)
	}
	a.op("ADDQ $%d, SI", 4*wordBlock)
	a.op("ADDQ R8, DI")
	a.op("ADDQ R8, DX")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}
