package kernel

import (
	"math"
	"slices"
	"testing"
)

// Ensure that a prediction equals a measurement, lies on the line between two, and grows in
// proportion beyond the last.
func TestSpeedProduct(t *testing.T) {
	s := &Speed{Products: map[string][]ProductSpeed{"Q4": {{1, 2e-9}, {4, 3e-9}, {16, 9e-9}}}}
	for rows, want := range map[int]float64{0: 0, 1: 2, 2: 2 + 1./3, 4: 3, 10: 6, 16: 9, 64: 36} {
		if got := s.Product(Q4, rows, 10, 100); !(math.Abs(got-want*1e-6) < 1e-12) {
			t.Errorf("%d rows: %v, want %v µs", rows, got, want)
		}
	}
	if got := s.Product(Q8, 5, 10, 100); got != 0 {
		t.Errorf("a format that was not measured: %v", got)
	}
}

// Ensure that neither one slow try nor ticks of the processor time decide, but lost processors do.
func TestTypical(t *testing.T) {
	tries := func() []float64 { return []float64{5, 9, 4, 5, 6} }
	for _, c := range []struct {
		busy  float64
		known bool
		want  float64
	}{{5, true, 5}, {4.5, true, 5}, {3, true, 3}, {0, false, 5}, {9, true, 5}} {
		if got := typical(tries(), c.busy, c.known); got != c.want {
			t.Errorf("processor time %v, known %v: %v, want %v", c.busy, c.known, got, c.want)
		}
	}
}

// Ensure that the speed of every format is measured.
func TestMeasureSpeed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	p := NewPool(2)
	defer p.Close()
	s := MeasureSpeed(p)
	if !(slices.Min(s.Attention[:]) > 0 && s.Elements > 0 && s.Read > 0) ||
		len(s.Products) != len(speedFormats) || s.Threads != 2 ||
		s.Implementation != Implementation() {
		t.Errorf("%+v", s)
	}
	for f, points := range s.Products {
		for i, p := range points {
			if p.Rows != speedRows[i] || !(p.Seconds > 0) || math.IsInf(p.Seconds, 0) {
				t.Errorf("%s: %+v", f, p)
			}
		}
	}
}
