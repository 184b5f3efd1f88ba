package main

import (
	"fmt"
	"math"
)

// The attention, norms, activations and quantisation of arm64: the same functions as on amd64, of 4
// lanes. Counts are multiples of the lanes unless a function says otherwise.

// vec is a source with the vector instructions that the assembler lacks.
type vec struct{ *source }

func neonVectors(a *asm) {
	v := vec{&source{asm: a}}
	v.tables()
	v.sigmoidMul()
	v.geluTanh()
	v.siluMul()
	v.gelu()
	v.addTo()
	v.rotate()
	v.sum()
	v.squares()
	v.norm()
	v.dot()
	v.tile()
	v.transpose()
	v.copyRows()
	v.rowMax()
	v.addMax()
	v.expSum()
	v.biasRow()
	v.addWindow()
	v.axpy()
	v.peakOf()
	v.weighted()
	v.weightedHalf()
	v.narrow()
	v.quantizeRow()
	v.widenIQ4()
	v.peaks()
}

// three emits an instruction of two sources.
func (v vec) three(base uint32, text string, d, n, m int) {
	v.op("WORD $0x%08x // %s V%d, V%d, V%d", base|uint32(m)<<16|uint32(n)<<5|uint32(d), text, d, n,
		m)
}

func (v vec) fadd(d, n, m int)  { v.three(0x4e20d400, "FADD.S4", d, n, m) }
func (v vec) fsub(d, n, m int)  { v.three(0x4ea0d400, "FSUB.S4", d, n, m) }
func (v vec) fmul(d, n, m int)  { v.three(0x6e20dc00, "FMUL.S4", d, n, m) }
func (v vec) fdiv(d, n, m int)  { v.three(0x6e20fc00, "FDIV.S4", d, n, m) }
func (v vec) fmax(d, n, m int)  { v.three(0x4e20f400, "FMAX.S4", d, n, m) }
func (v vec) fmin(d, n, m int)  { v.three(0x4ea0f400, "FMIN.S4", d, n, m) }
func (v vec) fmla(d, n, m int)  { v.three(0x4e20cc00, "FMLA.S4", d, n, m) } // d += n·m
func (v vec) fmls(d, n, m int)  { v.three(0x4ea0cc00, "FMLS.S4", d, n, m) } // d -= n·m
func (v vec) faddD(d, n, m int) { v.three(0x4e60d400, "FADD.D2", d, n, m) }
func (v vec) fsubD(d, n, m int) { v.three(0x4ee0d400, "FSUB.D2", d, n, m) }
func (v vec) fmlaD(d, n, m int) { v.three(0x4e60cc00, "FMLA.D2", d, n, m) }
func (v vec) iadd(d, n, m int)  { v.three(0x4ea08400, "ADD.S4", d, n, m) }
func (v vec) isub(d, n, m int)  { v.three(0x6ea08400, "SUB.S4", d, n, m) }
func (v vec) imul(d, n, m int)  { v.three(0x4ea09c00, "MUL.S4", d, n, m) }

func (v vec) fneg(d, n int) { v.unary(0x6ea0f800, "FNEG.S4", d, n) }

// widenD converts register n to float64 in the registers d and d+1.
func (v vec) widenD(d, n int) {
	v.unary(0x0e617800, "FCVTL.D2", d, n)
	v.unary(0x4e617800, "FCVTL2.D2", d+1, n)
}

// shl and sshr shift 32-bit lanes, to the left and arithmetically to the right.
func (v vec) shl(d, n, by int) {
	v.unary(0x4f005400|uint32(32+by)<<16, fmt.Sprintf("SHL.S4 $%d,", by), d, n)
}

func (v vec) sshr(d, n, by int) {
	v.unary(0x4f000400|uint32(64-by)<<16, fmt.Sprintf("SSHR.S4 $%d,", by), d, n)
}

func (v vec) mov(d, n int) { v.op("VMOV V%d.B16, V%d.B16", n, d) }

func (v vec) zeroed(regs ...int) {
	for _, r := range regs {
		v.op("VEOR V%d.B16, V%d.B16, V%d.B16", r, r, r)
	}
}

// spread loads a float32 parameter into all lanes of register d.
func (v vec) spread(param string, d int) {
	v.f("FMOVS %s, F%d", v.arg(param), d)
	v.unary(0x4e040400, "DUP.S4", d, d)
}

func (v vec) params(names ...string) {
	for i, name := range names {
		v.f("MOVD %s, R%d", v.arg(name), i)
	}
}

// floatsARM loads a count of float32 and converts it to bytes.
func (v vec) floatsARM(name, reg string) {
	v.f("MOVD %s, %s", v.arg(name), reg)
	v.f("LSL $2, %s, %s", reg, reg)
}

func (v vec) loadV(from string, d int)    { v.f("VLD1 (%s), [V%d.S4]", from, d) }
func (v vec) nextV(from string, d int)    { v.f("VLD1.P 16(%s), [V%d.S4]", from, d) }
func (v vec) storeV(d int, to string)     { v.f("VST1.P [V%d.S4], 16(%s)", d, to) }
func (v vec) oneOf(from string, d int)    { v.f("VLD1R.P 4(%s), [V%d.S4]", from, d) }
func (v vec) ret()                        { v.f("RET") }
func (v vec) result(kind string, reg int) { v.f("%s F%d, %s", kind, reg, v.arg("ret")) }

