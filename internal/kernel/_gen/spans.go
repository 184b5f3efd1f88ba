package main

import (
	"fmt"
	"math"
)

// Products in spans. A span is 256 of K: x has one scale for each row and span, a weight one for
// each column and span, which the largest value of the span needs. Unpacking a weight multiplies
// each value by the ratio of its block's scale and the span's, in words: the upper byte of q·r +
// 128 is the result, rounded. Sums of a span are exact in int32; they are scaled and added to the
// accumulators in float32. Tiles of AMX (amxbytes.go) and vectors with VNNI, here, give the same
// bits.
//
// With VNNI a weight is unpacked to value + 128, a strip of 32 columns and a span at a time, as
// [64 groups of K][32 columns][4]. A row of x in a span is a record of 256 int8, the scale and
// -128 times the sum of the int8, which cancels the offset of the weights.
const (
	paramBytes = 256 // of a block: two halves of 16 ratios and 16 offsets
	spanAct    = 256 + 8
	spanScale  = 256
	spanOffset = 260
	// spanLines are the lines of weights to prefetch in a block: three tiles of eight blocks fetch
	// a span of any format
	spanLines = 6
)

func spans(a *asm) {
	spanFetchRest(a)
	for _, v := range []isa{avx512, avx2} {
		for _, u := range byteUnpackers(v) {
			spanScales(a, u)
			spanUnpack(a, u)
		}
		k := spanVNNI(v)
		for rows := 1; rows <= k.rows; rows++ {
			spanTile(a, k, rows)
		}
		spanRow(a, v, false)
		spansMadd(a, v)
	}
}

func byteUnpackers(v isa) []byteUnpacker {
	return []byteUnpacker{bytes4(v, q4), bytes4(v, q4m), bytes8(v)}
}

// A byteUnpacker turns the stored form of a strip, bytes, into what tiles multiply. Its values have
// offset added, or else a minimum.
type byteUnpacker struct {
	isa    isa
	name   string
	size   int // of a block
	offset int
	min    bool
	lines  int    // prefetched in a step of AMX that does not unpack
	mask   uint32 // of the values in the lower half of every word
	second parameter
	unit   int // bytes of an unpacked block
	// a ratio is full times the block's scale divided by the span's, which is factor times the
	// largest scale of the blocks or, with a minimum, value: whole values stay exact where the
	// blocks' scales agree
	full, factor float64
	// part unpacks half i of block b at BX, for vector h of the strip's columns, to at(h, group)
	// from R10 on
	part func(a *asm, b, i, h int, at func(h, group int) int)
}

// A parameter is what unpacking a block needs besides the ratio.
type parameter int

const (
	offsets parameter = iota // what is added to every product
	minima                   // of this block and the one before, in 32 bits
	nothing
)

// unpackRegisters are the numbers of the registers that unpacking keeps. With 512 bits each vector
// of columns has a ratio and a shift of its own.
type unpackRegisters struct{ ratio, shift, mask, upper int }

func (u byteUnpacker) registers(h int) unpackRegisters {
	if u.isa.n == 16 {
		return unpackRegisters{16 + h, 18 + h, 20, 21}
	}
	return unpackRegisters{10, 11, 12, 13}
}

// constants sets the registers that no block changes.
func (u byteUnpacker) constants(a *asm) {
	r := u.registers(0)
	a.constant(u.isa, u.mask, r.mask)
	a.constant(u.isa, 0xff00ff00, r.upper)
}

// vectors is the number of vectors of 32 columns.
func (v isa) vectors() int { return 32 / v.n }

// paramAt is the offset of the ratios of vector h in a block's parameters, 64 bytes before the
// offsets.
func (v isa) paramAt(h int) int { return 128*(h*v.n/16) + 4*(h*v.n%16) }

// half unpacks half i of block b, with the parameters of the first block at R11.
func (u byteUnpacker) half(a *asm, b, i int, at func(h, group int) int) {
	for h := range u.isa.vectors() {
		if r := u.registers(h); i == 0 || u.isa.n == 8 {
			from := b*paramBytes + u.isa.paramAt(h)
			a.op("VMOVUPS %d(R11), %s", from, u.isa.r(r.ratio))
			if u.second == offsets {
				a.op("VMOVUPS %d(R11), %s", from+64, u.isa.r(r.shift))
			}
		}
		u.part(a, b, i, h, at)
	}
}

