package reduce

// DivPrune: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (arXiv:2503.02175), max-min diversity.
//
// Distance d = 1 - cosine of the features after the projector. The first pick is the token whose nearest neighbour is farthest; then, k-1 times, the
// token whose nearest picked token is farthest.
//
// Departures: the authors' code divides by a norm of 0 for a row of zeros and may pick a token twice; here such a row has distance 1
// from every other and a picked token is out. Their code hands tokens to the decoder in raster order, RESTORE's in order of picking
// (Compat "released").

var divPruneMethod = &Method{
	Name: "divprune", Title: "DivPrune: max-min diversity of features", Paper: "https://arxiv.org/abs/2503.02175", Site: AfterEncoder,
	Minimum: "1 token", pick: divPrune,
}

func divPrune(w *work, k int) (*selection, error) {
	n := w.in.N
	c, err := w.cosine()
	if err != nil {
		return nil, err
	}
	near := make([]float32, n) // distance to the nearest other token, then to the nearest picked one
	w.in.Pool.Run(n, func(i int) { near[i] = secondSmallest(c.row(int32(i))) })
	picked := make([]bool, n)
	sel := &selection{kept: make([]int32, 0, k)}
	value := make([]float32, 0, k)
	for len(sel.kept) < k {
		best := -1
		for j, v := range near {
			if !picked[j] && (best < 0 || v > near[best]) {
				best = j
			}
		}
		picked[best] = true
		value = append(value, near[best])
		for j, v := range c.row(int32(best)) {
			if d := 1 - v; len(sel.kept) == 0 || d < near[j] {
				near[j] = d
			}
		}
		sel.kept = append(sel.kept, int32(best))
	}
	sel.scores = map[string][]float32{"value": value}
	return sel, nil
}

// secondSmallest is the second smallest of 1 - c over a row of the cosine matrix, diagonal included. A row of one has none: 0.
func secondSmallest(row []float32) float32 {
	if len(row) < 2 {
		return 0
	}
	lo, second := 1-row[0], 1-row[1]
	if second < lo {
		lo, second = second, lo
	}
	for _, v := range row[2:] {
		switch d := 1 - v; {
		case d < lo:
			lo, second = d, lo
		case d < second:
			second = d
		}
	}
	return second
}
