package stats_test

import (
	"math"
	"testing"

	"github.com/restore-vlm/restore/internal/stats"
)

func TestWilson(t *testing.T) {
	const tol = 5e-5 // the tabulated values have four decimals
	for _, c := range []struct {
		right, n  int
		low, high float64
	}{
		{0, 10, 0, 0.2775}, // high = z²/(n+z²) = 3.8415/13.8415
		{10, 10, 0.7225, 1},
		{5, 10, 0.2366, 0.7634}, // 1/2 ± z·√(1/40 + z²/400)/(1+z²/10)
		{81, 263, 0.2553, 0.3662},
		{0, 0, 0, 1},
	} {
		i := stats.Wilson(c.right, c.n)
		low, high := i[0], i[1]
		if !(math.Abs(low-c.low) <= tol) || !(math.Abs(high-c.high) <= tol) {
			t.Errorf("Wilson(%d, %d) = %.4f, %.4f, want %.4f, %.4f", c.right, c.n, low, high, c.low,
				c.high)
		}
	}
}

func TestMcNemar(t *testing.T) {
	for _, c := range []struct {
		lost, gained int
		want         float64
	}{
		{0, 0, 1}, {5, 5, 1}, {1, 9, 22. / 1024}, {9, 1, 22. / 1024}, {0, 6, 2. / 64}, {300, 300, 1},
	} {
		if got := stats.McNemar(c.lost, c.gained); !(math.Abs(got-c.want) <= 1e-9) {
			t.Errorf("%d lost, %d gained: %v, want %v", c.lost, c.gained, got, c.want)
		}
	}
}

// Ensure that a figure that exists in no sample has no interval, and that one which is the same in
// every sample has no width.
func TestBootstrapEdges(t *testing.T) {
	got := stats.Bootstrap(3, 2, 1, func(drawn []int, out []float64) {
		out[0], out[1] = math.NaN(), float64(len(drawn))
	})
	if !math.IsNaN(got[0][0]) || !math.IsNaN(got[0][1]) || got[1] != (stats.Interval{3, 3}) {
		t.Errorf("got %v", got)
	}
}
