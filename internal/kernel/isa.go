package kernel

import "github.com/klauspost/cpuid/v2"

// isa is a set of instructions that kernels tell apart.
type isa struct {
	impl implementation
	vnni bool // with AVX-512: VPDPBUSD of 512 bits
	bf16 bool // with AVX-512: VDPBF16PS
}

// level returns the implementation of operations other than products: implAVX2 for implAVXVNNI, and
// implAVX512 for implAMX.
func (s isa) level() implementation {
	switch s.impl {
	case implAVXVNNI:
		return implAVX2
	case implAMX:
		return implAVX512
	}
	return s.impl
}

// slowBF16 reports that VDPBF16PS does no more multiply-adds a second than float32: Intel's does
// half as many (89 and 176 GFLOP/s of a core of family 6, model 207), AMD's twice as many.
var slowBF16 = cpuid.CPU.VendorID == cpuid.Intel

// fast returns s without instructions that are slower than what replaces them.
func (s isa) fast() isa {
	if s.impl == implAVX512 && slowBF16 {
		s.bf16 = false
	}
	return s
}

// features returns what other packages need to know.
func (s isa) features() Features {
	return Features{
		VNNI: s.vnni || s.impl == implAVXVNNI, BF16: s.bf16, Words: s.impl == implAVX2,
	}
}

// madd reports whether products of integers are made by multiplications that add pairs, without
// VNNI.
func (s isa) madd() bool {
	return s.impl == implAVX2 || s.level() == implAVX512 && !s.vnni
}

// tiled reports whether tiles of AMX compute products with weights in f, other than in decoding
// steps.
func (s isa) tiled(f Format) bool { return s.impl == implAMX && (f.blocks() || f == BF16Dot) }

// spans reports whether products with weights in f, other than in decoding steps, round x and the
// weights in spans: on x86.
func (s isa) spans(f Format) bool {
	return f.blocks() && s.impl != implGo && s.impl != implNEON
}

// spanAct returns the bytes of a rounded row of a span, with its scale and what cancels offsets or
// stands in for minima.
func (s isa) spanAct(f Format) int {
	switch {
	case !s.madd():
		return spanDepth + 8
	case f == Q8 || f == IQ4:
		return 2*spanDepth + 4
	}
	return spanDepth + 20
}
