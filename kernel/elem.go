package kernel

import (
	"fmt"
	"math"
)

// rowsPerTask and elemsPerTask bound the work of one pool task: large enough that handing it out costs
// nothing, small enough that two threads share a prompt evenly.
const (
	rowsPerTask  = 8
	elemsPerTask = 1 << 14
)

// RMSNorm computes dst[t,i] = x[t,i]·w[i] / √(mean_i x[t,i]² + eps) for each of rows rows of len(w)
// elements. dst may be x. The mean is accumulated in float64.
func RMSNorm(p *Pool, dst, x []float32, rows int, w []float32, eps float32) {
	n := len(w)
	checkRows("RMSNorm", dst, x, rows, n)
	eachRows(p, rows, func(lo, hi int) {
		for t := lo; t < hi; t++ {
			rmsNormGo(dst[t*n:][:n], x[t*n:][:n], w, eps)
		}
	})
}

// LayerNorm computes dst[t,i] = (x[t,i]-µ)·w[i] / √(σ² + eps) + b[i] for each of rows rows of len(w)
// elements, with µ and σ² the mean and variance of the row, accumulated in float64. dst may be x; b may
// be nil.
func LayerNorm(p *Pool, dst, x []float32, rows int, w, b []float32, eps float32) {
	n := len(w)
	checkRows("LayerNorm", dst, x, rows, n)
	if b != nil && len(b) != n {
		panic(fmt.Sprintf("kernel.LayerNorm: %d weights, %d offsets", n, len(b)))
	}
	eachRows(p, rows, func(lo, hi int) {
		for t := lo; t < hi; t++ {
			layerNormGo(dst[t*n:][:n], x[t*n:][:n], w, b, eps)
		}
	})
}

// SiLUMul computes dst[i] = gate[i]/(1+e^(-gate[i])) · up[i]. dst may be gate or up.
func SiLUMul(p *Pool, dst, gate, up []float32) {
	checkLen("SiLUMul", len(dst), len(gate))
	checkLen("SiLUMul", len(dst), len(up))
	eachElems(p, len(dst), func(lo, hi int) { siluMulGo(dst[lo:hi], gate[lo:hi], up[lo:hi]) })
}

// SiLU replaces x by x/(1+e^-x).
func SiLU(p *Pool, x []float32) {
	eachElems(p, len(x), func(lo, hi int) { sigmoidMulGo(x[lo:hi], 1) })
}

// QuickGELU replaces x by x/(1+e^(-1.702·x)).
func QuickGELU(p *Pool, x []float32) {
	eachElems(p, len(x), func(lo, hi int) { sigmoidMulGo(x[lo:hi], quickGELU) })
}

// GELU replaces x by x·(1+erf(x/√2))/2.
func GELU(p *Pool, x []float32) {
	eachElems(p, len(x), func(lo, hi int) { geluGo(x[lo:hi]) })
}

// Add computes dst[i] += x[i].
func Add(p *Pool, dst, x []float32) {
	checkLen("Add", len(dst), len(x))
	eachElems(p, len(dst), func(lo, hi int) { addGo(dst[lo:hi], x[lo:hi]) })
}

// RoPE rotates x in place: x is rows rows of heads heads of headDim elements, rows stride elements apart
// (0: dense). With c = cos[t,j] and s = sin[t,j] ([rows, headDim/2]) the pair (x_j, x_{j+headDim/2}) of
// row t becomes (x_j·c - x_{j+headDim/2}·s, x_{j+headDim/2}·c + x_j·s).
func RoPE(p *Pool, x []float32, rows, heads, headDim, stride int, cos, sin []float32) {
	if stride == 0 {
		stride = heads * headDim
	}
	half := headDim / 2
	if headDim%2 != 0 || stride < heads*headDim || rows > 0 && len(x) < (rows-1)*stride+heads*headDim {
		panic(fmt.Sprintf("kernel.RoPE: length %d, %d rows of %d heads of %d, stride %d", len(x), rows, heads, headDim, stride))
	}
	if len(cos) < rows*half || len(sin) < rows*half {
		panic(fmt.Sprintf("kernel.RoPE: %d cosines and %d sines, want %d", len(cos), len(sin), rows*half))
	}
	eachRows(p, rows, func(lo, hi int) {
		for t := lo; t < hi; t++ {
			for h := 0; h < heads; h++ {
				ropeGo(x[t*stride+h*headDim:][:headDim], cos[t*half:][:half], sin[t*half:][:half])
			}
		}
	})
}

// Softmax replaces x by e^x / Σ e^x.
func Softmax(x []float32) { softmaxGo(x) }

// ArgMax returns the index of the largest element, the lowest such index on ties, and -1 for an empty x.
// NaN is never the largest unless all are NaN; then the result is 0.
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
	return dotGo(a, b)
}

// L2Norm returns √Σ x[i]², accumulated in float64.
func L2Norm(x []float32) float32 { return float32(math.Sqrt(sumSquaresGo(x))) }

func checkLen(name string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("kernel.%s: lengths %d and %d differ", name, a, b))
	}
}

func checkRows(name string, dst, x []float32, rows, n int) {
	if rows < 0 || len(dst) < rows*n || len(x) < rows*n {
		panic(fmt.Sprintf("kernel.%s: lengths %d and %d, want %d rows of %d", name, len(dst), len(x), rows, n))
	}
}

func eachRows(p *Pool, rows int, f func(lo, hi int)) { each(p, rows, rowsPerTask, f) }

func eachElems(p *Pool, n int, f func(lo, hi int)) { each(p, n, elemsPerTask, f) }

// each runs f over [0, n) in steps; a single step runs on the calling goroutine.
func each(p *Pool, n, step int, f func(lo, hi int)) {
	if n <= step {
		if n > 0 {
			f(0, n)
		}
		return
	}
	p.Run((n+step-1)/step, func(i int) { f(i*step, min(n, (i+1)*step)) })
}

const quickGELU = 1.702

func rmsNormGo(dst, x, w []float32, eps float32) {
	r := float32(1 / math.Sqrt(sumSquaresGo(x)/float64(len(x))+float64(eps)))
	for i, v := range x {
		dst[i] = v * r * w[i]
	}
}

func layerNormGo(dst, x, w, b []float32, eps float32) {
	sum := 0.0
	for _, v := range x {
		sum += float64(v)
	}
	mean := sum / float64(len(x))
	sq := 0.0
	for _, v := range x {
		d := float64(v) - mean
		sq += d * d
	}
	m, r := float32(mean), float32(1/math.Sqrt(sq/float64(len(x))+float64(eps)))
	for i, v := range x {
		dst[i] = (v - m) * r * w[i]
		if b != nil {
			dst[i] += b[i]
		}
	}
}

func siluMulGo(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = g / (1 + expGo(-g)) * up[i]
	}
}

// sigmoidMulGo is x/(1+e^(-a·x)): SiLU for a = 1, quick GELU for a = 1.702.
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

func addGo(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

func ropeGo(x, cos, sin []float32) {
	half := len(x) / 2
	a, b := x[:half], x[half:]
	for j, c := range cos {
		s, u, v := sin[j], a[j], b[j]
		a[j], b[j] = u*c-v*s, v*c+u*s
	}
}

func softmaxGo(x []float32) {
	if len(x) == 0 {
		return
	}
	top := x[0]
	for _, v := range x {
		top = max(top, v)
	}
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

// dotGo keeps four partial sums, for speed and for a rounding error below that of one running sum.
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

func sumSquaresGo(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
}
