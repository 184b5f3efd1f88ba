package nn

import (
	"math"
	"testing"
)

// Ensure that Eq. 3 and the bias of Eq. 4 have the values worked out for heads of 128 and base
// 10000, and that Appendix A equals Eq. 3 for one axis.
func TestCalibrationEquations(t *testing.T) {
	const tol = 1e-6 // the printed digits
	r := NewRoPE(128, 10000, nil)
	line := NewDistances(r, 4096).Line()
	for _, c := range []struct {
		distance    int
		decay, bias float64
	}{
		{0, 1, 0}, {1, 0.970214, 0.029351}, {2, 0.896592, 0.098404}, {5, 0.737266, 0.233279},
		{10, 0.669063, 0.285883}, {100, 0.477241, 0.420524}, {576, 0.233841, 0.568807},
		{2915, 0.086673, 0.648844}, {4060, -0.130671, 0.756437}, {4095, -0.066444, 0.725829},
	} {
		D := r.Decay(float64(c.distance))
		if !(math.Abs(D-c.decay) <= tol) || !(math.Abs(CalibrationBias(1, D)-c.bias) <= tol) ||
			!(math.Abs(float64(line[c.distance])-c.bias) <= tol) {
			t.Errorf("distance %d: got D %v and bias %v, %v, want %v and %v",
				c.distance, D, CalibrationBias(1, D), line[c.distance], c.decay, c.bias)
		}
		if m := r.DecayMRoPE(At(float64(c.distance))); !(math.Abs(m-D) <= 1e-14) {
			t.Errorf("distance %d: Appendix A gives %v, Eq. 3 %v", c.distance, m, D)
		}
	}
	if line[0] != 0 {
		t.Errorf("bias at distance 0: got %v, want exactly 0", line[0])
	}
	// Heads of 4, angles 1 and 0.01, size 3 at distance 5: (cos 5 + cos .05)/2 = .6412;
	// ln(3·(2−.6412)) = 1.4052.
	if got := CalibrationBias(3, NewRoPE(4, 10000, nil).Decay(5)); !(math.Abs(got-1.4052) <= 1e-4) {
		t.Errorf("worked bias: got %v, want 1.4052", got)
	}
}
