package main

// Spans without VNNI. The instructions that multiply bytes sum pairs in 16 bits and saturate, which
// leaves room for weights of 4 bits, but not of 8. So there are two kernels.
//
// Nibbles: a unit of 32 of K is [8 groups of K][32 columns][4] values from 0 to 15, and then
// [32 columns] ratios of the block's scale and the span's, twice in 32 bits. A block is summed in
// 16 bits, and multiplied by the ratio while pairs of sums are added in 32 bits. What a block's
// values lack, a minimum or -8 times the scale, is multiplied by the sum of the block of x, two
// blocks in one instruction. A row of x in a span is 256 int8, the scale, and [8] int16 sums of
// blocks.
//
// Words: a unit of 32 of K is [16 pairs of K][32 columns][2] int16, 16 times the value in blocks of
// the largest scale. Pairs are values 0 and 2 of a group of four, and 1 and 3. A row of x
// in a span is 256 int16 in the same order, and the scale.
const (
	nibbleUnit = 1024 + 128
	nibbleSums = spanOffset
	nibbleAct  = nibbleSums + 16
	wordUnit   = 2048
	wordAct    = 512 + 4
	// maddParams is where the parameters of blocks follow the scales
	maddParams = 128
)

func spansMadd(a *asm, v isa) {
	for _, u := range []byteUnpacker{nibbles4(v, q4), nibbles4(v, q4m), words8(v)} {
		spanScales(a, u)
		spanUnpack(a, u)
	}
	for _, k := range []spanKernel{spanNibbles(v), spanWords(v)} {
		for rows := 1; rows <= k.rows; rows++ {
			spanTile(a, k, rows)
		}
	}
	spanRow(a, v, true)
	spanRowWords(a, v)
}

// nibbles4 unpacks values of 4 bits to bytes. The largest ratio is 4095 or, with minima, the
// largest value 32767.
func nibbles4(s isa, q nibbles) byteUnpacker {
	u := byteUnpacker{isa: s, name: "Q4Nibbles", size: q.size, offset: 8, second: minima,
		mask: 0x0f0f0f0f, full: 1, factor: 1. / 4095, unit: nibbleUnit}
	if q.min {
		u.name, u.offset, u.min, u.factor = "Q4MNibbles", 0, true, 1./32767
	}
	u.part = func(a *asm, b, i, h int, at func(h, group int) int) {
		and, v, r := s.bitwise("VPAND"), s.r, u.registers(h)
		for pair := 2 * i; pair < 2*i+2; pair++ {
			const low, high = 0, 1
			a.op("VMOVUPS %d(BX), %s", b*q.size+q.head+128*pair+s.bytes()*h, v(low))
			a.op("VPSRLW $4, %s, %s", v(low), v(high))
			for z := low; z <= high; z++ {
				a.op("%s %s, %s, %s", and, v(r.mask), v(z), v(z))
				a.op("VMOVUPS %s, %d(R10)", v(z), at(h, 2*pair+z))
			}
		}
		if i == 1 {
			a.op("VMOVUPS %s, %d(R10)", v(r.ratio), at(h, 8))
		}
	}
	return u
}

// words8 unpacks Q8 to int16. The largest ratio is 2048.
func words8(s isa) byteUnpacker {
	u := byteUnpacker{isa: s, name: "Q8Words", size: q8Block, second: nothing, mask: 0x80808080,
		full: 128, factor: 1. / 16, unit: wordUnit}
	u.part = func(a *asm, b, i, h int, at func(h, group int) int) {
		v, r := s.r, u.registers(h)
		for group := 4 * i; group < 4*i+4; group++ {
			const even, odd = 0, 1
			a.op("%s %d(BX), %s, %s", s.bitwise("VPXOR"), b*q8Block+64+128*group+s.bytes()*h,
				v(r.mask), v(odd))
			a.op("VPSLLW $8, %s, %s", v(odd), v(even))
			a.op("%s %s, %s, %s", s.bitwise("VPAND"), v(r.upper), v(odd), v(odd))
			for z := even; z <= odd; z++ {
				a.op("VPMULHRSW %s, %s, %s", v(r.ratio), v(z), v(z))
				a.op("VMOVUPS %s, %d(R10)", v(z), at(h, 2*group+z))
			}
		}
	}
	return u
}

