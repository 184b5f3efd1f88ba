package main

import (
	"fmt"
	"math"
	"strings"
)

// tileRows is the number of query rows of one tile: six rows of four vectors fill 24 of 32
// registers.
const tileRows = 6

// attention writes the kernels of the tiled attention.
func attention(a *asm) {
	s := &source{asm: a}
	for _, v := range isas {
		s.expTable(v)
		widths := []int{64, 32, 16}
		if v == avx2 {
			widths = []int{16}
		}
		for _, w := range widths {
			s.tile(v, w, tileFloats)
		}
		if v.n == 16 {
			for _, w := range widths {
				s.tile(v, w, tilePairs)
				s.tile(v, w, tileQuads)
			}
			s.tile(v, 64, tileProbs)
			s.tile(v, 16, tileTall)
			s.round(v)
			s.pairRows(v, false)
			s.exp2(v, false, true)
			s.exp2(v, true, true)
		}
		if v.n == 8 {
			s.tile(v, 16, tileQuads)
		}
		for _, w := range widths {
			s.tile(v, w, tileWords)
		}
		s.roundWords(v)
		s.columnHighs(v)
		s.pairRows(v, true)
		s.quadRows(v)
		s.topQuads(v)
		s.exp2(v, true, false)
		s.transpose(v)
		s.copyRows(v)
		s.rowMax(v)
		s.addMax(v)
		s.expSum(v)
		s.biasRow(v)
		s.addWindow(v)
		s.axpy(v)
		s.peakOf(v)
		s.weighted(v, "", 1)
		for i := range weightedVectors {
			if v.n == 16 || i == 0 {
				s.weighted(v, fmt.Sprint("Half", i+1), i+1)
			}
		}
		s.narrow(v)
	}
}

// elements says what an element along k, which has four bytes, consists of.
type elements int

const (
	tileFloats elements = iota
	tilePairs           // of bfloat16
	tileQuads           // of bytes
	tileProbs           // the same, whose sums become probabilities
	tileTall            // tilePairs of twice the rows, for panels of one vector
	tileWords           // pairs of int16, whose sums are scaled
)

