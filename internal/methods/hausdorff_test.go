package methods

import (
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// hausdorffTolerance is float32's rounding of the features, which are of size 1.
const hausdorffTolerance = 1e-7

// Ensure that the weighted Hausdorff distance of four tokens in the plane is the one worked out by
// hand. Tokens a = (1,0), b = (0,1), c = (3,4)/5, d = (4,3)/5.
//
// Kept alone are a and b: c is nearest to b (1 - 4/5), d to a (1 - 4/5): h = 1/5. a is kept and b,
// c, d are a group of three whose mean (1.4, 2.4)/3 has the direction (7, 12)/sqrt(193): b is 1 -
// 12/sqrt(193) = 0.1362 away, a third of which is 0.0454; c = (3·7+4·12)/(5·sqrt(193)) = 69/69.46
// is 0.0066/3, d is (64/69.46) 0.0786/3 = 0.0262: h = 0.0454.
func TestHausdorff(t *testing.T) {
	in := &reduce.Input{N: 4, C: 2, X: []float32{1, 0, 0, 1, 0.6, 0.8, 0.8, 0.6}}
	pruned := &reduce.Reduction{
		N: 4, Width: 2, Rows: []reduce.Row{{Size: 1}, {Size: 1}}, Features: []float32{1, 0, 0, 1},
	}
	merged := &reduce.Reduction{
		N: 4, Width: 2, Rows: []reduce.Row{{Size: 1}, {Size: 3}},
		Features: []float32{1, 0, 1.4 / 3, 2.4 / 3},
	}
	zero := &reduce.Reduction{
		N: 4, Width: 2, Rows: []reduce.Row{{Size: 2}}, Features: []float32{0, 0},
	}
	for _, c := range []struct {
		name string
		r    *reduce.Reduction
		want float64
	}{
		{"pruned", pruned, 1.0 / 5},
		{"merged", merged, (1 - 12/math.Sqrt(193)) / 3},
		{"zero row", zero, 1.0 / 2},
	} {
		got, err := Hausdorff(c.r, in, nil)
		if err != nil || !(math.Abs(got-c.want) <= hausdorffTolerance) {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
	merged.Space = reduce.Encoder
	in.Cv, in.Hidden = 2, append([]float32{9, 9}, in.X...)
	in.X = nil
	if got, err := Hausdorff(merged, in, nil); err != nil ||
		!(math.Abs(got-(1-12/math.Sqrt(193))/3) <= hausdorffTolerance) {
		t.Errorf("before the projector: got %v, %v", got, err)
	}
	merged.Space = reduce.Decoder
	if _, err := Hausdorff(merged, in, nil); err == nil ||
		!strings.Contains(err.Error(), "got 0 values of the unreduced tokens, want 4 tokens of 2") {
		t.Errorf("no features before: %v", err)
	}
	if _, err := Hausdorff(&reduce.Reduction{N: 4, Width: 2, Rows: make([]reduce.Row, 2)}, in,
		nil); err == nil || !strings.Contains(err.Error(), "want 2 rows of 2") {
		t.Errorf("no features after: %v", err)
	}
}

// Ensure that nothing lost is distance 0, and that merging what is dropped never comes out as worse
// than dropping it.
func TestHausdorffOfMethods(t *testing.T) {
	in := randomInput(7, 6, 6)
	measure := func(o Options) float64 {
		r := mustReduce(t, in, o)
		h, err := Hausdorff(r, in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := measure(Options{Base: "grid", NVis: 36}); !(h <= hausdorffTolerance) {
		t.Errorf("all tokens: %v, want 0", h)
	}
	pruned, merged := measure(Options{Base: "divprune", NVis: 8}), measure(Options{
		Base: "divprune", NVis: 8, Restore: true,
	})
	if !(merged < pruned) {
		t.Errorf("pruned %v, merged %v, want less", pruned, merged)
	}
}