// join scales the values in the words of even (of bytes 0 and 2) and odd, for vector h, and stores
// the upper bytes of the results at offset to from R10.
func (u byteUnpacker) join(a *asm, even, odd, h, to int) {
	r, v := u.registers(h), u.isa.r
	for _, z := range []int{even, odd} {
		a.op("VPMULLW %s, %s, %s", v(r.ratio), v(z), v(z))
		a.op("VPADDW %s, %s, %s", v(r.shift), v(z), v(z))
	}
	a.op("VPSRLW $8, %s, %s", v(even), v(even))
	if u.isa.n == 16 {
		a.op("VPTERNLOGD $0xf8, %s, %s, %s", v(r.upper), v(odd), v(even)) // even | odd&upper
	} else {
		a.op("VPAND %s, %s, %s", v(r.upper), v(odd), v(odd))
		a.op("VPOR %s, %s, %s", v(odd), v(even), v(even))
	}
	a.op("VMOVUPS %s, %d(R10)", v(even), to)
}

// bytes4 unpacks two of K from every byte.
func bytes4(s isa, q nibbles) byteUnpacker {
	u := byteUnpacker{isa: s, name: "Q4", size: q.size, offset: 8, lines: 5, mask: 0x000f000f,
		unit: 1024, full: 256, factor: 1. / 15}
	if q.min {
		u.name, u.offset, u.min, u.factor = "Q4M", 0, true, 1./127
	}
	u.part = func(a *asm, b, i, h int, at func(h, group int) int) {
		and, v, mask := s.bitwise("VPAND"), s.r, s.r(u.registers(h).mask)
		for pair := 2 * i; pair < 2*i+2; pair++ {
			const x, even, odd, evenHigh, oddHigh = 8, 0, 1, 2, 3
			a.op("VMOVUPS %d(BX), %s", b*q.size+q.head+128*pair+s.bytes()*h, v(x))
			a.op("%s %s, %s, %s", and, mask, v(x), v(even))
			a.op("VPSRLW $8, %s, %s", v(x), v(odd))
			a.op("%s %s, %s, %s", and, mask, v(odd), v(odd))
			a.op("VPSRLW $4, %s, %s", v(x), v(evenHigh))
			a.op("%s %s, %s, %s", and, mask, v(evenHigh), v(evenHigh))
			a.op("VPSRLW $12, %s, %s", v(x), v(oddHigh))
			u.join(a, even, odd, h, at(h, 2*pair))
			u.join(a, evenHigh, oddHigh, h, at(h, 2*pair+1))
		}
	}
	return u
}

// bytes8 unpacks Q8.
func bytes8(s isa) byteUnpacker {
	u := byteUnpacker{isa: s, name: "Q8", size: q8Block, offset: 128, lines: 9, mask: 0x00ff00ff,
		unit: 1024, full: 256, factor: 1}
	u.part = func(a *asm, b, i, h int, at func(h, group int) int) {
		for group := 4 * i; group < 4*i+4; group++ {
			const x, even = 8, 0
			a.op("VMOVUPS %d(BX), %s", b*q8Block+64+128*group+s.bytes()*h, s.r(x))
			a.op("%s %s, %s, %s", s.bitwise("VPAND"), s.r(u.registers(h).mask), s.r(x), s.r(even))
			a.op("VPSRLW $8, %s, %s", s.r(x), s.r(x))
			u.join(a, even, x, h, at(h, group))
		}
	}
	return u
}