// tile: C[rows·tiles, w] (+)= A·B with A and B row-major. A tile has six rows, or twelve.
func (s *source) tile(v isa, w int, e elements) {
	nv, rows, bases := w/v.n, tileRows, []string{"AX", "BX"}
	name, doc, suffix := "attnTile", "", v.name
	switch e {
	case tilePairs:
		name, doc = "attnPairs", " Elements of A and B are pairs of bfloat16 (AVX512_BF16)."
	case tileTall:
		rows, bases = 2*tileRows, append(bases, "R12", "R13")
		name, doc = "attnTall", " Elements of A and B are pairs of bfloat16 (AVX512_BF16)."
	case tileQuads:
		name, doc = "attnQuads", " Elements of A are quads of signed bytes, those of B of "+
			"unsigned ones, and C is int32. After the last quad, each row of A has what its sums "+
			"begin with. add must be 0 (VNNI)."
		suffix = v.vnni()
	}
	params := "a *float32, lda int, b *float32, ldb int, c *float32, ldc int, k int, tiles int, " +
		"add int"
	if e == tileWords {
		name, doc = "attnWords", " Elements of A and B are pairs of int16, whose sums must fit "+
			"int32. They are multiplied by rows[row] and columns[column] (VNNI)."
		params += ", rows *float32, columns *float32"
		suffix = v.vnni()
	}
	if e == tileProbs {
		s.open(fmt.Sprintf("attnProbs%d%s", w, v.name),
			fmt.Sprintf("sets %d·tiles rows of %d bfloat16 elements of p, which are ldp float32 "+
				"apart, to 2^(f[row]·scales[column]·x - m[row]), rounded, where x is what "+
				"attnQuads%d computes, and adds them to the %d sums of the row. What is below "+
				"2^-126 becomes 0. The error is that of attnExpRound (VNNI, AVX512_BF16).",
				tileRows, w, w, v.n),
			"a *float32, lda int, b *float32, scales *float32, p *float32, ldp int, "+
				"sums *float32, f *float32, m *float32, k int, tiles int", "")
	} else {
		s.open(fmt.Sprintf("%s%d%s", name, w, suffix),
			fmt.Sprintf("computes C = A·B, or C += A·B when add is not 0, for %d·tiles rows of "+
				"C: A has rows of k elements lda apart, B k rows of %d elements ldb apart, C "+
				"has rows ldc apart.", rows, w)+doc, params, "")
	}
	acc := func(r, j int) string { return v.r(2 + nv + r*nv + j) }
	b := func(j int) string { return v.r(2 + j) }
	const unit = 31 // holds twoOnes
	s.load("a", "SI")
	s.floats("lda", "R8")
	s.load("k", "R11")
	if e == tileProbs {
		s.asm.constant(v, twoOnes, unit)
		s.load("p", "DI")
		s.floats("ldp", "R9")
		s.f("MOVQ $%d, R10", 4*w)
	} else {
		s.load("c", "DI")
		s.floats("ldc", "R9")
		s.floats("ldb", "R10")
	}
	next, body, fresh, four, one, ones, store := s.name("tile"), s.name("body"), s.name("fresh"),
		s.name("four"), s.name("one"), s.name("ones"), s.name("store")
	cRows := func(f func(r int, at func(offset int) string)) {
		base := "DI"
		for r := range rows {
			if r > 0 && r%3 == 0 {
				s.f("LEAQ (%s)(R9*2), R13", base)
				s.f("ADDQ R9, R13")
				base = "R13"
			}
			f(r, func(offset int) string { return indexed(offset, base, "R9", r%3) })
		}
	}
	s.f("%s:", next)
	s.load("b", "DX")
	s.f("MOVQ R11, CX")
	aRow := func(r, offset int, bases []string) string {
		return indexed(offset, bases[r/3], "R8", r%3)
	}
	aRows := func() {
		s.f("MOVQ SI, %s", bases[0])
		for i := 1; i < len(bases); i++ {
			s.f("LEAQ (%s)(R8*2), %s", bases[i-1], bases[i])
			s.f("ADDQ R8, %s", bases[i])
		}
	}
	if e == tileQuads || e == tileProbs {
		aRows()
		s.f("LEAQ (AX)(R11*4), R12")
		s.f("LEAQ (BX)(R11*4), R13")
		for r := range rows {
			s.f("VPBROADCASTD %s, %s", aRow(r, 0, []string{"R12", "R13"}), acc(r, 0))
			for j := 1; j < nv; j++ {
				s.f("VMOVAPS %s, %s", acc(r, 0), acc(r, j))
			}
		}
	} else if e == tileWords {
		for i := range rows * nv {
			s.zero(v, 2+nv+i)
		}
		aRows()
	} else {
		s.f("CMPQ %s, $0", s.arg("add"))
		s.f("JEQ %s", fresh)
		cRows(func(r int, at func(int) string) {
			for j := 0; j < nv; j++ {
				s.f("VMOVUPS %s, %s", at(j*v.bytes()), acc(r, j))
			}
		})
		s.f("JMP %s", body)
		s.f("%s:", fresh)
		for r := range rows {
			for j := 0; j < nv; j++ {
				s.zero(v, 2+nv+r*nv+j)
			}
		}
		s.f("%s:", body)
		aRows()
	}
	step := func(u int) {
		for j := 0; j < nv; j++ {
			s.f("VMOVUPS %d(DX), %s", j*v.bytes(), b(j))
		}
		s.f("ADDQ R10, DX")
		for r := range rows {
			s.f("VBROADCASTSS %s, %s", aRow(r, 4*u, bases), v.r(r%2))
			for j := 0; j < nv; j++ {
				switch e {
				case tileFloats:
					s.f("VFMADD231PS %s, %s, %s", b(j), v.r(r%2), acc(r, j))
				case tilePairs, tileTall:
					s.vdpbf16ps(r%2, 2+j, 2+nv+r*nv+j)
				case tileQuads, tileProbs:
					s.vpdpbusd(v, r%2, 2+j, 2+nv+r*nv+j)
				case tileWords:
					s.vpdpwssd(v, r%2, 2+j, 2+nv+r*nv+j)
				}
			}
		}
	}
	advance := func(u int) {
		for _, base := range bases {
			s.f("ADDQ $%d, %s", 4*u, base)
		}
	}
	s.f("SUBQ $4, CX")
	s.f("JLT %s", one)
	s.f("%s:", four)
	for u := 0; u < 4; u++ {
		step(u)
	}
	advance(4)
	s.f("SUBQ $4, CX")
	s.f("JGE %s", four)
	s.f("%s:", one)
	s.f("ADDQ $4, CX")
	s.f("JEQ %s", store)
	s.f("%s:", ones)
	step(0)
	advance(1)
	s.f("DECQ CX")
	s.f("JNE %s", ones)
	s.f("%s:", store)
	if e == tileProbs {
		s.load("scales", "AX")
		s.load("sums", "BX")
		s.load("f", "CX")
		s.load("m", "DX")
		// Nothing keeps small results normal: AMD's processors need no longer for others, and
		// products of bfloat16 take them for 0.
		const t, p, sum = 4, 5, 30 // the polynomial is in 0 to 3
		for i := range expRoundPoly {
			s.f("VMOVUPS %s, Z%d", s.constant("attnExpRound"+v.name, 2+i), i)
		}
		cRows(func(r int, at func(int) string) {
			s.f("VMOVUPS %d(BX), Z%d", r*v.bytes(), sum)
			for j := 0; j < nv; j++ {
				y := acc(r, j)
				s.f("VMOVUPS %d(AX), Z%d", j*v.bytes(), t)
				s.f("VMULPS.BCST %d(CX), Z%d, Z%d", 4*r, t, t)
				s.f("VCVTDQ2PS %s, %s", y, y)
				s.f("VFMSUB213PS.BCST %d(DX), Z%d, %s", 4*r, t, y)
				s.f("VREDUCEPS $9, %s, Z%d", y, t)
				s.f("VMOVAPS Z%d, Z%d", len(expRoundPoly)-1, p)
				for i := len(expRoundPoly) - 2; i >= 0; i-- {
					s.f("VFMADD213PS Z%d, Z%d, Z%d", i, t, p)
				}
				s.f("VSCALEFPS %s, Z%d, %s", y, p, y)
				if j%2 != 0 {
					high := 2 + nv + r*nv + j
					s.vcvtne2ps2bf16(high-1, high, p)
					s.vdpbf16ps(p, unit, sum)
					s.f("VMOVUPS Z%d, %s", p, at(j/2*v.bytes()))
				}
			}
			s.f("VMOVUPS Z%d, %d(BX)", sum, r*v.bytes())
		})
		s.f("ADDQ $%d, %s", 4*tileRows, s.arg("f"))
		s.f("ADDQ $%d, %s", 4*tileRows, s.arg("m"))
		s.f("ADDQ $%d, %s", v.bytes()*tileRows, s.arg("sums"))
	} else if e == tileWords {
		s.load("rows", "BX")
		s.load("columns", "CX")
		scale := func(add bool) {
			cRows(func(r int, at func(int) string) {
				s.f("VBROADCASTSS %d(BX), %s", 4*r, v.r(0))
				for j := 0; j < nv; j++ {
					s.f("VMULPS %d(CX), %s, %s", j*v.bytes(), v.r(0), v.r(1))
					s.f("VCVTDQ2PS %s, %s", acc(r, j), acc(r, j))
					if add {
						s.f("VFMADD213PS %s, %s, %s", at(j*v.bytes()), v.r(1), acc(r, j))
					} else {
						s.f("VMULPS %s, %s, %s", v.r(1), acc(r, j), acc(r, j))
					}
					s.f("VMOVUPS %s, %s", acc(r, j), at(j*v.bytes()))
				}
			})
		}
		scaled := s.name("scaled")
		s.f("CMPQ %s, $0", s.arg("add"))
		s.f("JEQ %s", fresh)
		scale(true)
		s.f("JMP %s", scaled)
		s.f("%s:", fresh)
		scale(false)
		s.f("%s:", scaled)
		s.f("ADDQ $%d, %s", 4*tileRows, s.arg("rows"))
	} else {
		cRows(func(r int, at func(int) string) {
			for j := 0; j < nv; j++ {
				s.f("VMOVUPS %s, %s", acc(r, j), at(j*v.bytes()))
			}
		})
	}
	s.f("LEAQ (R13)(R9*2), DI")
	s.f("ADDQ R9, DI")
	for range rows / tileRows {
		s.f("LEAQ (SI)(R8*2), SI")
		s.f("LEAQ (SI)(R8*4), SI")
	}
	s.f("DECQ %s", s.arg("tiles"))
	s.f("JNE %s", next)
	s.ret()
}

// indexed is the address offset bytes after base, plus the register index some times.
func indexed(offset int, base, index string, times int) string {
	at := fmt.Sprintf("%d(%s)", offset, base)
	if times > 0 {
		at += fmt.Sprintf("(%s*%d)", index, times)
	}
	return at
}