// while emits body for every vector of the count in a register, which may be 0.
func (v vec) while(count string, body func()) {
	again, done := v.name("loop"), v.name("done")
	v.f("CBZ %s, %s", count, done)
	v.f("%s:", again)
	body()
	v.f("SUB $4, %s, %s", count, count)
	v.f("CBNZ %s, %s", count, again)
	v.f("%s:", done)
}

// Exp's constants are in the registers from neonExp on, in the order of expValues, gelu's in
// neonGELU.
const neonExp = 16

var neonGELU = []int{26, 27, 28, 29, 30, 7, 8, 9, 10, 11, 12, 13, 14, 15}

// tables emits the constants of exp and of gelu, each once.
func (v vec) tables() {
	emit := func(name string, list []float64) {
		fmt.Fprintln(&v.text)
		for i, c := range list {
			fmt.Fprintf(&v.text, "DATA %s<>+%d(SB)/4, $0x%08x\n", name, 4*i,
				math.Float32bits(float32(c)))
		}
		fmt.Fprintf(&v.text, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 4*len(list))
	}
	emit("expNEON", expValues)
	emit("geluNEON", geluValues())
}

func (v vec) expSetup(clamp bool) {
	v.f("MOVD $expNEON<>(SB), R15")
	for i := range expConstants {
		if i != expHigh || clamp {
			v.oneOf("R15", neonExp+i)
		}
	}
}

// exp replaces register 2 by e^x, as on amd64, with the registers 3 to 6. Arguments above expHigh
// are correct only if clamp is set.
func (v vec) exp(clamp bool) {
	c := func(i int) int { return neonExp + i }
	const x, n, q, low, p = 2, 3, 4, 5, 6
	if clamp {
		v.fmin(x, x, c(expHigh))
	}
	v.three(0x6ea0e400, "FCMGT.S4", low, c(expLow), x)
	v.fmul(n, x, c(expLog2e))
	v.unary(0x4e218800, "FRINTN.S4", n, n)
	v.fmls(x, n, c(expLn2Hi))
	v.fmls(x, n, c(expLn2Lo))
	from, to := c(expC4), q
	for _, i := range []int{expC3, expC2, expC1, expC0, expOne, expOne} {
		v.mov(to, c(i))
		v.fmla(to, from, x)
		from = to
		to = q + p - to
	}
	v.unary(0x4e21a800, "FCVTNS.S4", n, n) // 0 for NaN, which the sum keeps
	if clamp {
		v.sshr(x, n, 1)
		v.isub(n, n, x)
		v.shl(x, x, 23)
		v.iadd(from, from, x)
		v.shl(n, n, 23)
		v.iadd(n, n, c(expOne))
		v.fmul(x, from, n)
	} else {
		v.shl(n, n, 23)
		v.iadd(x, from, n)
	}
	v.three(0x4e601c00, "BIC.B16", x, x, low)
}

func (v vec) sigmoidMul() {
	v.open("elemSigmoidNEON", "replaces x by x/(1+e^(a·x)).", "x *float32, n int, a float32", "")
	v.params("x", "n")
	v.spread("a", 0)
	v.expSetup(true)
	v.while("R1", func() {
		v.loadV("R0", 1)
		v.fmul(2, 1, 0)
		v.exp(true)
		v.fadd(2, 2, neonExp+expOne)
		v.fdiv(1, 1, 2)
		v.storeV(1, "R0")
	})
	v.ret()
}

// geluTanh: as on amd64.
func (v vec) geluTanh() {
	v.open("elemGELUTanhNEON", "replaces x by x/(1+e^(x·(a+b·x²))).",
		"x *float32, n int, a float32, b float32", "")
	v.params("x", "n")
	v.spread("a", 0)
	v.spread("b", 7)
	v.expSetup(true)
	v.while("R1", func() {
		v.loadV("R0", 1)
		v.fmul(3, 1, 1)
		v.mov(2, 0)
		v.fmla(2, 3, 7)
		v.fmul(2, 2, 1)
		v.exp(true)
		v.fadd(2, 2, neonExp+expOne)
		v.fdiv(1, 1, 2)
		v.storeV(1, "R0")
	})
	v.ret()
}

func (v vec) siluMul() {
	v.open("elemSiLUMulNEON", "sets dst = gate/(1+e^-gate)·up.",
		"dst *float32, gate *float32, up *float32, n int", "")
	v.params("dst", "gate", "up", "n")
	v.expSetup(true)
	v.while("R3", func() {
		v.nextV("R1", 1)
		v.fneg(2, 1)
		v.exp(true)
		v.fadd(2, 2, neonExp+expOne)
		v.fdiv(1, 1, 2)
		v.nextV("R2", 2)
		v.fmul(1, 1, 2)
		v.storeV(1, "R0")
	})
	v.ret()
}

