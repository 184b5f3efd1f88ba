package kernel

import "math"

// isa is a set of instructions that kernels tell apart.
type isa struct {
	impl    implementation
	vnni    bool // with AVX-512: VPDPBUSD of 512 bits
	bf16    bool // with AVX-512: VDPBF16PS
	avxVNNI bool // VPDPBUSD of 256 bits
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

// has reports whether s includes all instructions of t.
func (s isa) has(t isa) bool {
	return s.impl == t.impl && (s.vnni || !t.vnni) && (s.bf16 || !t.bf16) &&
		(s.avxVNNI || !t.avxVNNI)
}

// String returns the name of the implementation with the instructions that it may lack:
// "avx512+vnni+bf16".
func (s isa) String() string {
	name := implNames[s.impl]
	if s.impl == implAVXVNNI {
		return name
	}
	for _, f := range []struct {
		has  bool
		name string
	}{{s.vnni, "+vnni"}, {s.bf16, "+bf16"}, {s.avxVNNI, "+avxvnni"}} {
		if f.has {
			name += f.name
		}
	}
	return name
}

// features returns what other packages need to know.
func (s isa) features() Features {
	return Features{
		VNNI: s.vnni || s.impl == implAVXVNNI, BF16: s.bf16, Words: s.impl == implAVX2,
	}
}

// strips reports whether planBlocks computes strips: x86 without VNNI.
func (s isa) strips() bool {
	return s.impl == implAVX2 || s.level() == implAVX512 && !s.vnni
}

// leastTiled is the fewest rows for which tiles of AMX are faster than vectors, by format.
var leastTiled = [...]int{Q8: 19, Q4: 19, Q4M: 19, IQ4: 19, BF16Dot: 8, Q12: math.MaxInt}

// tiled reports whether tiles of AMX are faster than vectors for m rows with weights in f.
func (s isa) tiled(f Format, m int) bool {
	return s.impl == implAMX && f.packed() && m >= leastTiled[f]
}
