package llavanext

import (
	"strconv"

	"github.com/restore-vlm/restore/internal/imageproc"
)

// layout gives the source of each token of one picture.
type layout struct {
	tiles      int // base included
	rows, cols int // of the stitched map without its padding
	// source holds, in the decoder's order, tile·patches + patch, or newline.
	source []int32
	// all holds every patch in reading order, including padding, of grids with these rows and
	// columns.
	all   []int32
	grids [][2]int
}

const newline = -1

// pack lays out a picture of h by w pixels: the base tile's grid, then the stitched map of the
// tiles, cut to the part that shows the picture, with a newline after each of its rows.
func (c *Config) pack(h, w int) layout {
	ch, cw := imageproc.Canvas(c.Canvases, w, h)
	p, side := c.Vision.Grid(), c.Vision.ImageSide
	across := cw / side
	rows, cols := ch/side*p, cw/side*p
	r0, c0 := Uncovered(h, w, rows, cols)
	l := layout{
		tiles: 1 + ch/side*across, rows: rows - 2*r0, cols: cols - 2*c0,
		grids: [][2]int{{p, p}, {rows, cols}},
	}
	for i := range p * p {
		l.source, l.all = append(l.source, int32(i)), append(l.all, int32(i))
	}
	for y := range rows {
		for x := range cols {
			src := int32((1+y/p*across+x/p)*p*p + y%p*p + x%p)
			l.all = append(l.all, src)
			if y >= r0 && y < rows-r0 && x >= c0 && x < cols-c0 {
				l.source = append(l.source, src)
			}
		}
		if y >= r0 && y < rows-r0 {
			l.source = append(l.source, newline)
		}
	}
	return l
}

// Uncovered returns how many rows at top and bottom, or columns at left and right, of a rows by
// cols map show nothing of a picture of h by w pixels. An odd excess leaves one row or column of
// padding.
func Uncovered(h, w, rows, cols int) (top, left int) {
	if float64(w)/float64(h) > float64(cols)/float64(rows) {
		return (rows - scaled(h, float64(cols)/float64(w))) / 2, 0
	}
	return 0, (cols - scaled(w, float64(rows)/float64(h))) / 2
}

// scaled returns n·by, rounded to 7 decimals and then truncated, so that a product just below a
// whole number becomes that number.
func scaled(n int, by float64) int {
	f, _ := strconv.ParseFloat(strconv.FormatFloat(float64(n)*by, 'f', 7, 64), 64)
	return int(f)
}
