package main

import (
	"math"
	"strconv"
)

// e^x = 2^n·(1 + r + r²·q(r)), n = round(x·log2 e), r = x - n·ln 2 in two steps, |r| <= ln2/2. q is
// the minimax polynomial of degree 4 of (e^r-1-r)/r²: 8e-9 of the result. x below expLow gives 0,
// so that no subnormal number leaves these kernels.
const (
	expLog2e = iota
	expLn2Hi
	expLn2Lo
	expC4
	expC3
	expC2
	expC1
	expC0
	expOne
	expLow
	expHigh // overflows to +Inf
	expConstants
)

// expValues are the constants in this order.
var expValues = []float64{
	math.Log2E, 0x1.62e4p-1, math.Ln2 - 0x1.62e4p-1,
	0.00139262508315, 0.00836323288368, 0.041666554213, 0.166665766661, 0.5,
	1, -87.33654, 89,
}

// expTable emits the constants for v.
func (s *source) expTable(v isa) {
	var bits []uint32
	for _, c := range expValues {
		bits = append(bits, math.Float32bits(float32(c)))
	}
	s.constants(expName(v), bits)
}

func expName(v isa) string { return "exp" + v.name }

// expConst returns constant i: with AVX-512 a register from base on; with AVX2, which has too few
// registers, a memory operand.
func (s *source) expConst(v isa, base, i int) string {
	if v.n == 16 {
		return v.r(base + i)
	}
	return s.constant(expName(v), i)
}

// constant returns entry i of a table as a memory operand.
func (s *source) constant(table string, i int) string {
	return table + "<>+" + strconv.Itoa(64*i) + "(SB)"
}

// expSetup loads the constants into registers base … base+10 (AVX-512 only).
func (s *source) expSetup(v isa, base int) {
	if v.n == 8 {
		return
	}
	for i := 0; i < expConstants; i++ {
		s.f("VMOVUPS %s, %s", s.constant(expName(v), i), v.r(base+i))
	}
}

// exp replaces register x by e^x, with temporaries n and q, and t for AVX2. NaN stays NaN.
// Arguments above expHigh are correct only if clamp is set.
func (s *source) exp(v isa, base, x, n, q, t int, clamp bool) {
	c := func(i int) string { return s.expConst(v, base, i) }
	X, N, Q := v.r(x), v.r(n), v.r(q)
	if clamp {
		if v.n == 16 {
			s.f("VMINPS %s, %s, %s", X, c(expHigh), X)
		} else {
			s.f("VMOVUPS %s, %s", c(expHigh), v.r(t))
			s.f("VMINPS %s, %s, %s", X, v.r(t), X)
		}
	}
	if v.n == 16 {
		s.f("VCMPPS $5, %s, %s, K1", c(expLow), X)
		s.f("VMULPS %s, %s, %s", c(expLog2e), X, N)
		s.f("VRNDSCALEPS $8, %s, %s", N, N)
	} else {
		s.f("VCMPPS $5, %s, %s, %s", c(expLow), X, v.r(t))
		s.f("VMULPS %s, %s, %s", c(expLog2e), X, N)
		s.f("VROUNDPS $8, %s, %s", N, N)
	}
	s.f("VFNMADD231PS %s, %s, %s", c(expLn2Hi), N, X)
	s.f("VFNMADD231PS %s, %s, %s", c(expLn2Lo), N, X)
	s.f("VMOVUPS %s, %s", c(expC4), Q)
	for _, i := range []int{expC3, expC2, expC1, expC0, expOne, expOne} {
		s.f("VFMADD213PS %s, %s, %s", c(i), X, Q)
	}
	if v.n == 16 {
		s.f("VSCALEFPS.Z %s, %s, K1, %s", N, Q, X)
		return
	}
	// n is added to the exponent. An integer addition keeps a NaN. If the result may overflow, half
	// of n is added and the result is multiplied by 2 to the power of the rest.
	s.f("VCVTPS2DQ %s, %s", N, N)
	if clamp {
		s.f("VPSRAD $1, %s, %s", N, X)
		s.f("VPSUBD %s, %s, %s", X, N, N)
		s.f("VPSLLD $23, %s, %s", X, X)
		s.f("VPADDD %s, %s, %s", X, Q, Q)
		s.f("VPSLLD $23, %s, %s", N, N)
		s.f("VPADDD %s, %s, %s", c(expOne), N, N)
		s.f("VMULPS %s, %s, %s", N, Q, X)
		s.f("VANDPS %s, %s, %s", v.r(t), X, X)
		return
	}
	s.f("VPSLLD $23, %s, %s", N, N)
	s.f("VPADDD %s, %s, %s", N, Q, X)
	s.f("VANDPS %s, %s, %s", v.r(t), X, X)
}
