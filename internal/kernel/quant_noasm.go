//go:build (!amd64 && !arm64) || purego

package kernel

func quantizeRow(_ isa, dst []byte, x []float32, blocks, offset int) {
	quantizeRowGo(dst, x, blocks, 1, offset)
}

func quantPanelRows(*quantProduct, Format, []byte, int, int, int, int) {
	panic("kernel: no kernels for quantised weights") // implGo is the only level
}

func widenIQ4(dst, src []byte, blocks int) { widenIQ4Go(dst, src, blocks) }
