package main

// peak writes the loops that measure the machine: arithmetic on registers only, and reads whose
// data is not used.
func peak(a *asm) {
	for _, s := range []isa{avx512, avx2} {
		chains := 12
		a.fn("fmaLoop"+s.name,
			"runs n rounds of twelve independent fused multiply-adds of full vectors.", "n int")
		a.load("n", "CX")
		for i := range chains + 2 {
			a.op("%s", s.zero(i))
		}
		a.label("loop")
		for range 2 {
			for i := range chains {
				a.op("VFMADD231PS %s, %s, %s", s.r(chains), s.r(chains+1), s.r(i))
			}
		}
		a.op("SUBQ $2, CX")
		a.op("JGT loop")
		a.ret()

		a.fn("readLoop"+s.name, "reads n bytes, a multiple of 512.", "p *byte, n int")
		a.load("p", "SI")
		a.load("n", "CX")
		a.label("loop")
		for off := 0; off < 512; off += s.bytes() {
			a.op("VMOVUPS %d(SI), %s", off, s.r(off/s.bytes()%8))
		}
		a.op("ADDQ $512, SI")
		a.op("SUBQ $512, CX")
		a.op("JGT loop")
		a.ret()
	}

	chains := 12
	for _, l := range []struct {
		name, of string
		v        isa
		dot      func(v isa, x, w, acc int)
	}{
		{"dotLoopVNNI", "VPDPBUSD of full", avx512, a.vpdpbusd},
		{"wordLoopVNNI", "VPDPWSSD of full", avx512, a.vpdpwssd},
		{"dotLoopAVXVNNI", "VPDPBUSD of half", avx2, a.vpdpbusd},
		{"wordLoopAVXVNNI", "VPDPWSSD of half", avx2, a.vpdpwssd},
	} {
		a.fn(l.name, "runs n rounds of twelve independent "+l.of+" vectors.", "n int")
		a.load("n", "CX")
		for i := range chains + 2 {
			a.op("%s", l.v.zero(i))
		}
		a.label("loop")
		for range 2 {
			for i := range chains {
				l.dot(l.v, chains, chains+1, i)
			}
		}
		a.op("SUBQ $2, CX")
		a.op("JGT loop")
		a.ret()
	}

	chains = 16 // its latency is longer
	a.fn("dotLoopBF16", "runs n rounds of sixteen independent VDPBF16PS of full vectors.", "n int")
	a.load("n", "CX")
	for i := range chains + 2 {
		a.op("%s", avx512.zero(i))
	}
	a.label("loop")
	for range 2 {
		for i := range chains {
			a.vdpbf16ps(chains, chains+1, i)
		}
	}
	a.op("SUBQ $2, CX")
	a.op("JGT loop")
	a.ret()

	// without VNNI, the cheapest exact sequence: bytes to 16 bits, to 32 bits, add
	chains = 4
	a.fn("dotLoopAVX2", "runs n rounds of four independent products of bytes summed in 32 bits.",
		"n int")
	a.load("n", "CX")
	for i := range 2*chains + 2 {
		a.op("%s", avx2.zero(i))
	}
	a.label("loop")
	for i := range chains {
		a.op("VPMADDUBSW Y%d, Y%d, Y%d", 2*chains, 2*chains+1, chains+i)
		a.op("VPMADDWD Y%d, Y%d, Y%d", 2*chains, chains+i, chains+i)
		a.op("VPADDD Y%d, Y%d, Y%d", chains+i, i, i)
	}
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()

	pairLoop(a, "wordLoopAVX2", "int16 summed in 32 bits", "VPMADDWD", "VPADDD")
	// 4 bits are summed in 16 bits, a block at a time
	pairLoop(a, "nibbleLoopAVX2", "bytes summed in 16 bits", "VPMADDUBSW", "VPADDW")
}

// pairLoop measures a multiplication and an addition of its result.
func pairLoop(a *asm, name, what, multiply, add string) {
	const chains = 12
	a.fn(name, "runs n rounds of twelve independent products of "+what+".", "n int")
	a.load("n", "CX")
	for i := range chains + 4 {
		a.op("%s", avx2.zero(i))
	}
	a.label("loop")
	for i := range chains {
		a.op("%s Y%d, Y%d, Y%d", multiply, chains, chains+1, chains+2+i%2)
		a.op("%s Y%d, Y%d, Y%d", add, chains+2+i%2, i, i)
	}
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}
