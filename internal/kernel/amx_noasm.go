//go:build !amd64 || purego

package kernel

func tileMatMul(*Pool, []float32, []float32, int, *Matrix, []float32) {}
