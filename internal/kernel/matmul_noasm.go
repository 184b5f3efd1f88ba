//go:build (!amd64 && !arm64) || purego

package kernel

// fewRows: the reference has one order of summation.
func fewRows(Format) int { return anyRows }

func matMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	matMulGo(p, dst, x, m, w, bias)
}
