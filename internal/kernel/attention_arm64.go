//go:build !purego

package kernel

var attnNEON = attnOps{
	lanes:  4,
	widths: []int{16},
	tiles: []attnTile{
		attnTile16NEON,
	},
	packed:    1 << 15,
	transpose: attnTransposeNEON,
	copyRows:  attnCopyNEON,
	rowMax:    attnMaxNEON,
	addMax:    attnAddMaxNEON,
	expSum:    attnExpSumNEON,
	bias:      attnBiasNEON,
	addWindow: attnAddWindowNEON,
	axpy:      attnAxpyNEON,
	peak:      attnPeakNEON,
	weighted:  attnWeightedNEON,
	narrow:    attnNarrowNEON,

	weightedHalf: []attnHalves{{8, func(out *float32, _ int, p *float32, _ int, x *uint16,
		stride, rows, n int, next uintptr, step int) {
		attnWeightedHalfNEON(out, p, x, stride, rows, n, next, step)
	}}},
}

// attnKernels returns the kernels in use, or nil for the reference.
func attnKernels() *attnOps {
	if impl() == implNEON {
		return &attnNEON
	}
	return nil
}
