package nn

import "math"

// The paper's attention calibration (RESTORE, Eqs. 3 and 4, and Appendix A for M-RoPE), one
// equation per function. [Distances] tabulates them. The kernel adds log s_n and the table's value
// to z_{m,n} as it goes over the keys (kernel.Bias).

// c is the constant of Eq. 4: D is at most 1, so c − D stays positive.
const c = 2.0

// Decay is Eq. 3: D(|m−n|) = 2/d_h·Σ_j cos(|m−n|·θ_j), for positions of one axis.
func (r *RoPE) Decay(distance float64) float64 {
	D := 0.0
	for _, theta := range r.inv {
		D += math.Cos(distance * theta)
	}
	return D * 2 / float64(r.HeadDim)
}

// DecayMRoPE is Appendix A: D = Σ_g w_g·D_g(Δ_g), with D_g(Δ_g) = 1/|Ω_g|·Σ_{j∈Ω_g}
// cos(Δ_g·θ_j) over the pairs Ω_g that follow axis g, and w_g = 2d_g/d_h, d_g = |Ω_g|.
func (r *RoPE) DecayMRoPE(delta Pos) (D float64) {
	var sum Pos
	var omega [3]int
	for j, theta := range r.inv {
		g := r.axis[j]
		sum[g] += math.Cos(delta[g] * theta)
		omega[g]++
	}
	for g, size := range omega {
		if size == 0 {
			continue
		}
		Dg := sum[g] / float64(size)
		wg := 2 * float64(size) / float64(r.HeadDim)
		D += wg * Dg
	}
	return D
}

// CalibrationBias is the term that Eq. 4 adds to the logit z_{m,n}: log s_n·(c − D). D is at most
// 1, but rounding may make it larger; this is corrected.
func CalibrationBias(s, D float64) float64 { return math.Log(s * (c - min(1, D))) }
