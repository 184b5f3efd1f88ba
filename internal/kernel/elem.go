package kernel

import (
	"fmt"
	"math"
)

// rowsPerTask and elemsPerTask set the work of one pool task: large enough that starting it costs
// little, small enough that two threads share a prompt evenly.
const (
	rowsPerTask  = 8
	elemsPerTask = 1 << 14
)

// RMSNorm computes dst[t,i] = x[t,i]·w[i] / √(mean_i x[t,i]² + eps) for each of rows rows of len(w)
// elements. dst may be x. The mean is accumulated in float64.
func RMSNorm(p *Pool, dst, x []float32, rows int, w []float32, eps float32) {
	n := len(w)
	checkRows("RMSNorm", dst, x, rows, n)
	if rows <= rowsPerTask {
		rmsNormRows(dst, x, 0, rows, w, eps)
		return
	}
	eachRows(p, rows, func(lo, hi int) { rmsNormRows(dst, x, lo, hi, w, eps) })
}

// LayerNorm computes dst[t,i] = (x[t,i]-µ)·w[i] / √(σ² + eps) + b[i] for each of rows rows of
// len(w) elements, with µ and σ² the mean and variance of the row, accumulated in float64. dst may
// be x; b may be nil.
func LayerNorm(p *Pool, dst, x []float32, rows int, w, b []float32, eps float32) {
	n := len(w)
	checkRows("LayerNorm", dst, x, rows, n)
	if b != nil && len(b) != n {
		panic(fmt.Sprintf("kernel.LayerNorm: %d weights, %d offsets", n, len(b)))
	}
	if rows <= rowsPerTask {
		layerNormRows(dst, x, 0, rows, w, b, eps)
		return
	}
	eachRows(p, rows, func(lo, hi int) { layerNormRows(dst, x, lo, hi, w, b, eps) })
}

// SiLUMul computes dst[i] = gate[i]/(1+e^(-gate[i])) · up[i]. dst may be gate or up.
func SiLUMul(p *Pool, dst, gate, up []float32) {
	checkLen("SiLUMul", len(dst), len(gate))
	checkLen("SiLUMul", len(dst), len(up))
	if len(dst) <= elemsPerTask {
		siluMul(dst, gate, up)
		return
	}
	eachElems(p, len(dst), func(lo, hi int) { siluMul(dst[lo:hi], gate[lo:hi], up[lo:hi]) })
}

// SiLU replaces x by x/(1+e^-x).
func SiLU(p *Pool, x []float32) {
	if len(x) <= elemsPerTask {
		sigmoidMul(x, 1)
		return
	}
	eachElems(p, len(x), func(lo, hi int) { sigmoidMul(x[lo:hi], 1) })
}

// QuickGELU replaces x by x/(1+e^(-1.702·x)).
func QuickGELU(p *Pool, x []float32) {
	if len(x) <= elemsPerTask {
		sigmoidMul(x, quickGELU)
		return
	}
	eachElems(p, len(x), func(lo, hi int) { sigmoidMul(x[lo:hi], quickGELU) })
}

// GELU replaces x by x·(1+erf(x/√2))/2.
func GELU(p *Pool, x []float32) {
	if len(x) <= elemsPerTask {
		gelu(x)
		return
	}
	eachElems(p, len(x), func(lo, hi int) { gelu(x[lo:hi]) })
}

// The tanh form of GELU is x·(1+tanh(u))/2 with u = √(2/π)·(x + 0.044715·x³): x/(1+e^(-2u)).
const (
	tanhScale = 1.5957691216057308 // 2·√(2/π)
	tanhCubic = 0.044715
)

// GELUTanh replaces x by x·(1+tanh(√(2/π)·(x+0.044715·x³)))/2.
func GELUTanh(p *Pool, x []float32) {
	if len(x) <= elemsPerTask {
		geluTanh(x)
		return
	}
	eachElems(p, len(x), func(lo, hi int) { geluTanh(x[lo:hi]) })
}

// GELUMul replaces gate[i] by GELU(gate[i])·up[i].
func GELUMul(p *Pool, gate, up []float32) { gated(p, "GELUMul", gelu, gate, up) }

// GELUTanhMul replaces gate[i] by GELUTanh(gate[i])·up[i].
func GELUTanhMul(p *Pool, gate, up []float32) { gated(p, "GELUTanhMul", geluTanh, gate, up) }

