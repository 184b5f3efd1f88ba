package reduce

// RESTORE: "Improving Visual Token Reduction via Rectifying Distortions for Efficient MLLM Inference" (ICML 2026), Eqs. 3-8.

import (
	"cmp"
	"math"
	"slices"
	"time"
)

var restoreMethod = &Method{
	Name: "restore", Title: "RESTORE: distinctive anchors, original positions, calibrated attention", Paper: "https://arxiv.org/abs/2606.01711", Site: Calibration,
	Params: []Param{
		{"gamma", "0.5", "share of the budget that the method below keeps by its own criterion"},
		{"anchors", "released", "which rule chooses anchors: paper|released|uniform"},
		{"anchor-pool", "rest", "tokens over which densities run: all|rest"},
		{"merge-position", "median", "where a merged row sits: median|median-mean|mean|first|last|anchor of the reading order, axes-median|axes-mean of rows and columns apart"},
		{"calibrate", "full", "which terms of Eq. 4 act: full|size|distance|off"},
		{"first-layer-size", "group", "sizes in the decoder's first layer: group|uniform"},
		{"decode-distance", "true", "whether generated tokens are calibrated for distance: true|false"},
	},
	Minimum: "what the method below asks of gamma·n tokens",
	Cost:    "N²·C (cosines; made once where the method below needs them too)",
	Notes: Notes{
		Equations: `
Of the budget n the method below keeps floor(gamma·n) tokens by its own criterion. From the others, n - floor(gamma·n) anchors are chosen that are
dense (Eq. 5: R_i = sum_j C_ij, C the cosines) and not covered by a token that is denser (Eqs. 6-8: score R_i (1 - max C_ij over j with R_j >
R_i)); every other token joins the anchor of highest cosine and each group becomes the plain mean of its members. A row then has a size
s, its members, and a position, the lower median of its members.

Every row keeps that position in the decoder, and in every layer ln(s·(2 - D(distance))) is added to its attention logits (Eq. 4), D being RoPE's
long-term decay: the mean over frequencies t of cos(t·distance) (Eq. 3).`,
		Departures: `
Anchors "paper" is Eqs. 5-8 as printed: a token without a superior has an empty maximum, hence score +inf, and is always chosen when it can
be. Anchors "released" is what the authors' code does: the mask is the other way round (R_j < R_i), an empty maximum counts as -1 and a maximum of
exactly -1 as 0, so the least dense token has score R. --anchor-pool says over which tokens Eqs. 5-7 run: all N (paper) or those not kept
(released); anchors always come from those not kept. Anchors "uniform" takes every (M div k)-th token not kept, in raster order.

The authors' code gives every row N/n for its size in the first layer (--first-layer-size uniform) and leaves out the distance for generated
tokens (--decode-distance=false). --compat paper and --compat released set all switches; the defaults are what measures best on the built-in
benchmark.`,
		Licence: "The authors' code is under GPL-3.0.",
	},
}

// finish makes the rows from what the base kept: anchors, merging, order, positions.
func (w *work) finish(sel *selection, start time.Time) (*Reduction, error) {
	in, o := w.in, w.o
	r := &Reduction{Options: *o, N: in.N, Width: in.C, Kept: sel.kept, Scores: sel.scores, Indices: sel.indices}
	var assign []int32
	if o.Merge > 0 {
		r.Rest = sel.rest
		if r.Rest == nil {
			r.Rest = others(in.N, sel.kept)
		}
		c, err := w.cosine()
		if err != nil {
			return nil, err
		}
		chosen := w.anchors(r, c)
		r.SelectTime = time.Since(start)
		assign = assignTo(c, r.Rest, chosen)
	} else {
		r.SelectTime = time.Since(start)
	}
	merge := time.Now()

	r.Rows = make([]Row, 0, o.NVis)
	for _, t := range sel.kept {
		if t < 0 {
			r.Rows = append(r.Rows, Row{Anchor: -1, IsZero: true, Size: 1})
			continue
		}
		r.Rows = append(r.Rows, Row{Members: []int32{t}, Anchor: t, Size: 1})
	}
	if o.Merge > 0 {
		first := len(r.Rows)
		for _, a := range r.Anchors {
			r.Rows = append(r.Rows, Row{Anchor: a, Merged: true})
		}
		for i, t := range r.Rest {
			row := &r.Rows[first+int(assign[i])]
			row.Members = append(row.Members, t)
		}
		for i := first; i < len(r.Rows); i++ {
			slices.Sort(r.Rows[i].Members)
			r.Rows[i].Size = len(r.Rows[i].Members)
		}
	}
	w.place(r)
	w.means(r)
	r.MergeTime = time.Since(merge)
	return r, nil
}

