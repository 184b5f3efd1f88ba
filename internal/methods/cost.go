package methods

// Dims are the widths that determine the cost of a choice.
type Dims struct {
	C      int // width of features after the projector
	Cv     int // width of features before it, and of the encoder's queries and keys, all heads
	KeyDim int // width of one head's keys in the encoder
	Text   int // rows of the prompt without the picture's
}

// Operations returns the multiply-adds of the choice of r, each counted once: the criterion's, and
// the cosines for choosing anchors (N²·C, counted once if the criterion needs them too). As in the
// paper's Table 8, sums, comparisons and sorting do not count. known is false if the cost of the
// method's criterion is not known.
func (r *Plan) Operations(d Dims) (ops float64, known bool) {
	m := r.method
	if r.NVis == r.N || m == noneMethod {
		return 0, true
	}
	matrix := func(n int) float64 { return float64(n) * float64(n) * float64(d.C) }
	if m.inside != nil {
		for i, s := range r.Stages {
			before := r.N
			if i > 0 {
				before = r.Stages[i-1].Rows()
			}
			if s.Merged > 0 && r.Restore {
				ops += matrix(before)
			}
		}
	} else if m.encoder != nil {
		if r.Restore && !m.encoder.partners { // at the last cut, between rows of the encoder
			ops = r.grouping(d.Cv)
		}
	} else if !m.whole {
		ops = r.grouping(d.C)
	}
	if m.ops == nil {
		return ops, false
	}
	return ops + m.ops(r, d), true
}

// grouping is the cost of anchors and groups over features of a width: the cosines of all tokens to
// all, or only to the kept and chosen ones; for covered anchors also the factor.
func (r *Plan) grouping(width int) float64 {
	n, w := float64(r.N), float64(width)
	switch heads := float64(r.NVis); {
	case !r.merges():
		return 0
	case r.allCosines():
		return n * n * w
	case r.Merge > 0:
		return n*heads*w + n*heads*heads/2
	default:
		return n * heads * w
	}
}

// noOps is the cost of a choice that does not look at the picture.
func noOps(*Plan, Dims) float64 { return 0 }
