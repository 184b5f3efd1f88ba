package methods

// A picture may reach the encoder in views: a small version of the whole, and tiles. Each view has
// its own class token and attention. So criteria that compare attention or merge by keys read each
// view separately (VisPruner, VisionZip, PruMerge), and the budget is divided equally among the
// views, as in the authors' code with a budget per view. HoloV, DivPrune and the controls see all
// tokens as one list. Anchors are always chosen over all tokens.
//
// Departures: if the views cannot share the total equally, the remainder goes to the first view,
// the whole picture; if a view has too few tokens, the others get the rest of its share.
// VisPruner's shares are multiples of 4, as its passes require.

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// shares splits k over views of the given sizes: units to each view in turn, the remainder to the
// first views with room.
func shares(k int, sizes []int, unit int) []int {
	out := make([]int, len(sizes))
	for left := k; ; {
		before := left
		for i, n := range sizes {
			if left >= unit && out[i]+unit <= n {
				out[i] += unit
				left -= unit
			}
		}
		if left < before {
			continue
		}
		for i, n := range sizes {
			more := min(left, n-out[i])
			out[i] += more
			left -= more
		}
		return out
	}
}

func (m *method) shares(k int, sizes []int) []int { return shares(k, sizes, max(1, m.unit)) }

// checkViews refuses tokens that are in no view.
func (p *Plan) checkViews(sizes []int) error {
	total := 0
	for _, n := range sizes {
		total += n
	}
	switch {
	case total == p.N:
		return nil
	case p.Newlines == "drop": // a file has tokens that are in no view
		return fmt.Errorf("methods: %s: view: %d of %d tokens are in none, want each in one: it "+
			"selects in each view", p.method.Name, p.N-total, p.N)
	}
	return refused("newlines", errs.Conflict, p.Newlines, "drop",
		p.method.Name+" selects in each view of the picture, and newlines are in none")
}

// checkShares asks the criterion whether it can keep its share, or each view's.
func (p *Plan) checkShares(sizes []int) error {
	m := p.method
	switch {
	case m.check == nil || p.Keep == 0:
		return nil
	case !m.PerView || len(sizes) < 2:
		return m.check(p, p.Keep)
	}
	for i, o := range p.views(sizes) {
		if o.Keep == 0 {
			continue
		}
		if err := m.check(o, o.Keep); err != nil {
			return fmt.Errorf("%w (view %d of %d, which has %d of the picture's %d tokens)",
				err, i, len(sizes), o.N, p.N)
		}
	}
	return nil
}

// views returns the plan of each view.
func (p *Plan) views(sizes []int) []*Plan {
	keep := p.method.shares(p.Keep, sizes)
	var parts []own
	if p.method.split != nil {
		parts = p.method.split(p, sizes, keep)
	}
	out := make([]*Plan, len(sizes))
	for i, n := range sizes {
		o := *p
		o.inViews, o.facts.Views = true, nil
		o.N, o.Keep, o.Positions = n, keep[i], "original"
		if parts != nil {
			o.own = parts[i]
		}
		if !p.Restore {
			o.NVis = keep[i]
		}
		out[i] = &o
	}
	return out
}

// pick runs the criterion of m over the picture, or over each view.
func (w *work) pick(m *method, k int) (*selection, error) {
	if !m.PerView || len(w.in.Views) < 2 {
		return m.pick(w, k)
	}
	out := &selection{scores: map[string][]float32{}, indices: map[string][]int32{}}
	plans := w.o.views(w.in.ViewSizes())
	picked, bad := make([]*selection, len(plans)), make([]error, len(plans))
	w.pool.Run(len(plans), func(i int) {
		if v := &w.in.Views[i]; len(v.Tokens) > 0 {
			one := &work{in: viewInput(w.in, v), o: plans[i], pool: w.pool}
			picked[i], bad[i] = m.pick(one, plans[i].Keep)
		}
	})
	if err := cmp.Or(bad...); err != nil {
		return nil, err
	}
	for i, sel := range picked {
		if sel != nil {
			v := &w.in.Views[i]
			out.kept = append(out.kept, tokensOf(v, sel.kept)...)
			collect(v, w.in.N, out.scores, out.indices, sel.scores, sel.indices)
		}
	}
	return out, nil
}

