package methods

import (
	"fmt"
	"iter"
	"math"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// Inside the decoder a budget is the mean number of rows that enter a layer. A method lists
// candidate schedules, and the one nearest to the budget is used.

// meanRows is the mean number of rows that enter a layer, 0 if the depth is not known.
func (p *Plan) meanRows(stages []reduce.Stage) float64 {
	layers := p.facts.Layers
	if layers == 0 {
		return 0
	}
	sum, rows := 0, p.start()
	for l := range layers {
		for _, s := range stages {
			if s.Layer+p.inside.after == l {
				rows = s.Rows()
			}
		}
		sum += rows
	}
	return float64(sum) / float64(layers)
}

// depths converts layers of a decoder with 32 layers, for which schedules are published, to the
// same relative depth: each at least one after the previous one, none before layer 1, and none
// beyond the decoder's last layer.
func depths(of32 []int, layers int) []int {
	var out []int
	last := 0
	for _, l := range of32 {
		last = max(last+1, int(math.Round(float64(l)*float64(layers)/32)))
		if last < layers {
			out = append(out, last)
		}
	}
	return out
}

// nearest returns the candidate schedule whose mean over layer inputs is nearest to budget, the
// first on ties. It is an error if none is within half a token and a hundredth of it.
func (p *Plan) nearest(budget int, candidates iter.Seq[[]reduce.Stage]) ([]reduce.Stage, error) {
	var best []reduce.Stage
	gap, below, above := math.Inf(1), math.Inf(-1), math.Inf(1) // the means closest to budget
	for stages := range candidates {
		mean := p.meanRows(stages)
		if mean <= float64(budget) {
			below = max(below, mean)
		} else {
			above = min(above, mean)
		}
		if d := math.Abs(mean - float64(budget)); d < gap {
			best, gap = stages, d
		}
	}
	if best != nil && gap <= 0.5+float64(budget)/100 {
		return best, nil
	}
	fault, want := errs.Invalid, fmt.Sprintf("%.4g or %.4g, the closest", below, above)
	switch {
	case math.IsInf(below, -1):
		fault, want = errs.TooSmall, fmt.Sprintf("at least %.4g, the least", above)
	case math.IsInf(above, 1):
		fault, want = errs.TooLarge, fmt.Sprintf("at most %.4g, the most", below)
	}
	return nil, refused("n-vis", fault, fmt.Sprintf("a mean of %d tokens a layer", budget), want,
		fmt.Sprintf("with %s's stages in %d layers of %d tokens; or give a schedule",
			p.Base, p.facts.Layers, p.N))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
