package reduce

// Dims are the widths that the cost of a choice depends on.
type Dims struct {
	C      int // of features after the projector
	Cv     int // of features before it, and of the encoder's queries and keys, all heads together
	KeyDim int // of one head's keys in the encoder
	Text   int // rows of the prompt that are not the picture's
}

// Operations returns the multiply-adds of the choice that r asks for, each counted once: the criterion's, and the cosines from which
// anchors are chosen (N²·C, made once where the criterion needs them too). Sums, comparisons and sorting are not counted, as in the
// paper's Table 8. known is false where nobody has said what the method's criterion costs.
func (r *Resolved) Operations(d Dims) (ops float64, known bool) {
	m, err := lookup(r.Base)
	if err != nil {
		return 0, false
	}
	if r.NVis == r.N || m.Name == "none" {
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
			ops = float64(r.N) * float64(r.N) * float64(d.Cv)
		}
	} else if r.Merge > 0 && !m.whole {
		ops = matrix(r.N)
	}
	if m.ops == nil {
		return ops, false
	}
	return ops + m.ops(r, d), true
}

// noOps is the cost of a choice that looks at nothing.
func noOps(*Resolved, Dims) float64 { return 0 }
