//go:build !purego

package kernel

func convert(dst []float32, data []byte, f Format) {
	level := impl()
	if f == F32 || level == implGo {
		convertGo(dst, data, f)
		return
	}
	lanes := 8
	if level == implAVX512 {
		lanes = 16
	}
	blocks := len(dst) / lanes
	if blocks > 0 {
		switch {
		case level == implAVX512 && f == F16:
			widenF16AVX512(&dst[0], &data[0], blocks)
		case level == implAVX512:
			widenBF16AVX512(&dst[0], &data[0], blocks)
		case f == F16:
			widenF16AVX2(&dst[0], &data[0], blocks)
		default:
			widenBF16AVX2(&dst[0], &data[0], blocks)
		}
	}
	done := blocks * lanes
	convertGo(dst[done:], data[done*f.Size():], f)
}
