//go:build !(amd64 || arm64) || purego

package kernel

func rmsNorm(dst, x, w []float32, eps float32)      { rmsNormGo(dst, x, w, eps) }
func layerNorm(dst, x, w, b []float32, eps float32) { layerNormGo(dst, x, w, b, eps) }
func siluMul(dst, gate, up []float32)               { siluMulGo(dst, gate, up) }
func sigmoidMul(x []float32, a float32)             { sigmoidMulGo(x, a) }
func gelu(x []float32)                              { geluGo(x) }
func geluTanh(x []float32)                          { geluTanhGo(x) }
func add(dst, x []float32)                          { addGo(dst, x) }
func rope(x, cos, sin []float32) {
	rotateGo(x[:len(x)/2], x[len(x)/2:], cos, sin)
}
func exp(x []float32)                 { expsGo(x) }
func dot(a, b []float32) float32      { return dotGo(a, b) }
func sumSquares(x []float32) float64  { return sumSquaresGo(x) }
func weightedSum(dst, f, x []float32) { weightedSumGo(dst, f, x, 0) }
