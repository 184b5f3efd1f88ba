//go:build (!amd64 && !arm64) || purego

package kernel

func convert(dst []float32, data []byte, f Format) { convertGo(dst, data, f) }
