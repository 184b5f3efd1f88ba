package nn

import (
	"math"
	"testing"
)

// Ensure that stretched rotations turn as transformers 4.49's ROPE_INIT_FUNCTIONS say: heads of
// 128, base 500,000, Llama 3.1's factors, and a linear factor of 4.
func TestStretch(t *testing.T) {
	for name, c := range map[string]struct {
		s    Stretch
		want map[int]float64
	}{
		"llama3": {Stretch{Factor: 8, Low: 1, High: 4, Original: 8192}, map[int]float64{
			0: 1, 1: 0.8146172165870667, 20: 0.016560440883040428, 28: 0.0032114461064338684,
			29: 0.0021665706299245358, 30: 0.0013718936825171113, 33: 0.0003126936499029398,
			36: 7.784655463183299e-05, 37: 6.341514381347224e-05, 38: 5.165906986803748e-05,
			63: 3.068925877869333e-07,
		}},
		"linear": {Uniform(4), map[int]float64{
			0: 0.25, 1: 0.20365430414676666, 28: 0.0008028615266084671, 63: 6.137851755738666e-07,
		}},
	} {
		r := NewRoPE(128, 5e5, nil)
		r.Stretch(c.s)
		for j, want := range c.want {
			// a float32 of the reference, computed in float32
			if got := r.inv[j]; !(math.Abs(got-want) <= 1e-6*want) {
				t.Errorf("%s: pair %d: got %v, want %v", name, j, got, want)
			}
		}
	}
}

// Ensure that YaRN slows pairs as transformers 5.24's _compute_yarn_parameters does.
func TestYaRN(t *testing.T) {
	for _, c := range []struct {
		got  Stretch
		want []float64
	}{
		{YaRN(8, 32, 1, 64, 1e4, 12, true), []float64{1, 1.77778, 8, 8, 8, 8}},
		{YaRN(8, 32, 1, 64, 1e4, 12, false), []float64{1, 2.37363, 8, 8, 8, 8}},
		{YaRN(4, 32, 1, 32768, 1e6, 16, true), []float64{1, 1, 1, 1.33333, 2, 4, 4, 4}},
		{YaRN(4, 16, 2, 2048, 1e5, 16, false), []float64{1, 1, 1, 1.88689, 4, 4, 4, 4}},
	} {
		for j, want := range c.want {
			if got := c.got.Pairs[j]; !(math.Abs(got-want) <= 1e-5) {
				t.Errorf("%v: pair %d: got %v, want %v", c.want, j, got, want)
			}
		}
	}
}
