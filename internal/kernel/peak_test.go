package kernel

import (
	"math"
	"testing"
)

// Ensure that every limit of the machine is measured.
func TestPeaks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	p := NewPool(2)
	defer p.Close()
	for name, peak := range map[string]func(*Pool) float64{
		"multiply-adds": PeakFMA, "8 bits": PeakDot, "4 bits": PeakNibble, "bfloat16": PeakBF16,
		"12 bits": PeakWord, "reads": PeakRead,
	} {
		if rate := peak(p); !(rate > 0) || math.IsInf(rate, 0) {
			t.Errorf("%s: got %v", name, rate)
		}
	}
}
