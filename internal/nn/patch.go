package nn

// Patches cuts pictures into patch rows, so that a patch embedding is one product. px: [items,
// channels, height, width]; dst: [items·rows·cols, channels·patch²], where rows and cols count
// whole patches; pixels beyond them are not read. Patches are in raster order; a row is channel, y,
// x, the order of a [out, channels, patch, patch] convolution weight.
func Patches(dst, px []float32, items, channels, height, width, patch int) {
	eachPatch(items, channels, height, width, patch, func(d, s int) {
		copy(dst[d:d+patch], px[s:s+patch])
	})
}

// Unpatch is the inverse of Patches: it assembles pictures from patches.
func Unpatch(px, patches []float32, items, channels, height, width, patch int) {
	eachPatch(items, channels, height, width, patch, func(d, s int) {
		copy(px[s:s+patch], patches[d:d+patch])
	})
}

// eachPatch calls f for every line of every patch with its offsets in the patches and in the
// pictures.
func eachPatch(items, channels, height, width, patch int, f func(d, s int)) {
	row, rows, cols := channels*patch*patch, height/patch, width/patch
	for n := range items {
		for gy := range rows {
			for gx := range cols {
				at := ((n*rows+gy)*cols + gx) * row
				for c := range channels {
					for y := range patch {
						f(at+(c*patch+y)*patch, ((n*channels+c)*height+gy*patch+y)*width+gx*patch)
					}
				}
			}
		}
	}
}
