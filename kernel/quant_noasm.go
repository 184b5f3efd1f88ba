//go:build (!amd64 && !arm64) || purego

package kernel

func quantizeRow(_ implementation, dst []byte, x []float32, blocks, offset int) {
	quantizeRowGo(dst, x, blocks, offset)
}

func quantPanelRows(t *quantProduct, panel, panels, first, end int) {
	for i := range panels {
		quantPanelGo(t, panel+i, first, end)
	}
}

func quantizeWeights(q []uint8, scales, v []float32, f Format) { quantizeWeightsGo(q, scales, v, f) }