// plain runs m without RESTORE over the picture, or over each view. Rows of views are put into
// reading order, a view's class token at the view's beginning. The released code's order is the
// first view, then the tiles' kept rows, class tokens and merged rows.
func (w *work) plain(m *method) (*reduce.Reduction, error) {
	if !m.PerView || len(w.in.Views) < 2 {
		return m.plain(w)
	}
	var rows []placed
	r := &reduce.Reduction{N: w.in.N, Scores: map[string][]float32{}, Indices: map[string][]int32{}}
	for i, vo := range w.o.views(w.in.ViewSizes()) {
		v := &w.in.Views[i]
		if len(v.Tokens) == 0 || vo.NVis == 0 && w.o.NVis != 0 {
			continue
		}
		p, err := m.plain(&work{in: viewInput(w.in, v), o: vo, pool: w.pool})
		if err != nil {
			return nil, err
		}
		r.Width, r.Space = p.Width, p.Space
		r.SelectTime, r.MergeTime = r.SelectTime+p.SelectTime, r.MergeTime+p.MergeTime
		r.Kept, r.Anchors = append(r.Kept, tokensOf(v, p.Kept)...),
			append(r.Anchors, tokensOf(v, p.Anchors)...)
		collect(v, r.N, r.Scores, r.Indices, p.Scores, p.Indices)
		for j, row := range p.Rows {
			row.Members, row.Position = tokensOf(v, row.Members),
				float64(v.Tokens[int(row.Position)])
			if row.Anchor >= 0 {
				row.Anchor = v.Tokens[row.Anchor]
			}
			rows = append(rows, placed{row, i, p.Features[j*p.Width : (j+1)*p.Width]})
		}
	}
	slices.SortStableFunc(rows, func(a, b placed) int {
		if w.o.ReleasedOrder {
			return releasedOrder(&a, &b)
		}
		return w.o.inReadingOrder(&a.Row, &b.Row, r.N)
	})
	r.Group = make([]int32, r.N)
	for i := range r.Group {
		r.Group[i] = -1
	}
	for i := range rows {
		if w.o.Positions == "sequential" {
			rows[i].Position = float64(i)
		}
		for _, t := range rows[i].Members {
			r.Group[t] = int32(i)
		}
		r.Rows, r.Features = append(r.Rows, rows[i].Row), append(r.Features, rows[i].feature...)
	}
	return r, nil
}

// placed is a row of a view, with its features.
type placed struct {
	reduce.Row
	view    int
	feature []float32
}

// releasedOrder compares rows as the authors' code orders them: the first view, then of all others
// the kept rows by position, the class tokens and the merged rows.
func releasedOrder(a, b *placed) int {
	if a.view == 0 || b.view == 0 {
		return cmp.Compare(min(a.view, 1), min(b.view, 1))
	}
	kind := func(p *placed) int {
		switch {
		case p.Merged:
			return 2
		case p.IsClass:
			return 1
		}
		return 0
	}
	if c := cmp.Compare(kind(a), kind(b)); c != 0 || kind(a) > 0 {
		return c
	}
	return cmp.Compare(a.Position, b.Position)
}

// tokensOf maps a view's tokens to the picture's.
func tokensOf(v *reduce.View, list []int32) []int32 {
	if list == nil {
		return nil
	}
	out := make([]int32, len(list))
	for i, t := range list {
		out[i] = v.Tokens[t]
	}
	return out
}

