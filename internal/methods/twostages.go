package methods

// Two stages (not in the paper): the base and RESTORE reduce a picture before the decoder, and
// before one of its layers all rows merge once more. See restoreMethod's notes.

import (
	"fmt"
	"math"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// secondStage merges all rows before a layer. It looks at nothing but the rows, so a picture
// can still be read once for all its questions.
var secondStage = &insideMethod{blind: true, first: 1}

// secondDepth is the depth of the second stage, as a share of the layers.
const secondDepth = 1. / 3

// secondLayer returns the first layer after the second stage.
func (p *Plan) secondLayer(o *Options) (int, error) {
	layers := p.facts.Layers
	switch {
	case layers == 0:
		return 0, refused("two-stages", errs.Conflict, "true", "one stage",
			"the second stage needs a model, and there is none")
	case layers == 1:
		return 0, refused("two-stages", errs.Conflict, "true", "one stage",
			"the model's decoder has 1 layer")
	case o.SecondLayer >= layers:
		return 0, refused("second-layer", errs.TooLarge, strconv.Itoa(o.SecondLayer),
			fmt.Sprintf("1 to %d", layers-1), fmt.Sprintf("the model has %d layers", layers))
	case o.SecondLayer > 0:
		return o.SecondLayer, nil
	}
	return max(1, int(math.Round(secondDepth*float64(layers)))), nil
}

// twoStages plans both stages. It returns nil if the budget is all tokens.
func (p *Plan) twoStages(o *Options, d *reduce.Declaration) (*Plan, error) {
	if own := ownBudget(d); own != "" {
		return nil, refused(own, errs.Conflict, shown(o.Own[own]), "n-vis or keep-ratio",
			"two-stages divides a budget between its stages")
	}
	budget, err := p.budget(o)
	if err != nil || budget == p.N {
		return nil, err
	}
	layer, err := p.secondLayer(o)
	if err != nil {
		return nil, err
	}
	a, b := p.twoBudgets(budget, layer)
	one, f := *o, p.facts
	one.TwoStages, one.SecondLayer, one.KeepRatio, one.Guard = false, 0, 0, false
	one.NVis, f.mean = a, budget
	if p.method.whole || o.gamma() == 1 && o.Join != "all" && o.Join != "count" {
		one.MergePosition = "" // only the second stage merges
	}
	first, err := Resolve(one, f)
	if err != nil {
		return nil, err
	}
	two := *first
	two.Content = p.Content
	if a == b { // no rows are left for a second stage
		if o.SecondLayer > 0 {
			return nil, refused("second-layer", errs.TooLarge, strconv.Itoa(layer),
				"an earlier layer", fmt.Sprintf(
					"a mean of %d tokens a layer leaves nothing to merge there", budget))
		}
		return &two, nil
	}
	two.first, two.inside = first, secondStage
	two.First = &reduce.FirstStage{
		NVis: a, Keep: first.Keep, Merge: first.Merge, Anchors: first.Anchors,
		AnchorPool: first.AnchorPool, Join: first.Join,
	}
	two.NVis, two.Keep, two.Merge = b, 0, b
	two.Stages = []reduce.Stage{{Layer: layer, Merged: b}}
	two.Mean = two.meanRows(two.Stages)
	two.MergePosition = or(o.MergePosition, defaults[o.Compat].mergePosition)
	if two.Anchors != "paper" && two.Anchors != "uniform" {
		two.Anchors = "released"
	}
	two.AnchorPool, two.Join = "rest", "rest"
	return &two, nil
}

// twoBudgets divides a budget of rows a layer, on average, between the layers before and from
// layer on: a rows, then b. b is as close to a half of a as the mean allows, which is the budget,
// or less by a fraction of a row. Of equally close ones the largest mean counts.
func (p *Plan) twoBudgets(budget, layer int) (a, b int) {
	sum, rest := budget*p.facts.Layers, p.facts.Layers-layer
	a, b = budget, budget
	for rows := budget; rows <= p.N && sum-rows*layer >= rest; rows++ {
		then := (sum - rows*layer) / rest
		if p.method.budgets != nil && !p.facts.any {
			trial := *p
			if trial.NVis = rows; rows < p.N && p.method.budgets(&trial) != nil {
				continue
			}
		}
		off, best := abs(2*then-rows), abs(2*b-a)
		if off < best || off == best && rows*layer+then*rest > a*layer+b*rest {
			a, b = rows, then
		}
	}
	return a, b
}

func abs(v int) int { return max(v, -v) }

// BeforeDecoder returns the plan of what happens before the decoder: the first of two stages, or
// the plan itself.
func (p *Plan) BeforeDecoder() *Plan {
	if p.first != nil {
		return p.first
	}
	return p
}
