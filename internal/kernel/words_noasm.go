//go:build !amd64 || purego

package kernel

// wordsMatMul widens the weight.
func wordsMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	matMul(p, dst, x, m, w, bias)
}

func quantizeWords(dst []byte, scale, step int, x []float32, blocks, most int) {
	quantizeWordsGo(dst, scale, step, x, blocks, most)
}