// gelu: as on amd64.
func (v vec) gelu() {
	v.open("elemGELUNEON", "replaces x by x·(1+erf(x/√2))/2.", "x *float32, n int", "")
	v.params("x", "n")
	v.expSetup(false)
	v.f("MOVD $geluNEON<>(SB), R15")
	for _, r := range neonGELU {
		v.oneOf("R15", r)
	}
	scale, half, one, two, middle := neonGELU[0], neonGELU[1], neonGELU[2], neonGELU[3], neonGELU[4]
	poly := neonGELU[5:]
	v.while("R1", func() {
		v.loadV("R0", 1)
		v.unary(0x4ea0f800, "FABS.S4", 0, 1)
		v.fmul(2, 1, 1)
		v.fmul(2, 2, half)
		v.exp(false)
		v.mov(4, one)
		v.fmla(4, 0, scale)
		v.fdiv(3, one, 4)
		from, to := poly[0], 4
		for _, c := range poly[1:] {
			v.mov(to, c)
			v.fmla(to, from, 3)
			from, to = to, 4+5-to
		}
		v.fmul(from, from, 3)
		v.fmul(from, from, 2)
		v.fsub(6, two, from)
		v.sshr(0, 1, 31)
		v.three(0x6e601c00, "BSL.B16", 0, from, 6)
		v.fmul(1, 1, middle)
		v.fmul(1, 1, 0)
		v.storeV(1, "R0")
	})
	v.ret()
}

func (v vec) addTo() {
	v.open("elemAddNEON", "adds x to dst.", "dst *float32, x *float32, n int", "")
	v.params("dst", "x", "n")
	v.while("R2", func() {
		v.loadV("R0", 0)
		v.nextV("R1", 1)
		v.fadd(0, 0, 1)
		v.storeV(0, "R0")
	})
	v.ret()
}

func (v vec) rotate() {
	v.open("elemRotateNEON", "sets (a, b) = (a·cos - b·sin, b·cos + a·sin).",
		"a *float32, b *float32, cos *float32, sin *float32, n int", "")
	v.params("a", "b", "cos", "sin", "n")
	v.while("R4", func() {
		v.loadV("R0", 0)
		v.loadV("R1", 1)
		v.nextV("R2", 2)
		v.nextV("R3", 3)
		v.fmul(4, 1, 3)
		v.fneg(4, 4)
		v.fmul(5, 0, 3)
		v.fmla(4, 0, 2)
		v.fmla(5, 1, 2)
		v.storeV(4, "R0")
		v.storeV(5, "R1")
	})
	v.ret()
}

func (v vec) reduceDouble() {
	v.faddD(0, 0, 1)
	v.unary(0x7e70d800, "FADDP.D2", 0, 0)
	v.result("FMOVD", 0)
	v.ret()
}

func (v vec) sum() {
	v.open("elemSumNEON", "returns Σx in float64.", "x *float32, n int", "float64")
	v.params("x", "n")
	v.zeroed(0, 1)
	v.while("R1", func() {
		v.nextV("R0", 4)
		v.widenD(2, 4)
		v.faddD(0, 0, 2)
		v.faddD(1, 1, 3)
	})
	v.reduceDouble()
}

func (v vec) squares() {
	v.open("elemSquaresNEON", "returns Σ(x-mean)² in float64.", "x *float32, n int, mean float64",
		"float64")
	v.params("x", "n", "mean")
	v.f("VDUP R2, V5.D2")
	v.zeroed(0, 1)
	v.while("R1", func() {
		v.nextV("R0", 4)
		v.widenD(2, 4)
		for i := range 2 {
			v.fsubD(2+i, 2+i, 5)
			v.fmlaD(i, 2+i, 2+i)
		}
	})
	v.reduceDouble()
}

func (v vec) norm() {
	v.open("elemScaleNEON", "sets dst = x·r·w.",
		"dst *float32, x *float32, w *float32, n int, r float32", "")
	v.params("dst", "x", "w", "n")
	v.spread("r", 0)
	v.while("R3", func() {
		v.nextV("R1", 1)
		v.nextV("R2", 2)
		v.fmul(1, 1, 0)
		v.fmul(1, 1, 2)
		v.storeV(1, "R0")
	})
	v.ret()
	v.open("elemNormNEON", "sets dst = (x-m)·r·w + b.",
		"dst *float32, x *float32, w *float32, b *float32, n int, m float32, r float32", "")
	v.params("dst", "x", "w", "b", "n")
	v.spread("r", 0)
	v.spread("m", 2)
	v.while("R4", func() {
		v.nextV("R1", 1)
		v.nextV("R2", 3)
		v.nextV("R3", 4)
		v.fsub(1, 1, 2)
		v.fmul(1, 1, 0)
		v.fmla(4, 1, 3)
		v.storeV(4, "R0")
	})
	v.ret()
}

// sumLanes and maxLanes return the sum and the maximum of the lanes of register 0.
func (v vec) sumLanes() {
	v.three(0x6e20d400, "FADDP.S4", 0, 0, 0)
	v.three(0x6e20d400, "FADDP.S4", 0, 0, 0)
	v.result("FMOVS", 0)
	v.ret()
}