// quadRows: rows of float32 to bytes.
func (s *source) quadRows(v isa) {
	s.open("attnQuadRows"+v.name, "rounds rows of n elements of src less those of sub, a "+
		"multiple of 4, to signed bytes, each row with its own scale, and flips the bits of flip "+
		"in every four. After a row of dst it writes -128 times its sum before flip. Rows of dst "+
		"are stride apart, those of src srcStride; dst is written up to a multiple of 16 bytes. A "+
		"scale is f times that of the row, NaN if an element is not finite.",
		"dst *float32, stride int, scales *float32, src *float32, srcStride int, sub *float32, "+
			"rows int, n int, flip int32, f float32", "")
	s.load("dst", "DI")
	s.floats("stride", "R13")
	s.load("scales", "R9")
	s.load("src", "BX")
	s.floats("srcStride", "R11")
	s.load("rows", "R10")
	s.load("n", "R8")
	s.f("MOVQ R8, CX")
	s.f("ANDQ $%d, CX", v.n-1)
	s.f("MOVQ CX, R12")
	const high, nan, sum, x, y, inverse, flip, sign, least, most, factor, zero, mask = 0, 1, 2, 3,
		4, 5, 6, 7, 8, 9, 10, 11, 12
	r := v.r
	s.f("MOVQ R13, AX") // tailMask overwrites R13
	s.tailMask(v, mask)
	s.f("MOVQ AX, R13")
	s.f("VBROADCASTSS %s, X%d", s.arg("flip"), flip)
	s.asm.constant(v, 0x7fffffff, sign)
	s.asm.constant(v, math.Float32bits(0x1p-100), least) // so that the inverse is finite
	s.asm.constant(v, math.Float32bits(127), most)
	s.f("VBROADCASTSS %s, %s", s.arg("f"), r(factor))
	s.f("VDIVSS X%d, X%d, X%d", most, factor, factor)
	s.zero(v, zero)
	row := s.name("row")
	s.f("%s:", row)
	s.zero(v, high)
	s.zero(v, nan) // 0, or NaN
	s.zero(v, sum)
	pass := func(full, last func()) {
		s.f("MOVQ BX, SI")
		s.load("sub", "DX")
		s.f("MOVQ R8, CX")
		s.loop(v, []string{"SI", "DX"}, func() {
			s.f("VMOVUPS (SI), %s", r(x))
			s.f("VSUBPS (DX), %s, %s", r(x), r(x))
			full()
		})
		done := s.name("done")
		s.f("TESTQ R12, R12")
		s.f("JEQ %s", done)
		s.maskedLoad(v, mask, "(SI)", x)
		s.maskedLoad(v, mask, "(DX)", y)
		s.f("VSUBPS %s, %s, %s", r(y), r(x), r(x))
		last()
		s.f("%s:", done)
	}
	abs := func() {
		s.f("VFMADD231PS %s, %s, %s", r(x), r(zero), r(nan))
		s.f("VANDPS %s, %s, %s", r(sign), r(x), r(x))
		s.f("VMAXPS %s, %s, %s", r(x), r(high), r(high))
	}
	pass(func() {
		s.f("PREFETCHT0 (SI)(R11*8)") // rows are pages apart, where no hardware prefetcher follows
		abs()
	}, abs)
	s.reduce(v, "VMAXPS", high, x)
	s.reduce(v, "VADDPS", nan, x)
	s.f("VMAXSS X%d, X%d, X%d", least, high, high)
	s.f("VDIVSS X%d, X%d, X%d", high, most, inverse)
	s.f("VBROADCASTSS X%d, %s", inverse, r(inverse))
	s.f("VFMADD231SS X%d, X%d, X%d", high, factor, nan)
	s.f("VMOVSS X%d, (R9)", nan)
	s.f("ADDQ $4, R9")
	s.f("MOVQ DI, AX")
	bytes := func() {
		s.f("VMULPS %s, %s, %s", r(inverse), r(x), r(x))
		s.f("VCVTPS2DQ %s, %s", r(x), r(x))
		s.f("VPADDD %s, %s, %s", r(x), r(sum), r(sum))
		store := "VMOVDQU"
		if v.n == 16 {
			s.f("VPMOVDB %s, X%d", r(x), x)
		} else {
			store = "VMOVQ"
			s.f("VEXTRACTI128 $1, %s, X%d", r(x), y)
			s.f("VPACKSSDW X%d, X%d, X%d", y, x, x)
			s.f("VPACKSSWB X%d, X%d, X%d", x, x, x)
		}
		s.f("VPXOR X%d, X%d, X%d", flip, x, x)
		s.f("%s X%d, (AX)", store, x)
		s.f("ADDQ $%d, AX", v.n)
	}
	pass(bytes, bytes)
	s.reduce(v, "VPADDD", sum, x)
	s.f("VPSLLD $7, X%d, X%d", sum, sum)
	s.f("VMOVD X%d, AX", sum)
	s.f("NEGL AX")
	s.f("MOVL AX, (DI)(R8*1)")
	s.f("ADDQ R13, DI")
	s.f("ADDQ R11, BX")
	s.f("DECQ R10")
	s.f("JNE %s", row)
	s.ret()
}

// topQuads: the largest score of sums of integers.
func (s *source) topQuads(v isa) {
	s.open("attnTopQuads"+v.name, "returns the largest f·scales[i]·x[i] of n > 0 int32 elements "+
		"of x, a multiple of the lanes.", "x *float32, scales *float32, n int, f float32",
		"float32")
	s.load("x", "SI")
	s.load("scales", "DI")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("f"), v.r(0))
	s.asm.constant(v, 0xff800000, 1) // -Inf
	s.loop(v, []string{"SI", "DI"}, func() {
		s.f("VCVTDQ2PS (SI), %s", v.r(2))
		s.f("VMULPS (DI), %s, %s", v.r(0), v.r(3))
		s.f("VMULPS %s, %s, %s", v.r(3), v.r(2), v.r(2))
		s.f("VMAXPS %s, %s, %s", v.r(2), v.r(1), v.r(1))
	})
	s.reduce(v, "VMAXPS", 1, 2)
	s.f("VMOVSS X1, %s", s.arg("ret"))
	s.ret()
}

// expRoundPoly is 2^f for 0 <= f < 1, for results that are rounded to bfloat16.
var expRoundPoly = []float64{
	0.99992521856401, 0.695833540506448, 0.22606715539313021, 0.07802452266443176,
}

// twoOnes are two bfloat16, with which the instruction that multiplies pairs sums others.
const twoOnes = 0x3f803f80

