//go:build !amd64 || purego

package kernel

func tiled(*Matrix, int) bool { return false }

func tiledFormat(Format, int) bool { return false }

func tileMatMul(*Pool, []float32, []float32, int, *Matrix, []float32) {}
