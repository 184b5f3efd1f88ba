package methods

// RESTORE: "Improving Visual Token Reduction via Rectifying Distortions for Efficient MLLM
// Inference" (ICML 2026), Eqs. 3-8.

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

var restoreMethod = &method{
	Method: reduce.Method{
		Name:    "restore",
		Title:   "RESTORE: distinctive anchors, original positions, calibrated attention",
		Paper:   "https://arxiv.org/abs/2606.01711",
		Site:    reduce.Calibration,
		Minimum: "the base's minimum for gamma·n tokens",
		Cost: "N²·C (cosines; counted once if the base needs them too); with covered " +
			"anchors N·n·C + N·n²/2",
		Notes: reduce.Notes{
			Equations: `
Of the budget n the base keeps floor(gamma·n) tokens by its own criterion. From the others,
n - floor(gamma·n) anchors are chosen that are dense (Eq. 5: R_i = sum_j C_ij, C the cosines) and
not covered by a denser token (Eqs. 6-8: score R_i (1 - max C_ij over j with R_j > R_i)). Every
other token joins the anchor of highest cosine, and each group becomes the plain mean of its
members. A row then has a size s, the number of its members, and a position, the lower median of
its members.

Every row keeps that position in the decoder, and every layer adds ln(s·(2 - D(distance))) to
its attention logits (Eq. 4), where D is RoPE's long-term decay: the mean over frequencies t of
cos(t·distance) (Eq. 3).

Anchors "covered" (not in the paper) are a greedy maximum of a determinant, given the kept
tokens. With L_ij = exp(-(1-C_ij)/(1-mean C)) and 1.001 on the diagonal, the token of largest
conditional variance v is chosen repeatedly; choosing p subtracts e_i² from every v_i, where e is
the next column of the pivoted Cholesky factor. The kept tokens come first, in ascending order.
The recorded v of each anchor, its gain, never rises.

The tokens that are neither kept nor anchors join a row. "rest": an anchor (the paper). "all": an
anchor or a kept token, which then becomes the mean of its group, at its lower median. "count":
as "all", but a kept token only gains size; its feature and position do not change. Covered
anchors and "all" belong together.`,
			Departures: `
Anchors "paper" is Eqs. 5-8 as printed: a token without a superior has an empty maximum, hence
score +inf, and is always chosen if possible. Anchors "released" is the authors' code: the mask
is reversed (R_j < R_i), an empty maximum counts as -1 and a maximum of exactly -1 as 0, so the
least dense token has score R. anchor-pool says over which tokens Eqs. 5-7 run: all N (paper) or
those not kept (released); anchors always come from those not kept. Anchors "uniform" takes every
(M div k)-th token not kept, in raster order.

The authors' code gives every row the size N/n in the first layer (first-layer-size uniform) and
leaves out the distance for generated tokens (decode-distance false). compat paper and compat
released set all switches; the defaults are the values that measure best on the built-in
benchmark.

Anchors "auto", the default, is "released" for a budget of a ninth of the tokens and more, and
"covered" below; join "auto" is "all" with covered anchors, else "rest". Both were found and
tested only on drawn scenes, not yet on photographs. Inside the decoder anchors are the paper's
or the released code's, and tokens join only anchors.`,
			Licence: "The authors' code is under GPL-3.0.",
		},
	},
}

// representativeness is Eq. 5: R_i = Σ_j C_ij over the tokens j of the pool, including i. R has an
// element for every token; those outside of the pool are 0.
func representativeness(p *kernel.Pool, C *cosines, pool []int32) (R []float64) {
	R = make([]float64, C.n)
	p.Run(len(pool), func(k int) {
		row, sum := C.row(pool[k]), 0.0
		for _, j := range pool {
			sum += float64(row[j])
		}
		R[pool[k]] = sum
	})
	return R
}

// superior is Eq. 6: M_ij = 1 where R_j > R_i.
func superior(R []float64, i, j int32) bool { return R[j] > R[i] }

// redundancy is max_j Ĉ_ij, with Ĉ of Eq. 7: Ĉ_ij = C_ij where M_ij = 1, else −∞. In the released
// code the mask is reversed: higher is false.
func redundancy(C *cosines, R []float64, i int32, pool []int32, higher bool) float64 {
	row, most := C.row(i), math.Inf(-1)
	for _, j := range pool {
		if higher && superior(R, i, j) || !higher && superior(R, j, i) {
			most = max(most, float64(row[j]))
		}
	}
	return most
}

