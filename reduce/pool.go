package reduce

// Pool is the control that looks at nothing and loses nothing.

import "math"

var poolMethod = &Method{
	Name: "pool", Title: "average pooling of the grid (a control)", Site: AfterEncoder,
	Needs: []Need{Grid}, Minimum: "1 token", plain: pool, whole: true,
	Cost: "N·C",
	ops:  func(o *Resolved, d Dims) float64 { return float64(o.N) * float64(d.C) },
	Notes: Notes{
		Equations: `
Average pooling of the grid to n cells of nearly equal size. The grid's rows are cut into b bands, and band i of them into as many cells as it
takes for n in all, evenly; a cell is the plain mean of its tokens after the projector and sits at the token in its middle. b is
sqrt(n·H/W) to the nearest, so that cells are as square as the grid allows; where n = b² on a square grid whose side b divides, this is
adaptive average pooling to b×b.`,
		Departures: `
Where the cells of adaptive pooling would overlap (b does not divide the side), these do not: every token is in one cell, and a cell's size is
the number of its tokens. Under RESTORE cells stay what they are, as nothing is kept and each already stands for a group: sizes and
distances of the decoder's attention are calibrated.`,
		Licence: noCode,
	},
}

func pool(w *work) (*Reduction, error) {
	r := w.fromCells(poolCells(w.in.GridH, w.in.GridW, w.o.NVis))
	w.means(r)
	return r, nil
}

// poolCells cuts a grid of h×w tokens into n cells, 1 <= n <= h·w, in raster order of their middles.
func poolCells(h, w, n int) []Row {
	bands := int(math.Round(math.Sqrt(float64(n) * float64(h) / float64(w))))
	bands = min(max(bands, (n+w-1)/w), h, n)
	return cells(h, w, bands, func(b int) int { return (b+1)*n/bands - b*n/bands })
}

// cells cuts a grid of h×w tokens into bands and band b into count(b) cells.
func cells(h, w, bands int, count func(b int) int) []Row {
	var rows []Row
	for b := range bands {
		top, bottom, n := b*h/bands, (b+1)*h/bands, count(b)
		for c := range n {
			left, right := c*w/n, (c+1)*w/n
			row := Row{Merged: true, Size: (bottom - top) * (right - left), Anchor: int32((top+bottom)/2*w + (left+right)/2)}
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
func (w *work) fromCells(rows []Row) *Reduction {
	r := &Reduction{N: w.in.N, Width: w.in.C, Rows: rows}
	for i := range rows {
		r.Anchors = append(r.Anchors, rows[i].Anchor)
	}
	o := *w.o
	o.MergePosition = "anchor"
	(&work{in: w.in, o: &o}).place(r)
	return r
}