// collect writes a view's scores, one per token, into the picture's, and appends its lists of
// tokens.
func collect(
	v *reduce.View, n int, scores map[string][]float32, indices map[string][]int32,
	own map[string][]float32, lists map[string][]int32,
) {
	for name, s := range own {
		if scores[name] == nil {
			scores[name] = make([]float32, n)
		}
		for i, x := range s {
			scores[name][v.Tokens[i]] = x
		}
	}
	for name, list := range lists {
		indices[name] = append(indices[name], tokensOf(v, list)...)
	}
}

// viewInput returns the part of in that a criterion reads in one view.
func viewInput(in *reduce.Input, v *reduce.View) *reduce.Input {
	n := len(v.Tokens)
	out := &reduce.Input{
		N: n, C: in.C, NoClass: in.NoClass, Heads: in.Heads, Cv: in.Cv, KeyDim: in.KeyDim,
		Seed: in.Seed, LastQuery: v.LastQuery, GridH: v.H, GridW: v.W, CellDim: in.CellDim,
		Text: in.Text, ClipDim: in.ClipDim, ClipText: in.ClipText,
	}
	out.X = rowsOf(in.X, v.Tokens, in.C)
	attention := func(a []float32) []float32 {
		return perHead(a, v.Tokens, len(a)/(in.N+1), in.N, 1)
	}
	out.ClsAttn, out.ClsAttnShallow = attention(in.ClsAttn), attention(in.ClsAttnShallow)
	out.ReceivedMid, out.ReceivedDeep = attention(in.ReceivedMid), attention(in.ReceivedDeep)
	if in.Cells != nil {
		out.Cells = rowsOf(in.Cells, v.Tokens, in.CellDim)
	}
	if in.ClipImage != nil {
		out.ClipImage = rowsOf(in.ClipImage, v.Tokens, in.ClipDim)
	}
	if in.Padding != nil {
		out.Padding = make([]bool, n)
		for i, t := range v.Tokens {
			out.Padding[i] = in.Padding[t]
		}
	}
	if in.Keys != nil {
		out.Keys = perHead(in.Keys, v.Tokens, in.Heads, in.N, in.KeyDim)
	}
	if in.Hidden != nil {
		out.Hidden = append(slices.Clone(v.Class), rowsOf(in.Hidden[in.Cv:], v.Tokens, in.Cv)...)
	}
	if w := len(v.LastQuery); in.LastKeys != nil {
		out.LastKeys = append(slices.Clone(v.LastClass), rowsOf(in.LastKeys[w:], v.Tokens, w)...)
	}
	return out
}

// perHead selects tokens of x [heads, n+1, width]; the class token's place stays zero.
func perHead(x []float32, tokens []int32, heads, n, width int) []float32 {
	out := make([]float32, heads*(len(tokens)+1)*width)
	for h := range heads {
		copy(out[(h*(len(tokens)+1)+1)*width:], rowsOf(x[(h*(n+1)+1)*width:], tokens, width))
	}
	return out
}

func rowsOf(x []float32, rows []int32, width int) []float32 {
	out := make([]float32, 0, len(rows)*width)
	for _, t := range rows {
		out = append(out, x[int(t)*width:(int(t)+1)*width]...)
	}
	return out
}

// checkViews checks that the views' tokens are the picture's, each in at most one view, and that
// their class tokens have the widths in in.
func checkViews(in *reduce.Input, m *method) error {
	seen := make([]bool, in.N)
	for i := range in.Views {
		v := &in.Views[i]
		for k, t := range v.Tokens {
			if t < 0 || int(t) >= in.N || seen[t] || k > 0 && v.Tokens[k-1] >= t {
				return fmt.Errorf(
					"methods: %s: view %d: token %d, want ascending tokens of 0..%d that are "+
						"in no other view", m.Name, i, t, in.N-1)
			}
			seen[t] = true
		}
		if in.Hidden != nil && len(v.Class) != in.Cv || in.LastKeys != nil &&
			(len(v.LastClass) != len(v.LastQuery) || len(v.LastQuery) != len(in.LastQuery)) {
			return fmt.Errorf(
				"methods: %s: view %d: class token of another width than the picture's", m.Name, i)
		}
	}
	return nil
}
