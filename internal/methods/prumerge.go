package methods

// LLaVA-PruMerge: "LLaVA-PruMerge: Adaptive Token Reduction for Efficient Large Multimodal Models"
// (arXiv:2403.15388), and PruMerge+.

import (
	"math"
	"slices"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const pruMergeNeighbours = 32

// The notes that both forms share.
const (
	pruMergeEquations = `
a is the attention of the class token's query to every patch, with the last layer's queries and
keys taken as one wide head: softmax(q_0·k_t/sqrt(width)) over patches and class token. With
n - 1 centres S, centre s becomes F[s] + sum a_j F[j] over the 32 patches j, centres included,
with the highest cosine to s in those keys. One extra row is sum a_p F[p] over the patches p that
are not centres. Sums are not divided by their weights. F are the patches' features before the
projector.`
	pruMergeDepartures = `
As in the authors' code, where descriptions of the paper differ: the last layer and one wide
head, neighbours from all patches, sums instead of averages, an extra row. If there are fewer
than 32 other patches, all are neighbours; without other patches there is no extra row (authors:
zeros). Without compat released rows are in raster order, the extra row at the lower median of
its patches. Every centre counts as a row of one patch, the extra row as one of all others,
although centres share neighbours. Under RESTORE PruMerge's share is the centres without their
sums, and the others merge into anchors.`
)

var pruMergeMethod = &method{
	Method: pruMergeForm("prumerge", "LLaVA-PruMerge: highest attention of the last layer, with "+
		"weighted sums of their neighbours",
		"Keeps the patches that stand out most, each blended with those like it.", `
The centres S are the patches of highest a. Without a budget their number depends on the
picture: the outliers a > Q3 + 1.5 (Q3 - Q1).`, ""),
	pick: func(w *work, k int) (*selection, error) {
		return pruMergePick(w, func(a []float64) []int32 { return topK(a, k) })
	},
	plain: func(w *work) (*reduce.Reduction, error) {
		return pruMerge(w, func(a []float64) []int32 {
			if w.o.NVis == 0 {
				return topK(a, outliers(a))
			}
			return topK(a, w.o.NVis-1)
		})
	},
	ops: pruMergeOps,
}

var pruMergePlusMethod = &method{
	Method: pruMergeForm("prumerge-plus", "PruMerge+: LLaVA-PruMerge with additional tokens at "+
		"equal steps", "Like prumerge, with more patches spread over the picture.", `
The centres S are some patches by a, and others at equal steps over the picture. Without a
budget: the outliers of a and the grid 0, g, 2g, … < N-1, where g is a third of N/outliers, both
rounded down.`, `
The authors' PruMerge+ has no form for a given number of tokens (its training form takes as many
from a grid as by a, and repeats those that are in both). Here a quarter of the centres, rounded,
are chosen by a, because the adaptive rule's step gives about three grid tokens for an outlier,
and the others are taken at equal steps from the remaining patches. Without outliers the authors'
code fails; here only the extra row remains.`),
	pick: func(w *work, k int) (*selection, error) {
		return pruMergePick(w, func(a []float64) []int32 { return pruMergePlus(a, k) })
	},
	plain: func(w *work) (*reduce.Reduction, error) {
		return pruMerge(w, func(a []float64) []int32 {
			if w.o.NVis == 0 {
				return pruMergeAdaptive(a)
			}
			return pruMergePlus(a, w.o.NVis-1)
		})
	},
	ops: pruMergeOps,
}

// pruMergeForm describes one of PruMerge's forms: which centres it takes, and in what it alone
// departs from the authors' code.
func pruMergeForm(name, title, summary, centres, departures string) reduce.Method {
	return reduce.Method{
		Name:       name,
		Title:      title,
		Summary:    summary,
		Paper:      "https://arxiv.org/abs/2403.15388",
		Site:       reduce.AfterEncoder,
		Needs:      []reduce.Need{reduce.LastKeys},
		NeedsPlain: []reduce.Need{reduce.Hidden},
		Minimum:    "1 token: the sum of all patches",
		Adaptive:   true,
		PerView:    true,
		Cost:       "n·N·W (cosines of the last layer's keys, W their width) and 33·n·Cv",
		Notes: reduce.Notes{
			Equations:  pruMergeEquations + centres,
			Departures: departures + pruMergeDepartures,
		},
	}
}

// pruMergeOps counts the class token's attention, and without RESTORE the centres' cosines and
// sums.
func pruMergeOps(o *Plan, d Dims) float64 {
	attention, centres := float64(o.N+1)*float64(d.Cv), float64(o.NVis)
	if o.Restore {
		return attention
	}
	return attention + centres*float64(o.N)*float64(d.Cv) +
		centres*float64(min(pruMergeNeighbours, o.N-1)+1)*float64(d.Cv)
}

// outliers counts the values above the upper fence of the interquartile rule, percentiles
// interpolated.
func outliers(a []float64) int {
	v := slices.Sorted(slices.Values(a))
	percentile := func(q float64) float64 {
		at := q * float64(len(v)-1)
		i := min(int(at), len(v)-1)
		return v[i] + (at-float64(i))*(v[min(i+1, len(v)-1)]-v[i])
	}
	q1, q3 := percentile(0.25), percentile(0.75)
	fence := q3 + 1.5*(q3-q1)
	n := 0
	for _, x := range a {
		if x > fence {
			n++
		}
	}
	return n
}

// pruMergePlus chooses k of the patches: a quarter by a, the others at equal steps from the rest.
func pruMergePlus(a []float64, k int) []int32 {
	s := topK(a, (k+2)/4)
	left := others(len(a), s)
	for _, i := range gridTokens(len(left), k-len(s)) {
		s = append(s, left[i])
	}
	return s
}

// pruMergeAdaptive is the authors' choice of PruMerge+ centres.
func pruMergeAdaptive(a []float64) []int32 {
	m := outliers(a)
	if m == 0 {
		return nil
	}
	ratio := float64(m) / float64(len(a))
	step := max(1, int(float64(int(1/ratio))/3))
	s := topK(a, m)
	taken := make([]bool, len(a))
	for _, i := range s {
		taken[i] = true
	}
	for i := 0; i < len(a)-1; i += step {
		if !taken[i] {
			s = append(s, int32(i))
		}
	}
	return s
}

// wideAttention is the class token's attention to every patch, with the last layer's heads taken as
// one. [N]
func wideAttention(in *reduce.Input, pool *kernel.Pool) []float64 {
	width := len(in.LastQuery)
	z, top := make([]float64, in.N+1), math.Inf(-1)
	pool.Run(len(z), func(t int) {
		for k, v := range in.LastKeys[t*width:][:width] {
			z[t] += float64(in.LastQuery[k]) * float64(v)
		}
		z[t] /= math.Sqrt(float64(width))
	})
	for _, v := range z {
		top = max(top, v)
	}
	sum := 0.0
	for t, v := range z {
		z[t] = math.Exp(v - top)
		sum += z[t]
	}
	for t := range z {
		z[t] /= sum
	}
	return z[1:]
}

func pruMergePick(w *work, choose func(a []float64) []int32) (*selection, error) {
	a := wideAttention(w.in, w.pool)
	return &selection{kept: choose(a), scores: map[string][]float32{"attention": float32s(a)}}, nil
}

func pruMerge(w *work, choose func(a []float64) []int32) (*reduce.Reduction, error) {
	in := w.in
	a := wideAttention(in, w.pool)
	centres := choose(a)
	rest := others(in.N, centres)
	start := time.Now()
	sums, _, err := pruMergeRows(in, w.pool, a, centres, rest)
	if err != nil {
		return nil, err
	}
	r := &reduce.Reduction{
		N: in.N, Width: in.Cv, Space: reduce.Encoder, Kept: centres, Anchors: centres,
		Scores: map[string][]float32{"attention": float32s(a)},
	}
	feature := map[int32][]float32{-1: sums[len(centres)*in.Cv:]} // by anchor
	for i, s := range centres {
		feature[s] = sums[i*in.Cv:][:in.Cv]
		r.Rows = append(r.Rows, reduce.Row{Members: []int32{s}, Anchor: s, Merged: true, Size: 1})
	}
	if len(rest) > 0 {
		r.Rows = append(r.Rows, reduce.Row{
			Members: rest, Anchor: -1, Merged: true, Size: len(rest),
		})
	}
	w.place(r)
	r.Features = make([]float32, 0, len(r.Rows)*in.Cv)
	for i := range r.Rows {
		r.Features = append(r.Features, feature[r.Rows[i].Anchor]...)
	}
	r.MergeTime = time.Since(start)
	return r, nil
}

// pruMergeRows returns the centres' rows and the extra row, [len(centres)+1, Cv], and each centre's
// neighbours, most similar first. If a patch is a centre more than once, it is its own neighbour.
func pruMergeRows(
	in *reduce.Input, pool *kernel.Pool, a []float64, centres, rest []int32,
) (rows []float32, neighbours [][]int32, err error) {
	width := len(in.LastQuery)
	c, err := newCosines(pool, in.LastKeys[width:], in.N, width, string(reduce.LastKeys))
	if err != nil {
		return nil, nil, err
	}
	neighbours = make([][]int32, len(centres))
	for i, s := range centres {
		list := slices.Concat(centres[:i], centres[i+1:], rest)
		neighbours[i] = c.nearest(s, list, min(pruMergeNeighbours, len(list)))
	}
	rows = make([]float32, (len(centres)+1)*in.Cv)
	pool.Run(len(centres)+1, func(i int) {
		sum, joined := make([]float64, in.Cv), rest
		if i < len(centres) {
			joined = neighbours[i]
			for k, v := range patch(in, centres[i]) {
				sum[k] = float64(v)
			}
		}
		for _, j := range joined {
			for k, v := range patch(in, j) {
				sum[k] += a[j] * float64(v)
			}
		}
		for k, v := range sum {
			rows[i*in.Cv+k] = float32(v)
		}
	})
	return rows, neighbours, nil
}