// exp2: probabilities of scores to base 2, which may be sums of integers. 2^y has floor(y) in the
// exponent and a polynomial for the rest, of degree 3 where the result is rounded to bfloat16.
// There the instruction that multiplies pairs sums what it will multiply.
func (s *source) exp2(v isa, quads, half bool) {
	name, element, rounded, size := "attnExp", "float32", "", v.bytes()
	accuracy, values := "2.6e-6 of a result", []float64{1.0000025933706653, 0.693003834471064,
		0.2414427568861899, 0.0520114606190554, 0.013534167911694569}
	if half {
		name, element, rounded, size = "attnExpRound", "bfloat16", ", rounded,", v.bytes()/2
		accuracy, values = "7.5e-5 of a result before rounding (AVX512_BF16)", expRoundPoly
	}
	score, of, have, params := "x[i]", "float32", "x has", ""
	if quads {
		name += "Quads"
		score, of, have = "f·scales[i]·x[i]", "int32", "x and scales have"
		params = "scales *float32, "
	}
	name += v.name
	const least, most = -126, 127 // exponents of normal numbers
	var bits []uint32
	for _, c := range append([]float64{least, most}, values...) {
		bits = append(bits, math.Float32bits(float32(c)))
	}
	s.constants(name, bits)
	params = "dst *float32, x *float32, " + params + "n int, "
	if quads {
		params += "f float32, "
	}
	s.open(name, fmt.Sprintf("sets n > 0 %s elements of dst to 2^(%s - m)%s for %s elements of x, "+
		"and zeros up to whole vectors, which %s too. It returns their sum. What is below 2^-126 "+
		"becomes that. The error is %s.", element, score, rounded, of, have, accuracy),
		params+"m float32", "float32")
	s.load("dst", "DI")
	s.load("x", "SI")
	s.load("n", "R10")
	if quads {
		s.load("scales", "DX")
		s.f("VBROADCASTSS %s, %s", s.arg("f"), v.r(0))
	}
	s.f("VBROADCASTSS %s, %s", s.arg("m"), v.r(1))
	s.zero(v, 2)
	s.zero(v, 3)
	s.f("MOVQ R10, CX")
	s.f("ANDQ $%d, CX", v.n-1)
	s.f("MOVQ CX, R12")
	const out, mask, base, ones = 10, 15, 16, 31 // AVX2 has the constants in memory
	s.tailMask(v, mask)
	constant := func(i int) string {
		if v.n == 16 {
			return v.r(base + i)
		}
		return s.constant(name, i)
	}
	for i := range bits {
		if v.n == 16 {
			s.f("VMOVUPS %s, %s", s.constant(name, i), constant(i))
		}
	}
	if half {
		s.asm.constant(v, twoOnes, ones)
	}
	power := func(from int) (result int) {
		y, f, p := 4+from, 6+from, 8+from
		Y, F, P := v.r(y), v.r(f), v.r(p)
		if quads {
			s.f("VCVTDQ2PS %d(SI), %s", from*v.bytes(), Y)
			s.f("VMULPS %d(DX), %s, %s", from*v.bytes(), v.r(0), F)
			s.f("VFMSUB213PS %s, %s, %s", v.r(1), F, Y)
		} else {
			s.f("VMOVUPS %d(SI), %s", from*v.bytes(), Y)
			s.f("VSUBPS %s, %s, %s", v.r(1), Y, Y)
		}
		// both limits keep a NaN
		if v.n == 8 {
			s.f("VMOVUPS %s, %s", constant(1), P)
			s.f("VMINPS %s, %s, %s", Y, P, Y)
		}
		low := constant(0)
		if v.n == 8 {
			s.f("VMOVUPS %s, %s", low, P)
			low = P
		}
		s.f("VMAXPS %s, %s, %s", Y, low, Y)
		if v.n == 16 {
			s.f("VREDUCEPS $9, %s, %s", Y, F) // y - floor(y)
		} else {
			s.f("VROUNDPS $9, %s, %s", Y, P)
			s.f("VSUBPS %s, %s, %s", P, Y, F)
			s.f("VCVTPS2DQ %s, %s", P, Y)
			s.f("VPSLLD $23, %s, %s", Y, Y)
		}
		s.f("VMOVAPS %s, %s", constant(len(bits)-1), P)
		for i := len(bits) - 2; i >= 2; i-- {
			s.f("VFMADD213PS %s, %s, %s", constant(i), F, P)
		}
		if v.n == 16 {
			s.f("VSCALEFPS %s, %s, %s", Y, P, P)
		} else {
			s.f("VPADDD %s, %s, %s", Y, P, P) // keeps a NaN
		}
		return p
	}
	store := func(p int) { // and add to the sum
		if half {
			s.vcvtneps2bf16(p, out)
			s.vdpbf16ps(out, ones, 2)
			s.f("VMOVUPS Y%d, (DI)", out)
			return
		}
		s.f("VADDPS %s, %s, %s", v.r(p), v.r(2), v.r(2))
		s.f("VMOVUPS %s, (DI)", v.r(p))
	}
	advance := func(vectors int) {
		s.f("ADDQ $%d, SI", vectors*v.bytes())
		if quads {
			s.f("ADDQ $%d, DX", vectors*v.bytes())
		}
		s.f("ADDQ $%d, DI", vectors*size)
	}
	two, one, tail, done := s.name("two"), s.name("one"), s.name("tail"), s.name("done")
	s.f("SUBQ $%d, R10", 2*v.n)
	s.f("JLT %s", one)
	s.f("%s:", two)
	p, q := power(0), power(1)
	if half {
		s.vcvtne2ps2bf16(p, q, out)
		s.vdpbf16ps(out, ones, 3)
		s.f("VMOVUPS Z%d, (DI)", out)
	} else {
		s.f("VADDPS %s, %s, %s", v.r(p), v.r(2), v.r(2))
		s.f("VADDPS %s, %s, %s", v.r(q), v.r(3), v.r(3))
		s.f("VMOVUPS %s, (DI)", v.r(p))
		s.f("VMOVUPS %s, %d(DI)", v.r(q), v.bytes())
	}
	advance(2)
	s.f("SUBQ $%d, R10", 2*v.n)
	s.f("JGE %s", two)
	s.f("%s:", one)
	s.f("ADDQ $%d, R10", v.n)
	s.f("JLT %s", tail)
	store(power(0))
	advance(1)
	s.f("%s:", tail)
	s.f("TESTQ R12, R12")
	s.f("JEQ %s", done)
	p = power(0)
	if v.n == 16 {
		s.f("VMOVAPS.Z %s, K2, %s", v.r(p), v.r(p))
	} else {
		s.f("VANDPS %s, %s, %s", v.r(mask), v.r(p), v.r(p))
	}
	store(p)
	s.f("%s:", done)
	s.f("VADDPS %s, %s, %s", v.r(3), v.r(2), v.r(2))
	s.reduce(v, "VADDPS", 2, 3)
	s.f("VMOVSS X2, %s", s.arg("ret"))
	s.ret()
}

// round: float32 to bfloat16.
func (s *source) round(v isa) {
	s.open("attnRound"+v.name, fmt.Sprintf("rounds n elements, a multiple of %d, to bfloat16, to "+
		"nearest and ties to even (AVX512_BF16). dst may be src.", v.n),
		"dst *float32, src *float32, n int", "")
	s.load("dst", "DI")
	s.load("src", "SI")
	s.load("n", "CX")
	s.loop(v, []string{"SI"}, func() {
		s.f("VMOVUPS (SI), %s", v.r(0))
		s.vcvtneps2bf16(0, 1)
		s.f("VMOVUPS Y1, (DI)")
		s.f("ADDQ $%d, DI", v.bytes()/2)
	})
	s.ret()
}

// roundWords: float32 to int16.
func (s *source) roundWords(v isa) {
	s.open("attnRoundWords"+v.name, fmt.Sprintf("rounds n elements, a multiple of %d, times f to "+
		"int16, to nearest and ties to even. dst may be src.", v.n),
		"dst *float32, src *float32, n int, f float32", "")
	s.load("dst", "DI")
	s.load("src", "SI")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("f"), v.r(0))
	s.loop(v, []string{"SI"}, func() {
		s.f("VMULPS (SI), %s, %s", v.r(0), v.r(1))
		s.f("VCVTPS2DQ %s, %s", v.r(1), v.r(1))
		if v.n == 16 {
			s.f("VPMOVSDW Z1, (DI)")
		} else {
			s.f("VEXTRACTI128 $1, Y1, X2")
			s.f("VPACKSSDW X2, X1, X1")
			s.f("VMOVUPS X1, (DI)")
		}
		s.f("ADDQ $%d, DI", v.bytes()/2)
	})
	s.ret()
}

