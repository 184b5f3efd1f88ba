package methods

import (
	"cmp"
	"slices"

	"github.com/restore-vlm/restore/reduce"
)

// Positions, order and features of rows.

// place sets the rows' positions and order, and fills Group.
func (w *work) place(r *reduce.Reduction) {
	o := w.o
	for i := range r.Rows {
		r.Rows[i].Position = rowPosition(o, r.N, &r.Rows[i])
	}
	if !o.ReleasedOrder {
		slices.SortStableFunc(r.Rows, func(a, b reduce.Row) int {
			return o.inReadingOrder(&a, &b, r.N)
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

// inReadingOrder compares rows of n tokens by position.
func (p *Plan) inReadingOrder(a, b *reduce.Row, n int) int {
	released := p.Compat == "released"
	return cmp.Or(cmp.Compare(a.Position, b.Position),
		cmp.Compare(tieOrder(a, n, released), tieOrder(b, n, released)))
}

// tieOrder is the key that orders rows of equal position, which only means can cause: kept rows
// before merged ones (except in the released code), then by smallest member. The class token is
// before all others, rows of zeros are after all others.
func tieOrder(row *reduce.Row, n int, released bool) int {
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

// rowPosition is the position of a row among n tokens.
func rowPosition(o *Plan, n int, row *reduce.Row) float64 {
	switch s := len(row.Members); {
	case row.IsClass:
		return 0
	case s == 0:
		return float64(n - 1)
	case s == 1 && !o.MirrorLast:
		return float64(row.Members[0])
	case s > 1 && !row.Merged: // other tokens only add to its size
		return float64(row.Anchor)
	}
	return groupPosition(o, n, row)
}

// groupPosition is the position of a group. The lower median is always a member's position, so no
// two rows share one.
func groupPosition(o *Plan, n int, row *reduce.Row) float64 {
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

// Along returns the position of a row on an axis on which token t has coordinate at(t): for a
// merged row with axes-median or axes-mean, the lower median or the mean of its members'
// coordinates. ok is false if the row has its Position in reading order.
//
// For the merged tokens of 24 pictures (576 tokens to 64 over HoloV, 24x24 cells), the distance to
// their members in cells (root mean square), and the share that have the same cell as another:
// median 3.2 and 0 %, axes-median 2.9 and 4 %, axes-mean 2.7 and 1 %, mean 8.0 and 1.5 %. The
// default is the median: always a member's cell, and no two tokens on the same cell.
func (r *Plan) Along(row *reduce.Row, at func(token int32) float64) (v float64, ok bool) {
	m := row.Members
	how := r.MergePosition
	if len(m) < 2 || !row.Merged || how != "axes-median" && how != "axes-mean" {
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

// joinKept makes the rows of r, which has kept tokens: every other token joins the head of highest
// cosine, the lowest on ties. Heads are kept tokens. A row is the plain mean of its group in x
// [N, r.Width], at its kept token's position.
func (w *work) joinKept(r *reduce.Reduction, c similarity, heads []int32, x []float32) error {
	heads = slices.Sorted(slices.Values(heads))
	rest := others(r.N, r.Kept)
	to, err := c.nearestHeads(rest, heads)
	if err != nil {
		return err
	}
	members := map[int32][]int32{}
	for i, t := range rest {
		members[heads[to[i]]] = append(members[heads[to[i]]], t)
	}
	for _, t := range slices.Sorted(slices.Values(r.Kept)) {
		list := append(members[t], t)
		slices.Sort(list)
		row := reduce.Row{Members: list, Anchor: t, Size: len(list), Merged: len(list) > 1}
		if row.Merged {
			r.Anchors = append(r.Anchors, t)
		}
		r.Rows = append(r.Rows, row)
	}
	o := *w.o
	o.MergePosition = "anchor"
	(&work{in: w.in, o: &o}).place(r)
	r.Features = make([]float32, len(r.Rows)*r.Width)
	w.pool.Run(len(r.Rows), func(i int) {
		mean(r.Features[i*r.Width:(i+1)*r.Width], x, r.Width, r.Rows[i].Members)
	})
	return nil
}

// means fills Features: a kept token's own row bit for bit, the plain mean of a group (including
// the anchor), zeros for a zero row.
func (w *work) means(r *reduce.Reduction) {
	width, x := w.in.C, w.in.X
	r.Features = make([]float32, len(r.Rows)*width)
	parts := (width + meanColumns - 1) / meanColumns
	w.pool.Run(len(r.Rows)*parts, func(task int) {
		i, col := task/parts, task%parts*meanColumns
		row := &r.Rows[i]
		from := row.Members
		if !row.Merged && len(from) > 1 { // other tokens only add to its size
			from = []int32{row.Anchor}
		}
		mean(r.Features[i*width+col:i*width+min(col+meanColumns, width)], x[col:], width, from)
	})
}

// meanColumns is how many columns of a group a task averages: their sums stay in the first-level
// cache, and a large group is shared by several threads.
const meanColumns = 1024

// mean writes the mean of the given rows of x, stride elements apart, to dst, summed in float64;
// the row itself if there is one, nothing if there is none.
func mean(dst, x []float32, stride int, rows []int32) {
	width := len(dst)
	switch len(rows) {
	case 0:
		return
	case 1:
		copy(dst, x[int(rows[0])*stride:])
		return
	}
	n, sum := len(rows), make([]float64, width)
	for ; len(rows) >= 4; rows = rows[4:] {
		a, b := x[int(rows[0])*stride:][:width], x[int(rows[1])*stride:][:width]
		c, d := x[int(rows[2])*stride:][:width], x[int(rows[3])*stride:][:width]
		for k := range sum {
			sum[k] += (float64(a[k]) + float64(b[k])) + (float64(c[k]) + float64(d[k]))
		}
	}
	for _, t := range rows {
		for k, v := range x[int(t)*stride:][:width] {
			sum[k] += float64(v)
		}
	}
	for k, v := range sum {
		dst[k] = float32(v / float64(n))
	}
}
