package reduce

// FastV: "An Image is Worth 1/2 Tokens After Layer 2" (arXiv:2403.06764).

import (
	"fmt"
	"math"
)

const fastVLayer = 2

var fastVMethod = &Method{
	Name: "fastv", Title: "FastV: attention of the last row in layer K-1", Paper: "https://arxiv.org/abs/2403.06764", Site: InsideDecoder,
	Minimum: "1 token", Params: []Param{{"fastv-layer", "2", "the stage's layer K, where no schedule is given (at the same relative depth unless the decoder has 32 layers)"}},
	Text: true, Cost: "C·(text + N) (one row's attention in one layer)",
	Notes: Notes{
		Equations: `
Before layer K the n visual rows that the prompt's last row attended to most in layer K-1, averaged over heads, stay; the others go. Positions
stay what they were. A schedule has one stage, K:n.

--n-vis is the mean over layer inputs: n = (L·N' - K·N)/(L - K) for a mean of N' in L layers (with 32 layers and 576 tokens: 166, 98, 30 for
192, 128, 64). In decoders of another depth than 32 K is the layer at the same relative depth, at least 1.`,
		Departures: `
None from the authors' version inside the library (selection frozen after the prompt); shares round half to even, as theirs. Their other
variants choose again at every generated token, keep each key of layer K-1 twice, or cut shares to whole tokens.`,
	},
}

func init() { // the schedule's search names the method
	fastVMethod.inside = &insideMethod{
		read: -1, first: 1, score: lastRow,
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