// gated replaces gate[i] by act(gate[i])·up[i], for the function called name.
func gated(p *Pool, name string, act func(x []float32), gate, up []float32) {
	checkLen(name, len(gate), len(up))
	if len(gate) <= elemsPerTask {
		actMul(act, gate, up)
		return
	}
	eachElems(p, len(gate), func(lo, hi int) { actMul(act, gate[lo:hi], up[lo:hi]) })
}

func actMul(act func(x []float32), gate, up []float32) {
	act(gate)
	for i, u := range up[:len(gate)] {
		gate[i] *= u
	}
}

// Add computes dst[i] += x[i].
func Add(p *Pool, dst, x []float32) {
	checkLen("Add", len(dst), len(x))
	if len(dst) <= elemsPerTask {
		add(dst, x)
		return
	}
	eachElems(p, len(dst), func(lo, hi int) { add(dst[lo:hi], x[lo:hi]) })
}

// AddScaled computes dst[t,i] += w[i]·x[t,i] over rows of length len(w), with the product rounded
// to float32.
func AddScaled(p *Pool, dst, x, w []float32) {
	checkLen("AddScaled", len(dst), len(x))
	if len(w) == 0 || len(dst)%len(w) != 0 {
		panic(fmt.Sprintf("kernel.AddScaled: length %d, rows of %d", len(dst), len(w)))
	}
	rows := len(dst) / len(w)
	if rows <= rowsPerTask {
		addScaled(dst, x, w)
		return
	}
	each(p, rows, rowsPerTask, func(lo, hi int) {
		addScaled(dst[lo*len(w):hi*len(w)], x[lo*len(w):hi*len(w)], w)
	})
}

func addScaled(dst, x, w []float32) {
	for n := len(w); len(dst) > 0; dst, x = dst[n:], x[n:] {
		for i, s := range w {
			dst[i] += float32(s * x[i])
		}
	}
}

// RoPE rotates x in place: x is rows rows of heads heads of headDim elements, rows stride elements
// apart (0: dense). With c = cos[t,j] and s = sin[t,j] ([rows, headDim/2]) the pair (x_j,
// x_{j+headDim/2}) of row t becomes (x_j·c - x_{j+headDim/2}·s, x_{j+headDim/2}·c + x_j·s).
func RoPE(p *Pool, x []float32, rows, heads, headDim, stride int, cos, sin []float32) {
	if stride == 0 {
		stride = heads * headDim
	}
	half := headDim / 2
	if headDim%2 != 0 || stride < heads*headDim ||
		rows > 0 && len(x) < (rows-1)*stride+heads*headDim {
		panic(fmt.Sprintf("kernel.RoPE: length %d, %d rows of %d heads of %d, stride %d", len(x),
			rows, heads, headDim, stride))
	}
	if len(cos) < rows*half || len(sin) < rows*half {
		panic(fmt.Sprintf("kernel.RoPE: %d cosines and %d sines, want %d", len(cos),
			len(sin), rows*half))
	}
	r := rotation{x, heads, headDim, stride, cos, sin}
	if rows <= rowsPerTask {
		r.rows(0, rows)
		return
	}
	eachRows(p, rows, func(lo, hi int) { r.rows(lo, hi) })
}

// rotation is one checked call of RoPE.
type rotation struct {
	x                      []float32
	heads, headDim, stride int
	cos, sin               []float32
}

func (r rotation) rows(lo, hi int) {
	half := r.headDim / 2
	for t := lo; t < hi; t++ {
		for h := 0; h < r.heads; h++ {
			rope(r.x[t*r.stride+h*r.headDim:][:r.headDim], r.cos[t*half:][:half],
				r.sin[t*half:][:half])
		}
	}
}

// Exp replaces x by e^x; no element may be above 88.
func Exp(x []float32) { exp(x) }

// ArgMax returns the index of the largest element, the lowest such index on ties, and -1 for an
// empty x. NaN is never the largest unless all are NaN; then the result is 0.
func ArgMax(x []float32) int {
	if len(x) == 0 {
		return -1
	}
	best := 0
	for i, v := range x {
		if v > x[best] || x[best] != x[best] && v == v {
			best = i
		}
	}
	return best
}

// Dot returns Σ a[i]·b[i]. The lengths must agree.
func Dot(a, b []float32) float32 {
	checkLen("Dot", len(a), len(b))
	return dot(a, b)
}

// WeightedSum sets dst[i] = Σⱼ f[j]·x[j,i], with x [len(f), len(dst)], row after row.
func WeightedSum(dst, f, x []float32) {
	checkLen("WeightedSum", len(x), len(dst)*len(f))
	if len(f) == 0 {
		clear(dst)
		return
	}
	weightedSum(dst, f, x)
}