func (v vec) maxLanes() {
	v.unary(0x6e30f800, "FMAXV.S4", 0, 0)
	v.result("FMOVS", 0)
	v.ret()
}

func (v vec) dot() {
	v.open("elemDotNEON", "returns Σ a·b.", "a *float32, b *float32, n int", "float32")
	v.params("a", "b", "n")
	v.zeroed(0, 1, 2, 3)
	four, rest := v.name("four"), v.name("rest")
	v.f("%s:", four)
	v.f("CMP $16, R2")
	v.f("BLT %s", rest)
	v.f("VLD1.P 64(R0), [V4.S4, V5.S4, V6.S4, V7.S4]")
	v.f("VLD1.P 64(R1), [V16.S4, V17.S4, V18.S4, V19.S4]")
	for i := range 4 {
		v.fmla(i, 4+i, 16+i)
	}
	v.f("SUB $16, R2, R2")
	v.f("B %s", four)
	v.f("%s:", rest)
	v.while("R2", func() {
		v.nextV("R0", 4)
		v.nextV("R1", 5)
		v.fmla(0, 4, 5)
	})
	v.fadd(0, 0, 1)
	v.fadd(2, 2, 3)
	v.fadd(0, 0, 2)
	v.sumLanes()
}

// tile: 24 accumulators, four registers of B, and values of A in the other four in turn.
func (v vec) tile() {
	v.open("attnTile16NEON", fmt.Sprintf(
		"computes C = A·B, or C += A·B when add is not 0, for %d·tiles rows of C: A has rows of "+
			"k elements lda apart, B k rows of 16 elements ldb apart, C has rows ldc apart.",
		tileRows),
		"a *float32, lda int, b *float32, ldb int, c *float32, ldc int, k int, tiles int, add int",
		"")
	v.f("MOVD %s, R0", v.arg("a"))
	v.floatsARM("lda", "R1")
	v.floatsARM("ldb", "R2")
	v.f("MOVD %s, R3", v.arg("c"))
	v.floatsARM("ldc", "R10")
	v.f("MOVD %s, R11", v.arg("tiles"))
	v.f("MOVD %s, R12", v.arg("add"))
	next, fresh, body, again, store := v.name("tile"), v.name("fresh"), v.name("body"),
		v.name("again"), v.name("store")
	rows := func(format string) {
		for r := range tileRows {
			v.f(format, 4*r, 4*r+1, 4*r+2, 4*r+3)
			v.f("ADD R10, R13, R13")
		}
	}
	v.f("%s:", next)
	v.f("MOVD R0, R4")
	for r := 1; r < tileRows; r++ {
		v.f("ADD R1, R%d, R%d", 3+r, 4+r)
	}
	v.f("ADD R1, R9, R0") // the next tile
	v.f("MOVD %s, R14", v.arg("b"))
	v.f("MOVD %s, R15", v.arg("k"))
	v.f("MOVD R3, R13")
	v.f("CBZ R12, %s", fresh)
	rows("VLD1 (R13), [V%d.S4, V%d.S4, V%d.S4, V%d.S4]")
	v.f("B %s", body)
	v.f("%s:", fresh)
	for i := range 4 * tileRows {
		v.zeroed(i)
	}
	v.f("%s:", body)
	v.f("CBZ R15, %s", store)
	v.f("%s:", again)
	v.f("VLD1 (R14), [V24.S4, V25.S4, V26.S4, V27.S4]")
	v.f("ADD R2, R14, R14")
	for r := range tileRows {
		v.oneOf(fmt.Sprintf("R%d", 4+r), 28+r%4)
		for j := range 4 {
			v.fmla(4*r+j, 24+j, 28+r%4)
		}
	}
	v.f("SUB $1, R15, R15")
	v.f("CBNZ R15, %s", again)
	v.f("%s:", store)
	v.f("MOVD R3, R13")
	rows("VST1 [V%d.S4, V%d.S4, V%d.S4, V%d.S4], (R13)")
	v.f("MOVD R13, R3")
	v.f("SUB $1, R11, R11")
	v.f("CBNZ R11, %s", next)
	v.ret()
}

