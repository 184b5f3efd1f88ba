package nn

// Patches cuts pictures into patch rows for a patch embedding that is one
// product. px: [items, 3, side, side]; dst: [items·grid², 3·patch²] with
// grid = side/patch, patches in raster order, a row being channel, y, x (the
// order of a [out, 3, patch, patch] convolution weight).
func Patches(dst, px []float32, items, side, patch int) {
	grid := side / patch
	row := 3 * patch * patch
	for n := range items {
		for gy := range grid {
			for gx := range grid {
				d := dst[((n*grid+gy)*grid+gx)*row:]
				for c := range 3 {
					for y := range patch {
						s := px[((n*3+c)*side+gy*patch+y)*side+gx*patch:]
						copy(d[(c*patch+y)*patch:(c*patch+y+1)*patch], s[:patch])
					}
				}
			}
		}
	}
}