// anchors chooses o.Merge of r.Rest, writes the scores and r.Anchors (pool order), and returns the anchors' places in r.Rest.
func (w *work) anchors(r *Reduction, c *cosines) []int32 {
	k := w.o.Merge
	var chosen []int32
	if w.o.Anchors == "uniform" {
		raster := slices.Clone(r.Rest)
		slices.Sort(raster)
		step, taken := max(1, len(raster)/k), make(map[int32]bool, k)
		for j := range k {
			taken[raster[j*step]] = true
		}
		for i, t := range r.Rest {
			if taken[t] {
				chosen = append(chosen, int32(i))
			}
		}
	} else {
		chosen = topK(w.score(r, c), k)
		slices.Sort(chosen)
	}
	r.Anchors = make([]int32, k)
	for j, i := range chosen {
		r.Anchors[j] = r.Rest[i]
	}
	return chosen
}

// score computes Eqs. 5-8 for every token of r.Rest.
func (w *work) score(r *Reduction, c *cosines) []float64 {
	pool := r.Rest
	if w.o.AnchorPool == "all" {
		pool = iota32(w.in.N)
	}
	released := w.o.Anchors == "released"
	density := make([]float64, w.in.N) // Eq. 5, by original index; self-similarity included
	w.in.Pool.Run(len(pool), func(i int) {
		row, sum := c.row(pool[i]), 0.0
		for _, j := range pool {
			sum += float64(row[j])
		}
		density[pool[i]] = sum
	})
	score := make([]float64, len(r.Rest))
	r.Density, r.MaxSim, r.Score = make([]float32, len(score)), make([]float32, len(score)), make([]float32, len(score))
	w.in.Pool.Run(len(score), func(i int) {
		t := r.Rest[i]
		row, own, best := c.row(t), density[t], math.Inf(-1)
		if released {
			best = -1
		}
		for _, j := range pool { // Eqs. 6 and 7
			if superior := density[j] > own; superior != released && density[j] != own && float64(row[j]) > best {
				best = float64(row[j])
			}
		}
		if released && best == -1 {
			best = 0
		}
		score[i] = own * (1 - best) // Eq. 8
		if math.IsInf(best, -1) {
			score[i] = math.Inf(1) // also where R is 0 or negative
		}
		r.Density[i], r.MaxSim[i], r.Score[i] = float32(own), float32(best), float32(score[i])
	})
	return score
}

// assignTo gives every token of rest the anchor of highest cosine, the first on ties; an anchor itself. chosen are places in rest; the
// result is an index into chosen.
func assignTo(c *cosines, rest, chosen []int32) []int32 {
	assign := make([]int32, len(rest))
	for i, t := range rest {
		row, best := c.row(t), 0
		for j, a := range chosen {
			if row[rest[a]] > row[rest[chosen[best]]] {
				best = j
			}
		}
		assign[i] = int32(best)
	}
	for j, a := range chosen {
		assign[a] = int32(j)
	}
	return assign
}

// place gives the rows their positions and their order, and fills Group.
func (w *work) place(r *Reduction) {
	o := w.o
	for i := range r.Rows {
		r.Rows[i].Position = rowPosition(o, r.N, &r.Rows[i])
	}
	if released := o.Compat == "released"; !o.ReleasedOrder {
		slices.SortStableFunc(r.Rows, func(a, b Row) int {
			if c := cmp.Compare(a.Position, b.Position); c != 0 {
				return c
			}
			return cmp.Compare(a.tieOrder(r.N, released), b.tieOrder(r.N, released))
		})
	}
	r.Group = make([]int32, r.N)
	for i := range r.Group {
		r.Group[i] = -1
	}
	for i := range r.Rows {
		if o.Positions == "sequential" {
			r.Rows[i].Position = float64(i)
		}
		for _, t := range r.Rows[i].Members {
			r.Group[t] = int32(i)
		}
	}
}

