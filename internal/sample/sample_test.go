package sample

import (
	"math"
	"strings"
	"testing"
)

var nan, inf = float32(math.NaN()), float32(math.Inf(1))

func mustNew(t *testing.T, o Options) *Sampler {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Ensure that temperature 0 takes the largest logit and the lowest index among equals.
func TestGreedy(t *testing.T) {
	s := mustNew(t, Options{TopK: 1, TopP: 0.1})
	for _, c := range []struct {
		name   string
		logits []float32
		want   int32
	}{
		{"largest", []float32{1, 3, 2}, 1},
		{"tie", []float32{0, 5, 5, 5}, 1},
		{"nan", []float32{nan, 1, nan, 2}, 3},
		{"all nan", []float32{nan, nan}, 0},
		{"all -inf", []float32{-inf, -inf}, 0},
		{"inf", []float32{0, inf, inf}, 1},
		{"empty", nil, -1},
	} {
		if got := s.Next(c.logits); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// Ensure that each filter leaves exactly the tokens that its definition leaves.
func TestFilters(t *testing.T) {
	// probabilities 1/2, 1/4, 1/8, 1/16, 1/16
	ln2 := float32(math.Ln2)
	logits := []float32{-3 * ln2, -1 * ln2, -2 * ln2, -4 * ln2, -4 * ln2}
	for _, c := range []struct {
		name string
		o    Options
		want map[int32]bool
	}{
		{"all", Options{}, map[int32]bool{0: true, 1: true, 2: true, 3: true, 4: true}},
		{"top-k 2", Options{TopK: 2}, map[int32]bool{1: true, 2: true}},
		{"top-k 4 keeps the lower index of a tie", Options{TopK: 4}, map[int32]bool{1: true, 2: true, 0: true, 3: true}},
		{"top-k beyond the row", Options{TopK: 99}, map[int32]bool{0: true, 1: true, 2: true, 3: true, 4: true}},
		{"top-p 0.7: 1/2 + 1/4", Options{TopP: 0.7}, map[int32]bool{1: true, 2: true}},
		{"top-p after top-k: 2/3 of {1/2, 1/4} is one", Options{TopK: 2, TopP: 0.66}, map[int32]bool{1: true}},
		{"min-p 0.2: 1/8 is 0.25 of 1/2", Options{MinP: 0.2}, map[int32]bool{1: true, 2: true, 0: true}},
		{"min-p 1", Options{MinP: 1}, map[int32]bool{1: true}},
	} {
		c.o.Temp = 3
		s, got := mustNew(t, c.o), map[int32]bool{}
		for range 4000 {
			got[s.Next(logits)] = true
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: drew %v, want %v", c.name, got, c.want)
		}
		for id := range got {
			if !c.want[id] {
				t.Errorf("%s: drew %d, want only %v", c.name, id, c.want)
			}
		}
	}
}

// Ensure that the draws follow softmax(logits/temp) after the filters, which read the probabilities
// before the temperature.
func TestDistribution(t *testing.T) {
	const draws = 60000
	const tol = 0.01 // five standard deviations of a share of 1/2 over 60000 draws
	ln2 := float32(math.Ln2)
	logits := []float32{0, 2 * ln2, -10 * ln2} // 1 : 4 : 2^-10
	s, got := mustNew(t, Options{Temp: 2, MinP: 0.01, Seed: 3}), [3]float64{}
	for range draws {
		got[s.Next(logits)]++
	}
	for i, want := range []float64{1.0 / 3, 2.0 / 3, 0} { // at temperature 2: 1 : 2
		if !(math.Abs(got[i]/draws-want) <= tol) {
			t.Errorf("token %d: share %.4f, want %.4f", i, got[i]/draws, want)
		}
	}
}

// Ensure that a seed fixes the sequence, and that another seed gives another.
func TestSeed(t *testing.T) {
	logits := make([]float32, 100)
	draw := func(seed int64) (ids [20]int32) {
		s := mustNew(t, Options{Temp: 1, Seed: seed})
		for i := range ids {
			ids[i] = s.Next(logits)
		}
		return ids
	}
	first, again := draw(7), draw(7)
	if first != again {
		t.Error("seed 7 gave two sequences")
	}
	if first == draw(8) {
		t.Error("seeds 7 and 8 gave one sequence")
	}
}

func TestOptionErrors(t *testing.T) {
	for name, o := range map[string]Options{
		"temp":  {Temp: -1},
		"top-k": {TopK: -1},
		"top-p": {TopP: 1.5},
		"min-p": {MinP: math.NaN()},
	} {
		if _, err := New(o); err == nil ||
			!strings.Contains(err.Error(), name+": got") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := New(Options{Temp: math.Inf(1)}); err == nil {
		t.Error("an infinite temperature is accepted")
	}
}

func TestNoAllocation(t *testing.T) {
	logits := make([]float32, 32000)
	for i := range logits {
		logits[i] = float32(i*7919%32000) / 1000
	}
	for _, o := range []Options{{}, {Temp: 1}, {Temp: 1, TopK: 40, TopP: 0.95, MinP: 0.05}} {
		s := mustNew(t, o)
		s.Next(logits)
		if n := testing.AllocsPerRun(3, func() { s.Next(logits) }); n != 0 {
			t.Errorf("%+v: %v allocations a token, want 0", o, n)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	logits := make([]float32, 32000)
	for i := range logits {
		logits[i] = float32(i*7919%32000) / 1000
	}
	s, err := New(Options{Temp: 1, TopK: 40, TopP: 0.95, MinP: 0.05})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.Next(logits)
	}
}
