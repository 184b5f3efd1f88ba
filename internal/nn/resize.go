package nn

import "math"

// Resize resamples x [outer, rows, cols, inner] to [outer, toRows, toCols, inner] with cubic
// convolution (Keys), columns first. The corners of the outermost samples stay in place. With
// smooth, the kernel is widened by the shrink factor (a = -0.5, truncated at edges), as pictures
// are resized. Without it, each value comes from four samples per axis (a = -0.75, edges repeated),
// as position embeddings are interpolated. An axis whose size does not change is copied.
func Resize(x []float32, outer, rows, cols, inner, toRows, toCols int, smooth bool) []float32 {
	x = resizeAxis(x, outer*rows, cols, inner, toCols, smooth)
	return resizeAxis(x, outer, rows, toCols*inner, toRows, smooth)
}

// resizeAxis resamples the middle axis of x [outer, n, inner] to length to.
func resizeAxis(x []float32, outer, n, inner, to int, smooth bool) []float32 {
	if n == to {
		return append([]float32(nil), x...)
	}
	out := make([]float32, outer*to*inner)
	scale := float64(n) / float64(to)
	width, a := 1.0, -0.75
	if smooth {
		width, a = max(1, scale), -0.5
	}
	for i := range to {
		centre := (float64(i) + 0.5) * scale
		first, last := int(math.Floor(centre-2*width)), int(math.Ceil(centre+2*width))
		var at []int
		var weight []float64
		sum := 0.0
		for j := first; j < last; j++ {
			w := cubic((float64(j)+0.5-centre)/width, a)
			if w == 0 || smooth && (j < 0 || j >= n) {
				continue
			}
			at, weight, sum = append(at, min(max(j, 0), n-1)), append(weight, w), sum+w
		}
		for o := range outer {
			dst := out[(o*to+i)*inner : (o*to+i+1)*inner]
			for k, j := range at {
				w := float32(weight[k] / sum)
				for c, v := range x[(o*n+j)*inner : (o*n+j+1)*inner] {
					dst[c] += w * v
				}
			}
		}
	}
	return out
}

// cubic is the kernel of cubic convolution at distance d.
func cubic(d, a float64) float64 {
	d = math.Abs(d)
	switch {
	case d < 1:
		return ((a+2)*d-(a+3))*d*d + 1
	case d < 2:
		return ((a*d-5*a)*d+8*a)*d - 4*a
	}
	return 0
}
