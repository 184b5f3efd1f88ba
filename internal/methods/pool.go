package methods

// Pool is the control that ignores the picture's content and drops no token.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/reduce"
)

var poolMethod = &method{
	Method: reduce.Method{
		Name:    "pool",
		Title:   "average pooling of the grid (a control)",
		Summary: "Averages neighbouring patches, for comparison.",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.Grid},
		Minimum: "1 token",
		Cost:    "N·C",
		Notes: reduce.Notes{
			Equations: `
Average pooling of the grid to n cells of nearly equal size. The grid's rows are cut into b
bands, and each band evenly into cells, n in total. A cell is the
plain mean of its tokens after the projector; its position is the token in its middle. b is
sqrt(n·H/W) rounded, so that cells are as square as the grid allows. If n = b² on a
square grid whose side b divides, this is adaptive average pooling to b×b.`,
			Departures: `
Where the cells of adaptive pooling would overlap (b does not divide the side), these do not:
every token is in one cell, and a cell's size is the number of its tokens. A picture made of two
grids (the whole and its tiles) divides the cells between them in proportion to their tokens.
RESTORE does not change the cells, because nothing is kept and each cell already stands for a
group: it only calibrates the decoder's attention for sizes and distances.`,
			Licence: noCode,
		},
	},
	plain: pool,
	whole: true,
	ops:   func(o *Plan, d Dims) float64 { return float64(o.N) * float64(d.C) },
}

func pool(w *work) (*reduce.Reduction, error) {
	var rows []reduce.Row
	if w.in.Grids != nil {
		rows = poolGrids(w.in.Grids, w.o.NVis)
	} else {
		rows = poolCells(w.in.GridH, w.in.GridW, w.o.NVis)
	}
	r := w.fromCells(rows)
	w.means(r)
	return r, nil
}

// checkGrids checks that every token is in exactly one grid.
func checkGrids(in *reduce.Input, m *method) error {
	seen, count := make([]bool, in.N), 0
	for i := range in.Grids {
		g := &in.Grids[i]
		if g.H < 1 || g.W < 1 || g.H*g.W != len(g.Tokens) {
			return fmt.Errorf("methods: %s: grid %d: got %d tokens, want %dx%d", m.Name, i,
				len(g.Tokens), g.H, g.W)
		}
		for _, t := range g.Tokens {
			if t < 0 || int(t) >= in.N || seen[t] {
				return fmt.Errorf("methods: %s: grid %d: token %d, want tokens of 0..%d that are "+
					"nowhere else in a grid", m.Name, i, t, in.N-1)
			}
			seen[t] = true
		}
		count += len(g.Tokens)
	}
	if count != in.N {
		return fmt.Errorf("methods: newlines: got %d tokens on no grid, which %s cannot "+
			"honour: it reads the picture's grids; want newlines drop or skip",
			in.N-count, m.Name)
	}
	return nil
}

// poolGrids divides n cells among the grids in proportion to their tokens, at least one each; with
// fewer cells than grids the last cell takes all remaining grids.
func poolGrids(grids []reduce.Cut, n int) []reduce.Row {
	last := min(n, len(grids)) // grids with their own cells
	total := 0
	for _, g := range grids {
		total += len(g.Tokens)
	}
	counts, left := make([]int, last), n-last
	for i := range counts {
		more := 0
		if total > last {
			more = (n - last) * (len(grids[i].Tokens) - 1) / (total - last)
		}
		counts[i], left = 1+more, left-more
	}
	for i := range counts {
		more := min(left, len(grids[i].Tokens)-counts[i])
		counts[i], left = counts[i]+more, left-more
	}
	var rows []reduce.Row
	for i, k := range counts {
		g := grids[i]
		for _, row := range poolCells(g.H, g.W, k) {
			row.Anchor = g.Tokens[row.Anchor]
			for j, t := range row.Members {
				row.Members[j] = g.Tokens[t]
			}
			slices.Sort(row.Members)
			rows = append(rows, row)
		}
	}
	for _, g := range grids[last:] {
		row := &rows[len(rows)-1]
		row.Members = append(row.Members, g.Tokens...)
		slices.Sort(row.Members)
		row.Size = len(row.Members)
	}
	slices.SortFunc(rows, func(a, b reduce.Row) int { return cmp.Compare(a.Anchor, b.Anchor) })
	return rows
}

// poolCells cuts a grid of h×w tokens into n cells, 1 <= n <= h·w, in raster order of their middle
// tokens.
func poolCells(h, w, n int) []reduce.Row {
	bands := int(math.Round(math.Sqrt(float64(n) * float64(h) / float64(w))))
	bands = min(max(bands, (n+w-1)/w), h, n)
	return cells(h, w, bands, func(b int) int { return (b+1)*n/bands - b*n/bands })
}

// cells cuts a grid of h×w tokens into bands and band b into count(b) cells.
func cells(h, w, bands int, count func(b int) int) []reduce.Row {
	var rows []reduce.Row
	for b := range bands {
		top, bottom, n := b*h/bands, (b+1)*h/bands, count(b)
		for c := range n {
			left, right := c*w/n, (c+1)*w/n
			row := reduce.Row{
				Merged: true, Size: (bottom - top) * (right - left),
				Anchor: int32((top+bottom)/2*w + (left+right)/2),
			}
			for y := top; y < bottom; y++ {
				for x := left; x < right; x++ {
					row.Members = append(row.Members, int32(y*w+x))
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// fromCells is the reduction whose rows are the given cells, without features.
func (w *work) fromCells(rows []reduce.Row) *reduce.Reduction {
	r := &reduce.Reduction{N: w.in.N, Width: w.in.C, Rows: rows}
	for i := range rows {
		r.Anchors = append(r.Anchors, rows[i].Anchor)
	}
	o := *w.o
	o.MergePosition = "anchor"
	(&work{in: w.in, o: &o}).place(r)
	return r
}
