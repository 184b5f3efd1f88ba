package onevision

import (
	"math"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/nn"
)

// layout tells how the patches of a picture's views become tokens.
type layout struct {
	model.Views
	rows []nn.Mix // of patches, for each token that is no newline
}

// row adds a row of view v.
func (l *layout) row(v int, m nn.Mix) {
	i := int32(len(l.rows))
	l.rows, l.Of = append(l.rows, m), append(l.Of, int32(v))
	l.Source, l.All = append(l.Source, i), append(l.All, i)
}

// whole adds the rows of the view of the whole picture, of side² patches.
func (l *layout) whole(side int) {
	for i := range side * side {
		l.row(0, nn.Mix{From: []int32{int32(i)}})
	}
	l.Count, l.Grids = 1, append(l.Grids, [2]int{side, side})
}

// end adds a newline.
func (l *layout) end() { l.Source = append(l.Source, llava.Newline) }

// single lays out one of several pictures: its view, and a newline (3).
func (c *Config) single() *layout {
	l := &layout{}
	l.whole(c.Vision.Grid())
	l.end()
	return l
}

// pack lays out the only picture of a prompt: the view of all of it, then m, the stitched map of
// the tiles, cut to the part that shows the picture and shrunk if it has more patches than Most
// views, with a newline after each of its rows (2).
func (c *Config) pack(m *llava.Map) *layout {
	l := &layout{}
	l.whole(c.Vision.Grid())
	l.Count = m.Views
	toRows, toCols := c.capped(m.Rows, m.Cols)
	ys, xs := nn.Bilinear(m.Rows, toRows), nn.Bilinear(m.Cols, toCols)
	for _, y := range ys {
		for _, x := range xs {
			view, _ := m.Patch(y.Nearest(), x.Nearest())
			l.row(view, y.Across(x, func(y, x int) int {
				_, i := m.Patch(y, x)
				return i
			}))
		}
		l.end()
	}
	l.Grids = append(l.Grids, [2]int{toRows, toCols})
	return l
}

// capped returns the size to which a map of rows by cols patches is shrunk.
func (c *Config) capped(rows, cols int) (toRows, toCols int) {
	p := c.Vision.Grid()
	ratio := math.Sqrt(float64(rows*cols) / float64(c.Most*p*p))
	if ratio <= 1.1 {
		return rows, cols
	}
	return max(1, floorDiv(rows, ratio)), max(1, floorDiv(cols, ratio))
}

// floorDiv is Python's n // by: exact, where n/by may be rounded up to a whole number.
func floorDiv(n int, by float64) int {
	rest := math.Mod(float64(n), by)
	return int(math.Round((float64(n) - rest) / by))
}

// clip lays out a video: the patches of each frame, shrunk to half the side, and a newline at the
// end (4).
func (c *Config) clip(frames int) *layout {
	l := &layout{Views: model.Views{Count: frames}}
	p := c.Vision.Grid()
	taps := nn.Bilinear(p, (p+1)/2)
	for f := range frames {
		for _, y := range taps {
			for _, x := range taps {
				l.row(f, y.Across(x, func(y, x int) int { return (f*p+y)*p + x }))
			}
		}
	}
	l.end()
	return l
}