// columnHighs: the largest magnitude of every column, NaN if an element is not finite.
func (s *source) columnHighs(v isa) {
	s.open("attnColumnHighs"+v.name, "sets high to the largest magnitudes of n columns of rows of "+
		"x, stride apart, NaN where an element is not finite. rows must be at least 1.",
		"high *float32, x *float32, stride int, rows int, n int", "")
	s.load("high", "DI")
	s.load("x", "SI")
	s.floats("stride", "R8")
	s.load("n", "R10")
	const x, high, nan, mask, sign, zero = 0, 4, 8, 12, 13, 14
	s.asm.constant(v, 0x7fffffff, sign)
	s.zero(v, zero)
	block := func(nv int, load, store func(j, to int)) {
		for j := range nv {
			s.zero(v, high+j)
			s.zero(v, nan+j)
		}
		s.f("MOVQ SI, BX")
		s.load("rows", "DX")
		row := s.name("row")
		s.f("%s:", row)
		for j := range nv {
			load(j, x+j)
			s.f("VFMADD231PS %s, %s, %s", v.r(x+j), v.r(zero), v.r(nan+j))
			s.f("VANDPS %s, %s, %s", v.r(sign), v.r(x+j), v.r(x+j))
			s.f("VMAXPS %s, %s, %s", v.r(x+j), v.r(high+j), v.r(high+j))
		}
		s.f("ADDQ R8, BX")
		s.f("DECQ DX")
		s.f("JNE %s", row)
		for j := range nv {
			s.f("VADDPS %s, %s, %s", v.r(nan+j), v.r(high+j), v.r(high+j))
			store(j, high+j)
		}
		s.f("ADDQ $%d, SI", nv*v.bytes())
		s.f("ADDQ $%d, DI", nv*v.bytes())
	}
	one, tail, done := s.name("one"), s.name("tail"), s.name("done")
	for _, nv := range []int{4, 1} {
		again, end := s.name("block"), map[int]string{4: one, 1: tail}[nv]
		s.f("%s:", again)
		s.f("CMPQ R10, $%d", nv*v.n)
		s.f("JLT %s", end)
		block(nv, func(j, to int) { s.f("VMOVUPS %d(BX), %s", j*v.bytes(), v.r(to)) },
			func(j, from int) { s.f("VMOVUPS %s, %d(DI)", v.r(from), j*v.bytes()) })
		s.f("SUBQ $%d, R10", nv*v.n)
		s.f("JMP %s", again)
		s.f("%s:", end)
	}
	s.f("MOVQ R10, CX")
	s.f("TESTQ CX, CX")
	s.f("JEQ %s", done)
	s.tailMask(v, mask)
	block(1, func(_, to int) { s.maskedLoad(v, mask, "(BX)", to) },
		func(_, from int) { s.maskedStore(v, mask, from, "(DI)") })
	s.f("%s:", done)
	s.ret()
}

// pairRows: rows of float32 to half as many of pairs of bfloat16, or of int16.
func (s *source) pairRows(v isa, words bool) {
	name, to, needs := "attnPairRows", "rounded to bfloat16", " (AVX512_BF16)"
	params := "dst *float32, stride int, x *float32, y *float32, srcStride int, rows int, n int"
	if words {
		name, to, needs = "attnWordRows", "multiplied by f and rounded to int16, which they fit", ""
		params += ", f *float32"
	}
	s.open(name+v.name, "sets the n elements of each row of dst to pairs of an element of x "+
		"and one of y, "+to+". Rows of dst are stride apart, rows of x and y srcStride. rows must "+
		"be at least 1"+needs+".", params, "")
	s.load("dst", "DI")
	s.floats("stride", "DX")
	s.load("x", "SI")
	s.load("y", "BX")
	s.floats("srcStride", "R8")
	s.load("rows", "R9")
	s.load("n", "R10")
	s.f("MOVQ R10, CX")
	s.f("ANDQ $%d, CX", v.n-1)
	s.f("MOVQ CX, R12")
	const x, y, pairs, t, factor, mask = 0, 1, 2, 3, 4, 5
	s.tailMask(v, mask)
	pair := func() {
		if words {
			for i := range 2 {
				s.f("VMULPS %s, %s, %s", v.r(factor), v.r(i), v.r(i))
				s.f("VCVTPS2DQ %s, %s", v.r(i), v.r(i))
				s.f("VPSLLD $16, %s, %s", v.r(i), v.r(pairs+i))
			}
			s.f("VPSRLD $16, %s, %s", v.r(pairs), v.r(pairs))
		} else {
			s.vcvtneps2bf16(x, pairs)
			s.vcvtneps2bf16(y, t)
			s.f("VPMOVZXWD Y%d, Z%d", pairs, pairs)
			s.f("VPMOVZXWD Y%d, Z%d", t, t)
			s.f("VPSLLD $16, Z%d, Z%d", t, t)
		}
		s.f("VORPS %s, %s, %s", v.r(t), v.r(pairs), v.r(pairs))
	}
	moving := []string{"R11", "R13", "AX"}
	if words {
		moving = append(moving, "R14")
	}
	row, tail := s.name("row"), s.name("tail")
	s.f("%s:", row)
	s.f("MOVQ DI, AX")
	s.f("MOVQ SI, R11")
	s.f("MOVQ BX, R13")
	s.f("MOVQ R10, CX")
	if words {
		s.load("f", "R14")
	}
	s.loop(v, moving, func() {
		s.f("PREFETCHT0 (R11)(R8*4)") // rows are pages apart, as in copyRows
		s.f("PREFETCHT0 (R13)(R8*4)")
		s.f("VMOVUPS (R11), %s", v.r(x))
		s.f("VMOVUPS (R13), %s", v.r(y))
		if words {
			s.f("VMOVUPS (R14), %s", v.r(factor))
		}
		pair()
		s.f("VMOVUPS %s, (AX)", v.r(pairs))
	})
	s.f("TESTQ R12, R12")
	s.f("JEQ %s", tail)
	s.maskedLoad(v, mask, "(R11)", x)
	s.maskedLoad(v, mask, "(R13)", y)
	if words {
		s.maskedLoad(v, mask, "(R14)", factor)
	}
	pair()
	s.maskedStore(v, mask, pairs, "(AX)")
	s.f("%s:", tail)
	s.f("ADDQ DX, DI")
	s.f("ADDQ R8, SI")
	s.f("ADDQ R8, BX")
	s.f("DECQ R9")
	s.f("JNE %s", row)
	s.ret()
}

// tailMask prepares the mask of the n mod lanes elements (count in CX, below the lanes) for
// maskedLoad and maskedStore: K2 or vector register m. R13 is overwritten.
func (s *source) tailMask(v isa, m int) {
	if v.n == 16 {
		s.f("MOVL $1, R13")
		s.f("SHLL CX, R13")
		s.f("DECL R13")
		s.f("KMOVW R13, K2")
		return
	}
	s.f("LEAQ ·laneMask+32(SB), R13")
	s.f("SHLQ $2, CX")
	s.f("SUBQ CX, R13")
	s.f("SHRQ $2, CX")
	s.f("VMOVUPS (R13), %s", v.r(m))
}

func (s *source) maskedLoad(v isa, m int, at string, to int) {
	if v.n == 16 {
		s.f("VMOVUPS.Z %s, K2, %s", at, v.r(to))
		return
	}
	s.f("VMASKMOVPS %s, %s, %s", at, v.r(m), v.r(to))
}

func (s *source) maskedStore(v isa, m, from int, at string) {
	if v.n == 16 {
		s.f("VMOVUPS %s, K2, %s", v.r(from), at)
		return
	}
	s.f("VMASKMOVPS %s, %s, %s", v.r(from), v.r(m), at)
}

