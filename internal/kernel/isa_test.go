package kernel

import (
	"slices"
	"testing"
)

// machine is a set of instructions that kernels tell apart, and what must be chosen for it.
type machine struct {
	isa
	name     string
	features Features
	turns    bool // is a plan for one or two rows, other than with IQ4
}

// machines has every set of instructions, also those that this processor lacks.
var machines = []machine{
	{isa{}, "go", Features{}, false},
	{isa{impl: implAVX2}, "avx2", Features{Words: true}, false},
	{isa{impl: implAVXVNNI, avxVNNI: true}, "avxvnni", Features{VNNI: true}, false},
	{isa{impl: implAVX512}, "avx512", Features{}, false},
	{isa{impl: implAVX512, vnni: true}, "avx512+vnni", Features{VNNI: true}, true},
	{isa{impl: implAVX512, vnni: true, avxVNNI: true}, "avx512+vnni+avxvnni",
		Features{VNNI: true}, true},
	{isa{impl: implAVX512, vnni: true, bf16: true}, "avx512+vnni+bf16",
		Features{VNNI: true, BF16: true}, true},
	{isa{impl: implAVX512, vnni: true, bf16: true, avxVNNI: true}, "avx512+vnni+bf16+avxvnni",
		Features{VNNI: true, BF16: true}, true},
	{isa{impl: implAMX, vnni: true, bf16: true, avxVNNI: true}, "amx+vnni+bf16+avxvnni",
		Features{VNNI: true, BF16: true}, true},
	{isa{impl: implNEON}, "neon", Features{}, false},
}

// plansOf returns the names of the plans of products of m rows with weights in f.
func (m machine) plansOf(f Format, rows int) []string {
	if m.turns && rows <= 2 && (f == Q8 || f == Q4 || f == Q4M) {
		return []string{"rows", "turns"}
	}
	return []string{"rows"}
}

// use makes products use the instructions of s, without the results of trials, until the test ends.
// Go computes what this processor cannot.
func use(t *testing.T, s isa) *backend {
	t.Helper()
	before := current.Load()
	t.Cleanup(func() { current.Store(before) })
	b := newBackend(s)
	current.Store(b)
	return b
}

// plansByTrial makes trials choose plans until the test ends, whatever KERNEL_PLAN says.
func plansByTrial(t *testing.T) {
	before := fixedPlan.Swap(0)
	t.Cleanup(func() { fixedPlan.Store(before) })
}

// forEachMachine runs f with every set of instructions.
func forEachMachine(t *testing.T, f func(t *testing.T, b *backend, m machine)) {
	t.Helper()
	for _, m := range machines {
		t.Run(m.name, func(t *testing.T) { f(t, use(t, m.isa), m) })
	}
}

// forEachISA runs f with every set of instructions that this processor can restrict itself to, for
// kernels that differ among those of one implementation.
func forEachISA(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	forEachMachine(t, func(t *testing.T, b *backend, _ machine) {
		if b.on != b.isa {
			t.Skip("this processor or build does not have it")
		}
		f(t)
	})
}

// Ensure that a set of instructions decides the features, the plans of every format and number of
// rows, and its name.
func TestMachines(t *testing.T) {
	forEachMachine(t, func(t *testing.T, b *backend, m machine) {
		if got := b.String(); got != m.name {
			t.Errorf("name %q", got)
		}
		if got := InUse(); got != m.features {
			t.Errorf("features %+v, want %+v", got, m.features)
		}
		for f := range Format(formatCount) {
			for rows := 1; rows <= 9; rows++ {
				want := m.plansOf(f, rows)
				var got []string
				for _, p := range b.plans(f, rows) {
					got = append(got, planNames[p])
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%v, %d rows: plans %v, want %v", f, rows, got, want)
				}
				for _, name := range planNames {
					has := len(want) > 1 && slices.Contains(want, name)
					if HasPlan(name, f, rows) != has {
						t.Fatalf("%v, %d rows: has %s, want %t", f, rows, name, has)
					}
				}
			}
		}
	})
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
