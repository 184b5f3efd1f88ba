package onevision

import (
	"math"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llavanext"
	"github.com/restore-vlm/restore/internal/nn"
)

// layout tells how the patches of a picture's views become tokens. A patch has the index
// view·patches + patch.
type layout struct {
	views  int
	rows   []nn.Mix // a row for each token that is no newline
	of     []int32  // [rows] its view
	source []int32  // [tokens] index of the row, or newline
	grids  [][2]int // rows and columns of the whole picture, then of the map of tiles
}

const newline = -1

// row adds a row of view v.
func (l *layout) row(v int, m nn.Mix) {
	l.source = append(l.source, int32(len(l.rows)))
	l.rows, l.of = append(l.rows, m), append(l.of, int32(v))
}

// view adds the rows of a whole view of side² patches.
func (l *layout) view(side int) {
	for i := range side * side {
		l.row(l.views, one(l.views*side*side+i))
	}
	l.views, l.grids = l.views+1, append(l.grids, [2]int{side, side})
}

// end adds a newline.
func (l *layout) end() { l.source = append(l.source, newline) }

func one(i int) nn.Mix { return nn.Mix{From: []int32{int32(i)}} }

// single lays out one of several pictures: its view, and a newline.
func (c *Config) single() *layout {
	l := &layout{}
	l.view(c.Vision.Grid())
	l.end()
	return l
}

// pack lays out the only picture of a prompt, h by w pixels: the view of all of it, then the
// stitched map of the tiles, cut to the part that shows the picture and shrunk if it has more
// patches than Most views, with a newline after each of its rows.
func (c *Config) pack(h, w int) *layout {
	l := &layout{}
	p := c.Vision.Grid()
	l.view(p)
	ch, cw := imageproc.Canvas(c.Canvases, w, h)
	down, across := ch/c.Vision.ImageSide, cw/c.Vision.ImageSide
	l.views += down * across
	top, left := llavanext.Uncovered(h, w, down*p, across*p)
	rows, cols := down*p-2*top, across*p-2*left
	toRows, toCols := c.capped(rows, cols)
	// patch returns the view of a place of the uncut map, and the patch's index.
	patch := func(y, x int) (view, index int) {
		y, x = y+top, x+left
		view = 1 + y/p*across + x/p
		return view, view*p*p + y%p*p + x%p
	}
	ys, xs := nn.Bilinear(rows, toRows), nn.Bilinear(cols, toCols)
	for _, y := range ys {
		for _, x := range xs {
			view, _ := patch(y.Nearest(), x.Nearest())
			l.row(view, y.Across(x, func(y, x int) int {
				_, i := patch(y, x)
				return i
			}))
		}
		l.end()
	}
	l.grids = append(l.grids, [2]int{toRows, toCols})
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
// end.
func (c *Config) clip(frames int) *layout {
	l := &layout{views: frames}
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

// shape describes a picture of that layout, or a video.
func (m *Model) shape(l *layout, video bool) *model.Shape {
	s := &model.Shape{N: len(l.source), Fixed: "it cuts pictures into tiles"}
	m.FillShape(s)
	s.NoClass, s.T, s.Video = true, len(l.rows)+1, video
	s.Closed = "its encoder has no class token; no such method is defined for this"
	s.Views = &model.Views{Count: l.views, Source: l.source, Grids: l.grids, Of: l.of}
	if video { // one list
		s.Fixed, s.Views.Count, s.Views.Of = "this is a video", 1, make([]int32, len(l.rows))
		s.FrameH = (m.cfg.Vision.Grid() + 1) / 2
		s.FrameW = s.FrameH
	}
	for i := range l.rows {
		s.Views.All = append(s.Views.All, int32(i))
	}
	return s
}