// tieOrder is the key that orders rows of equal position, which only means can give: kept rows before merged ones (not so in the released
// code), then by smallest member. The class token is before all, rows of zeros are after all.
func (row *Row) tieOrder(n int, released bool) int {
	switch {
	case row.IsClass:
		return -1
	case row.IsZero:
		return 2 * n
	case row.Merged && !released:
		return n + int(row.Members[0])
	}
	return int(row.Members[0])
}

// rowPosition is where a row sits among n tokens.
func rowPosition(o *Resolved, n int, row *Row) float64 {
	switch s := len(row.Members); {
	case row.IsClass:
		return 0
	case s == 0:
		return float64(n - 1)
	case s == 1 && !o.MirrorLast:
		return float64(row.Members[0])
	}
	return groupPosition(o, n, row)
}

// groupPosition is where a group sits. The lower median is always a member's own place, so no two rows share one.
func groupPosition(o *Resolved, n int, row *Row) float64 {
	m := row.Members
	s := len(m)
	switch o.MergePosition {
	case "first":
		return float64(m[0])
	case "last":
		if o.MirrorLast {
			return float64(n - 1 - int(m[s-1]))
		}
		return float64(m[s-1])
	case "mean", "axes-mean":
		sum := 0.0
		for _, t := range m {
			sum += float64(t)
		}
		return sum / float64(s)
	case "median-mean":
		return (float64(m[(s-1)/2]) + float64(m[s/2])) / 2
	case "anchor":
		return float64(row.Anchor)
	}
	return float64(m[(s-1)/2])
}

// Along returns where a row sits on an axis on which token t has coordinate at(t): where it grew together, under axes-median and axes-mean, the
// lower median or the mean of its members' coordinates. ok is false where the row sits at its Position in reading order.
//
// Merged tokens of 24 pictures (576 tokens to 64 over HoloV, 24x24 cells) sit so many cells from their members (root mean square), and so many
// share their cell with another: median 3.2 and 0 %, axes-median 2.9 and 4 %, axes-mean 2.7 and 1 %, mean 8.0 and 1.5 %. The default is the
// median: always a member's own cell, and no two tokens at one.
func (r *Resolved) Along(row *Row, at func(token int32) float64) (v float64, ok bool) {
	m := row.Members
	how := r.MergePosition
	if len(m) < 2 || how != "axes-median" && how != "axes-mean" {
		return 0, false
	}
	all := make([]float64, len(m))
	sum := 0.0
	for k, t := range m {
		all[k] = at(t)
		sum += all[k]
	}
	if how == "axes-mean" {
		return sum / float64(len(m)), true
	}
	slices.Sort(all)
	return all[(len(m)-1)/2], true
}

// means fills Features: a kept token's own row bit for bit, the plain mean of a group (anchor included), zeros for a zero row.
func (w *work) means(r *Reduction) {
	width, x := w.in.C, w.in.X
	r.Features = make([]float32, len(r.Rows)*width)
	w.in.Pool.Run(len(r.Rows), func(i int) {
		mean(r.Features[i*width:][:width], x, r.Rows[i].Members)
	})
}

// mean writes the mean of the given rows of x [*, len(dst)] to dst, summed in float64; the row itself if there is one, nothing if none.
func mean(dst, x []float32, rows []int32) {
	width := len(dst)
	switch len(rows) {
	case 0:
		return
	case 1:
		copy(dst, x[int(rows[0])*width:])
		return
	}
	n, sum := len(rows), make([]float64, width)
	for ; len(rows) >= 4; rows = rows[4:] {
		a, b := x[int(rows[0])*width:][:width], x[int(rows[1])*width:][:width]
		c, d := x[int(rows[2])*width:][:width], x[int(rows[3])*width:][:width]
		for k := range sum {
			sum[k] += (float64(a[k]) + float64(b[k])) + (float64(c[k]) + float64(d[k]))
		}
	}
	for _, t := range rows {
		for k, v := range x[int(t)*width:][:width] {
			sum[k] += float64(v)
		}
	}
	for k, v := range sum {
		dst[k] = float32(v / float64(n))
	}
}