func (v vec) transpose() {
	v.open("attnTransposeNEON",
		"sets dst[i*stride+r] = src[r*srcStride+i] for r < 4 and i < n; it writes zeros up to "+
			"the next multiple of 4 of n.",
		"dst *float32, stride int, src *float32, srcStride int, n int", "")
	v.f("MOVD %s, R0", v.arg("dst"))
	v.floatsARM("stride", "R1")
	v.f("MOVD %s, R2", v.arg("src"))
	v.floatsARM("srcStride", "R6")
	for r := 1; r < 4; r++ {
		v.f("ADD R6, R%d, R%d", 1+r, 2+r)
	}
	v.f("MOVD %s, R7", v.arg("n"))
	loop, tail, work, done := v.name("loop"), v.name("tail"), v.name("work"), v.name("done")
	v.f("%s:", loop)
	v.f("CBZ R7, %s", done)
	v.f("CMP $4, R7")
	v.f("BLT %s", tail)
	for r := range 4 {
		v.nextV(fmt.Sprintf("R%d", 2+r), r)
	}
	v.f("SUB $4, R7, R7")
	v.f("%s:", work)
	for i := range 2 {
		v.three(0x4e802800, "TRN1.S4", 4+2*i, 2*i, 2*i+1)
		v.three(0x4e806800, "TRN2.S4", 5+2*i, 2*i, 2*i+1)
	}
	v.three(0x4ec03800, "ZIP1.D2", 0, 4, 6)
	v.three(0x4ec03800, "ZIP1.D2", 1, 5, 7)
	v.three(0x4ec07800, "ZIP2.D2", 2, 4, 6)
	v.three(0x4ec07800, "ZIP2.D2", 3, 5, 7)
	for r := range 4 {
		v.f("VST1 [V%d.S4], (R0)", r)
		v.f("ADD R1, R0, R0")
	}
	v.f("B %s", loop)
	v.f("%s:", tail)
	v.zeroed(0, 1, 2, 3)
	last := v.name("last")
	for lane := range 3 {
		for r := range 4 {
			v.f("VLD1.P 4(R%d), V%d.S[%d]", 2+r, r, lane)
		}
		if lane < 2 {
			v.f("SUB $1, R7, R7")
			v.f("CBZ R7, %s", last)
		}
	}
	v.f("%s:", last)
	v.f("MOVD $0, R7")
	v.f("B %s", work)
	v.f("%s:", done)
	v.ret()
}

func (v vec) copyRows() {
	v.open("attnCopyNEON",
		"sets dst[r*stride+i] = scale·src[r*srcStride+i] for r < rows and i < n. rows must be at "+
			"least 1.",
		"dst *float32, stride int, src *float32, srcStride int, rows int, n int, scale float32", "")
	v.f("MOVD %s, R0", v.arg("dst"))
	v.floatsARM("stride", "R1")
	v.f("MOVD %s, R2", v.arg("src"))
	v.floatsARM("srcStride", "R3")
	v.f("MOVD %s, R4", v.arg("rows"))
	v.f("MOVD %s, R5", v.arg("n"))
	v.spread("scale", 0)
	v.f("AND $3, R5, R6")
	v.f("AND $~3, R5, R5")
	row, tail, done := v.name("row"), v.name("tail"), v.name("next")
	v.f("%s:", row)
	v.f("MOVD R0, R7")
	v.f("MOVD R2, R8")
	v.f("MOVD R5, R9")
	v.while("R9", func() {
		v.nextV("R8", 1)
		v.fmul(1, 1, 0)
		v.storeV(1, "R7")
	})
	v.f("MOVD R6, R9")
	v.f("CBZ R9, %s", done)
	v.f("%s:", tail)
	v.f("FMOVS.P 4(R8), F1")
	v.f("FMULS F0, F1, F1")
	v.f("FMOVS.P F1, 4(R7)")
	v.f("SUB $1, R9, R9")
	v.f("CBNZ R9, %s", tail)
	v.f("%s:", done)
	v.f("ADD R1, R0, R0")
	v.f("ADD R3, R2, R2")
	v.f("SUB $1, R4, R4")
	v.f("CBNZ R4, %s", row)
	v.ret()
}

func (v vec) rowMax() {
	v.open("attnMaxNEON", "returns the largest of n > 0 elements, a multiple of the lanes.",
		"x *float32, n int", "float32")
	v.params("x", "n")
	v.loadV("R0", 0)
	v.while("R1", func() {
		v.nextV("R0", 1)
		v.fmax(0, 0, 1)
	})
	v.maxLanes()
}

func (v vec) addMax() {
	v.open("attnAddMaxNEON", "adds b to x, n > 0 elements, a multiple of the lanes, and returns "+
		"the largest sum.", "x *float32, b *float32, n int", "float32")
	v.params("x", "b", "n")
	v.lowest()
	v.while("R2", func() {
		v.loadV("R0", 1)
		v.nextV("R1", 2)
		v.fadd(1, 1, 2)
		v.storeV(1, "R0")
		v.fmax(0, 0, 1)
	})
	v.maxLanes()
}

// lowest sets register 0 to -Inf.
func (v vec) lowest() {
	v.f("MOVD $0xff800000, R15")
	v.f("VDUP R15, V0.S4")
}

func (v vec) expSum() {
	v.open("attnExpSumNEON", "replaces x by e^(x-m), n elements, a multiple of the lanes, none "+
		"above m, and returns their sum.", "x *float32, n int, m float32", "float32")
	v.params("x", "n")
	v.spread("m", 1)
	v.zeroed(0)
	v.expSetup(false)
	v.while("R1", func() {
		v.loadV("R0", 2)
		v.fsub(2, 2, 1)
		v.exp(false)
		v.storeV(2, "R0")
		v.fadd(0, 0, 2)
	})
	v.sumLanes()
}

