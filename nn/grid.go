package nn

// GatherFill copies the rows idx of src [*, width] into dst [len(idx), width];
// where idx is negative the row is fill [width].
func GatherFill(dst, src []float32, idx []int32, width int, fill []float32) {
	for i, r := range idx {
		row := fill
		if r >= 0 {
			row = src[int(r)*width : (int(r)+1)*width]
		}
		copy(dst[i*width:(i+1)*width], row)
	}
}

// GatherHeads picks tokens out of several items that hold a row per head and
// token: src [items, heads, tokens, width] becomes dst [heads, len(idx), width],
// idx counting items·tokens.
func GatherHeads(dst, src []float32, idx []int32, heads, tokens, width int) {
	for i, r := range idx {
		item, t := int(r)/tokens, int(r)%tokens
		for h := range heads {
			s := ((item*heads+h)*tokens + t) * width
			copy(dst[(h*len(idx)+i)*width:(h*len(idx)+i+1)*width], src[s:s+width])
		}
	}
}