// spanScales computes the scales of a span, and the parameters that unpack its blocks.
func spanScales(a *asm, u byteUnpacker) {
	what := map[parameter]string{offsets: " and their offsets, with round added",
		minima: " and their minima", nothing: ""}[u.second]
	a.fn("spanScales"+u.name+u.isa.name, fmt.Sprintf("sets scales to the 32 scales of up to 8 "+
		"blocks of a strip at w, and params to %g times the ratios of each block's scales to "+
		"these%s.", u.full, what),
		"params *byte, scales *float32, w *byte, blocks int, round int")
	v, and := u.isa.r, u.isa.bitwise("VPAND")
	const abs, least, full, factor, round, fifteen, floor, before = 4, 5, 6, 7, 8, 9, 10, 11
	a.constant(u.isa, 0x7fffffff, abs)
	a.constant(u.isa, math.Float32bits(1e-30), least)
	a.constant(u.isa, math.Float32bits(float32(u.full)), full)
	a.constant(u.isa, math.Float32bits(float32(u.factor)), factor)
	a.op("VPBROADCASTD round+%d(FP), %s", a.offset["round"], v(round))
	a.constant(u.isa, math.Float32bits(15), fifteen)
	a.constant(u.isa, 0xffffffff-253, floor) // -254
	if u.isa.n == 16 {
		a.op("MOVL $0x55555555, AX")
		a.op("KMOVD AX, K1")
	}
	a.load("w", "BX")
	a.load("params", "R10")
	a.load("scales", "R11")
	for h := range u.isa.vectors() {
		at := 2 * u.isa.n * h
		a.op("MOVQ BX, SI")
		a.load("blocks", "CX")
		a.op("VMOVAPS %s, %s", v(least), v(0))
		a.label(fmt.Sprintf("most%d", h))
		a.op("VCVTPH2PS %d(SI), %s", at, v(1))
		if u.min {
			a.op("VCVTPH2PS %d(SI), %s", 64+at, v(2))
			a.op("VFMADD213PS %s, %s, %s", v(2), v(fifteen), v(1)) // the largest value
			a.op("%s %s, %s, %s", and, v(abs), v(2), v(2))
			a.op("VPMAXUD %s, %s, %s", v(2), v(0), v(0))
		}
		a.op("%s %s, %s, %s", and, v(abs), v(1), v(1))
		a.op("VPMAXUD %s, %s, %s", v(1), v(0), v(0)) // of the bits: a NaN wins
		a.op("ADDQ $%d, SI", u.size)
		a.op("DECQ CX")
		a.op("JNE most%d", h)
		a.op("VMULPS %s, %s, %s", v(factor), v(0), v(0))
		a.op("VMOVUPS %s, %d(R11)", v(0), u.isa.bytes()*h)
		a.op("VDIVPS %s, %s, %s", v(0), v(full), v(0))
		a.op("MOVQ BX, SI")
		a.op("MOVQ R10, DI")
		a.load("blocks", "CX")
		if u.second == minima {
			a.op("%s", u.isa.zero(before))
		}
		a.label(fmt.Sprintf("ratio%d", h))
		a.op("VCVTPH2PS %d(SI), %s", at, v(1))
		a.op("VMULPS %s, %s, %s", v(0), v(1), v(1))
		a.op("VCVTPS2DQ %s, %s", v(1), v(1))
		switch {
		case u.second == nothing:
		case u.min:
			a.op("VCVTPH2PS %d(SI), %s", 64+at, v(2))
			a.op("VMULPS %s, %s, %s", v(0), v(2), v(2))
			a.op("VCVTPS2DQ %s, %s", v(2), v(2))
			a.op("VPADDD %s, %s, %s", v(round), v(2), v(2))
		default:
			if u.offset == 128 { // -128 times less would be out of range
				a.op("VPMAXSD %s, %s, %s", v(floor), v(1), v(1))
			}
			a.op("VPSLLD $%d, %s, %s", map[int]int{8: 3, 128: 7}[u.offset], v(1), v(2))
			a.op("VPSUBD %s, %s, %s", v(2), v(round), v(2))
		}
		twice := func(z, to int) { // into both words
			a.op("VPSLLD $16, %s, %s", v(z), v(3))
			if u.isa.n == 16 {
				a.op("VMOVDQU16 %s, K1, %s", v(z), v(3))
			} else {
				a.op("VPBLENDW $0x55, %s, %s, %s", v(z), v(3), v(3))
			}
			a.op("VMOVUPS %s, %d(DI)", v(3), to)
		}
		twice(1, u.isa.paramAt(h))
		switch u.second {
		case offsets:
			twice(2, u.isa.paramAt(h)+64)
		case minima:
			a.op("VPSLLD $16, %s, %s", v(2), v(2))
			a.op("%s %s, %s, %s", u.isa.bitwise("VPOR"), v(2), v(before), v(3))
			a.op("VMOVUPS %s, %d(DI)", v(3), u.isa.paramAt(h)+64)
			a.op("VPSRLD $16, %s, %s", v(2), v(before))
		}
		a.op("ADDQ $%d, SI", u.size)
		a.op("ADDQ $%d, DI", paramBytes)
		a.op("DECQ CX")
		a.op("JNE ratio%d", h)
		if u.second == minima { // the last block may have no partner
			a.op("VMOVUPS %s, %d(DI)", v(before), u.isa.paramAt(h)+64)
		}
	}
	a.ret()
}