// distinctiveness is the score of Eq. 8, R_i·(1 − max_j Ĉ_ij), with most the maximum. A token
// without a superior has +∞, even if R_i is 0 or negative.
func distinctiveness(R, most float64) (float64, float64) {
	if math.IsInf(most, -1) {
		return most, math.Inf(1)
	}
	return most, R * (1 - most)
}

// releasedDistinctiveness is the released code's form: an empty maximum counts as -1, and a maximum
// of exactly -1 as 0.
func releasedDistinctiveness(R, most float64) (float64, float64) {
	if most <= -1 {
		most = 0
	}
	return most, R * (1 - most)
}

// denseAnchors is Eq. 8, in the paper's or the released code's form: A is the Top-K of the pool's
// tokens that are not kept. It returns indices into r.Rest, ascending, and the cosines for forming
// groups.
func (w *work) denseAnchors(r *reduce.Reduction) ([]int32, similarity, error) {
	pool, rule, higher := r.Rest, distinctiveness, true
	if w.o.AnchorPool == "all" {
		pool = iota32(w.in.N)
	}
	if w.o.Anchors == "released" {
		rule, higher = releasedDistinctiveness, false
	}
	R, most, similar, err := w.densityAndRedundancy(r.Rest, pool, higher)
	if err != nil {
		return nil, nil, err
	}
	m := len(r.Rest)
	score := make([]float64, m)
	r.Density, r.MaxSim, r.Score = make([]float32, m), make([]float32, m), make([]float32, m)
	for k, i := range r.Rest {
		top, s := rule(R[i], most[i])
		score[k] = s
		r.Density[k], r.MaxSim[k], r.Score[k] = float32(R[i]), float32(top), float32(s)
	}
	chosen := topK(score, w.o.Merge)
	slices.Sort(chosen)
	return chosen, similar, nil
}

// densityAndRedundancy returns R and the redundancy of the tokens of list, which are in pool, and
// cosines for forming groups. R and redundancy have an element for every token.
func (w *work) densityAndRedundancy(
	list, pool []int32, higher bool,
) (R, most []float64, similar similarity, err error) {
	if f, ok := w.screens(); ok {
		c, err := newColumns(w.pool, w.in.X, w.in.N, w.in.C, w.in.N, "X")
		if err != nil {
			return nil, nil, nil, err
		}
		if !c.fine {
			R, sum := c.density(pool)
			s, err := newScreen(c, f, R, sum, pool)
			if err != nil {
				return nil, nil, nil, err
			}
			most, err = s.highest(pool, R, higher)
			return R, most, s, err
		}
	}
	c, err := w.cosine()
	if err != nil {
		return nil, nil, nil, err
	}
	R, most = representativeness(w.pool, c, pool), make([]float64, w.in.N)
	w.pool.Run(len(list), func(k int) {
		most[list[k]] = redundancy(c, R, list[k], pool, higher)
	})
	return R, most, c, nil
}

// uniformAnchors takes every (M div k)-th of the M tokens that are not kept, in raster order. It
// returns indices into rest, ascending.
func uniformAnchors(rest []int32, k int) []int32 {
	raster := slices.Clone(rest)
	slices.Sort(raster)
	step, taken := max(1, len(raster)/k), make(map[int32]bool, k)
	for j := range k {
		taken[raster[j*step]] = true
	}
	var chosen []int32
	for i, t := range rest {
		if taken[t] {
			chosen = append(chosen, int32(i))
		}
	}
	return chosen
}

// finish makes the rows from the base's choice: anchors, groups, order, positions.
func (w *work) finish(sel *selection, start time.Time) (*reduce.Reduction, error) {
	in, o := w.in, w.o
	r := &reduce.Reduction{
		Options: o.Resolved, N: in.N, Width: in.C, Kept: sel.kept, Scores: sel.scores,
		Indices: sel.indices,
	}
	for _, t := range sel.kept {
		row := reduce.Row{Anchor: t, Size: 1, IsZero: t < 0}
		if t >= 0 {
			row.Members = []int32{t}
		}
		r.Rows = append(r.Rows, row)
	}
	merge := start
	if o.merges() {
		if r.Rest = sel.rest; r.Rest == nil {
			r.Rest = others(in.N, sel.kept)
		}
		similar, err := w.anchors(r)
		if err != nil {
			return nil, err
		}
		merge = time.Now()
		if err := w.join(r, similar); err != nil {
			return nil, err
		}
	} else {
		merge = time.Now()
	}
	r.SelectTime = merge.Sub(start)
	w.place(r)
	w.means(r)
	r.MergeTime = time.Since(merge)
	return r, nil
}

