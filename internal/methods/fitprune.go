package methods

// FitPrune: "Fit and Prune: Fast and Training-free Visual Token Pruning for Multi-modal Large
// Language Models" (arXiv:2409.10197).

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var fitPruneMethod = &method{
	Method: reduce.Method{
		Name: "fitprune",
		Title: "FitPrune: self-attention times cross-attention, as many rows per layer as a " +
			"recipe says",
		Summary: "Drops a little in every layer, as much as was fitted to the model.",
		Paper:   "https://arxiv.org/abs/2409.10197",
		Site:    reduce.InsideDecoder,
		Minimum: "1 token",
		Text:    true,
		Cost:    "heads·N·(N + text) comparisons in every layer that drops rows",
		Notes: reduce.Notes{
			Equations: `
M is the attention of a layer, the largest value over the heads. A visual row's self-attention is
the sum of the attention that the visual rows give it, divided by their number; its
cross-attention is the sum over the rows of text after the picture. A layer that drops d rows
drops the d of lowest product, between attention and its output projection: the rows' keys and
values stay in that layer. Positions do not change.

A recipe says how many rows each layer drops; restore-lab fitprune-recipe fits it to questions about
pictures. For a share a of the attention that may be lost, each layer of the unpruned model has
a sum of self-attention and a sum of cross-attention (averaged over rows). A row may be dropped
if it is among the rows of lowest self-attention that can be dropped before the sum falls below
(1 - a) of it, and likewise for cross-attention: both must allow it. Bisection finds the smallest
a, to 0.01, for which the decoder's work on visual rows shrinks by the requested share. A layer
drops the mean over the questions, rounded down.

n-vis is the mean over layer inputs: the recipe's schedules, as shares of the tokens, are
interpolated to reach it, from all tokens down to one. In a schedule "layer:n" that layer leaves
n rows, and no recipe is needed.

With RESTORE a layer leaves the same number of rows. Similarity is computed on the layer's input
rows, and the same averages are applied to input rows and to the rows of attention.`,
			Departures: `
The choice is the authors' code. Their recipes are tables for one model of 32 layers and nine
shares; here a recipe belongs to a model, and n-vis chooses between its schedules. Their search
prints its last trial even if that did not reach the requested share; here the last one that
reached it counts. Sums are not rounded to 16 bits. If the sum never falls far enough, all rows
but one may be dropped (the authors' code reuses the number of the previous question). A layer
always keeps a row. Without text after the picture the last row takes the text's place. The
paper has no table of RESTORE over FitPrune.`,
		},
	},
	parameters: func() own { return new(fitPruneParams) },
	ops: func(o *Plan, d Dims) (sum float64) {
		rows := o.N
		for _, s := range o.Stages {
			n := float64(rows + d.Text)
			sum += n * n * float64(d.C)
			rows = s.Rows()
		}
		return sum
	},
	inside: &insideMethod{
		after: 1, within: true, drops: true, looks: fitLooks, score: scoreFit,
		plan:  planFit,
		share: func(n int, share float64) int { return int(math.RoundToEven(float64(n) * share)) },
	},
}

// recipeName is the parameter's name, and the format of its file.
const recipeName = "fitprune-recipe"

// fitPruneParams are FitPrune's parameters.
type fitPruneParams struct{ recipe *Recipe }

// Declare implements own.
func (f *fitPruneParams) Declare(d *reduce.Declaration) {
	d.Func(reduce.Parameter{
		Name: recipeName, Kind: reduce.File, Unit: "file", Want: "a recipe file",
		Default: "fitprune.json in the model's folder",
		Help:    "file with the tokens that each layer drops, made by restore-lab fitprune-recipe",
	}, func(v any) (err error) {
		if f.recipe, err = ReadRecipe(bytes.NewReader(v.([]byte))); err != nil {
			err = errors.New(trimPackage(err))
		}
		return err
	}, func() any { return nil })
}

// recipe returns the given recipe, or else the model's; nil if there is neither.
func (p *Plan) recipe() (*Recipe, error) {
	if r := p.own.(*fitPruneParams).recipe; r != nil || p.facts.Recipe == nil {
		return r, nil
	}
	return p.facts.Recipe()
}

// planFit finds the point between the recipe's schedules at which the mean over layer inputs is
// budget.
func planFit(p *Plan, budget int) ([]reduce.Stage, error) {
	n, layers := p.N, p.facts.Layers
	r, err := p.recipe()
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, refused(recipeName, errs.Missing, "", "a recipe for the model, or a schedule",
			fmt.Sprintf("a budget of %d tokens a layer needs one", budget))
	}
	if r.Layers != layers {
		return nil, refused(recipeName, errs.Conflict, fmt.Sprintf("one for %d layers", r.Layers),
			strconv.Itoa(layers), "as many as the model has")
	}
	path := slices.Concat([][]float64{slices.Repeat([]float64{1}, layers)}, r.kept(),
		[][]float64{make([]float64, layers)})
	enter := func(curve []float64) float64 { // mean share that enters a layer
		sum := 1.0
		for _, s := range curve[:layers-1] {
			sum += s
		}
		return sum / float64(layers)
	}
	want, i := float64(budget)/float64(n), 1
	for i < len(path)-1 && enter(path[i]) > want {
		i++
	}
	from, to := path[i-1], path[i]
	t := 0.0
	if d := enter(from) - enter(to); d > 0 {
		t = (enter(from) - want) / d
	}
	const steps = 64 // in each direction, at most a token of the mean away
	reach := 1 / max(1, (enter(from)-enter(to))*float64(n))
	return p.nearest(budget, func(yield func([]reduce.Stage) bool) {
		for k := range 2*steps + 1 {
			d := float64((k+1)/2) / steps * reach
			if k%2 == 1 {
				d = -d
			}
			at := min(1, max(0, t+d))
			var stages []reduce.Stage
			before := n
			for l := range layers {
				share := from[l]*(1-at) + to[l]*at
				if rows := max(1, int(math.RoundToEven(share*float64(n)))); rows < before {
					stages, before = append(stages, reduce.Stage{Layer: l, Kept: rows}), rows
				}
			}
			if !yield(stages) {
				return
			}
		}
	})
}

// fitLooks reads the attention of the picture's rows and of the text's, the largest value over the
// heads; if no text follows the picture, the last row's instead.
func fitLooks(s *Inside, v *Sight) ([]int32, bool) {
	text := v.Text
	if len(text) == 0 {
		text = []int32{v.Last}
	}
	return slices.Concat(s.visual(v), text), true
}

// scoreFit is the product of self- and cross-attention.
func scoreFit(s *Inside, v *Sight, look []float32) ([]float32, error) {
	self, cross := fitSums(s, v, look)
	score := make([]float32, len(self))
	for j := range score {
		self[j] /= float64(len(self))
		score[j] = float32(self[j] * cross[j])
	}
	s.scores = map[string][]float32{"self": float32s(self), "cross": float32s(cross)}
	return score, nil
}

// fitSums is the attention that each row of the picture receives from the picture's rows and from
// the text's.
func fitSums(s *Inside, v *Sight, look []float32) (self, cross []float64) {
	n := len(s.rows)
	return s.columns(v, look, 0, n), s.columns(v, look, n, len(look)/v.Keys)
}