// spanUnpack unpacks blocks of a strip.
func spanUnpack(a *asm, u byteUnpacker) {
	a.fn("spanUnpack"+u.name+u.isa.name, "unpacks blocks of a strip at w, with the "+
		"parameters that spanScales"+u.name+u.isa.name+" computed.",
		"to *byte, w *byte, params *byte, blocks int")
	u.constants(a)
	a.load("to", "R10")
	a.load("w", "BX")
	a.load("params", "R11")
	a.load("blocks", "CX")
	a.label("loop")
	for i := range 2 {
		u.half(a, 0, i, func(h, group int) int { return 128*group + u.isa.bytes()*h })
	}
	a.op("ADDQ $%d, BX", u.size)
	a.op("ADDQ $%d, R11", paramBytes)
	a.op("ADDQ $%d, R10", u.unit)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

// A spanKernel is how tiles multiply: some vectors of columns in each pass over a span.
type spanKernel struct {
	isa        isa
	name       string // the end of the functions' names
	rows       int    // the most of a tile
	vectors    int    // of a pass
	act, scale int    // bytes of a record, and where its scale is
	// sums is the first register of the sums; spare are four more that block leaves free at the end
	sums  int
	spare [4]int
	// stored is where sums are kept from R9 on; 0: in registers
	stored int
	// begin sets the sums, and block adds the products of a block at SI and BX, and moves both
	begin func(a *asm, k spanKernel, rows, pass int)
	block func(a *asm, k spanKernel, rows, pass int)
}

// acc is the register of vector j of a row's sums.
func (k spanKernel) acc(r, j int) int { return k.sums + k.vectors*r + j }

func (k spanKernel) passes() int { return k.isa.vectors() / k.vectors }

// storedAt is where vector i of the sums is stored.
func (k spanKernel) storedAt(i int) string {
	return fmt.Sprintf("%d(R9)", k.stored+k.isa.bytes()*i)
}

// column is the offset of vector j of a pass in a row of 32 columns.
func (k spanKernel) column(pass, j int) int { return k.isa.bytes() * (k.vectors*pass + j) }

// spanVNNI is the kernel with VNNI. The integer accumulators of 12 rows and 32 columns take 24 of
// the 32 registers of 512 bits; those of 3 rows take 12 of the 16 registers of 256 bits.
func spanVNNI(v isa) spanKernel {
	k := spanKernel{isa: v, name: v.vnni(), rows: 12, vectors: 2, act: spanAct, scale: spanScale,
		spare: [4]int{26, 27, 28, 29}}
	if v.n == 8 {
		k.rows, k.vectors, k.spare = 3, 4, [4]int{12, 13, 14, 15}
	}
	k.begin = func(a *asm, k spanKernel, rows, _ int) {
		for r := range rows {
			a.op("VPBROADCASTD %d(R8), %s", k.act*r+spanOffset, v.r(k.acc(r, 0)))
			for j := 1; j < k.vectors; j++ {
				a.op("VMOVAPS %s, %s", v.r(k.acc(r, 0)), v.r(k.acc(r, j)))
			}
		}
	}
	k.block = spanBlockVNNI
	return k
}

func spanBlockVNNI(a *asm, k spanKernel, rows, _ int) {
	v := k.isa
	weights, x := []int{24, 25}, []int{26, 27, 28, 29, 30, 31}
	if v.n == 8 {
		weights, x = []int{12}, []int{13, 14, 15}
	}
	for g := range 8 {
		at := func(j int) string { return fmt.Sprintf("%d(BX)", 128*g+v.bytes()*j) }
		row := func(r int) string { return fmt.Sprintf("%d(SI)", k.act*r+4*g) }
		if v.n == 16 {
			for j := range k.vectors {
				a.op("VMOVUPS %s, Z%d", at(j), weights[j])
			}
			for r := range rows {
				from := x[r%len(x)]
				a.op("VPBROADCASTD %s, Z%d", row(r), from)
				for j := range k.vectors {
					a.vpdpbusd(v, from, weights[j], k.acc(r, j))
				}
			}
			continue
		}
		for r := range rows {
			a.op("VPBROADCASTD %s, Y%d", row(r), x[r])
		}
		for j := range k.vectors {
			a.op("VMOVUPS %s, Y%d", at(j), weights[0])
			for r := range rows {
				a.vpdpbusd(v, x[r], weights[0], k.acc(r, j))
			}
		}
	}
	a.op("ADDQ $32, SI")
	a.op("ADDQ $1024, BX")
}

// spanTile multiplies tiles of the same number of rows with an unpacked span of a strip.
func spanTile(a *asm, k spanKernel, rows int) {
	a.fn(fmt.Sprintf("spanTile%d%s", rows, k.name), fmt.Sprintf("is a spanTile of %d rows.", rows),
		"c *float32, x *byte, w *byte, scales *float32, blocks int, tiles int, first int, "+
			"next uintptr, end uintptr, dst *float32, ldd int, bias *float32")
	v := k.isa
	a.load("first", "AX") // no lanes of accumulators that do not exist yet
	a.op("DECQ AX")
	if v.n == 16 {
		a.op("KMOVW AX, K2")
	} else {
		a.op("MOVQ AX, first+%d(FP)", a.offset["first"])
	}
	a.load("dst", "AX")
	a.op("SHLQ $2, ldd+%d(FP)", a.offset["ldd"])
	a.load("c", "DI")
	a.load("x", "R8")
	a.load("scales", "R9")
	a.load("tiles", "DX")
	a.load("next", "R11")
	a.load("end", "R12")
	a.label("tile")
	last := k.passes() - 1
	for pass := range k.passes() {
		a.load("w", "BX")
		a.load("blocks", "CX")
		a.op("MOVQ R8, SI")
		if pass == 0 {
			a.op("MOVQ DI, R13")
		}
		if pass == last {
			a.op("LEAQ %d(R8), R10", k.act*rows)
		}
		k.begin(a, k, rows, pass)
		a.label(fmt.Sprintf("block%d", pass))
		a.op("CMPQ R11, R12")
		a.op("JCC fetched%d", pass)
		lines := spanLines / k.passes()
		prefetchLines(a, "R11", lines)
		a.op("ADDQ $%d, R11", 64*lines)
		a.label(fmt.Sprintf("fetched%d", pass))
		if pass == 0 {
			lines = (2*rows + 7) / 8
			for line := range lines { // the accumulators, which follow one another
				a.op("PREFETCHT0 %d(R13)", 64*line)
			}
			a.op("ADDQ $%d, R13", 64*lines)
		}
		if pass == last {
			lines = (k.act*rows + 511) / 512
			for line := range lines { // x of the next tile
				a.op("PREFETCHT0 %d(R10)", 64*line)
			}
			a.op("ADDQ $%d, R10", 64*lines)
		}
		if pass == 0 {
			a.op("TESTQ AX, AX")
			a.op("JNE soon")
			a.label("ready")
		}
		k.block(a, k, rows, pass)
		a.op("DECQ CX")
		a.op("JNE block%d", pass)
		a.op("TESTQ AX, AX")
		a.op("JNE last%d", pass)
		k.scaled(a, rows, pass, func(r, j, z int) {
			a.op("VMOVUPS %s, %d(DI)", v.r(z), 128*r+k.column(pass, j))
		})
		a.label(fmt.Sprintf("next%d", pass))
	}
	a.op("ADDQ $%d, R8", k.act*rows)
	a.op("ADDQ $%d, DI", 128*rows)
	a.op("DECQ DX")
	a.op("JNE tile")
	a.ret()
	a.label("soon") // rows of dst
	for range (rows + 7) / 8 {
		a.bytes([]byte{0x0f, 0x0d, 0x08}, "PREFETCHW (AX)")
		a.bytes([]byte{0x0f, 0x0d, 0x48, 0x40}, "PREFETCHW 64(AX)")
		a.op("ADDQ ldd+%d(FP), AX", a.offset["ldd"])
	}
	a.op("JMP ready")
	for pass := range k.passes() {
		a.label(fmt.Sprintf("last%d", pass))
		a.load("bias", "AX")
		a.load("dst", "SI")
		a.load("ldd", "BX")
		k.scaled(a, rows, pass, func(r, j, z int) {
			at := k.column(pass, j)
			a.op("VADDPS %d(AX), %s, %s", at, v.r(z), v.r(z))
			a.op("VMOVUPS %s, %d(SI)", v.r(z), at)
			if j == k.vectors-1 {
				a.op("ADDQ BX, SI")
			}
		})
		if pass == last {
			a.op("MOVQ SI, dst+%d(FP)", a.offset["dst"])
		}
		a.op("MOVQ SI, AX") // not 0
		a.op("JMP next%d", pass)
	}
}

// scaled scales the sums of a pass, adds the old ones in c, and calls f with the register of each.
func (k spanKernel) scaled(a *asm, rows, pass int, f func(r, j, z int)) {
	v, old, scale, mask := k.isa, k.spare[:], k.spare[2], k.spare[3]
	if v.n == 8 {
		old = old[:2]
		a.op("VPBROADCASTD first+%d(FP), Y%d", a.offset["first"], mask)
	}
	for r := range rows {
		at := k.act*r + k.scale
		if v.n == 8 {
			a.op("VBROADCASTSS %d(R8), Y%d", at, scale)
		}
		for j := range k.vectors {
			sum, to := v.r(k.acc(r, j)), old[(k.vectors*r+j)%len(old)]
			from, exact := 128*r+k.column(pass, j), sum
			if k.stored > 0 {
				exact = k.storedAt(k.vectors*r + j)
			}
			a.op("VCVTDQ2PS %s, %s", exact, sum)
			a.op("VMULPS %d(R9), %s, %s", k.column(pass, j), sum, sum)
			if v.n == 16 {
				a.op("VMOVUPS.Z %d(DI), K2, Z%d", from, to)
				a.op("VFMADD231PS.BCST %d(R8), %s, Z%d", at, sum, to)
			} else {
				a.op("VMASKMOVPS %d(DI), Y%d, Y%d", from, mask, to)
				a.op("VFMADD231PS Y%d, %s, Y%d", scale, sum, to)
			}
			f(r, j, to)
		}
	}
}

// spanRow rounds a span of one row of x to int8, with -128 times their sum or with the sums of its
// blocks.
func spanRow(a *asm, v isa, blocks bool) {
	name, what := "", "-128 times their sum"
	if blocks {
		name, what = "Nibbles", "the sums of blocks of 32"
	}
	a.fn("spanRow"+name+v.name, "rounds 64·steps elements to a record of int8 with the scale "+
		"max|x|/127 and "+what+". A scale is at least 1e-30/127, and not finite if an element is "+
		"not.", "dst *byte, x *float32, steps int")
	a.load("dst", "DI")
	spanMost(a, v, 127)
	a.op("VMOVSS X0, %d(DI)", spanScale)
	a.op("LEAQ %d(DI), R8", spanOffset)
	a.op("VPXOR X6, X6, X6")
	if blocks { // sums of blocks that do not exist are 0
		a.op("VMOVUPS X6, (R8)")
	}
	vectors := 0
	spanBytes(a, v, 64, func(z int) {
		a.op("VPADDD %s, %s, %s", v.r(z), v.r(6), v.r(6))
		if vectors++; blocks && vectors%v.vectors() == 0 {
			foldAll(a, v, "VPADDD", 6, 5)
			a.op("VMOVD X6, AX")
			a.op("VPXOR X6, X6, X6")
			a.op("MOVW AX, (R8)")
			a.op("ADDQ $2, R8")
		}
	})
	if !blocks {
		foldAll(a, v, "VPADDD", 6, 7)
		a.op("VMOVD X6, AX")
		a.op("IMULL $-128, AX")
		a.op("MOVL AX, (R8)")
	}
	a.ret()
}

// spanFetchRest prefetches what tiles do not.
func spanFetchRest(a *asm) {
	a.fn("spanFetchRest", "prefetches lines of 64 bytes, at least 1.", "p *byte, lines int")
	a.load("p", "SI")
	a.load("lines", "CX")
	a.label("line")
	a.op("PREFETCHT1 (SI)")
	a.op("ADDQ $64, SI")
	a.op("DECQ CX")
	a.op("JNE line")
	a.op("RET")
}

// spanMost leaves a span's scale max|x|/most in X0 and most/max|x| in every lane of register 2, SI
// at x and CX its steps of 64.
func spanMost(a *asm, v isa, most float32) {
	a.load("x", "SI")
	a.load("steps", "CX")
	const abs = 15
	a.constant(v, 0x7fffffff, abs)
	a.constant(v, math.Float32bits(1e-30), 0)
	a.label("most")
	for i := range 64 / v.n {
		t := 1 + i%4
		a.op("%s %d(SI), %s, %s", v.bitwise("VPAND"), v.bytes()*i, v.r(abs), v.r(t))
		a.op("VPMAXUD %s, %s, %s", v.r(t), v.r(0), v.r(0))
	}
	a.op("ADDQ $256, SI")
	a.op("DECQ CX")
	a.op("JNE most")
	foldAll(a, v, "VPMAXUD", 0, 1)
	a.op("MOVL $0x%08x, AX", math.Float32bits(most))
	a.op("VMOVD AX, X1")
	a.op("VDIVSS X0, X1, X2") // most/max
	a.op("VDIVSS X1, X0, X0") // max/most
	a.op("VBROADCASTSS X2, %s", v.r(2))
	a.load("x", "SI")
	a.load("steps", "CX")
}

// spanBytes rounds steps of 64 elements after spanMost; the bytes of each go step bytes further.
// each is called for a register with a vector of rounded elements.
func spanBytes(a *asm, v isa, step int, each func(z int)) {
	a.label("round")
	for i := range 64 / v.n {
		z := 7 + i%4
		a.op("VMULPS %d(SI), %s, %s", v.bytes()*i, v.r(2), v.r(z))
		a.op("VCVTPS2DQ %s, %s", v.r(z), v.r(z))
		each(z)
		switch {
		case v.n == 16:
			a.op("VPMOVDB Z%d, %d(DI)", z, 16*i)
		case i%4 == 3:
			packBytes(a, 7, 11, 8*(i-3))
		}
	}
	a.op("ADDQ $256, SI")
	a.op("ADDQ $%d, DI", step)
	a.op("DECQ CX")
	a.op("JNE round")
}

// packBytes stores the integers of four vectors of 256 bits, from register z on, as bytes at offset
// to from DI. It overwrites them and t.
func packBytes(a *asm, z, t, to int) {
	a.op("VPACKSSDW Y%d, Y%d, Y%d", z+1, z, z) // lanes 0a 1a 0b 1b
	a.op("VPACKSSDW Y%d, Y%d, Y%d", z+3, z+2, z+2)
	a.op("VPACKSSWB Y%d, Y%d, Y%d", z+2, z, z) // fours of bytes: 0a 1a 2a 3a 0b 1b 2b 3b
	a.op("VEXTRACTI128 $1, Y%d, X%d", z, t)
	a.op("VPUNPCKLDQ X%d, X%d, X%d", t, z, z+1) // 0a 0b 1a 1b
	a.op("VPUNPCKHDQ X%d, X%d, X%d", t, z, z+2)
	a.op("VMOVDQU X%d, %d(DI)", z+1, to)
	a.op("VMOVDQU X%d, %d(DI)", z+2, to+16)
}