// merges reports whether tokens that are not kept become part of rows.
func (p *Plan) merges() bool { return p.Merge > 0 || p.Join == "all" || p.Join == "count" }

// allCosines reports whether anchors are chosen by the cosines of all tokens to all.
func (p *Plan) allCosines() bool { return p.Merge > 0 && p.Anchors != "covered" }

// similarity holds the cosines of tokens.
type similarity interface {
	// nearestHeads returns, for every token of list, the head with the highest cosine, the first on
	// ties.
	nearestHeads(list, heads []int32) ([]int32, error)
}

// anchors sets r.Anchors and their scores, and returns the cosines for forming groups.
func (w *work) anchors(r *reduce.Reduction) (similarity, error) {
	o := w.o
	if o.Anchors == "covered" || o.Merge == 0 {
		return w.coveredAnchors(r)
	}
	chosen, similar, err := w.chosenAnchors(r)
	if err != nil {
		return nil, err
	}
	for _, i := range chosen {
		r.Anchors = append(r.Anchors, r.Rest[i])
	}
	return similar, nil
}

// chosenAnchors returns indices into r.Rest, ascending, and the cosines for forming groups.
func (w *work) chosenAnchors(r *reduce.Reduction) ([]int32, similarity, error) {
	if w.o.Anchors != "uniform" {
		return w.denseAnchors(r)
	}
	c, err := w.cosine()
	if err != nil {
		return nil, nil, err
	}
	return uniformAnchors(r.Rest, w.o.Merge), c, nil
}

// join adds the anchors' rows to r, and lets every other token of r.Rest join the row of highest
// cosine: among the anchors, the first on ties, and unless Join is "rest" also among the kept
// tokens, the lowest token on ties.
func (w *work) join(r *reduce.Reduction, similar similarity) error {
	for _, a := range r.Anchors {
		r.Rows = append(r.Rows, reduce.Row{Members: []int32{a}, Anchor: a, Merged: true, Size: 1})
	}
	heads := make([]int32, 0, len(r.Rows)) // rows that tokens may join
	for i := range r.Rows {
		if r.Rows[i].Merged || w.o.Join != "rest" && !r.Rows[i].IsZero {
			heads = append(heads, int32(i))
		}
	}
	if w.o.Join != "rest" || w.o.Anchors == "covered" {
		slices.SortFunc(heads, func(a, b int32) int {
			return cmp.Compare(r.Rows[a].Anchor, r.Rows[b].Anchor)
		})
	}
	tokens := make([]int32, len(heads))
	for j, h := range heads {
		tokens[j] = r.Rows[h].Anchor
	}
	nearest, err := similar.nearestHeads(r.Rest, tokens)
	if err != nil {
		return err
	}
	taken := make([]bool, r.N)
	for _, a := range r.Anchors {
		taken[a] = true
	}
	for i, t := range r.Rest {
		if taken[t] {
			continue
		}
		row := &r.Rows[heads[nearest[i]]]
		row.Members = append(row.Members, t)
		row.Merged = row.Merged || w.o.Join == "all"
	}
	for _, h := range heads {
		row := &r.Rows[h]
		slices.Sort(row.Members)
		row.Size = len(row.Members)
	}
	return nil
}

// nearestColumns returns, for every token of list, the column with the highest cosine, the first on
// ties. to has the cosines of all tokens to each head.
func nearestColumns(p *kernel.Pool, list []int32, to [][]float64) []int32 {
	out := make([]int32, len(list))
	p.Run((len(list)+tokensPerTask-1)/tokensPerTask, func(task int) {
		lo, hi := task*tokensPerTask, min((task+1)*tokensPerTask, len(list))
		var top [tokensPerTask]float64
		for i := range top {
			top[i] = math.Inf(-1)
		}
		for j, column := range to {
			for i, t := range list[lo:hi] {
				if c := column[t]; c > top[i] {
					out[lo+i], top[i] = int32(j), c
				}
			}
		}
	})
	return out
}
