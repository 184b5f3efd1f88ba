package stats_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/stats"
)

// Ensure the quantiles of small lists, counted by hand, and that the lists keep their order.
func TestQuantiles(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	for _, c := range []struct{ q, upper, interpolated float64 }{
		{0, 1, 1},
		{0.25, 2, 1.75}, // a quarter is before 2; 0.25*3 = 0.75 from 1 to 2
		{0.5, 3, 2.5},
		{0.99, 4, 3.97},
		{1, 4, 4},
	} {
		if got := stats.Upper(v, c.q); got != c.upper {
			t.Errorf("Upper %g: got %g, want %g", c.q, got, c.upper)
		}
		if got := stats.Interpolated(v, c.q); !(math.Abs(got-c.interpolated) < 1e-12) {
			t.Errorf("Interpolated %g: got %g, want %g", c.q, got, c.interpolated)
		}
	}
	if got := stats.Median(v); got != 2.5 {
		t.Errorf("Median: got %g, want 2.5", got)
	}
	if !slices.Equal(v, []float64{4, 1, 3, 2}) {
		t.Errorf("the list is now %v", v)
	}
	if got := stats.Upper([]time.Duration{}, 0.5); got != 0 {
		t.Errorf("Upper of nothing: got %v, want 0", got)
	}
	if got := stats.Interpolated(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("Interpolated of nothing: got %g, want NaN", got)
	}
}
