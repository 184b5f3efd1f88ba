package nn

// Patches cuts pictures into patch rows, so that a patch embedding is one product. px: [items,
// channels, rows·patch, cols·patch]; dst: [items·rows·cols, channels·patch²]. Patches are in raster
// order; a row is channel, y, x, the order of a [out, channels, patch, patch] convolution weight.
func Patches(dst, px []float32, items, channels, rows, cols, patch int) {
	eachPatch(items, channels, rows, cols, patch, func(d, s int) {
		copy(dst[d:d+patch], px[s:s+patch])
	})
}

// Unpatch is the inverse of Patches: it assembles pictures from patches.
func Unpatch(px, patches []float32, items, channels, rows, cols, patch int) {
	eachPatch(items, channels, rows, cols, patch, func(d, s int) {
		copy(px[s:s+patch], patches[d:d+patch])
	})
}

// eachPatch calls f for every line of every patch with its offsets in the patches and in the
// pictures.
func eachPatch(items, channels, rows, cols, patch int, f func(d, s int)) {
	row := channels * patch * patch
	for n := range items {
		for gy := range rows {
			for gx := range cols {
				at := ((n*rows+gy)*cols + gx) * row
				for c := range channels {
					for y := range patch {
						f(at+(c*patch+y)*patch,
							(((n*channels+c)*rows+gy)*patch+y)*cols*patch+gx*patch)
					}
				}
			}
		}
	}
}
