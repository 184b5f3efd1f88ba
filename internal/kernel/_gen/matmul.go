package main

import "fmt"

func matmul(a *asm) {
	for _, s := range []isa{avx512, avx2} {
		for rows := 1; rows <= 6; rows++ {
			tile(a, s, rows)
		}
		for _, format := range []string{"F32", "F16", "BF16"} {
			pack(a, s, format)
			widen(a, s, format)
			dots(a, s, format)
		}
		storeBias(a, s)
	}
	for _, format := range []string{"F32", "F16", "BF16"} {
		dotPart(a, format)
	}
	dotSums(a)
}

// vectors is the number of vectors across a panel: 64 columns of AVX-512, 16
// of AVX2.
func vectors(s isa) int {
	if s.n == 16 {
		return 4
	}
	return 2
}

// tile is C[rows, panel] (+)= A[rows, k]·B[k, panel] with all of C in registers.
func tile(a *asm, s isa, rows int) {
	nv := vectors(s)
	width := nv * s.n
	a.fn(fmt.Sprintf("tile%s%d", s.name, rows),
		fmt.Sprintf("is gemmTile for %d rows of %d columns. Every four steps of k\n"+
			"// it prefetches 128 bytes at pf and at pf+pfSecond and moves pf by pfStride; after\n"+
			"// pfLeft times it moves pf by pfWrap once and starts over with pfRows.", rows, width),
		"c *float32, ldc int, a *float32, lda int, b *float32, k int, accumulate int, pf "+
			"uintptr, pfStride int, pfLeft int, pfWrap int, pfRows int, pfSecond int")
	acc := func(r, j int) string { return s.r(r*nv + j) }
	bReg := func(j int) string { return s.r(rows*nv + j) }
	bc := func(r int) string { // two broadcast registers if there is room
		free := 32 - rows*nv - nv
		if s.n == 8 {
			free = 16 - rows*nv - nv
		}
		return s.r(rows*nv + nv + r%min(2, free))
	}
	rowAddr := func(r, off int) string {
		base := [6]string{"SI", "SI", "SI", "R10", "R10", "R10"}[r]
		index := [6]string{"", "(R8*1)", "(R8*2)", "", "(R8*1)", "(R8*2)"}[r]
		return fmt.Sprintf("%d(%s)%s", off, base, index)
	}
	a.load("a", "SI")
	a.load("lda", "R8")
	a.op("SHLQ $2, R8")
	if rows > 3 {
		a.op("LEAQ (SI)(R8*2), R10")
		a.op("ADDQ R8, R10")
	}
	a.load("b", "BX")
	a.load("k", "R9")
	a.load("pf", "DX")
	a.load("pfStride", "R12")
	a.load("pfLeft", "R13")
	a.load("pfSecond", "AX")
	for r := range rows {
		for j := range nv {
			a.op("%s", s.zero(r*nv+j))
		}
	}
	step := func(i int) {
		for j := range nv {
			a.op("VMOVUPS %d(BX), %s", i*width*4+j*s.bytes(), bReg(j))
		}
		for r := range rows {
			a.op("VBROADCASTSS %s, %s", rowAddr(r, 4*i), bc(r))
			for j := range nv {
				a.op("VFMADD231PS %s, %s, %s", bReg(j), bc(r), acc(r, j))
			}
		}
	}
	advance := func(n int) {
		a.op("ADDQ $%d, BX", n*width*4)
		a.op("ADDQ $%d, SI", 4*n)
		if rows > 3 {
			a.op("ADDQ $%d, R10", 4*n)
		}
	}
	a.op("MOVQ R9, CX")
	a.op("SHRQ $2, CX")
	a.op("JEQ tail")
	a.label("loop4")
	for i := range 4 {
		a.op("PREFETCHT1 %s", []string{"(DX)", "64(DX)", "(DX)(AX*1)", "64(DX)(AX*1)"}[i])
		step(i)
	}
	advance(4)
	a.op("ADDQ R12, DX")
	a.op("DECQ R13")
	a.op("JEQ wrap")
	a.label("wrapped")
	a.op("DECQ CX")
	a.op("JNE loop4")
	a.label("tail")
	a.op("ANDQ $3, R9")
	a.op("JEQ store")
	a.label("loop1")
	step(0)
	advance(1)
	a.op("DECQ R9")
	a.op("JNE loop1")
	a.label("store")
	a.load("c", "DI")
	a.load("ldc", "R11")
	a.op("SHLQ $2, R11")
	a.load("accumulate", "AX")
	a.op("TESTQ AX, AX")
	a.op("JNE add")
	a.label("write")
	for r := range rows {
		for j := range nv {
			a.op("VMOVUPS %s, %d(DI)", acc(r, j), j*s.bytes())
		}
		if r+1 < rows {
			a.op("ADDQ R11, DI")
		}
	}
	a.ret()
	a.label("add")
	for r := range rows {
		for j := range nv {
			a.op("VADDPS %d(DI), %s, %s", j*s.bytes(), acc(r, j), acc(r, j))
		}
		if r+1 < rows {
			a.op("ADDQ R11, DI")
		}
	}
	a.load("c", "DI")
	a.op("JMP write")
	a.label("wrap")
	a.load("pfWrap", "R13")
	a.op("ADDQ R13, DX")
	a.load("pfRows", "R13")
	a.op("JMP wrapped")
}

