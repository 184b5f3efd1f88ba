//go:build (amd64 || arm64) && !purego

package kernel

import "unsafe"

// elemOps lists the kernels of one instruction set. They process whole vectors; the reference
// processes the rest of a slice.
type elemOps struct {
	lanes      int
	sigmoidMul func(x *float32, n int, a float32)
	geluTanh   func(x *float32, n int, a, b float32)
	siluMul    func(dst, g, u *float32, n int)
	gelu       func(x *float32, n int)
	add        func(dst, x *float32, n int)
	rotate     func(a, b, cos, sin *float32, n int)
	sum        func(x *float32, n int) float64
	squares    func(x *float32, n int, mean float64) float64
	scale      func(dst, x, w *float32, n int, r float32)
	norm       func(dst, x, w, b *float32, n int, m, r float32)
	dot        func(a, b *float32, n int) float32
	rowMax     func(x *float32, n int) float32
	expSum     func(x *float32, n int, m float32) float32
}

// elemPick returns the kernels in use and how many of n elements they process; with 0 elements
// there are no kernels.
func elemPick(n int) (*elemOps, int) {
	ops := elemImpl[impl()]
	if ops == nil {
		return nil, 0
	}
	return ops, n &^ (ops.lanes - 1)
}

func rmsNorm(dst, x, w []float32, eps float32) {
	ops, n := elemPick(len(x))
	if n == 0 {
		rmsNormGo(dst, x, w, eps)
		return
	}
	sum := ops.squares(&x[0], n, 0) + sumSquaresGo(x[n:])
	r := rmsScale(sum, len(x), eps)
	ops.scale(&dst[0], &x[0], &w[0], n, r)
	scaleGo(dst[n:], x[n:], w[n:], r)
}

func layerNorm(dst, x, w, b []float32, eps float32) {
	ops, n := elemPick(len(x))
	if n == 0 || b == nil {
		layerNormGo(dst, x, w, b, eps)
		return
	}
	mean := (ops.sum(&x[0], n) + sumGo(x[n:])) / float64(len(x))
	r := rmsScale(ops.squares(&x[0], n, mean)+squaresGo(x[n:], mean), len(x), eps)
	m := float32(mean)
	ops.norm(&dst[0], &x[0], &w[0], &b[0], n, m, r)
	normGo(dst[n:], x[n:], w[n:], b[n:], m, r)
}

func siluMul(dst, gate, up []float32) {
	ops, n := elemPick(len(dst))
	if n > 0 {
		ops.siluMul(&dst[0], &gate[0], &up[0], n)
	}
	siluMulGo(dst[n:], gate[n:], up[n:])
}

func sigmoidMul(x []float32, a float32) {
	ops, n := elemPick(len(x))
	if n > 0 {
		ops.sigmoidMul(&x[0], n, -a)
	}
	sigmoidMulGo(x[n:], a)
}

func gelu(x []float32) {
	ops, n := elemPick(len(x))
	if n > 0 {
		ops.gelu(&x[0], n)
	}
	geluGo(x[n:])
}

func geluTanh(x []float32) {
	ops, n := elemPick(len(x))
	if n > 0 {
		ops.geluTanh(&x[0], n, -tanhScale, -tanhScale*tanhCubic)
	}
	geluTanhGo(x[n:])
}

func add(dst, x []float32) {
	ops, n := elemPick(len(dst))
	if n > 0 {
		ops.add(&dst[0], &x[0], n)
	}
	addGo(dst[n:], x[n:])
}

func rope(x, cos, sin []float32) {
	half := len(x) / 2
	ops, n := elemPick(half)
	if n > 0 {
		ops.rotate(&x[0], &x[half], &cos[0], &sin[0], n)
	}
	rotateGo(x[n:half], x[half+n:], cos[n:], sin[n:])
}

func exp(x []float32) {
	ops, n := elemPick(len(x))
	if n > 0 {
		ops.expSum(&x[0], n, 0)
	}
	expsGo(x[n:])
}

func softmax(x []float32) {
	ops, n := elemPick(len(x))
	if n == 0 {
		softmaxGo(x)
		return
	}
	top := max(ops.rowMax(&x[0], n), maxGo(x[n:]))
	sum := ops.expSum(&x[0], n, top)
	for i := n; i < len(x); i++ {
		x[i] = expGo(x[i] - top)
		sum += x[i]
	}
	r := 1 / sum
	for i := range x {
		x[i] *= r
	}
}

func dot(a, b []float32) float32 {
	ops, n := elemPick(len(a))
	if n == 0 {
		return dotGo(a, b)
	}
	return ops.dot(&a[0], &b[0], n) + dotGo(a[n:], b[n:])
}

func sumSquares(x []float32) float64 {
	ops, n := elemPick(len(x))
	if n == 0 {
		return sumSquaresGo(x)
	}
	return ops.squares(&x[0], n, 0) + sumSquaresGo(x[n:])
}

func weightedSum(dst, f, x []float32) {
	n := 0
	if ops := attnKernels(); ops != nil {
		n = len(dst) &^ (ops.lanes - 1)
		if n > 0 {
			ops.weighted(&dst[0], &f[0], &x[0], len(dst), len(f), n,
				uintptr(unsafe.Pointer(&x[0])), 0)
		}
	}
	weightedSumGo(dst, f, x, n)
}
