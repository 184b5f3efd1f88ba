package main

import "math"

// erfcx(z) = e^(z²)·erfc(z) = t·P(t) with t = 1/(1+erfScale·z), z >= 0: 3e-8 of the result. Highest
// power first.
const erfScale = 0.3

var erfPoly = []float64{
	-0.1309226323, 0.4926391783, -0.5275243242, 0.5659658211, -0.107884418, 0.2208691546,
	0.1467287406, 0.1709555602, 0.1691728979,
}

// geluValues are the constants of gelu: the scale of |x|, four numbers, and the polynomial.
func geluValues() []float64 {
	return append([]float64{erfScale / math.Sqrt2, -0.5, 1, 2, 0.5}, erfPoly...)
}

// elem writes the kernels of norms, activations and rotations. All counts are multiples of the
// lanes.
func elem(a *asm) {
	s := &source{asm: a}
	var gelu []uint32
	for _, c := range geluValues() {
		gelu = append(gelu, math.Float32bits(float32(c)))
	}
	s.constants("gelu", gelu)
	s.constants("absMask", []uint32{0x7fffffff})
	for _, v := range isas {
		s.expTable(v)
		s.sigmoidMul(v)
		s.geluTanh(v)
		s.siluMul(v)
		s.gelu(v)
		s.addTo(v)
		s.rotate(v)
		s.sum(v)
		s.squares(v)
		s.norm(v)
		s.dot(v)
	}
}

// onePlusExp sets register x, which holds -a·g, to 1+e^x.
func (s *source) onePlusExp(v isa, x int) {
	s.exp(v, 6, x, 3, 4, 5, true)
	s.f("VADDPS %s, %s, %s", s.expConst(v, 6, expOne), v.r(x), v.r(x))
}

