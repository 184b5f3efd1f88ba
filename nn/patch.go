package nn

// Patches cuts pictures into patch rows for a patch embedding that is one
// product. px: [items, 3, rows·patch, cols·patch]; dst: [items·rows·cols,
// 3·patch²], patches in raster order, a row being channel, y, x (the order of a
// [out, 3, patch, patch] convolution weight).
func Patches(dst, px []float32, items, rows, cols, patch int) {
	row := 3 * patch * patch
	for n := range items {
		for gy := range rows {
			for gx := range cols {
				d := dst[((n*rows+gy)*cols+gx)*row:]
				for c := range 3 {
					for y := range patch {
						s := px[(((n*3+c)*rows+gy)*patch+y)*cols*patch+gx*patch:]
						copy(d[(c*patch+y)*patch:(c*patch+y+1)*patch], s[:patch])
					}
				}
			}
		}
	}
}
