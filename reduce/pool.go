package reduce

// Pool is the control that looks at nothing and loses nothing.

import "math"

var poolMethod = &Method{
	Name: "pool", Title: "average pooling of the grid (a control)", Site: AfterEncoder,
	Needs: []Need{Grid}, Minimum: "1 token", plain: pool, whole: true,
	Cost: "N·C",
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
	in, o := w.in, w.o
	r := &Reduction{N: in.N, Width: in.C, Rows: poolCells(in.GridH, in.GridW, o.NVis)}
	for i := range r.Rows {
		r.Anchors = append(r.Anchors, r.Rows[i].Anchor)
	}
	cells := *o
	cells.MergePosition = "anchor"
	(&work{in: in, o: &cells}).place(r)
	w.means(r)
	return r, nil
}

// poolCells cuts a grid of h×w tokens into n cells, 1 <= n <= h·w, in raster order of their middles.
func poolCells(h, w, n int) []Row {
	bands := int(math.Round(math.Sqrt(float64(n) * float64(h) / float64(w))))
	bands = min(max(bands, (n+w-1)/w), h, n)
	rows := make([]Row, 0, n)
	for b := range bands {
		top, bottom := b*h/bands, (b+1)*h/bands
		cells := (b+1)*n/bands - b*n/bands
		for c := range cells {
			left, right := c*w/cells, (c+1)*w/cells
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
