package kernel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// machine is a set of instructions that kernels tell apart, and what must be chosen for it.
type machine struct {
	isa
	name     string
	features Features
	// the plans of a format, each list with the fewest rows that have it; missing: rows alone
	plans map[Format]string
}

// x86Plans and vnniPlans are the plans of several machines.
var (
	x86Plans = map[Format]string{
		Q8: "1 rows, 48 rows|blocks", Q4: "1 rows, 24 rows|blocks", Q4M: "1 rows, 24 rows|blocks",
		IQ4: "1 rows, 48 rows|blocks",
	}
	vnniPlans = map[Format]string{
		Q8: "1 rows|turns, 3 rows", Q4: "1 rows|turns, 3 rows", Q4M: "1 rows|turns, 3 rows",
	}
)

// machines has every set of instructions, also those that this processor lacks.
var machines = []machine{
	{isa{}, "go", Features{}, nil},
	{isa{impl: implAVX2}, "avx2", Features{Words: true}, x86Plans},
	{isa{impl: implAVXVNNI, avxVNNI: true}, "avxvnni", Features{VNNI: true}, nil},
	{isa{impl: implAVX512}, "avx512", Features{}, x86Plans},
	{isa{impl: implAVX512, vnni: true}, "avx512+vnni", Features{VNNI: true}, vnniPlans},
	{isa{impl: implAVX512, vnni: true, avxVNNI: true}, "avx512+vnni+avxvnni",
		Features{VNNI: true}, vnniPlans},
	{isa{impl: implAVX512, vnni: true, bf16: true}, "avx512+vnni+bf16",
		Features{VNNI: true, BF16: true}, vnniPlans},
	{isa{impl: implAVX512, vnni: true, bf16: true, avxVNNI: true}, "avx512+vnni+bf16+avxvnni",
		Features{VNNI: true, BF16: true}, vnniPlans},
	{isa{impl: implAMX, vnni: true, bf16: true, avxVNNI: true}, "amx+vnni+bf16+avxvnni",
		Features{VNNI: true, BF16: true}, vnniPlans},
	{isa{impl: implNEON}, "neon", Features{}, nil},
}

// plansOf returns the names of the plans of products of m rows with weights in f.
func (m machine) plansOf(t *testing.T, f Format, rows int) []string {
	names := "rows"
	for part := range strings.SplitSeq(m.plans[f], ", ") {
		from, list := 0, ""
		if _, err := fmt.Sscan(part, &from, &list); err != nil && m.plans[f] != "" {
			t.Fatal(err)
		}
		if list != "" && rows >= from {
			names = list
		}
	}
	return strings.Split(names, "|")
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
			for rows := 1; rows <= 130; rows++ {
				want := m.plansOf(t, f, rows)
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