func (v vec) biasRow() {
	v.open("attnBiasNEON",
		"sets dst[i] = size[i] + table[|pos-keys[i]|], n elements, a multiple of the lanes.",
		"dst *float32, size *float32, keys *int32, table *float32, n int, pos int32", "")
	v.params("dst", "size", "keys", "table", "n")
	v.f("MOVW %s, R5", v.arg("pos"))
	v.while("R4", func() {
		for range 4 {
			v.f("MOVW.P 4(R2), R6")
			v.f("SUBW R6, R5, R6")
			v.f("CMPW $0, R6")
			v.f("CNEGW LT, R6, R6")
			v.f("FMOVS (R3)(R6<<2), F1")
			v.f("FMOVS.P 4(R1), F2")
			v.f("FADDS F2, F1, F1")
			v.f("FMOVS.P F1, 4(R0)")
		}
	})
	v.ret()
}

// addWindow loads two vectors of the table, starting at the distance of a vector's last key, and
// looks up their bytes.
func (v vec) addWindow() {
	v.open("attnAddWindowNEON",
		"adds size[i] + table[pos-last[i/4]+index[i]] to x, n > 0 elements, a multiple of the "+
			"lanes, with indices below 8, and returns the largest sum.",
		"x *float32, size *float32, index *int32, last *int32, table *float32, n int, pos int32",
		"float32")
	v.params("x", "size", "index", "last", "table", "n")
	v.f("MOVW %s, R6", v.arg("pos"))
	v.lowest()
	v.f("MOVD $0x04040404, R7")
	v.f("VDUP R7, V6.S4")
	v.f("MOVD $0x03020100, R7")
	v.f("VDUP R7, V7.S4")
	v.while("R5", func() {
		v.f("MOVW.P 4(R3), R7")
		v.f("SUBW R7, R6, R7")
		v.f("SXTW R7, R7")
		v.f("ADD R7<<2, R4, R7")
		v.f("VLD1 (R7), [V1.B16, V2.B16]")
		v.nextV("R2", 3)
		v.imul(3, 3, 6)
		v.iadd(3, 3, 7)
		v.f("VTBL V3.B16, [V1.B16, V2.B16], V3.B16")
		v.nextV("R1", 4)
		v.fadd(3, 3, 4)
		v.loadV("R0", 4)
		v.fadd(3, 3, 4)
		v.storeV(3, "R0")
		v.fmax(0, 0, 3)
	})
	v.maxLanes()
}

func (v vec) axpy() {
	v.open("attnAxpyNEON", "adds a·x to y, n elements, a multiple of the lanes.",
		"y *float32, x *float32, n int, a float32", "")
	v.params("y", "x", "n")
	v.spread("a", 0)
	v.while("R2", func() {
		v.loadV("R0", 1)
		v.nextV("R1", 2)
		v.fmla(1, 0, 2)
		v.storeV(1, "R0")
	})
	v.ret()
}

func (v vec) peakOf() {
	v.open("attnPeakNEON", "raises y to a·x where that is larger, n elements, a multiple of the "+
		"lanes.", "y *float32, x *float32, n int, a float32", "")
	v.params("y", "x", "n")
	v.spread("a", 0)
	v.while("R2", func() {
		v.loadV("R0", 1)
		v.nextV("R1", 2)
		v.fmul(2, 0, 2)
		v.fmax(1, 1, 2)
		v.storeV(1, "R0")
	})
	v.ret()
}

// columnBlocks emits block for 16, 8, 4, 2 and 1 vectors of columns at a time, each summed over all
// rows in the registers 0 to 15, then a jump to done. Out is in R0, the columns in R1, the count of
// columns in R4. It uses R9 and R10 to prefetch.
func (v vec) columnBlocks(width func(nv int) int, row func(nv int)) (tail string) {
	v.f("MOVD %s, R9", v.arg("next"))
	v.f("MOVD %s, R10", v.arg("step"))
	sizes := []int{16, 8, 4, 2, 1}
	var labels []string
	for range sizes {
		labels = append(labels, v.name("block"))
	}
	tail = v.name("tail")
	labels = append(labels, tail)
	for i, nv := range sizes {
		v.f("%s:", labels[i])
		v.f("CMP $%d, R4", 4*nv)
		v.f("BLT %s", labels[i+1])
		for j := range nv {
			v.zeroed(j)
		}
		v.f("MOVD %s, R5", v.arg("p"))
		v.f("MOVD R1, R6")
		v.f("MOVD %s, R7", v.arg("rows"))
		again := v.name("row")
		v.f("%s:", again)
		v.oneOf("R5", 31)
		v.f("PRFM (R9), PLDL2KEEP")
		v.f("PRFM 64(R9), PLDL2KEEP")
		v.f("ADD R10, R9, R9")
		v.f("MOVD R6, R8")
		row(nv)
		v.f("ADD R2, R6, R6")
		v.f("SUB $1, R7, R7")
		v.f("CBNZ R7, %s", again)
		for j := range nv {
			v.storeV(j, "R0")
		}
		v.f("ADD $%d, R1, R1", width(nv))
		v.f("SUB $%d, R4, R4", 4*nv)
		v.f("B %s", labels[i])
	}
	v.f("%s:", tail)
	return tail
}

