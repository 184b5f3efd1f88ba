package main

import "fmt"

// A panel of 64 columns of bfloat16 is [K/2][64][2]: a row of pairs is 256 bytes.
const pairsRow = 256

func bfdot(a *asm) {
	for rows := 1; rows <= 6; rows++ {
		pairs(a, "VDP", avx512, rows)
		pairs(a, "AVX512", avx512, rows)
		pairs(a, "AVX2", avx2, rows)
	}
	for _, s := range []isa{avx512, avx2} {
		roundPairs(a, s)
	}
}

// pairs is C = from + A·B. With VDP, the rows of A are bfloat16. Otherwise they are float32, and a
// vector of pairs is widened at its use: a shift for the even elements, a mask for the odd.
func pairs(a *asm, name string, s isa, rows int) {
	nv := vectors(s)
	dot := name == "VDP"
	a.fn(fmt.Sprintf("pairs%s%d", name, rows), fmt.Sprintf(
		"is a pairsTile of %d rows by %d columns.", rows, nv*s.n),
		"c *float32, ldc int, from *float32, ldf int, a *byte, lda int, b *byte, eights "+
			"int, pf uintptr, pfStep int")
	acc := func(r, j int) int { return r*nv + j }
	b := func(j int) int { return rows*nv + j }
	spare := 32 - rows*nv - nv
	if s.n == 8 {
		spare = 16 - rows*nv - nv
	}
	mask := rows*nv + nv // not with VDP
	firstBC := mask + 1
	spare--
	if dot {
		firstBC--
		spare++
	}
	bc := func(r int) int { return firstBC + r%min(2, spare) }
	a.load("a", "SI")
	a.load("lda", "R8")
	if rows > 3 {
		a.op("LEAQ (SI)(R8*2), R10")
		a.op("ADDQ R8, R10")
	}
	aAddr := func(r, off int) string {
		base := [6]string{"SI", "SI", "SI", "R10", "R10", "R10"}[r]
		index := [6]string{"", "(R8*1)", "(R8*2)", "", "(R8*1)", "(R8*2)"}[r]
		return fmt.Sprintf("%d(%s)%s", off, base, index)
	}
	a.load("b", "BX")
	a.load("eights", "CX")
	a.load("pf", "DX")
	a.load("pfStep", "R12")
	a.load("from", "DI")
	a.load("ldf", "R11")
	if !dot {
		a.op("MOVL $0xffff0000, AX")
		a.op("VMOVD AX, X15")
		a.op("VPBROADCASTD X15, %s", s.r(mask))
	}
	for r := range rows {
		for j := range nv {
			a.op("VMOVUPS %d(DI), %s", j*s.bytes(), s.r(acc(r, j)))
		}
		if r+1 < rows {
			a.op("ADDQ R11, DI")
		}
	}
	and := s.bitwise("VPAND")
	a.label("loop")
	for pair := range 4 {
		w := func(j int) string { return fmt.Sprintf("%d(BX)", pair*pairsRow+j*s.bytes()) }
		if rows <= 2 && s.n == 16 { // with few rows, the weights come straight from memory
			for line := range 4 {
				a.op("PREFETCHT0 %d(BX)", 4096+pair*pairsRow+64*line)
			}
		} else {
			a.op("PREFETCHT1 %d(DX)", 64*pair)
		}
		if dot {
			for j := range nv {
				a.op("VMOVUPS %s, %s", w(j), s.r(b(j)))
			}
			for r := range rows {
				a.op("VPBROADCASTD %s, %s", aAddr(r, 4*pair), s.r(bc(r)))
				for j := range nv {
					a.vdpbf16ps(b(j), bc(r), acc(r, j))
				}
			}
			continue
		}
		for odd := range 2 {
			for j := range nv {
				switch {
				case odd == 1:
					a.op("%s %s, %s, %s", and, w(j), s.r(mask), s.r(b(j)))
				case s.n == 16:
					a.op("VPSLLD $16, %s, %s", w(j), s.r(b(j)))
				default:
					a.op("VMOVUPS %s, %s", w(j), s.r(b(j)))
					a.op("VPSLLD $16, %s, %s", s.r(b(j)), s.r(b(j)))
				}
			}
			for r := range rows {
				a.op("VBROADCASTSS %s, %s", aAddr(r, 8*pair+4*odd), s.r(bc(r)))
				for j := range nv {
					a.op("VFMADD231PS %s, %s, %s", s.r(b(j)), s.r(bc(r)), s.r(acc(r, j)))
				}
			}
		}
	}
	step := 32
	if dot {
		step = 16
	}
	a.op("ADDQ R12, DX")
	a.op("ADDQ $%d, SI", step)
	if rows > 3 {
		a.op("ADDQ $%d, R10", step)
	}
	a.op("ADDQ $%d, BX", 4*pairsRow)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.load("c", "DI")
	a.load("ldc", "R11")
	for r := range rows {
		for j := range nv {
			a.op("VMOVUPS %s, %d(DI)", s.r(acc(r, j)), j*s.bytes())
		}
		if r+1 < rows {
			a.op("ADDQ R11, DI")
		}
	}
	a.ret()
}

