package main

// peak writes the loops that measure the machine: arithmetic on registers
// alone, and reads that do nothing with what they read.
func peak(a *asm) {
	for _, s := range []isa{avx512, avx2} {
		chains := 12
		a.fn("fmaLoop"+s.name, "runs n rounds of twelve independent fused multiply-adds of full vectors.", "n int")
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
}
