//go:build !purego

package kernel

func convert(dst []float32, data []byte, f Format) {
	n := len(dst) / 8
	if f == F32 || impl() == implGo || n == 0 {
		convertGo(dst, data, f)
		return
	}
	if f == F16 {
		widenF16NEON(&dst[0], &data[0], n)
	} else {
		widenBF16NEON(&dst[0], &data[0], n)
	}
	convertGo(dst[8*n:], data[8*n*f.Size():], f)
}
