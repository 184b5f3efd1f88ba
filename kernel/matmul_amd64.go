//go:build !purego

package kernel

func matMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	matMulGo(p, dst, x, m, w, bias)
}

func convert(dst []float32, data []byte, f Format) { convertGo(dst, data, f) }
