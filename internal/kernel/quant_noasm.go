//go:build (!amd64 && !arm64) || purego

package kernel

func quantizeRow(_ implementation, dst []byte, x []float32, blocks, offset int) {
	quantizeRowGo(dst, x, blocks, offset)
}

func quantPanelRows(*quantProduct, Format, []byte, int, int, int, int) {
	panic("kernel: no kernels for quantised weights") // implGo is the only level
}

func quantKBlocks(*quantProduct, []byte, int, int, int, int) {}

const stripRows, stripActs = 6, 0

func (*quantProduct) packStrip(int) {}

func quantStrips(*quantProduct, []byte, int, int, int, int) {}

func widenIQ4(dst, src []byte, blocks int) { widenIQ4Go(dst, src, blocks) }

func quantizeWeights(q []uint8, scales, v []float32, f Format) {
	quantizeWeightsGo(q, scales, v, f)
}

func quantizeMinima(q []uint8, scales, minima, v []float32) {
	quantizeMinimaGo(q, scales, minima, v)
}
