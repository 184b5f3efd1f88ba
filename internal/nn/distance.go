package nn

import "math"

// Distances tabulates ln(c − D(Δ)), the distance term of Eq. 4, for one rotation. D is Eq. 3 or, if
// the rotation follows several axes, Appendix A.
//
// D of whole distances is the sum of one table per axis. The logarithm is interpolated linearly
// from a table, with an error of 1e-8 from the formula, which [Distances.Exact] computes for any
// distance.
type Distances struct {
	rope *RoPE
	axes int
	line []float32    // ln(c − D(d)) for the distance d on every axis
	axis [3][]float64 // axis g's part of D(d)
	log  []float32    // ln(c − 1 + i/logSteps)
}

// logSteps is the number of steps per unit in the logarithm's table. The error is (1/logSteps)²/8
// where c − D is 1, its minimum for c = 2.
const logSteps = 4096

// NewDistances tabulates distances 0 … n−1.
func NewDistances(r *RoPE, n int) *Distances {
	d := &Distances{
		rope: r, axes: r.Axes(), line: make([]float32, n), log: make([]float32, 2*logSteps+2),
	}
	for i := range d.log {
		d.log[i] = float32(math.Log(c - 1 + float64(i)/logSteps))
	}
	for g := range d.axis {
		d.axis[g] = make([]float64, n)
	}
	for j, f := range r.inv {
		addCosines(d.axis[r.axis[j]], f, 1/float64(len(r.inv)))
	}
	for i := range d.line {
		d.line[i] = float32(CalibrationBias(1, d.axis[0][i]+d.axis[1][i]+d.axis[2][i]))
	}
	return d
}

// addCosines adds scale·cos(d·f) to t[d]. It turns a unit vector by f from entry to entry and
// recomputes it often enough to stay within 1e-13.
func addCosines(t []float64, f, scale float64) {
	sf, cf := math.Sincos(f)
	var s, c float64
	for d := range t {
		if d%256 == 0 {
			s, c = math.Sincos(float64(d) * f)
		}
		t[d] += scale * c
		s, c = s*cf+c*sf, c*cf-s*sf
	}
}

// Line returns ln(c − D(d)) for d = 0 … n−1 on every axis at once.
func (d *Distances) Line() []float32 { return d.line }

// Exact returns ln(c − D) of two positions by the formula.
func (d *Distances) Exact(a, b Pos) float32 {
	if d.axes == 1 {
		return float32(CalibrationBias(1, d.rope.Decay(a[0]-b[0])))
	}
	return float32(CalibrationBias(1, d.rope.DecayMRoPE(Pos{a[0] - b[0], a[1] - b[1],
		a[2] - b[2]})))
}

// Row writes ln(c − D) of q and every position of keys into dst. Fractional distances are computed
// by the formula or, with truncate, truncated to whole ones. A distance that is the same on every
// axis has the value of Line, so that it does not depend on the other rows that are read with it.
func (d *Distances) Row(dst []float32, q Pos, keys []Pos, truncate bool) {
	t0, t1, t2 := d.axis[0], d.axis[1], d.axis[2]
	t1, t2 = t1[:len(t0)], t2[:len(t0)]
	for k, p := range keys[:len(dst)] {
		x, y, z := math.Abs(q[0]-p[0]), math.Abs(q[1]-p[1]), math.Abs(q[2]-p[2])
		i, j, l := int(x), int(y), int(z)
		if uint(i) >= uint(len(t0)) || uint(j) >= uint(len(t0)) || uint(l) >= uint(len(t0)) ||
			!truncate && (float64(i) != x || float64(j) != y || float64(l) != z) {
			dst[k] = d.Exact(q, p)
			continue
		}
		if i == j && j == l {
			dst[k] = d.line[i]
			continue
		}
		u := max(0, 1-(t0[i]+t1[j]+t2[l])) * logSteps
		n := int(u)
		at := d.log[n : n+2]
		dst[k] = at[0] + float32(u-float64(n))*(at[1]-at[0])
	}
}