// rowAddresses returns the operands of 8 or 16 rows that start at AX, R8 bytes apart. It uses
// R9-R12.
func (s *source) rowAddresses(v isa) []string {
	s.f("LEAQ (R8)(R8*2), R9")
	s.f("LEAQ (R8)(R8*4), R10")
	s.f("LEAQ (R9)(R8*4), R11")
	index := []string{"", "(R8*1)", "(R8*2)", "(R9*1)", "(R8*4)", "(R10*1)", "(R9*2)", "(R11*1)"}
	var rows []string
	for _, i := range index {
		rows = append(rows, "(AX)"+i)
	}
	if v.n == 16 {
		s.f("LEAQ (AX)(R8*8), R12")
		for _, i := range index {
			rows = append(rows, "(R12)"+i)
		}
	}
	return rows
}

// transpose turns one vector's number of rows into columns.
func (s *source) transpose(v isa) {
	s.open("attnTranspose"+v.name,
		fmt.Sprintf("sets dst[i*stride+r] = src[r*srcStride+i] for r < %d and i < n; it "+
			"writes zeros up to the next multiple of %d of n.", v.n, v.n),
		"dst *float32, stride int, src *float32, srcStride int, n int", "")
	s.load("dst", "DI")
	s.floats("stride", "DX")
	s.load("src", "AX")
	s.floats("srcStride", "R8")
	s.load("n", "CX")
	rows := s.rowAddresses(v)
	s.f("LEAQ (AX)(R8*8), BX")
	if v.n == 16 {
		s.f("LEAQ (BX)(R8*8), BX")
		s.f("LEAQ (BX)(R8*8), SI")
	}
	loop, tail, work, done := s.name("loop"), s.name("tail"), s.name("work"), s.name("done")
	mask := 15 // the vector register of the AVX2 mask; network does not use it
	s.f("%s:", loop)
	s.f("CMPQ CX, $%d", v.n)
	s.f("JLT %s", tail)
	for r, at := range rows {
		s.f("VMOVUPS %s, %s", at, v.r(r))
	}
	for _, at := range rows { // rows of the next call
		s.f("PREFETCHT0 %s", strings.Replace(strings.Replace(at, "AX", "BX", 1), "R12", "SI", 1))
	}
	s.f("%s:", work)
	for _, out := range s.network(v) {
		s.f("VMOVUPS %s, (DI)", v.r(out))
		s.f("ADDQ DX, DI")
	}
	s.f("ADDQ $%d, AX", v.bytes())
	s.f("ADDQ $%d, BX", v.bytes())
	if v.n == 16 {
		s.f("ADDQ $%d, R12", v.bytes())
		s.f("ADDQ $%d, SI", v.bytes())
	}
	s.f("SUBQ $%d, CX", v.n)
	s.f("JGT %s", loop)
	s.f("JMP %s", done)
	s.f("%s:", tail)
	s.tailMask(v, mask)
	for r, at := range rows {
		s.maskedLoad(v, mask, at, r)
	}
	s.f("JMP %s", work)
	s.f("%s:", done)
	s.ret()
}

// network transposes registers 0 … lanes-1 and returns the registers of the columns.
func (s *source) network(v isa) []int {
	out := make([]int, v.n)
	if v.n == 8 {
		// Pairs of rows, then quadruples, within 128 bits; then the two halves. r8-r14 are free,
		// and r15 is kept.
		for g := 0; g < 2; g++ {
			r := func(i int) string { return v.r(4*g + i) }
			s.f("VUNPCKLPS %s, %s, Y8", r(1), r(0))
			s.f("VUNPCKHPS %s, %s, Y9", r(1), r(0))
			s.f("VUNPCKLPS %s, %s, Y10", r(3), r(2))
			s.f("VUNPCKHPS %s, %s, Y11", r(3), r(2))
			s.f("VUNPCKLPD Y10, Y8, %s", r(0))
			s.f("VUNPCKHPD Y10, Y8, %s", r(1))
			s.f("VUNPCKLPD Y11, Y9, %s", r(2))
			s.f("VUNPCKHPD Y11, Y9, %s", r(3))
		}
		for j := 0; j < 4; j++ {
			s.f("VPERM2F128 $0x31, Y%d, Y%d, Y%d", 4+j, j, 8+j)
			s.f("VPERM2F128 $0x20, Y%d, Y%d, Y%d", 4+j, j, j)
			out[j], out[4+j] = j, 8+j
		}
		return out
	}
	for i := 0; i < 8; i++ {
		s.f("VUNPCKLPS Z%d, Z%d, Z%d", 2*i+1, 2*i, 16+2*i)
		s.f("VUNPCKHPS Z%d, Z%d, Z%d", 2*i+1, 2*i, 17+2*i)
	}
	for g := 0; g < 4; g++ {
		for half := 0; half < 2; half++ {
			lo, hi := 16+4*g+half, 16+4*g+2+half
			s.f("VUNPCKLPD Z%d, Z%d, Z%d", hi, lo, 4*g+2*half)
			s.f("VUNPCKHPD Z%d, Z%d, Z%d", hi, lo, 4*g+2*half+1)
		}
	}
	for j := 0; j < 4; j++ { // column 4L+j is in 128-bit lane L of the registers j, 4+j, 8+j, 12+j
		s.f("VSHUFF32X4 $0x88, Z%d, Z%d, Z16", 4+j, j)
		s.f("VSHUFF32X4 $0xdd, Z%d, Z%d, Z17", 4+j, j)
		s.f("VSHUFF32X4 $0x88, Z%d, Z%d, Z18", 12+j, 8+j)
		s.f("VSHUFF32X4 $0xdd, Z%d, Z%d, Z19", 12+j, 8+j)
		s.f("VSHUFF32X4 $0x88, Z18, Z16, Z%d", j)
		s.f("VSHUFF32X4 $0x88, Z19, Z17, Z%d", 4+j)
		s.f("VSHUFF32X4 $0xdd, Z18, Z16, Z%d", 8+j)
		s.f("VSHUFF32X4 $0xdd, Z19, Z17, Z%d", 12+j)
		for l := 0; l < 4; l++ {
			out[4*l+j] = 4*l + j
		}
	}
	return out
}

func (s *source) copyRows(v isa) {
	s.open("attnCopy"+v.name,
		"sets dst[r*stride+i] = scale·src[r*srcStride+i] for r < rows and i < n. rows must "+
			"be at least 1.",
		"dst *float32, stride int, src *float32, srcStride int, rows int, n int, scale float32", "")
	s.load("dst", "DI")
	s.floats("stride", "DX")
	s.load("src", "SI")
	s.floats("srcStride", "R8")
	s.load("rows", "R9")
	s.load("n", "R10")
	s.f("VBROADCASTSS %s, %s", s.arg("scale"), v.r(0))
	s.f("MOVQ R10, CX")
	s.f("ANDQ $%d, CX", v.n-1)
	s.f("MOVQ CX, R12")
	s.tailMask(v, 2)
	row, tail := s.name("row"), s.name("tail")
	s.f("%s:", row)
	s.f("MOVQ DI, AX")
	s.f("MOVQ SI, BX")
	s.f("MOVQ R10, CX")
	s.loop(v, []string{"AX", "BX"}, func() {
		s.f("PREFETCHT0 (BX)(R8*8)") // rows are pages apart, where no hardware prefetcher follows
		s.f("VMULPS (BX), %s, %s", v.r(0), v.r(1))
		s.f("VMOVUPS %s, (AX)", v.r(1))
	})
	s.f("TESTQ R12, R12")
	s.f("JEQ %s", tail)
	s.maskedLoad(v, 2, "(BX)", 1)
	s.f("VMULPS %s, %s, %s", v.r(1), v.r(0), v.r(1))
	s.maskedStore(v, 2, 1, "(AX)")
	s.f("%s:", tail)
	s.f("ADDQ DX, DI")
	s.f("ADDQ R8, SI")
	s.f("DECQ R9")
	s.f("JNE %s", row)
	s.ret()
}

