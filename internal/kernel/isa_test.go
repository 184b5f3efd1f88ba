package kernel

import "testing"

// machine is a set of instructions that kernels tell apart, and what must be chosen for it.
type machine struct {
	isa
	name     string
	features Features
}

// machines has every set of instructions, also those that this processor lacks.
var machines = []machine{
	{isa{}, "go", Features{}},
	{isa{impl: implAVX2}, "avx2", Features{Words: true}},
	{isa{impl: implAVXVNNI}, "avxvnni", Features{VNNI: true}},
	{isa{impl: implAVX512}, "avx512", Features{}},
	{isa{impl: implAVX512, vnni: true}, "avx512+vnni", Features{VNNI: true}},
	{isa{impl: implAVX512, vnni: true, bf16: true}, "avx512+vnni+bf16",
		Features{VNNI: true, BF16: true}},
	{isa{impl: implAMX, vnni: true, bf16: true}, "amx", Features{VNNI: true, BF16: true}},
	{isa{impl: implNEON}, "neon", Features{}},
}

// here reports whether this processor and build have the instructions of s.
func here(s isa) bool {
	all, ok := detect(s.impl)
	return ok && (all.vnni || !s.vnni) && (all.bf16 || !s.bf16)
}

// use makes products use the instructions of s, which this processor has, until the test ends.
func use(t *testing.T, s isa) {
	t.Helper()
	before := current.Swap(&s)
	t.Cleanup(func() { current.Store(before) })
}

// forEachISA runs f with every set of instructions that this processor can restrict itself to, for
// kernels that differ among those of one implementation.
func forEachISA(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for _, m := range machines {
		t.Run(m.name, func(t *testing.T) {
			if !here(m.isa) {
				t.Skip("this processor or build does not have it")
			}
			use(t, m.isa)
			f(t)
		})
	}
}

// Ensure that a set of instructions decides the features.
func TestFeatures(t *testing.T) {
	for _, m := range machines {
		if got := m.isa.features(); got != m.features {
			t.Errorf("%s: features %+v, want %+v", m.name, got, m.features)
		}
	}
}

// Ensure that only AVX-512 does without bfloat16 where it is slow: AMX needs none of its vectors.
func TestSlowBF16(t *testing.T) {
	defer func(before bool) { slowBF16 = before }(slowBF16)
	for _, slow := range []bool{false, true} {
		slowBF16 = slow
		for _, m := range machines {
			want := m.isa
			if m.impl == implAVX512 && slow {
				want.bf16 = false
			}
			if got := m.isa.fast(); got != want {
				t.Errorf("%s, slow %t: got %v, want %v", m.name, slow, got, want)
			}
		}
	}
}