// loadVector widens one vector of elements at the address to register i.
func loadVector(a *asm, s isa, format, addr string, i int) {
	switch format {
	case "F32":
		a.op("VMOVUPS %s, %s", addr, s.r(i))
	case "F16":
		a.op("VCVTPH2PS %s, %s", addr, s.r(i))
	case "BF16":
		a.op("VPMOVZXWD %s, %s", addr, s.r(i))
		a.op("VPSLLD $16, %s, %s", s.r(i), s.r(i))
	}
}

func size(format string) int {
	if format == "F32" {
		return 4
	}
	return 2
}

// pack transposes whole square blocks.
func pack(a *asm, s isa, format string) {
	a.fn("pack"+format+s.name,
		fmt.Sprintf("widens and transposes %d rows of %d·blocks elements, ld bytes\n"+
			"// apart, into columns of dst, whose rows are ldd bytes apart.", s.n, s.n),
		"dst *float32, ldd int, src *byte, ld int, blocks int")
	a.load("dst", "DI")
	a.load("ldd", "DX")
	a.load("src", "SI")
	a.load("ld", "R8")
	a.load("blocks", "CX")
	a.op("LEAQ (R8)(R8*2), R9") // 3·ld
	a.op("LEAQ (DX)(DX*2), R12")
	a.label("loop")
	a.op("MOVQ SI, R10")
	for r := range s.n {
		index := []string{"", "(R8*1)", "(R8*2)", "(R9*1)"}[r%4]
		loadVector(a, s, format, "(R10)"+index, r)
		if r%4 == 3 && r+1 < s.n {
			a.op("LEAQ (R10)(R8*4), R10")
		}
	}
	out := transpose(a, s)
	a.op("MOVQ DI, R10")
	for r := range s.n {
		index := []string{"", "(DX*1)", "(DX*2)", "(R12*1)"}[r%4]
		a.op("VMOVUPS %s, (R10)%s", s.r(out[r]), index)
		if r%4 == 3 {
			a.op("LEAQ (R10)(DX*4), R10")
		}
	}
	a.op("MOVQ R10, DI")
	a.op("ADDQ $%d, SI", s.n*size(format))
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// transpose transposes the square of rows in registers 0 … n-1; out[i] is the register that holds
// row i of the result. Each stage reads one half of the register file and writes the other: 16
// registers for 8 rows with AVX2, 32 for 16 rows with AVX-512.
func transpose(a *asm, s isa) []int {
	n := s.n
	lo, hi := 0, n
	// pairs of rows: r0a r1a r0b r1b …
	for i := 0; i < n; i += 2 {
		a.op("VUNPCKLPS %s, %s, %s", s.r(lo+i+1), s.r(lo+i), s.r(hi+i))
		a.op("VUNPCKHPS %s, %s, %s", s.r(lo+i+1), s.r(lo+i), s.r(hi+i+1))
	}
	// fours of rows: lane l of register 4q+c holds column 4l+c of rows 4q … 4q+3
	for q := 0; q < n; q += 4 {
		a.op("VUNPCKLPD %s, %s, %s", s.r(hi+q+2), s.r(hi+q), s.r(lo+q))
		a.op("VUNPCKHPD %s, %s, %s", s.r(hi+q+2), s.r(hi+q), s.r(lo+q+1))
		a.op("VUNPCKLPD %s, %s, %s", s.r(hi+q+3), s.r(hi+q+1), s.r(lo+q+2))
		a.op("VUNPCKHPD %s, %s, %s", s.r(hi+q+3), s.r(hi+q+1), s.r(lo+q+3))
	}
	out := make([]int, n)
	if n == 8 {
		for c := range 4 {
			a.op("VPERM2F128 $0x20, %s, %s, %s", s.r(lo+4+c), s.r(lo+c), s.r(hi+c))
			a.op("VPERM2F128 $0x31, %s, %s, %s", s.r(lo+4+c), s.r(lo+c), s.r(hi+4+c))
			out[c], out[4+c] = hi+c, hi+4+c
		}
		return out
	}
	for c := range 4 {
		// even lanes and odd lanes of the rows 0-7 and 8-15
		a.op("VSHUFF32X4 $0x88, %s, %s, %s", s.r(lo+4+c), s.r(lo+c), s.r(hi+c))
		a.op("VSHUFF32X4 $0xdd, %s, %s, %s", s.r(lo+4+c), s.r(lo+c), s.r(hi+4+c))
		a.op("VSHUFF32X4 $0x88, %s, %s, %s", s.r(lo+12+c), s.r(lo+8+c), s.r(hi+8+c))
		a.op("VSHUFF32X4 $0xdd, %s, %s, %s", s.r(lo+12+c), s.r(lo+8+c), s.r(hi+12+c))
	}
	for c := range 4 {
		// hi+c: lanes 0,2 of rows 0-3 and 0,2 of rows 4-7
		a.op("VSHUFF32X4 $0x88, %s, %s, %s", s.r(hi+8+c), s.r(hi+c), s.r(lo+c))
		a.op("VSHUFF32X4 $0x88, %s, %s, %s", s.r(hi+12+c), s.r(hi+4+c), s.r(lo+4+c))
		a.op("VSHUFF32X4 $0xdd, %s, %s, %s", s.r(hi+8+c), s.r(hi+c), s.r(lo+8+c))
		a.op("VSHUFF32X4 $0xdd, %s, %s, %s", s.r(hi+12+c), s.r(hi+4+c), s.r(lo+12+c))
		out[c], out[4+c], out[8+c], out[12+c] = lo+c, lo+4+c, lo+8+c, lo+12+c
	}
	return out
}

// widen converts whole vectors.
func widen(a *asm, s isa, format string) {
	if format == "F32" {
		return
	}
	a.fn("widen"+format+s.name, fmt.Sprintf("is convertGo for %d·blocks elements.", s.n),
		"dst *float32, src *byte, blocks int")
	a.load("dst", "DI")
	a.load("src", "SI")
	a.load("blocks", "CX")
	a.label("loop")
	loadVector(a, s, format, "(SI)", 0)
	a.op("VMOVUPS %s, (DI)", s.r(0))
	a.op("ADDQ $%d, SI", s.n*size(format))
	a.op("ADDQ $%d, DI", s.bytes())
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// storeBias copies a finished tile to its place.
func storeBias(a *asm, s isa) {
	nv := vectors(s)
	a.fn("storeBias"+s.name,
		fmt.Sprintf("is dst = c + bias for rows of %d columns; ldd is in bytes.", nv*s.n),
		"dst *float32, ldd int, c *float32, rows int, bias *float32")
	a.load("dst", "DI")
	a.load("ldd", "DX")
	a.load("c", "SI")
	a.load("rows", "CX")
	a.load("bias", "BX")
	for j := range nv {
		a.op("VMOVUPS %d(BX), %s", j*s.bytes(), s.r(j))
	}
	a.label("loop")
	for j := range nv {
		a.op("VADDPS %d(SI), %s, %s", j*s.bytes(), s.r(j), s.r(nv+j))
		a.op("VMOVUPS %s, %d(DI)", s.r(nv+j), j*s.bytes())
	}
	a.op("ADDQ $%d, SI", nv*s.bytes())
	a.op("ADDQ DX, DI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// dotShapes lists the blocks of weight rows × activation rows that fit the register file:
// accumulators, the weight rows, one row of x.
func dotShapes(s isa) [][2]int {
	if s.n == 16 {
		return [][2]int{{4, 1}, {4, 2}, {4, 3}, {4, 4}, {4, 5}, {4, 6}, {1, 1}}
	}
	return [][2]int{{4, 1}, {4, 2}, {1, 1}}
}

// dots multiplies straight over the rows of the weight, for few rows of x. Every output has one
// accumulator vector for any block, so a row's result does not depend on the block that computed
// it.
func dots(a *asm, s isa, format string) {
	for _, shape := range dotShapes(s) {
		dot(a, s, format, shape[0], shape[1])
	}
}

func dot(a *asm, s isa, format string, rows, m int) {
	a.fn(fmt.Sprintf("dot%s%s%dx%d", format, s.name, rows, m),
		fmt.Sprintf("is dst[i·ldd+r] = Σ x[i·ldx+k]·w[r,k] for %d rows of w, ldw bytes apart,\n"+
			"// and %d of x, over %d·blocks elements%s.", rows, m, s.n,
			map[bool]string{true: " and those of mask after them", false: ""}[s.n == 16]),
		"dst *float32, ldd int, x *float32, ldx int, w *byte, ldw int, blocks int, mask int")
	acc := func(i, r int) int { return i*rows + r }
	wReg := func(r int) int { return m*rows + r }
	xReg := m*rows + rows
	es := size(format)
	a.load("x", "SI")
	a.load("ldx", "R8")
	a.op("SHLQ $2, R8")
	a.load("w", "BX")
	a.load("ldw", "R9")
	a.op("MOVQ R9, DX") // the next rows, prefetched line by line
	a.op("IMULQ $%d, DX", rows)
	a.op("ADDQ BX, DX")
	a.load("blocks", "CX")
	if m > 3 {
		a.op("LEAQ (R8)(R8*2), R10")
	}
	if m > 5 {
		a.op("LEAQ (R8)(R8*4), R13")
	}
	if rows > 3 {
		a.op("LEAQ (R9)(R9*2), R11")
	}
	for i := range m * rows {
		a.op("%s", s.zero(i))
	}
	xAddr := func(i int) string {
		return "(SI)" + []string{"", "(R8*1)", "(R8*2)", "(R10*1)", "(R8*4)", "(R13*1)"}[i]
	}
	wAddr := func(r int) string { return "(BX)" + []string{"", "(R9*1)", "(R9*2)", "(R11*1)"}[r] }
	a.op("TESTQ CX, CX")
	a.op("JEQ tail")
	a.label("loop")
	for r := range rows {
		if at := r * s.n * es; at%64 == 0 {
			a.op("PREFETCHT0 %d(DX)", at)
		}
		loadVector(a, s, format, wAddr(r), wReg(r))
	}
	for i := range m {
		a.op("VMOVUPS %s, %s", xAddr(i), s.r(xReg))
		for r := range rows {
			a.op("VFMADD231PS %s, %s, %s", s.r(xReg), s.r(wReg(r)), s.r(acc(i, r)))
		}
	}
	a.op("ADDQ $%d, SI", s.bytes())
	a.op("ADDQ $%d, BX", s.n*es)
	a.op("ADDQ $%d, DX", rows*s.n*es)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.label("tail")
	if s.n == 16 {
		a.load("mask", "AX")
		a.op("KMOVW AX, K1")
		a.op("TESTQ AX, AX")
		a.op("JEQ sum")
		for r := range rows {
			switch format {
			case "F32":
				a.op("VMOVUPS.Z %s, K1, %s", wAddr(r), s.r(wReg(r)))
			case "F16":
				a.op("VMOVDQU16.Z %s, K1, Y%d", wAddr(r), wReg(r))
				a.op("VCVTPH2PS Y%d, Z%d", wReg(r), wReg(r))
			case "BF16":
				a.op("VMOVDQU16.Z %s, K1, Y%d", wAddr(r), wReg(r))
				a.op("VPMOVZXWD Y%d, Z%d", wReg(r), wReg(r))
				a.op("VPSLLD $16, Z%d, Z%d", wReg(r), wReg(r))
			}
		}
		for i := range m {
			a.op("VMOVUPS.Z %s, K1, %s", xAddr(i), s.r(xReg))
			for r := range rows {
				a.op("VFMADD231PS %s, %s, %s", s.r(xReg), s.r(wReg(r)), s.r(acc(i, r)))
			}
		}
	}
	a.label("sum")
	a.load("dst", "DI")
	a.load("ldd", "R12")
	a.op("SHLQ $2, R12")
	t := m*rows + rows // temporary
	for i := range m {
		for r := range rows {
			v := acc(i, r)
			if s.n == 16 {
				a.op("VEXTRACTF64X4 $1, Z%d, Y%d", v, t)
				a.op("VADDPS Y%d, Y%d, Y%d", t, v, v)
				a.op("VEXTRACTF32X4 $1, Y%d, X%d", v, t)
			} else {
				a.op("VEXTRACTF128 $1, Y%d, X%d", v, t)
			}
			a.op("VADDPS X%d, X%d, X%d", t, v, v)
		}
		v := acc(i, 0)
		if rows == 4 {
			sumFour(a, v, t)
			a.op("VMOVUPS X%d, (DI)", v)
		} else {
			a.op("VPERMILPD $1, X%d, X%d", v, t)
			a.op("VADDPS X%d, X%d, X%d", t, v, v)
			a.op("VMOVSHDUP X%d, X%d", v, t)
			a.op("VADDSS X%d, X%d, X%d", t, v, v)
			a.op("VMOVSS X%d, (DI)", v)
		}
		if i+1 < m {
			a.op("ADDQ R12, DI")
		}
	}
	a.ret()
}

// sumFour adds up each of X(v) to X(v+3) into a lane of X(v), in the same order of additions as the
// two steps of a single row. X(t) is free.
func sumFour(a *asm, v, t int) {
	a.op("VUNPCKLPS X%d, X%d, X%d", v+1, v, t)
	a.op("VUNPCKHPS X%d, X%d, X%d", v+1, v, v)
	a.op("VADDPS X%d, X%d, X%d", v, t, v) // a0+a2 b0+b2 a1+a3 b1+b3
	a.op("VUNPCKLPS X%d, X%d, X%d", v+3, v+2, t)
	a.op("VUNPCKHPS X%d, X%d, X%d", v+3, v+2, v+2)
	a.op("VADDPS X%d, X%d, X%d", v+2, t, v+2)
	a.op("VUNPCKLPD X%d, X%d, X%d", v+2, v, t) // a02 b02 c02 d02
	a.op("VUNPCKHPD X%d, X%d, X%d", v+2, v, v)
	a.op("VADDPS X%d, X%d, X%d", v, t, v)
}

// dotPart multiplies a part of K of four rows of the weight with rows of x, three at a time, then
// two, then one: seven loads for twelve multiply-adds. Its sums are the accumulators of dot. With 4
// bytes an element, half of the lines are prefetched, which is faster than all.
func dotPart(a *asm, format string) {
	const rows, w = 4, 15
	s, es := avx2, size(format)
	a.fn("dotPart"+format+s.name, "is a dotPart.",
		"sums *float32, x *float32, ldx int, w *byte, ldw int, blocks int, threes int, twos int, "+
			"ones int, pf int, second int")
	a.load("sums", "DI")
	a.load("x", "SI")
	a.load("ldx", "R8")
	a.op("SHLQ $2, R8")
	a.load("w", "BX")
	a.load("ldw", "R9")
	a.op("LEAQ (R9)(R9*2), R11")
	a.load("pf", "DX")
	a.load("second", "R12")
	body := func(m int, name string) {
		acc := func(i, r int) string { return s.r(rows*i + r) }
		step := func(j int) {
			for i := range m {
				index := []string{"", "(R8*1)", "(R8*2)"}[i]
				a.op("VMOVUPS %d(SI)%s, %s", 32*j, index, s.r(12+i))
			}
			for r := range rows {
				index := []string{"", "(R9*1)", "(R9*2)", "(R11*1)"}[r]
				loadVector(a, s, format, fmt.Sprintf("%d(BX)%s", 8*es*j, index), w)
				for i := range m {
					a.op("VFMADD231PS %s, %s, %s", s.r(12+i), s.r(w), acc(i, r))
				}
			}
		}
		a.label(name)
		for i := range m {
			for r := range rows {
				a.op("VMOVUPS %d(DI), %s", 128*i+32*r, acc(i, r))
			}
		}
		if es == 2 {
			a.op("LEAQ (DX)(R9*2), R13")
			a.op("LEAQ (R12)(R9*2), AX")
		}
		a.load("blocks", "CX")
		a.op("SHRQ $1, CX")
		a.op("JEQ %sLast", name)
		a.label(name + "Loop")
		a.op("PREFETCHT1 (BX)(DX*1)")
		if es == 2 {
			a.op("PREFETCHT1 (BX)(R13*1)")
		}
		step(0)
		a.op("PREFETCHT1 (BX)(R12*1)")
		if es == 2 {
			a.op("PREFETCHT1 (BX)(AX*1)")
		}
		step(1)
		a.op("ADDQ $64, SI")
		a.op("ADDQ $%d, BX", 16*es)
		a.op("DECQ CX")
		a.op("JNE %sLoop", name)
		a.label(name + "Last")
		a.load("blocks", "CX")
		a.op("TESTQ $1, CX")
		a.op("JEQ %sStore", name)
		step(0)
		a.label(name + "Store")
		for i := range m {
			for r := range rows {
				a.op("VMOVUPS %s, %d(DI)", acc(i, r), 128*i+32*r)
			}
		}
		a.op("ADDQ $%d, DI", 128*m)
		a.load("w", "BX")
		a.op("SHRQ $1, CX")
		a.op("SHLQ $6, CX")
		a.op("SUBQ CX, SI")
		for range m {
			a.op("ADDQ R8, SI")
		}
		a.op("ADDQ R9, DX")
		a.op("ADDQ R9, R12")
		a.op("DECQ R10")
		a.op("JNE %s", name)
	}
	a.load("threes", "R10")
	a.op("TESTQ R10, R10")
	a.op("JEQ pairs")
	body(3, "three")
	a.label("pairs")
	a.load("twos", "R10")
	a.op("TESTQ R10, R10")
	a.op("JEQ single")
	body(2, "two")
	a.label("single")
	a.load("ones", "R10")
	a.op("TESTQ R10, R10")
	a.op("JEQ done")
	body(1, "one")
	a.label("done")
	a.ret()
}

// dotSums adds up the lanes of the sums of dotPart.
func dotSums(a *asm) {
	a.fn("dotSumsAVX2", "is dst[i·ldd+r] = Σ sums[i][r] for m rows i and r from 0 to 3.",
		"dst *float32, ldd int, sums *float32, m int")
	a.load("dst", "DI")
	a.load("ldd", "R12")
	a.op("SHLQ $2, R12")
	a.load("sums", "SI")
	a.load("m", "CX")
	a.label("loop")
	for r := range 4 {
		a.op("VMOVUPS %d(SI), Y%d", 32*r, r)
		a.op("VEXTRACTF128 $1, Y%d, X4", r)
		a.op("VADDPS X4, X%d, X%d", r, r)
	}
	sumFour(a, 0, 4)
	a.op("VMOVUPS X0, (DI)")
	a.op("ADDQ $128, SI")
	a.op("ADDQ R12, DI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}