func (s *source) rowMax(v isa) {
	s.open("attnMax"+v.name, "returns the largest of n > 0 elements, a multiple of the lanes.",
		"x *float32, n int", "float32")
	s.load("x", "SI")
	s.load("n", "CX")
	s.f("VMOVUPS (SI), %s", v.r(0))
	s.largest(v, []string{"SI"}, func(at, most int) {
		s.f("VMAXPS %d(SI), %s, %s", at, v.r(most), v.r(most))
	})
}

func (s *source) addMax(v isa) {
	s.open("attnAddMax"+v.name, "adds b to x, n > 0 elements, a multiple of the lanes, and "+
		"returns the largest sum.", "x *float32, b *float32, n int", "float32")
	s.load("x", "SI")
	s.load("b", "DI")
	s.load("n", "CX")
	s.f("VMOVUPS (SI), %s", v.r(0))
	s.f("VADDPS (DI), %s, %s", v.r(0), v.r(0))
	s.largest(v, []string{"SI", "DI"}, func(at, most int) {
		s.f("VMOVUPS %d(SI), %s", at, v.r(4+most))
		s.f("VADDPS %d(DI), %s, %s", at, v.r(4+most), v.r(4+most))
		s.f("VMOVUPS %s, %d(SI)", v.r(4+most), at)
		s.f("VMAXPS %s, %s, %s", v.r(4+most), v.r(most), v.r(most))
	})
}

// largest returns the largest element of the first vector, in register 0, and of what step takes
// into register most from the vector at bytes after the pointers. Four registers take turns, for a
// maximum waits for the one before.
func (s *source) largest(v isa, pointers []string, step func(at, most int)) {
	const turns = 4
	for i := 1; i < turns; i++ {
		s.f("VMOVAPS %s, %s", v.r(0), v.r(i))
	}
	s.loops(v, pointers, turns, func(i int) { step(i*v.bytes(), i) })
	s.f("ADDQ $%d, CX", turns*v.n)
	s.loop(v, pointers, func() { step(0, 0) })
	for i := 1; i < turns; i++ {
		s.f("VMAXPS %s, %s, %s", v.r(i), v.r(0), v.r(0))
	}
	s.reduce(v, "VMAXPS", 0, 1)
	s.f("VMOVSS X0, %s", s.arg("ret"))
	s.ret()
}

func (s *source) expSum(v isa) {
	s.open("attnExpSum"+v.name, "replaces x by e^(x-m), n elements, a multiple of the "+
		"lanes, none above m, and returns their sum.", "x *float32, n int, m float32", "float32")
	s.load("x", "SI")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("m"), v.r(0))
	s.zero(v, 1)
	s.expSetup(v, 6)
	s.loop(v, []string{"SI"}, func() {
		s.f("VMOVUPS (SI), %s", v.r(2))
		s.f("VSUBPS %s, %s, %s", v.r(0), v.r(2), v.r(2))
		s.exp(v, 6, 2, 3, 4, 5, false)
		s.f("VMOVUPS %s, (SI)", v.r(2))
		s.f("VADDPS %s, %s, %s", v.r(2), v.r(1), v.r(1))
	})
	s.reduce(v, "VADDPS", 1, 2)
	s.f("VMOVSS X1, %s", s.arg("ret"))
	s.ret()
}

func (s *source) biasRow(v isa) {
	s.open("attnBias"+v.name,
		"sets dst[i] = size[i] + table[|pos-keys[i]|], n elements, a multiple of the lanes.",
		"dst *float32, size *float32, keys *int32, table *float32, n int, pos int32", "")
	s.load("dst", "DI")
	s.load("size", "SI")
	s.load("keys", "DX")
	s.load("table", "BX")
	s.load("n", "CX")
	s.f("MOVL %s, AX", s.arg("pos"))
	s.f("VMOVD AX, X0")
	s.f("VPBROADCASTD X0, %s", v.r(0))
	s.loop(v, []string{"DI", "SI", "DX"}, func() {
		s.f("VPSUBD (DX), %s, %s", v.r(0), v.r(1))
		s.f("VPABSD %s, %s", v.r(1), v.r(1))
		if v.n == 16 {
			s.f("KXNORW K1, K1, K1")
			s.f("VGATHERDPS (BX)(%s*4), K1, %s", v.r(1), v.r(2))
		} else {
			s.f("VPCMPEQD %s, %s, %s", v.r(3), v.r(3), v.r(3))
			s.f("VGATHERDPS %s, (BX)(%s*4), %s", v.r(3), v.r(1), v.r(2))
		}
		s.f("VADDPS (SI), %s, %s", v.r(2), v.r(2))
		s.f("VMOVUPS %s, (DI)", v.r(2))
	})
	s.ret()
}

// addWindow loads two vectors of the table, starting at the distance of a vector's last key, and
// permutes them.
func (s *source) addWindow(v isa) {
	s.open("attnAddWindow"+v.name,
		fmt.Sprintf("adds size[i] + table[pos-last[i/%d]+index[i]] to x, n > 0 elements, a "+
			"multiple of the lanes, with indices below %d, and returns the largest sum.", v.n,
			2*v.n),
		"x *float32, size *float32, index *int32, last *int32, table *float32, n int, pos int32",
		"float32")
	s.load("x", "DI")
	s.load("size", "SI")
	s.load("index", "DX")
	s.load("last", "R8")
	s.load("table", "BX")
	s.load("n", "CX")
	s.f("MOVL %s, R9", s.arg("pos"))
	s.f("MOVL $0xff800000, AX")
	s.f("VMOVD AX, X0")
	s.f("VPBROADCASTD X0, %s", v.r(0))
	s.loop(v, []string{"DI", "SI", "DX"}, func() {
		s.f("MOVL R9, AX")
		s.f("SUBL (R8), AX")
		s.f("MOVLQSX AX, AX")
		s.f("ADDQ $4, R8")
		s.f("VMOVUPS (BX)(AX*4), %s", v.r(1))
		s.f("VMOVUPS %d(BX)(AX*4), %s", v.bytes(), v.r(2))
		s.f("VMOVUPS (DX), %s", v.r(3))
		if v.n == 16 {
			s.f("VPERMI2PS Z2, Z1, Z3")
		} else {
			s.f("VPERMPS Y1, Y3, Y1")
			s.f("VPERMPS Y2, Y3, Y2")
			s.f("VPSLLD $28, Y3, Y4") // the bit of 8 to the sign
			s.f("VBLENDVPS Y4, Y2, Y1, Y3")
		}
		s.f("VADDPS (SI), %s, %s", v.r(3), v.r(3))
		s.f("VADDPS (DI), %s, %s", v.r(3), v.r(3))
		s.f("VMOVUPS %s, (DI)", v.r(3))
		s.f("VMAXPS %s, %s, %s", v.r(3), v.r(0), v.r(0))
	})
	s.reduce(v, "VMAXPS", 0, 1)
	s.f("VMOVSS X0, %s", s.arg("ret"))
	s.ret()
}