func (v vec) weighted() {
	v.open("attnWeightedNEON", "sets out[i] = Σⱼ p[j]·x[j*stride+i] for i < n and j < rows. rows "+
		"must be at least 1."+weightedAhead, "out *float32, p *float32, x *float32, stride int, "+
		"rows int, n int, next uintptr, step int", "")
	v.f("MOVD %s, R0", v.arg("out"))
	v.f("MOVD %s, R1", v.arg("x"))
	v.floatsARM("stride", "R2")
	v.f("MOVD %s, R4", v.arg("n"))
	v.columnBlocks(func(nv int) int { return 16 * nv }, func(nv int) {
		for j := range nv {
			v.nextV("R8", 16+j%8)
			v.fmla(j, 16+j%8, 31)
		}
	})
	column, again, done := v.name("column"), v.name("row"), v.name("done")
	v.f("%s:", column)
	v.f("CBZ R4, %s", done)
	v.f("MOVD %s, R5", v.arg("p"))
	v.f("MOVD R1, R6")
	v.f("MOVD %s, R7", v.arg("rows"))
	v.zeroed(0)
	v.f("%s:", again)
	v.f("FMOVS.P 4(R5), F1")
	v.f("FMOVS (R6), F2")
	v.f("FMADDS F1, F0, F2, F0")
	v.f("ADD R2, R6, R6")
	v.f("SUB $1, R7, R7")
	v.f("CBNZ R7, %s", again)
	v.f("FMOVS.P F0, 4(R0)")
	v.f("ADD $4, R1, R1")
	v.f("SUB $1, R4, R4")
	v.f("B %s", column)
	v.f("%s:", done)
	v.ret()
}

func (v vec) weightedHalf() {
	v.open("attnWeightedHalfNEON", "sets out[i] = Σⱼ p[j]·x[j*stride+i] for i < n and j < rows. "+
		"rows must be at least 1. Float16; n must be a multiple of 4."+weightedAhead,
		"out *float32, p *float32, x *uint16, stride int, rows int, n int, next uintptr, step int",
		"")
	v.f("MOVD %s, R0", v.arg("out"))
	v.f("MOVD %s, R1", v.arg("x"))
	v.f("MOVD %s, R2", v.arg("stride"))
	v.f("LSL $1, R2, R2")
	v.f("MOVD %s, R4", v.arg("n"))
	v.columnBlocks(func(nv int) int { return 8 * nv }, func(nv int) {
		if nv == 1 {
			v.f("VLD1 (R8), [V16.B8]")
			v.unary(0x0e217800, "FCVTL.S4", 16, 16)
			v.fmla(0, 16, 31)
			return
		}
		for j := 0; j < nv; j += 2 {
			in, low, high := 16+j%4, 20+j%8, 21+j%8
			v.f("VLD1.P 16(R8), [V%d.B16]", in)
			v.unary(0x0e217800, "FCVTL.S4", low, in)
			v.unary(0x4e217800, "FCVTL2.S4", high, in)
			v.fmla(j, low, 31)
			v.fmla(j+1, high, 31)
		}
	})
	v.ret()
}

func (v vec) narrow() {
	v.open("attnNarrowNEON", "rounds n elements, a multiple of the lanes, to float16, to nearest "+
		"and ties to even.", "dst *uint16, x *float32, n int", "")
	v.params("dst", "x", "n")
	v.while("R2", func() {
		v.nextV("R1", 0)
		v.unary(0x0e216800, "FCVTN.H4", 1, 0)
		v.f("VST1.P [V1.B8], 8(R0)")
	})
	v.ret()
}