// spanNibbles has registers for the sums of a block in 16 bits. With 256 bits, those of a span in
// 32 bits are in memory.
func spanNibbles(v isa) spanKernel {
	k := spanKernel{isa: v, name: "Nibbles" + v.name, rows: 6, vectors: 2, act: nibbleAct,
		scale: spanScale, sums: 12, spare: [4]int{24, 25, 26, 27}}
	if v.n == 8 {
		k.sums, k.spare, k.stored = 0, [4]int{12, 13, 14, 15}, maddParams+9*paramBytes
	}
	k.begin = func(a *asm, k spanKernel, rows, pass int) {
		w, x, t := k.spare[:2], k.spare[2], k.spare[3]
		for pair := range 4 {
			for j := range k.vectors {
				slot := maddParams + (2*pair+1)*paramBytes + v.paramAt(k.vectors*pass+j) + 64
				a.op("VMOVUPS %d(R9), %s", slot, v.r(w[j]))
			}
			for r := range rows {
				a.op("VPBROADCASTD %d(R8), %s", k.act*r+nibbleSums+4*pair, v.r(x))
				for j := range k.vectors {
					acc := k.acc(r, j)
					if pair == 0 {
						a.op("VPMADDWD %s, %s, %s", v.r(x), v.r(w[j]), v.r(acc))
						continue
					}
					a.op("VPMADDWD %s, %s, %s", v.r(x), v.r(w[j]), v.r(t))
					a.op("VPADDD %s, %s, %s", v.r(t), v.r(acc), v.r(acc))
				}
			}
		}
		for i := 0; k.stored > 0 && i < k.vectors*rows; i++ {
			a.op("VMOVUPS %s, %s", v.r(i), k.storedAt(i))
		}
	}
	k.block = func(a *asm, k spanKernel, rows, pass int) {
		w := k.spare[:2]
		k.madd(a, rows, pass, 8, madd{multiply: "VPMADDUBSW", add: "VPADDW", set: true})
		for j := range k.vectors {
			a.op("VMOVUPS %d(BX), %s", 1024+k.column(pass, j), v.r(w[j]))
		}
		for i := range k.vectors * rows {
			a.op("VPMADDWD %s, %s, %s", v.r(w[i%k.vectors]), v.r(i), v.r(i))
			if k.stored > 0 {
				a.op("VPADDD %s, %s, %s", k.storedAt(i), v.r(i), v.r(i))
				a.op("VMOVUPS %s, %s", v.r(i), k.storedAt(i))
			} else {
				a.op("VPADDD %s, %s, %s", v.r(i), v.r(k.sums+i), v.r(k.sums+i))
			}
		}
		a.op("ADDQ $32, SI")
		a.op("ADDQ $%d, BX", nibbleUnit)
	}
	return k
}

func spanWords(v isa) spanKernel {
	k := spanKernel{isa: v, name: "Words" + v.name, rows: 6, vectors: 2, act: wordAct, scale: 512,
		spare: [4]int{24, 25, 26, 27}}
	if v.n == 8 {
		k.spare = [4]int{12, 13, 14, 15}
	}
	k.begin = func(a *asm, k spanKernel, rows, _ int) {
		for i := range k.vectors * rows {
			a.op("%s", v.zero(i))
		}
	}
	k.block = func(a *asm, k spanKernel, rows, pass int) {
		k.madd(a, rows, pass, 16, madd{multiply: "VPMADDWD", add: "VPADDD"})
		a.op("ADDQ $64, SI")
		a.op("ADDQ $%d, BX", wordUnit)
	}
	return k
}

// madd adds the products of n groups of K for all rows.
func (k spanKernel) madd(a *asm, rows, pass, n int, m madd) {
	m.isa, m.spare = k.isa, k.spare
	m.weights = func(g, j int) int { return 128*g + k.column(pass, j) }
	m.x = func(r, g int) int { return k.act*r + 4*g }
	m.products(a, rows, n)
}

// A madd multiplies groups of K of two vectors of columns without VNNI.
type madd struct {
	isa           isa
	multiply, add string
	sums          int                         // their first register
	set           bool                        // the first products set the sums
	spare         [4]int                      // registers
	weights       func(group, vector int) int // at BX
	x             func(row, group int) int    // at SI
}

func (m madd) products(a *asm, rows, n int) {
	v, x := m.isa.r, m.spare[2]
	for g := range n {
		for j := range 2 {
			a.op("VMOVUPS %d(BX), %s", m.weights(g, j), v(m.spare[j]))
		}
		for r := range rows {
			a.op("VPBROADCASTD %d(SI), %s", m.x(r, g), v(x))
			for j := range 2 {
				w, sum, t := m.spare[j], m.sums+2*r+j, m.spare[3-j]
				if m.set && g == 0 {
					a.op("%s %s, %s, %s", m.multiply, v(x), v(w), v(sum))
					continue
				}
				a.op("%s %s, %s, %s", m.multiply, v(x), v(w), v(t))
				a.op("%s %s, %s, %s", m.add, v(t), v(sum), v(sum))
			}
		}
	}
}

// spanRowWords rounds a span of one row of x to int16.
func spanRowWords(a *asm, v isa) {
	a.fn("spanRowWords"+v.name, "rounds 64·steps elements to a record of int16 with the scale "+
		"max|x|/4064. A scale is at least 1e-30/4064, and not finite if an element is not.",
		"dst *byte, x *float32, steps int")
	a.load("dst", "DI")
	spanMost(a, v, 127*32) // of x that whole numbers stay exact
	a.op("VMOVSS X0, 512(DI)")
	a.label("round")
	for i := range 4 {
		for j := range 16 / v.n {
			z := v.r(7 + j)
			a.op("VMULPS %d(SI), %s, %s", 64*i+v.bytes()*j, v.r(2), z)
			a.op("VCVTPS2DQ %s, %s", z, z)
		}
		if v.n == 16 {
			a.op("VPMOVSDW Z7, Y7")
		} else {
			a.op("VPACKSSDW Y8, Y7, Y7")
			a.op("VPERMQ $0xd8, Y7, Y7")
		}
		a.op("VPSHUFLW $0xd8, Y7, Y7")
		a.op("VPSHUFHW $0xd8, Y7, Y7")
		a.op("VMOVUPS Y7, %d(DI)", 32*i)
	}
	a.op("ADDQ $256, SI")
	a.op("ADDQ $128, DI")
	a.op("DECQ CX")
	a.op("JNE round")
	a.ret()
}