// roundPairs rounds to bfloat16, stored as float32 and, with AVX-512, as such.
func roundPairs(a *asm, s isa) {
	for _, narrow := range []bool{false, true}[:s.n/8] {
		name, doc := "roundBF16"+s.name, "is roundBF16 of %d·n elements, widened again."
		if narrow {
			name, doc = "narrowBF16"+s.name, "is roundBF16 of %d·n elements."
		}
		a.fn(name, fmt.Sprintf(doc, s.n), "dst *byte, src *float32, n int")
		a.load("dst", "DI")
		a.load("src", "SI")
		a.load("n", "CX")
		a.constant(s, 0x7fffffff, 8)
		a.constant(s, 0x7f800000, 9)
		a.constant(s, 0x00800000, 10)
		a.constant(s, 0x7fff, 11)
		a.constant(s, 1, 12)
		a.constant(s, 0xffff0000, 13)
		a.constant(s, 0x00400000, 14)
		a.label("loop")
		x, magnitude, y, t, u := s.r(0), s.r(1), s.r(2), s.r(3), s.r(4)
		a.op("VMOVUPS (SI), %s", x)
		if s.n == 16 {
			a.op("VPANDD %s, %s, %s", s.r(8), x, magnitude)
			a.op("VPCMPD $6, %s, %s, K1", s.r(9), magnitude)
			a.op("VPCMPD $1, %s, %s, K2", s.r(10), magnitude)
		} else {
			a.op("VPAND %s, %s, %s", s.r(8), x, magnitude)
		}
		a.op("VPSRLD $16, %s, %s", x, y)
		if s.n == 16 {
			a.op("VPANDD %s, %s, %s", s.r(12), y, y)
		} else {
			a.op("VPAND %s, %s, %s", s.r(12), y, y)
		}
		a.op("VPADDD %s, %s, %s", s.r(11), y, y)
		a.op("VPADDD %s, %s, %s", x, y, y)
		if s.n == 16 {
			a.op("VPORD %s, %s, K1, %s", s.r(14), x, y) // a NaN stays one
			// a denormal becomes a zero of its sign
			a.op("VPANDND %s, %s, K2, %s", x, s.r(8), y)
			if narrow {
				a.op("VPSRLD $16, %s, %s", y, y)
				a.op("VPMOVDW %s, (DI)", y)
			} else {
				a.op("VPANDD %s, %s, %s", s.r(13), y, y)
				a.op("VMOVUPS %s, (DI)", y)
			}
		} else {
			a.op("VPCMPGTD %s, %s, %s", s.r(9), magnitude, t)
			a.op("VPOR %s, %s, %s", s.r(14), x, u)
			a.op("VPBLENDVB %s, %s, %s, %s", t, u, y, y)
			a.op("VPCMPGTD %s, %s, %s", magnitude, s.r(10), t)
			a.op("VPANDN %s, %s, %s", x, s.r(8), u)
			a.op("VPBLENDVB %s, %s, %s, %s", t, u, y, y)
			a.op("VPAND %s, %s, %s", s.r(13), y, y)
			a.op("VMOVUPS %s, (DI)", y)
		}
		a.op("ADDQ $%d, SI", s.bytes())
		if narrow {
			a.op("ADDQ $%d, DI", s.bytes()/2)
		} else {
			a.op("ADDQ $%d, DI", s.bytes())
		}
		a.op("DECQ CX")
		a.op("JNE loop")
		a.ret()
	}
}
