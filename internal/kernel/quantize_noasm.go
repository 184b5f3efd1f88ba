//go:build !amd64 || purego

package kernel

func quantizeWeights(q []uint8, scales, v []float32, f Format) {
	quantizeWeightsGo(q, scales, v, f)
}

func quantizeMinima(q []uint8, scales, minima, v []float32) {
	quantizeMinimaGo(q, scales, minima, v)
}