func (s *source) sigmoidMul(v isa) {
	s.open("elemSigmoid"+v.name, "replaces x by x/(1+e^(a·x)).", "x *float32, n int, a float32", "")
	s.load("x", "DI")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("a"), v.r(0))
	s.expSetup(v, 6)
	s.loop(v, []string{"DI"}, func() {
		s.f("VMOVUPS (DI), %s", v.r(1))
		s.f("VMULPS %s, %s, %s", v.r(1), v.r(0), v.r(2))
		s.onePlusExp(v, 2)
		s.f("VDIVPS %s, %s, %s", v.r(2), v.r(1), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

// geluTanh: x·(1+tanh(√(2/π)·(x+0.044715·x³)))/2 = x/(1+e^(x·(a+b·x²))) with a = -2·√(2/π) and b =
// 0.044715·a.
func (s *source) geluTanh(v isa) {
	s.open("elemGELUTanh"+v.name, "replaces x by x/(1+e^(x·(a+b·x²))).",
		"x *float32, n int, a float32, b float32", "")
	s.load("x", "DI")
	s.load("n", "CX")
	// exp uses the other registers, also for its constants
	a, b := 0, 17
	if v.n == 8 {
		b = 6
	}
	s.f("VBROADCASTSS %s, %s", s.arg("a"), v.r(a))
	s.f("VBROADCASTSS %s, %s", s.arg("b"), v.r(b))
	s.expSetup(v, 6)
	s.loop(v, []string{"DI"}, func() {
		s.f("VMOVUPS (DI), %s", v.r(1))
		s.f("VMULPS %s, %s, %s", v.r(1), v.r(1), v.r(2))
		s.f("VFMADD213PS %s, %s, %s", v.r(a), v.r(b), v.r(2))
		s.f("VMULPS %s, %s, %s", v.r(1), v.r(2), v.r(2))
		s.onePlusExp(v, 2)
		s.f("VDIVPS %s, %s, %s", v.r(2), v.r(1), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

func (s *source) siluMul(v isa) {
	s.open("elemSiLUMul"+v.name, "sets dst = gate/(1+e^-gate)·up.",
		"dst *float32, gate *float32, up *float32, n int", "")
	s.load("dst", "DI")
	s.load("gate", "SI")
	s.load("up", "DX")
	s.load("n", "CX")
	s.expSetup(v, 6)
	s.loop(v, []string{"DI", "SI", "DX"}, func() {
		s.f("VMOVUPS (SI), %s", v.r(1))
		s.zero(v, 0)
		s.f("VSUBPS %s, %s, %s", v.r(1), v.r(0), v.r(2))
		s.onePlusExp(v, 2)
		s.f("VDIVPS %s, %s, %s", v.r(2), v.r(1), v.r(1))
		s.f("VMULPS (DX), %s, %s", v.r(1), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

// gelu: x·erfc(-x/√2)/2 with erfc(z) = t·P(t)·e^(-z²) for z >= 0 and 2 - erfc(-z) otherwise.
func (s *source) gelu(v isa) {
	s.open("elemGELU"+v.name, "replaces x by x·(1+erf(x/√2))/2.", "x *float32, n int", "")
	c := func(i int) string { return s.constant("gelu", i) }
	s.load("x", "DI")
	s.load("n", "CX")
	s.expSetup(v, 6)
	abs, t, p := 0, 17, 18
	if v.n == 8 {
		t, p = 6, 7
	}
	s.loop(v, []string{"DI"}, func() {
		s.f("VMOVUPS (DI), %s", v.r(1))
		s.f("VANDPS absMask<>(SB), %s, %s", v.r(1), v.r(abs))
		s.f("VMULPS %s, %s, %s", v.r(1), v.r(1), v.r(2))
		s.f("VMULPS %s, %s, %s", c(1), v.r(2), v.r(2))
		s.exp(v, 6, 2, 3, 4, 5, false)
		s.f("VMOVUPS %s, %s", c(2), v.r(t))
		s.f("VMOVUPS %s, %s", c(0), v.r(p))
		s.f("VFMADD213PS %s, %s, %s", v.r(t), v.r(abs), v.r(p))
		s.f("VDIVPS %s, %s, %s", v.r(p), v.r(t), v.r(t))
		s.f("VMOVUPS %s, %s", c(5), v.r(p))
		for i := 1; i < len(erfPoly); i++ {
			s.f("VFMADD213PS %s, %s, %s", c(5+i), v.r(t), v.r(p))
		}
		s.f("VMULPS %s, %s, %s", v.r(t), v.r(p), v.r(p))
		s.f("VMULPS %s, %s, %s", v.r(2), v.r(p), v.r(p))
		s.f("VMOVUPS %s, %s", c(3), v.r(3))
		s.f("VSUBPS %s, %s, %s", v.r(p), v.r(3), v.r(3))
		if v.n == 16 {
			s.f("VPMOVD2M %s, K2", v.r(1))
			s.f("VMOVAPS %s, K2, %s", v.r(p), v.r(3))
		} else {
			s.f("VBLENDVPS %s, %s, %s, %s", v.r(1), v.r(p), v.r(3), v.r(3))
		}
		s.f("VMULPS %s, %s, %s", c(4), v.r(1), v.r(1))
		s.f("VMULPS %s, %s, %s", v.r(3), v.r(1), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

func (s *source) addTo(v isa) {
	s.open("elemAdd"+v.name, "adds x to dst.", "dst *float32, x *float32, n int", "")
	s.load("dst", "DI")
	s.load("x", "SI")
	s.load("n", "CX")
	s.loop(v, []string{"DI", "SI"}, func() {
		s.f("VMOVUPS (DI), %s", v.r(0))
		s.f("VADDPS (SI), %s, %s", v.r(0), v.r(0))
		s.f("VMOVUPS %s, (DI)", v.r(0))
	})
	s.ret()
}

func (s *source) rotate(v isa) {
	s.open("elemRotate"+v.name, "sets (a, b) = (a·cos - b·sin, b·cos + a·sin).",
		"a *float32, b *float32, cos *float32, sin *float32, n int", "")
	s.load("a", "DI")
	s.load("b", "SI")
	s.load("cos", "AX")
	s.load("sin", "BX")
	s.load("n", "CX")
	s.loop(v, []string{"DI", "SI", "AX", "BX"}, func() {
		s.f("VMOVUPS (DI), %s", v.r(0))
		s.f("VMOVUPS (SI), %s", v.r(1))
		s.f("VMOVUPS (AX), %s", v.r(2))
		s.f("VMOVUPS (BX), %s", v.r(3))
		s.f("VMULPS %s, %s, %s", v.r(1), v.r(3), v.r(4))
		s.f("VMULPS %s, %s, %s", v.r(0), v.r(3), v.r(5))
		s.f("VFMSUB213PS %s, %s, %s", v.r(4), v.r(2), v.r(0))
		s.f("VFMADD213PS %s, %s, %s", v.r(5), v.r(2), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(0))
		s.f("VMOVUPS %s, (SI)", v.r(1))
	})
	s.ret()
}

// widen converts the vector at SI to two of float64 in the registers 2 and 3.
func (s *source) widen(v isa) {
	for i := 0; i < 2; i++ {
		if v.n == 16 {
			s.f("VCVTPS2PD %d(SI), Z%d", 32*i, 2+i)
		} else {
			s.f("VCVTPS2PD %d(SI), Y%d", 16*i, 2+i)
		}
	}
}

func (s *source) sum(v isa) {
	s.open("elemSum"+v.name, "returns Σx in float64.", "x *float32, n int", "float64")
	s.load("x", "SI")
	s.load("n", "CX")
	s.zero(v, 0)
	s.zero(v, 1)
	s.loop(v, []string{"SI"}, func() {
		s.widen(v)
		s.f("VADDPD %s, %s, %s", v.r(2), v.r(0), v.r(0))
		s.f("VADDPD %s, %s, %s", v.r(3), v.r(1), v.r(1))
	})
	s.f("VADDPD %s, %s, %s", v.r(1), v.r(0), v.r(0))
	s.reduceDouble(v, 0, 1)
	s.f("VMOVSD X0, %s", s.arg("ret"))
	s.ret()
}

func (s *source) squares(v isa) {
	s.open("elemSquares"+v.name, "returns Σ(x-mean)² in float64.",
		"x *float32, n int, mean float64", "float64")
	s.load("x", "SI")
	s.load("n", "CX")
	s.f("VBROADCASTSD %s, %s", s.arg("mean"), v.r(4))
	s.zero(v, 0)
	s.zero(v, 1)
	s.loop(v, []string{"SI"}, func() {
		s.widen(v)
		for i := 0; i < 2; i++ {
			s.f("VSUBPD %s, %s, %s", v.r(4), v.r(2+i), v.r(2+i))
			s.f("VFMADD231PD %s, %s, %s", v.r(2+i), v.r(2+i), v.r(i))
		}
	})
	s.f("VADDPD %s, %s, %s", v.r(1), v.r(0), v.r(0))
	s.reduceDouble(v, 0, 1)
	s.f("VMOVSD X0, %s", s.arg("ret"))
	s.ret()
}

func (s *source) norm(v isa) {
	s.open("elemScale"+v.name, "sets dst = x·r·w.",
		"dst *float32, x *float32, w *float32, n int, r float32", "")
	s.load("dst", "DI")
	s.load("x", "SI")
	s.load("w", "DX")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("r"), v.r(0))
	s.loop(v, []string{"DI", "SI", "DX"}, func() {
		s.f("VMULPS (SI), %s, %s", v.r(0), v.r(1))
		s.f("VMULPS (DX), %s, %s", v.r(1), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
	s.open("elemNorm"+v.name, "sets dst = (x-m)·r·w + b.",
		"dst *float32, x *float32, w *float32, b *float32, n int, m float32, r float32", "")
	s.load("dst", "DI")
	s.load("x", "SI")
	s.load("w", "DX")
	s.load("b", "BX")
	s.load("n", "CX")
	s.f("VBROADCASTSS %s, %s", s.arg("r"), v.r(0))
	s.f("VBROADCASTSS %s, %s", s.arg("m"), v.r(2))
	s.loop(v, []string{"DI", "SI", "DX", "BX"}, func() {
		s.f("VMOVUPS (SI), %s", v.r(1))
		s.f("VSUBPS %s, %s, %s", v.r(2), v.r(1), v.r(1))
		s.f("VMULPS %s, %s, %s", v.r(0), v.r(1), v.r(1))
		s.f("VMOVUPS (DX), %s", v.r(3))
		s.f("VFMADD213PS (BX), %s, %s", v.r(3), v.r(1))
		s.f("VMOVUPS %s, (DI)", v.r(1))
	})
	s.ret()
}

func (s *source) dot(v isa) {
	s.open("elemDot"+v.name, "returns Σ a·b.", "a *float32, b *float32, n int", "float32")
	s.load("a", "SI")
	s.load("b", "DI")
	s.load("n", "CX")
	for i := 0; i < 4; i++ {
		s.zero(v, i)
	}
	four, done := s.name("four"), s.name("rest")
	s.f("SUBQ $%d, CX", 4*v.n)
	s.f("JLT %s", done)
	s.f("%s:", four)
	for i := 0; i < 4; i++ {
		s.f("VMOVUPS %d(SI), %s", i*v.bytes(), v.r(4))
		s.f("VFMADD231PS %d(DI), %s, %s", i*v.bytes(), v.r(4), v.r(i))
	}
	s.f("ADDQ $%d, SI", 4*v.bytes())
	s.f("ADDQ $%d, DI", 4*v.bytes())
	s.f("SUBQ $%d, CX", 4*v.n)
	s.f("JGE %s", four)
	s.f("%s:", done)
	s.f("ADDQ $%d, CX", 4*v.n)
	s.loop(v, []string{"SI", "DI"}, func() {
		s.f("VMOVUPS (SI), %s", v.r(4))
		s.f("VFMADD231PS (DI), %s, %s", v.r(4), v.r(0))
	})
	s.f("VADDPS %s, %s, %s", v.r(1), v.r(0), v.r(0))
	s.f("VADDPS %s, %s, %s", v.r(3), v.r(2), v.r(2))
	s.f("VADDPS %s, %s, %s", v.r(2), v.r(0), v.r(0))
	s.reduce(v, "VADDPS", 0, 1)
	s.f("VMOVSS X0, %s", s.arg("ret"))
	s.ret()
}