// SumSquares returns Σ x², summed in float64.
func SumSquares(x []float32) float64 { return sumSquares(x) }

func checkLen(name string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("kernel.%s: lengths %d and %d differ", name, a, b))
	}
}

func checkRows(name string, dst, x []float32, rows, n int) {
	if rows < 0 || len(dst) < rows*n || len(x) < rows*n {
		panic(fmt.Sprintf(
			"kernel.%s: lengths %d and %d, want %d rows of %d", name, len(dst), len(x), rows, n))
	}
}

func eachRows(p *Pool, rows int, f func(lo, hi int)) { each(p, rows, rowsPerTask, f) }

func eachElems(p *Pool, n int, f func(lo, hi int)) { each(p, n, elemsPerTask, f) }

// each runs f over [0, n) in steps. Callers do not use it for little work, because f is allocated.
func each(p *Pool, n, step int, f func(lo, hi int)) {
	p.Run((n+step-1)/step, func(i int) { f(i*step, min(n, (i+1)*step)) })
}

const quickGELU = 1.702

func rmsNormRows(dst, x []float32, lo, hi int, w []float32, eps float32) {
	n := len(w)
	for t := lo; t < hi; t++ {
		rmsNorm(dst[t*n:][:n], x[t*n:][:n], w, eps)
	}
}

func layerNormRows(dst, x []float32, lo, hi int, w, b []float32, eps float32) {
	n := len(w)
	for t := lo; t < hi; t++ {
		layerNorm(dst[t*n:][:n], x[t*n:][:n], w, b, eps)
	}
}

func rmsNormGo(dst, x, w []float32, eps float32) {
	scaleGo(dst, x, w, rmsScale(sumSquaresGo(x), len(x), eps))
}

// rmsScale is 1/√(sum/n + eps).
func rmsScale(sum float64, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(sum/float64(n)+float64(eps)))
}

func scaleGo(dst, x, w []float32, r float32) {
	for i, v := range x {
		dst[i] = v * r * w[i]
	}
}

func layerNormGo(dst, x, w, b []float32, eps float32) {
	mean := sumGo(x) / float64(len(x))
	normGo(dst, x, w, b, float32(mean), rmsScale(squaresGo(x, mean), len(x), eps))
}

func normGo(dst, x, w, b []float32, m, r float32) {
	for i, v := range x {
		v = (v - m) * r * w[i]
		if b != nil {
			v += b[i]
		}
		dst[i] = v
	}
}

func sumGo(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v)
	}
	return s
}

func squaresGo(x []float32, mean float64) float64 {
	s := 0.0
	for _, v := range x {
		d := float64(v) - mean
		s += d * d
	}
	return s
}

func siluMulGo(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = g / (1 + expGo(-g)) * up[i]
	}
}

// sigmoidMulGo replaces x by x/(1+e^(-a·x)): SiLU for a = 1, quick GELU for a = 1.702.
func sigmoidMulGo(x []float32, a float32) {
	for i, v := range x {
		x[i] = v / (1 + expGo(-a*v))
	}
}

func geluGo(x []float32) {
	for i, v := range x {
		x[i] = float32(0.5 * float64(v) * math.Erfc(-float64(v)/math.Sqrt2))
	}
}

func geluTanhGo(x []float32) {
	for i, v := range x {
		x[i] = v / (1 + expGo(-tanhScale*v*(1+tanhCubic*v*v)))
	}
}

func addGo(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

func rotateGo(a, b, cos, sin []float32) {
	for j, c := range cos {
		s, u, v := sin[j], a[j], b[j]
		a[j], b[j] = u*c-v*s, v*c+u*s
	}
}

func expsGo(x []float32) {
	for i, v := range x {
		x[i] = expGo(v)
	}
}

func softmaxGo(x []float32) {
	if len(x) == 0 {
		return
	}
	top := maxGo(x)
	sum := 0.0
	for i, v := range x {
		x[i] = expGo(v - top)
		sum += float64(x[i])
	}
	r := float32(1 / sum)
	for i := range x {
		x[i] *= r
	}
}

// maxGo returns -Inf for an empty x.
func maxGo(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v)
	}
	return top
}

// weightedSumGo is WeightedSum for the elements of dst from index from on.
func weightedSumGo(dst, f, x []float32, from int) {
	for i := from; i < len(dst); i++ {
		var sum float32
		for j, v := range f {
			sum += v * x[j*len(dst)+i]
		}
		dst[i] = sum
	}
}

// dotGo keeps four partial sums, which is faster and more exact than one running sum.
func dotGo(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func sumSquaresGo(x []float32) float64 { return squaresGo(x, 0) }