// quantizeRow: as quantizeRowGo. NaN becomes -127, which FCVTNS would make 0.
func (v vec) quantizeRow() {
	v.open("quantizeRowNEON", "is quantizeRowGo; blocks must be at least 1.",
		"dst *byte, x *float32, blocks int, offset int", "")
	v.params("dst", "x", "blocks", "offset")
	v.f("MOVD $0x42fe0000, R4") // 127
	v.f("FMOVS R4, F20")
	v.f("MOVD $0x7fffffff, R4")
	v.f("VDUP R4, V21.S4")
	v.f("MOVD $-127, R4")
	v.f("VDUP R4, V22.S4")
	v.f("MOVD $0x%08x, R4", math.Float32bits(1e-30)) // actLeast
	v.f("VDUP R4, V23.S4")
	again, minima, done := v.name("block"), v.name("minima"), v.name("next")
	v.f("%s:", again)
	v.f("VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]")
	v.f("VLD1.P 64(R1), [V4.S4, V5.S4, V6.S4, V7.S4]")
	v.mov(16, 23)
	for i := range 8 {
		v.op("VAND V21.B16, V%d.B16, V17.B16", i)
		v.three(0x6ea06400, "UMAX.S4", 16, 16, 17)
	}
	v.unary(0x6eb0a800, "UMAXV.S4", 16, 16)
	v.f("FDIVS F16, F20, F17") // 127/amax
	v.f("FDIVS F20, F16, F18") // the scale
	v.unary(0x4e040400, "DUP.S4", 17, 17)
	v.zeroed(19)
	for i := range 8 {
		v.fmul(i, i, 17)
		v.unary(0x4e218800, "FRINTN.S4", i, i)
		v.three(0x4e20e400, "FCMEQ.S4", 24, i, i)
		v.unary(0x4e21a800, "FCVTNS.S4", i, i)
		v.three(0x6ee01c00, "BIF.B16", i, 22, 24)
		v.iadd(19, 19, i)
	}
	for half := range 2 {
		for i := range 2 {
			v.unary(0x0e612800, "XTN.H4", 24+i, 4*half+2*i)
			v.unary(0x4e612800, "XTN2.H8", 24+i, 4*half+2*i+1)
		}
		v.unary(0x0e212800, "XTN.B8", 26+half, 24)
		v.unary(0x4e212800, "XTN2.B16", 26+half, 25)
	}
	v.f("VST1.P [V26.B16, V27.B16], 32(R0)")
	v.f("FMOVS.P F18, 4(R0)")
	v.unary(0x4eb1b800, "ADDV.S4", 19, 19)
	v.f("VMOV V19.S[0], R5")
	v.f("CBZ R3, %s", minima)
	v.f("MULW R3, R5, R5")
	v.f("NEGW R5, R5")
	v.f("MOVW.P R5, 4(R0)")
	v.f("B %s", done)
	v.f("%s:", minima)
	v.f("SCVTFWS R5, F19")
	v.f("FMULS F18, F19, F19")
	v.f("FMOVS.P F19, 4(R0)")
	v.f("%s:", done)
	v.f("SUB $1, R2, R2")
	v.f("CBNZ R2, %s", again)
	v.ret()
}

// widenIQ4 looks up 16 nibbles at a time. Groups of 128 bytes follow the 64 of the scales.
func (v vec) widenIQ4() {
	v.open("widenIQ4NEON", "is widenIQ4Go; blocks must be at least 1.",
		"dst *byte, src *byte, blocks int, table *int8", "")
	v.params("dst", "src", "blocks", "table")
	v.f("VLD1 (R3), [V31.B16]")
	v.f("MOVD $0x80, R4")
	v.f("VDUP R4, V30.B16")
	v.op("VEOR V30.B16, V31.B16, V31.B16")
	v.f("MOVD $0x0f, R4")
	v.f("VDUP R4, V30.B16")
	again, pair := v.name("block"), v.name("pair")
	v.f("%s:", again)
	v.f("VLD1.P 64(R1), [V0.B16, V1.B16, V2.B16, V3.B16]")
	v.f("VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R0)")
	v.f("MOVD $4, R5")
	v.f("%s:", pair)
	v.f("ADD $128, R0, R6")
	for range 2 {
		v.f("VLD1.P 64(R1), [V0.B16, V1.B16, V2.B16, V3.B16]")
		for i := range 4 {
			v.op("VAND V30.B16, V%d.B16, V%d.B16", i, 4+i)
			v.op("VUSHR $4, V%d.B16, V%d.B16", i, i)
			v.op("VTBL V%d.B16, [V31.B16], V%d.B16", 4+i, 4+i)
			v.op("VTBL V%d.B16, [V31.B16], V%d.B16", i, i)
		}
		v.f("VST1.P [V4.B16, V5.B16, V6.B16, V7.B16], 64(R0)")
		v.f("VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R6)")
	}
	v.f("MOVD R6, R0")
	v.f("SUB $1, R5, R5")
	v.f("CBNZ R5, %s", pair)
	v.f("SUB $1, R2, R2")
	v.f("CBNZ R2, %s", again)
	v.ret()
}

// peaks are the loops that measure the machine: arithmetic on registers only, and reads whose data
// is not used.
func (v vec) peaks() {
	chains := func(name, doc string, one func(i int)) {
		v.open(name, doc, "n int", "")
		v.params("n")
		for i := range 26 {
			v.zeroed(i)
		}
		v.f("%s:", name)
		for i := range 24 {
			one(i)
		}
		v.f("SUB $1, R0, R0")
		v.f("CBNZ R0, %s", name)
		v.ret()
	}
	chains("fmaLoopNEON", "runs n rounds of 24 independent multiply-adds of 4 lanes.",
		func(i int) { v.fmla(i, 24, 25) })
	chains("dotLoopNEON", "runs n rounds of 24 independent SDOT of 16 bytes.",
		func(i int) { v.three(0x4e809400, "SDOT.S4", i, 24, 25) })
	v.open("readLoopNEON", "reads n bytes, a multiple of 512.", "p *byte, n int", "")
	v.params("p", "n")
	v.f("read:")
	for i := range 8 {
		at := 4 * (i % 4)
		v.f("VLD1.P 64(R0), [V%d.B16, V%d.B16, V%d.B16, V%d.B16]", at, at+1, at+2, at+3)
	}
	v.f("SUBS $512, R1, R1")
	v.f("BGT read")
	v.ret()
}