func (s *source) axpy(v isa) {
	s.open("attnAxpy"+v.name, "adds a·x to y, n elements, a multiple of the lanes.",
		"y *float32, x *float32, n int, a float32", "")
	s.load("y", "DI")
	s.load("x", "SI")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("a"), v.r(0))
	s.loop(v, []string{"DI", "SI"}, func() {
		s.f("VMOVUPS (DI), %s", v.r(1))
		s.f("VFMADD231PS (SI), %s, %s", v.r(0), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

func (s *source) peakOf(v isa) {
	s.open("attnPeak"+v.name, "raises y to a·x where that is larger, n elements, a multiple "+
		"of the lanes.", "y *float32, x *float32, n int, a float32", "")
	s.load("y", "DI")
	s.load("x", "SI")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("a"), v.r(0))
	s.loop(v, []string{"DI", "SI"}, func() {
		s.f("VMULPS (SI), %s, %s", v.r(0), v.r(1))
		s.f("VMAXPS (DI), %s, %s", v.r(1), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

const weightedAhead = " With each row of each block\n// of columns it prefetches 128 bytes at " +
	"next and moves next by step."

// weightedVectors are the most vectors of columns of the kernels of one to four sums. Their
// elements, their sums and a weight are in registers. AVX2 has one, and gains nothing from more.
var weightedVectors = []int{8, 8, 4, 4}

// weighted computes some sums of the same rows: blocks of columns, each summed over all rows in
// registers.
func (s *source) weighted(v isa, name string, sums int) {
	half := name != ""
	params, doc := "out *float32, p *float32, x *float32, ", "sets out[i] = Σⱼ p[j]·x[j·stride+i] "+
		"for i < n and j < rows. rows must be at least 1."+weightedAhead
	if half {
		params = "out *float32, ldo int, p *float32, ldp int, x *uint16, "
		doc = fmt.Sprintf("sets out[g·ldo+i] = Σⱼ p[g·ldp+j]·x[j·stride+i] for g < %d, i < n and "+
			"j < rows. rows must be at least 1.%s With each row of a block of columns it "+
			"prefetches as many bytes at next, at least 128, and moves next by step.", sums,
			halfDoc(v))
	}
	s.open("attnWeighted"+name+v.name, doc, params+"stride int, rows int, n int, next uintptr, "+
		"step int", "")
	s.load("out", "DI")
	s.load("x", "SI")
	s.load("next", "R9")
	s.load("step", "R10")
	if sums > 1 {
		s.floats("ldp", "R11")
		s.floats("ldo", "R12")
	}
	if sums > 3 {
		s.f("LEAQ (R11)(R11*2), R14")
	}
	weight := []string{"(AX)", "(AX)(R11*1)", "(AX)(R11*2)", "(AX)(R14*1)"}
	step := s.stride(v, half)
	s.load("n", "CX")
	var sizes []int
	for nv := weightedVectors[sums-1]; nv > 0; nv /= 2 {
		sizes = append(sizes, nv)
	}
	var labels []string
	for range sizes {
		labels = append(labels, s.name("block"))
	}
	tail, done := s.name("tail"), s.name("done")
	labels = append(labels, tail)
	block := func(nv int, masked bool) {
		loaded := nv
		if sums == 1 { // each is used at once
			loaded = 1
		}
		x := func(j int) int { return 1 + j%loaded }
		sum := func(g, j int) int { return 1 + loaded + g*nv + j }
		for g := range sums {
			for j := range nv {
				s.zero(v, sum(g, j))
			}
		}
		s.load("p", "AX")
		s.f("MOVQ SI, BX")
		s.load("rows", "DX")
		row := s.name("row")
		s.f("%s:", row)
		for at := 0; at < 128 || half && at < nv*step; at += 64 {
			s.f("PREFETCHT1 %d(R9)", at)
		}
		s.f("ADDQ R10, R9")
		for at := 0; v.n == 16 && at < nv*step; at += 64 {
			s.f("PREFETCHT0 %d(BX)(R8*8)", at)
		}
		for g := range sums {
			s.f("VBROADCASTSS %s, %s", weight[g], v.r(0))
			for j := range nv {
				at := fmt.Sprintf("%d(BX)", j*step)
				switch {
				case g > 0:
				case masked && half:
					s.f("VCVTPH2PS.Z %s, K2, %s", at, v.r(x(j)))
				case masked:
					s.maskedLoad(v, 15, at, x(j))
				case half:
					s.f("VCVTPH2PS %s, %s", at, v.r(x(j)))
				default:
					s.f("VFMADD231PS %s, %s, %s", at, v.r(0), v.r(sum(g, j)))
					continue
				}
				s.f("VFMADD231PS %s, %s, %s", v.r(x(j)), v.r(0), v.r(sum(g, j)))
			}
		}
		s.f("ADDQ $4, AX")
		s.f("ADDQ R8, BX")
		s.f("DECQ DX")
		s.f("JNE %s", row)
		s.f("MOVQ DI, BX")
		for g := range sums {
			if masked {
				s.maskedStore(v, 15, sum(g, 0), "(BX)")
			} else {
				for j := range nv {
					s.f("VMOVUPS %s, %d(BX)", v.r(sum(g, j)), j*v.bytes())
				}
			}
			if g+1 < sums {
				s.f("ADDQ R12, BX")
			}
		}
		if masked {
			return
		}
		s.f("ADDQ $%d, DI", nv*v.bytes())
		s.f("ADDQ $%d, SI", nv*step)
		s.f("SUBQ $%d, CX", nv*v.n)
	}
	for i, nv := range sizes {
		s.f("%s:", labels[i])
		s.f("CMPQ CX, $%d", nv*v.n)
		s.f("JLT %s", labels[i+1])
		block(nv, false)
		s.f("JMP %s", labels[i])
	}
	s.f("%s:", tail)
	if v.n == 16 || !half {
		s.f("TESTQ CX, CX")
		s.f("JEQ %s", done)
		s.tailMask(v, 15)
		block(1, true)
	}
	s.f("%s:", done)
	s.ret()
}

// stride loads the distance between two rows in bytes and returns the bytes of one vector of
// elements.
func (s *source) stride(v isa, half bool) int {
	if half {
		s.load("stride", "R8")
		s.f("SHLQ $1, R8")
		return v.bytes() / 2
	}
	s.floats("stride", "R8")
	return v.bytes()
}

// halfDoc describes the requirement of a float16 kernel on n: AVX2 has no masked loads of 16 bits.
func halfDoc(v isa) string {
	if v.n == 16 {
		return " Float16."
	}
	return " Float16; n must be a multiple of 8."
}

// narrow: float32 to float16.
func (s *source) narrow(v isa) {
	s.open("attnNarrow"+v.name, "rounds n elements, a multiple of the lanes, to float16, to "+
		"nearest and ties to even.", "dst *uint16, x *float32, n int", "")
	s.load("dst", "DI")
	s.load("x", "SI")
	s.load("n", "CX")
	s.loop(v, []string{"SI"}, func() {
		s.f("VMOVUPS (SI), %s", v.r(0))
		s.f("VCVTPS2PH $0, %s, (DI)", v.r(0))
		s.f("ADDQ $%d, DI", v.bytes()/2)
	})
	s.ret()
}
