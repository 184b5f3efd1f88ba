package reduce

// FastV: "An Image is Worth 1/2 Tokens After Layer 2" (arXiv:2403.06764).

import (
	"fmt"
	"math"
)

const fastVLayer = 2

var fastVMethod = &Method{
	Name: "fastv", Title: "FastV: attention of the last row in layer K-1", Paper: "https://arxiv.org/abs/2403.06764", Site: InsideDecoder,
	Text: true, Minimum: "1 token", Cost: "C·(text + N) (one row's attention in one layer)",
	Params: []Param{{"fastv-layer", "2", "the stage's layer K, where no schedule is given (at the same relative depth unless the decoder has 32 layers)"}, scheduleParam},
	ops:    func(o *Resolved, d Dims) float64 { return float64(o.N+d.Text) * float64(d.C) },
	Notes: Notes{
		Equations: `
Before layer K those visual rows stay to which the prompt's last row attended most in layer K-1, averaged over heads; the others go. Positions
stay what they were, and what is kept is chosen once, when the prompt is read.

n-vis N of V tokens is the mean over the inputs of L layers: n = (L·N - K·V)/(L-K) rows stay. With 32 layers and 576 tokens 192, 128 and 64
keep 166, 98 and 30. A schedule K:n says so outright; with several stages each repeats the choice among what is left.`,
		Departures: `
None from the authors' version inside the library (the choice is frozen after the prompt); shares round half to even, as theirs. Their other
versions choose again at every token, or drop nothing before the first. The paper speaks of attention averaged over rows; all of their code
reads the last row.`,
	},
}

func init() { // the schedule's search names the method
	fastVMethod.inside = &insideMethod{
		read: -1, first: 1, looks: lastRow, score: asSeen,
		share: func(n int, share float64) int { return int(math.RoundToEven(float64(n) * share)) },
		plan: func(o *Options, n, budget int) ([]Stage, error) {
			k := o.FastVLayer
			if k == 0 {
				k = max(1, int(math.Round(fastVLayer*float64(o.Layers)/32)))
			}
			if k >= o.Layers {
				return nil, fmt.Errorf("reduce: fastv-layer: got %d, want 1 to %d (the model has %d layers)", k, o.Layers-1, o.Layers)
			}
			return nearest(fastVMethod, o.Layers, n, budget, func(yield func([]Stage) bool) {
				for c := 1; c <= n && yield([]Stage{{Layer: k, Kept: c}}); c++ {
				}
			})
		},
	}
}
