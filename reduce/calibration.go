package reduce

import "math"

// C0 is the constant c of Eq. 4: as D <= 1, c - D stays positive.
const C0 = 2.0

// DecayTable returns RoPE's long-term decay D(d) for d = 0..max-1 (Eq. 3): the mean over j < headDim/2 of cos(d·base^(-2j/headDim)). Angles
// are float64: in float32 their rounding alone costs 7e-6 at distances of thousands.
func DecayTable(headDim int, base float64, max int) []float64 {
	half := headDim / 2
	theta := make([]float64, half)
	for j := range theta {
		theta[j] = math.Pow(base, -2*float64(j)/float64(headDim))
	}
	d := make([]float64, max)
	for i := range d {
		d[i] = Decay(theta, float64(i))
	}
	return d
}

// Decay is Eq. 3 at one distance, which may be fractional, for the angular frequencies theta.
func Decay(theta []float64, distance float64) float64 {
	sum := 0.0
	for _, t := range theta {
		sum += math.Cos(distance * t)
	}
	return sum / float64(len(theta))
}

// BiasTable returns ln(c - D(d)) for d = 0..max-1, the distance part of Eq. 4's logit bias ln(s·(c - D)). It is 0 at distance 0 for c = 2.
func BiasTable(headDim int, base, c float64, max int) []float32 {
	b := make([]float32, max)
	for i, d := range DecayTable(headDim, base, max) {
		b[i] = float32(math.Log(c - d))
	}
	return b
}
