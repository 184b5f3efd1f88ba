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
		Title: "FitPrune: self-attention times cross-attention, as many rows a layer as a " +
			"recipe says",
		Paper:   "https://arxiv.org/abs/2409.10197",
		Site:    reduce.InsideDecoder,
		Minimum: "1 token",
		Text:    true,
		Cost:    "heads·N·(N + text) comparisons in every layer that drops rows",
		Notes: reduce.Notes{
			Equations: `
M is the attention of a layer, of every head the largest value. A visual row's self-attention is
the sum over the visual rows of what they give it, divided by their number; its cross-attention
the sum over the rows of text after the picture. A layer that drops d rows drops the d of
lowest product, between attention and its output projection: the rows' keys and values stay in
that layer. Positions stay what they were.

How many rows each layer drops is read from a recipe, which restore fitprune-recipe fits to
questions about pictures. For a share a of the attention that may be lost, each layer of the
unpruned model has a sum of self- and a sum of cross-attention (averaged over rows); a row may
go if it is among the rows of lowest self-attention that can go before the sum falls below (1 -
a) of it, and likewise by cross-attention: both must allow it. Bisection finds the smallest a,
to 0.01, for which the decoder's work on visual rows shrinks by the share asked for; what a
layer drops is the mean over the questions, cut to a whole number.

n-vis is the mean over layer inputs: the recipe's schedules, as shares of the tokens, are
interpolated so that it is met, from all tokens down to one. In a schedule "layer:n" n rows are
left by that layer, and no recipe is needed.

With RESTORE a layer leaves as many rows; similarity is computed on the layer's input rows, and the
same averages are taken of input rows and of the rows of attention.`,
			Departures: `
The choice is the authors' code. Their recipes are tables for one model of 32 layers and nine
shares; here a recipe belongs to a model and n-vis chooses between its schedules. Their search
prints its last trial whether or not that reached the share asked for; here the last one that
reached it counts. Sums are not rounded to 16 bits. A search whose sum never falls far enough
lets all rows but one go (theirs reuses the number of the question before). A layer cannot drop
every row. No text after the picture: its last row stands for it. RESTORE over FitPrune is in
no table of the paper.`,
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
		after: 1, within: true, recipe: true, looks: fitLooks, score: scoreFit, plan: planFit,
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
		Name: recipeName, Kind: reduce.File, Unit: "file", Want: "a recipe's file",
		Default: "fitprune.json in the model's folder",
		Help:    "file with the tokens that each layer drops, made by restore fitprune-recipe",
	}, func(v any) (err error) {
		if f.recipe, err = ReadRecipe(bytes.NewReader(v.([]byte))); err != nil {
			err = errors.New(trimPackage(err))
		}
		return err
	}, func() any { return nil })
}

// recipe returns the recipe that was given, else the model's; nil where there is neither.
func (p *Plan) recipe() (*Recipe, error) {
	if r := p.own.(*fitPruneParams).recipe; r != nil || p.facts.Recipe == nil {
		return r, nil
	}
	return p.facts.Recipe()
}

// planFit finds the point on the way through the recipe's schedules where the mean over layer
// inputs is budget.
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
	const steps = 64 // each way, a token of the mean away at most
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

// fitLooks reads, of every head the largest value, what the picture's rows and those of text attend
// to: the last row's where no text follows the picture.
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

// fitSums is what each row of the picture receives from the picture's rows and from those of text,
// of every head the largest value.
func fitSums(s *Inside, v *Sight, look []float32) (self, cross []float64) {
	n := len(s.rows)
	return s.columns(v, look, 0, n), s.columns(v, look, n, len(look)/v.Keys)
}
