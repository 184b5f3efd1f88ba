package methods

// DivPrune: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models"
// (arXiv:2503.02175).

import (
	"math"

	"github.com/restore-vlm/restore/reduce"
)

var divPruneMethod = &method{
	Method: reduce.Method{
		Name:    "divprune",
		Title:   "DivPrune: max-min diversity of features",
		Summary: "Keeps the patches that differ most from each other.",
		Paper:   "https://arxiv.org/abs/2503.02175",
		Site:    reduce.AfterEncoder,
		Minimum: "1 token",
		Cost:    "N²·C (cosines) and n·N comparisons",
		Notes: reduce.Notes{
			Equations: `
Max-min diversity. The distance of two tokens is 1 - cosine of their features after the
projector. The first pick is the token whose nearest neighbour is farthest; then, k-1 times, the
token whose nearest picked token is farthest.`,
			Departures: `
The authors' code divides by a norm of 0 for a row of zeros and may pick a token twice. Here
such a row has distance 1 from every other, and a picked token is not picked again. The authors'
code gives the decoder tokens in raster order, RESTORE's code in picking order (compat released).`,
		},
	},
	pick: divPrune,
	ops: func(o *Plan, d Dims) float64 {
		if o.allCosines() {
			return 0
		}
		return float64(o.N) * float64(o.N) * float64(d.C)
	},
}

func divPrune(w *work, k int) (*selection, error) {
	n := w.in.N
	c, err := w.cosine()
	if err != nil {
		return nil, err
	}
	// distance to the nearest other token, then to the nearest picked one
	near := make([]float32, n)
	w.pool.Run(n, func(i int) { near[i] = secondSmallest(c.row(int32(i))) })
	picked := make([]bool, n)
	// near in float64 over the first seen picks, on demand
	fine, seen := make([]float64, n), make([]int, n)
	for j := range fine {
		fine[j] = math.Inf(1)
	}
	sel := &selection{kept: make([]int32, 0, k)}
	value := make([]float32, 0, k)
	for len(sel.kept) < k {
		top := float32(math.Inf(-1))
		for j, v := range near {
			if !picked[j] {
				top = max(top, v)
			}
		}
		best, farthest := -1, math.Inf(-1)
		for j, v := range near { // tokens that float32 cannot tell from the farthest
			if !picked[j] && v >= top-float32Margin {
				d := fine[j]
				if len(sel.kept) == 0 {
					d = c.secondExact(int32(j), v)
				} else {
					d = c.nearestExact(int32(j), v, d, sel.kept[seen[j]:])
					fine[j], seen[j] = d, len(sel.kept)
				}
				if best < 0 || d > farthest {
					best, farthest = j, d
				}
			}
		}
		picked[best] = true
		value = append(value, float32(farthest))
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

// nearestExact lowers d, the distance of token j to the nearest of the earlier picks in float64, by
// the given picks. v is the distance to all picks in float32. It only falls, so a pick farther away
// than v need not be checked.
func (c *cosines) nearestExact(j int32, v float32, d float64, picks []int32) float64 {
	row := c.row(j)
	for _, i := range picks {
		if 1-row[i] <= v+float32Margin {
			d = min(d, 1-c.exact(j, i))
		}
	}
	return d
}

// secondExact is the second smallest distance of token j to any token, including itself, in
// float64; v is its float32 value.
func (c *cosines) secondExact(j int32, v float32) float64 {
	lo, second := math.Inf(1), math.Inf(1)
	for i, x := range c.row(j) {
		if 1-x <= v+float32Margin {
			switch d := 1 - c.exact(j, int32(i)); {
			case d < lo:
				lo, second = d, lo
			case d < second:
				second = d
			}
		}
	}
	if math.IsInf(second, 1) { // a single token
		return lo
	}
	return second
}

// secondSmallest is the second smallest of 1 - c over a row of the cosine matrix, including the
// diagonal; 0 for a row with one element.
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
