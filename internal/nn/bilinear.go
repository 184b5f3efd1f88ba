package nn

// Taps are the two samples of an axis between which a new sample lies, and the share of the second.
type Taps struct {
	First, Second int
	Share         float32
}

// Bilinear returns the taps of a linear resize of an axis from n to to samples: half-pixel centres,
// edges repeated, no antialiasing, as torch's interpolate with align_corners off computes it.
func Bilinear(n, to int) []Taps {
	out := make([]Taps, to)
	for i := range out {
		at := max((float64(i)+0.5)*float64(n)/float64(to)-0.5, 0)
		lo := min(int(at), n-1)
		out[i] = Taps{lo, min(lo+1, n-1), float32(at - float64(lo))}
	}
	return out
}

// Corners returns the taps of a linear resize of an axis from n to to samples whose first and last
// samples stay in place.
func Corners(n, to int) []Taps {
	out := make([]Taps, to)
	for i := range out {
		at := float64(i) * float64(n-1) / float64(max(to-1, 1))
		lo := min(int(at), n-1)
		out[i] = Taps{lo, min(lo+1, n-1), float32(at - float64(lo))}
	}
	return out
}

// Nearest returns the sample that has the greater share.
func (t Taps) Nearest() int {
	if t.Share > 0.5 {
		return t.Second
	}
	return t.First
}

// Across returns the mix of the samples of rows t and columns x; index gives the index of a sample.
func (t Taps) Across(x Taps, index func(y, x int) int) Mix {
	var m Mix
	for _, y := range t.weighed() {
		for _, x := range x.weighed() {
			m.From = append(m.From, int32(index(y.at, x.at)))
			m.Weight = append(m.Weight, y.weight*x.weight)
		}
	}
	return m
}

type weighed struct {
	at     int
	weight float32
}

// weighed returns the samples that have a share.
func (t Taps) weighed() []weighed {
	if t.Share == 0 || t.First == t.Second {
		return []weighed{{t.First, 1}}
	}
	return []weighed{{t.First, 1 - t.Share}, {t.Second, t.Share}}
}
