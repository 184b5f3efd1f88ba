package methods

// Dims are the widths that the cost of a choice depends on.
type Dims struct {
	C      int // of features after the projector
	Cv     int // of features before it, and of the encoder's queries and keys, all heads together
	KeyDim int // of one head's keys in the encoder
	Text   int // rows of the prompt that are not the picture's
}

// Operations returns the multiply-adds of the choice that r asks for, each counted once: the
// criterion's, and the cosines from which anchors are chosen (N²·C, made once where the criterion
// needs them too). Sums, comparisons and sorting are not counted, as in the paper's Table 8. known
// is false where nobody has said what the method's criterion costs.
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
		if r.Restore && !m.encoder.partners { // of the last cut, and between rows of the encoder
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

// grouping is what anchors and groups take over features of a width: the cosines of all tokens
// to all, or to those that are kept and chosen; and, of covered anchors, the factor.
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

// noOps is the cost of a choice that looks at nothing.
func noOps(*Plan, Dims) float64 { return 0 }
