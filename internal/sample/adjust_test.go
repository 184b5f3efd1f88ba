package sample

import (
	"math"
	"strings"
	"testing"
)

// Ensure that bias and penalties change logits as llama.cpp and OpenAI define them.
func TestAdjust(t *testing.T) {
	const tol = 1e-6 // float32
	logits := []float32{2, -1, 0.5, 3}
	for _, c := range []struct {
		name           string
		p              Penalties
		prompt, answer []int32
		want           []float32
	}{
		{"none", Penalties{Repeat: 1}, []int32{0}, []int32{1}, logits},
		{"bias", Penalties{Bias: map[int32]float64{0: -1.5, 3: 100}}, nil, nil,
			[]float32{0.5, -1, 0.5, 103}},
		// 2/2, -1·2; the prompt counts, each token once
		{"repeat", Penalties{Repeat: 2}, []int32{0, 0}, []int32{1}, []float32{1, -2, 0.5, 3}},
		{"the last ones", Penalties{Repeat: 2, RepeatLast: 1}, []int32{0}, []int32{1},
			[]float32{2, -2, 0.5, 3}},
		{"all", Penalties{Repeat: 2, RepeatLast: -1}, make([]int32, 100), []int32{1},
			[]float32{1, -2, 0.5, 3}},
		// 0.5 - 3·0.25 - 1; the prompt does not count
		{"frequency and presence", Penalties{Frequency: 0.25, Presence: 1}, []int32{0},
			[]int32{2, 2, 2}, []float32{2, -1, -1.25, 3}},
		// (2 + 1) / 1.5 - 0.5
		{"order", Penalties{Bias: map[int32]float64{0: 1}, Repeat: 1.5, Frequency: 0.5}, nil,
			[]int32{0}, []float32{1.5, -1, 0.5, 3}},
	} {
		s := mustNew(t, Options{Penalties: c.p})
		s.Read(c.prompt...)
		for _, id := range c.answer {
			s.Accept(id)
		}
		for i, got := range s.adjust(logits) {
			if !(math.Abs(float64(got-c.want[i])) <= tol) {
				t.Errorf("%s: logit %d is %v, want %v", c.name, i, got, c.want[i])
			}
		}
	}
	s := mustNew(t, Options{Penalties: Penalties{Bias: map[int32]float64{3: Forbidden}}})
	if id := s.Next(logits); id != 0 {
		t.Errorf("with the best token forbidden: got %d, want 0", id)
	}
	if id := s.NextOf(logits, []uint64{0b1010}); id != 1 {
		t.Errorf("with a mask too: got %d, want 1", id)
	}
	if id := s.NextOf(logits, []uint64{0b1000}); id != 3 {
		t.Errorf("the only token of the mask: got %d, want 3", id)
	}
}

func TestPenaltyErrors(t *testing.T) {
	for name, p := range map[string]Penalties{
		"frequency-penalty": {Frequency: 2.1}, "presence-penalty": {Presence: math.NaN()},
		"repeat-penalty": {Repeat: 0.05}, "repeat-last-n": {RepeatLast: -2},
		"logit-bias": {Bias: map[int32]float64{1: 101}},
	} {
		if _, err := New(Options{Penalties: p}); err == nil ||
			!strings.Contains(err.Error(), name+": got") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}
