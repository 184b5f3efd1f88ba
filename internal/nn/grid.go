package nn

// GatherFill copies the rows idx of src [*, width] into dst [len(idx), width];
// where idx is negative the row is fill [width], zeros if that is nil.
func GatherFill(dst, src []float32, idx []int32, width int, fill []float32) {
	for i, r := range idx {
		d := dst[i*width : (i+1)*width]
		switch {
		case r >= 0:
			copy(d, src[int(r)*width:(int(r)+1)*width])
		case fill != nil:
			copy(d, fill)
		default:
			clear(d)
		}
	}
}

// GatherHeads picks tokens out of several items that hold a row per head and
// token: src [items, heads, tokens, width] becomes dst [heads, len(idx), width],
// idx counting items·tokens. Where idx is negative the row is zeros.
func GatherHeads(dst, src []float32, idx []int32, heads, tokens, width int) {
	for i, r := range idx {
		for h := range heads {
			d := dst[(h*len(idx)+i)*width : (h*len(idx)+i+1)*width]
			if r < 0 {
				clear(d)
				continue
			}
			s := ((int(r)/tokens*heads+h)*tokens + int(r)%tokens) * width
			copy(d, src[s:s+width])
		}
	}
}
