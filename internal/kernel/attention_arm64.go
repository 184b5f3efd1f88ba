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

	weightedHalf: attnWeightedHalfNEON,
	narrow:       attnNarrowNEON,
}

// attnKernels returns the kernels in use, or nil for the reference.
func attnKernels() *attnOps {
	if impl() == implNEON {
		return &attnNEON
	}
	return nil
}
