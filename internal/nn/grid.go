package nn

import "github.com/restore-vlm/restore/internal/kernel"

// GatherFill copies the rows idx of src [*, width] into dst [len(idx), width]. For a negative idx,
// the row is fill [width], or zeros if fill is nil.
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

// Gathered returns the rows idx of src [*, width] as [len(idx), width], with zeros for a negative
// idx. nil stays nil.
func Gathered(src []float32, idx []int32, width int) []float32 {
	if src == nil {
		return nil
	}
	dst := make([]float32, len(idx)*width)
	GatherFill(dst, src, idx, width, nil)
	return dst
}

// GatheredHeads gathers tokens of several items with one row per head and token. From src [items,
// heads, tokens, width] it returns [heads, len(idx), width], where idx counts items·tokens; a
// negative idx gives zeros. nil stays nil.
func GatheredHeads(src []float32, idx []int32, heads, tokens, width int) []float32 {
	if src == nil {
		return nil
	}
	dst := make([]float32, heads*len(idx)*width)
	for i, r := range idx {
		if r < 0 {
			continue
		}
		for h := range heads {
			s := ((int(r)/tokens*heads+h)*tokens + int(r)%tokens) * width
			copy(dst[(h*len(idx)+i)*width:][:width], src[s:s+width])
		}
	}
	return dst
}

// BlendHeads blends tokens of several items with one row per head and token, below a row of zeros:
// from src [items, heads, tokens, width] it returns [heads, 1+len(mixes), width]. mixes count the
// tokens from lo to hi of all items. nil stays nil.
func BlendHeads(
	p *kernel.Pool, src []float32, mixes []Mix, heads, tokens, lo, hi, width int,
) []float32 {
	if src == nil {
		return nil
	}
	idx := make([]int32, hi-lo)
	for i := range idx {
		idx[i] = int32(lo + i)
	}
	from, n := GatheredHeads(src, idx, heads, tokens, width), (1+len(mixes))*width
	out := make([]float32, heads*n)
	for h := range heads {
		Blend(p, out[h*n+width:(h+1)*n], from[h*len(idx)*width:], mixes, width)
	}
	return out
}
