//go:build (amd64 || arm64) && !purego

package kernel

import "unsafe"

// elemOps lists the kernels of one instruction set. They process whole vectors. The reference
// processes the rest of a row, except as [activate] says.
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
	if ops == nil {
		siluMulGo(dst, gate, up)
		return
	}
	if n > 0 {
		ops.siluMul(&dst[0], &gate[0], &up[0], n)
	}
	if n < len(dst) {
		v := new([2][attnPad]float32)
		copy(v[0][:], gate[n:])
		copy(v[1][:], up[n:])
		ops.siluMul(&v[0][0], &v[0][0], &v[1][0], ops.lanes)
		copy(dst[n:], v[0][:])
	}
}

// activate runs f, or plain if there are no kernels, over x. Elements after the last whole vector
// are computed in a vector, too, so that an element's bits do not depend on its place: rows of a
// length that is no multiple of a vector's follow each other in x.
func activate(x []float32, f func(ops *elemOps, x *float32, n int), plain func(x []float32)) {
	ops, n := elemPick(len(x))
	if ops == nil {
		plain(x)
		return
	}
	if n > 0 {
		f(ops, &x[0], n)
	}
	if n < len(x) {
		v := new([attnPad]float32)
		copy(v[:], x[n:])
		f(ops, &v[0], ops.lanes)
		copy(x[n:], v[:])
	}
}

func sigmoidMul(x []float32, a float32) {
	activate(x, func(ops *elemOps, x *float32, n int) { ops.sigmoidMul(x, n, -a) },
		func(x []float32) { sigmoidMulGo(x, a) })
}

func gelu(x []float32) {
	activate(x, func(ops *elemOps, x *float32, n int) { ops.gelu(x, n) }, geluGo)
}

func geluTanh(x []float32) {
	activate(x, func(ops *elemOps, x *float32, n int) {
		ops.geluTanh(x, n, -tanhScale, -tanhScale*tanhCubic)
	}, geluTanhGo)
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
