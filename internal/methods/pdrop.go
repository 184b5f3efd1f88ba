package methods

// PyramidDrop: "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual
// Redundancy Reduction" (arXiv:2410.17247).

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var (
	pdropLayers = []int{8, 16, 24} // of 32
	pdropEarly  = []int{2, 10, 20} // for means that pdropLayers does not reach
)

var pdropMethod = &method{
	Method: reduce.Method{
		Name:    "pdrop",
		Title:   "PyramidDrop: attention of the last row, computed before some layers",
		Summary: "Drops in a few steps what the question looks at least.",
		Paper:   "https://arxiv.org/abs/2410.17247",
		Site:    reduce.InsideDecoder,
		Text:    true,
		Minimum: "1 token",
		Cost:    "C²·(text + n) per stage (keys of the next layer)",
		Notes: reduce.Notes{
			Equations: `
Before each of some layers the visual rows remain to which the prompt's last row would attend
most in that layer, averaged over heads: the layer's own norm and projections score the rows
before any is dropped. The authors' stages are layers 8, 16, 24 of 32 with 1/2, 1/4 and 1/8 of
the picture's tokens (not of the previous stage's), a mean of 270 of 576. Under compat released,
or positions sequential, the rows after a stage are renumbered without gaps, and decoding
continues from the last number in each layer.

n-vis is the mean N of V tokens over layer inputs. No published schedule reaches the budgets of
the tables. Here the authors' layers keep shares a, a², a³ with a solved for, down to a = 1/4 (a
third of the tokens in 32 layers); below that, layers 2, 10, 20 keep n, n/2, n/4. With 32 layers
and 576 tokens 192, 128 and 64 are 144/36/9, 184/92/46 and 56/28/14. Layers of pdrop-layers keep
a, a², a³, and so on. In decoders of another depth stages are at the same relative depth, at
least one layer apart.`,
			Departures: `
None from the authors' version for prompts without padding; shares are rounded down to whole rows,
as there. With several pictures each is cut by its own counts and scored by the prompt's last
row, where the authors' code handles only the first picture.`,
		},
	},
	parameters: func() own { return new(pdropParams) },
	ops: func(o *Plan, d Dims) (sum float64) {
		rows := o.N
		for _, s := range o.Stages {
			sum += float64(d.C) * float64(d.C+1) * float64(rows+d.Text)
			rows = s.Rows()
		}
		return sum
	},
	inside: &insideMethod{
		ahead: true, first: 1, sequential: true, looks: lastRow, score: asSeen,
		share: func(n int, share float64) int { return int(float64(n) * share) },
		plan:  planPDrop,
	},
}

// pdropParams are PyramidDrop's parameters.
type pdropParams struct{ layers []int }

// Declare implements own.
func (q *pdropParams) Declare(d *reduce.Declaration) {
	declareLayers(d, &q.layers, 1, reduce.Parameter{
		Name: "pdrop-layers", Default: "8,16,24 of 32, or 2,10,20 for small budgets",
		Help: "layers of the stages, without a schedule",
	})
}

func planPDrop(p *Plan, budget int) ([]reduce.Stage, error) {
	layers, n := p.own.(*pdropParams).layers, p.N
	if last := len(layers) - 1; last >= 0 && layers[last] >= p.facts.Layers {
		return nil, refused("pdrop-layers", errs.TooLarge, commas(layers),
			fmt.Sprintf("layers from 1 to %d", p.facts.Layers-1),
			fmt.Sprintf("the model has %d layers", p.facts.Layers))
	}
	if layers == nil {
		layers = depths(pdropLayers, p.facts.Layers)
		quarter := powers(layers, n, 0.25)
		mean := p.meanRows(quarter)
		switch {
		case 3*budget == n && math.Abs(mean-float64(budget)) < 1:
			return quarter, nil
		case float64(budget) < mean:
			layers = depths(pdropEarly, p.facts.Layers)
			return p.nearest(budget, func(yield func([]reduce.Stage) bool) {
				for c := 1; c <= n && yield(halves(layers, c)); c++ {
				}
			})
		}
	}
	return p.nearest(budget, func(yield func([]reduce.Stage) bool) {
		for c := 1; c <= n && yield(powers(layers, n, float64(c)/float64(n))); c++ {
		}
	})
}

// powers are stages that leave the shares a, a², a³ and so on of n rows, rounded down; a product
// less than 1/2048 below a whole number counts as that number.
func powers(layers []int, n int, a float64) []reduce.Stage {
	stages, rows := make([]reduce.Stage, len(layers)), float64(n)
	for i, l := range layers {
		rows *= a
		stages[i] = reduce.Stage{Layer: l, Kept: max(1, int(math.Round(rows*1024))>>10)}
	}
	return stages
}

// halves are stages that leave c rows, then half as many after each stage.
func halves(layers []int, c int) []reduce.Stage {
	stages := make([]reduce.Stage, len(layers))
	for i, l := range layers {
		stages[i] = reduce.Stage{Layer: l, Kept: max(1, c>>i)}
	}
	return stages
}
