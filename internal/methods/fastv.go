package methods

// FastV: "An Image is Worth 1/2 Tokens After Layer 2" (arXiv:2403.06764).

import (
	"fmt"
	"math"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

const fastVLayer = 2

var fastVMethod = &method{
	Method: reduce.Method{
		Name:    "fastv",
		Title:   "FastV: attention of the last row in layer K-1",
		Summary: "Reads all patches first, then keeps those that the question looks at.",
		Paper:   "https://arxiv.org/abs/2403.06764",
		Site:    reduce.InsideDecoder,
		Text:    true,
		Minimum: "1 token",
		Cost:    "C·(text + N) (one row's attention in one layer)",
		Notes: reduce.Notes{
			Equations: `
Before layer K the visual rows remain to which the prompt's last row attended most in layer K-1,
averaged over heads; the others are dropped. Positions do not change. The choice is made once,
when the prompt is read.

n-vis N of V tokens is the mean over the inputs of L layers: n = (L·N - K·V)/(L-K) rows remain.
With 32 layers and 576 tokens 192, 128 and 64 keep 166, 98 and 30. A schedule K:n sets this
directly; with several stages each repeats the choice among the remaining rows.`,
			Departures: `
None from the authors' version inside the library (the choice is fixed after the prompt);
shares round half to even, as there. The authors' other versions choose again at every token, or
drop nothing before the first. The paper speaks of attention averaged over rows; all of the
authors' code reads only the last row.`,
		},
	},
	parameters: func() own { return new(fastVParams) },
	ops:        func(o *Plan, d Dims) float64 { return float64(o.N+d.Text) * float64(d.C) },
	inside: &insideMethod{
		read: -1, first: 1, looks: lastRow, score: asSeen,
		share: func(n int, share float64) int { return int(math.RoundToEven(float64(n) * share)) },
		plan:  planFastV,
	},
}

// fastVParams are FastV's parameters.
type fastVParams struct{ layer int }

// Declare implements own.
func (f *fastVParams) Declare(d *reduce.Declaration) {
	d.Int(&f.layer, reduce.Parameter{
		Name: "fastv-layer", Unit: "K", Default: fmt.Sprintf("%d of 32", fastVLayer),
		Least: new(1.),
		Help: "first layer that sees fewer tokens, without a schedule (at the same " +
			"relative depth unless the decoder has 32 layers)",
	})
}

func planFastV(p *Plan, budget int) ([]reduce.Stage, error) {
	k, layers := p.own.(*fastVParams).layer, p.facts.Layers
	if k == 0 {
		k = max(1, int(math.Round(fastVLayer*float64(layers)/32)))
	}
	if k >= layers {
		return nil, refused("fastv-layer", errs.TooLarge, strconv.Itoa(k),
			fmt.Sprintf("1 to %d", layers-1), fmt.Sprintf("the model has %d layers", layers))
	}
	return p.nearest(budget, func(yield func([]reduce.Stage) bool) {
		for c := 1; c <= p.N && yield([]reduce.Stage{{Layer: k, Kept: c}}); c++ {
		}
	})
}
