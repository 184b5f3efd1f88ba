package engine

import (
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/reduce"
)

// grids returns the positions on the picture of its reduced tokens, or of all tokens if it was not
// reduced.
func (p *picture) grids() []imageproc.Grid {
	v := p.shape.Unpruned()
	if v.Views != nil {
		return p.viewGrids()
	}
	if v.GridH == 0 {
		return nil
	}
	g := imageproc.Grid{Rows: v.GridH, Cols: v.GridW}
	if len(p.frames) > 0 {
		g.Frame = p.frames[0]
	}
	return []imageproc.Grid{g}
}

// viewGrids is grids for a picture that was encoded in views.
func (p *picture) viewGrids() []imageproc.Grid {
	v := p.shape.Views
	source := v.Source
	if p.list != nil {
		source = p.list.source
	}
	token := make(map[int32]int32, len(source)) // index of each patch's token
	for t, s := range source {
		if s >= 0 {
			token[s] = int32(t)
		}
	}
	var grids []imageproc.Grid
	patches := v.All
	for i, size := range v.Grids {
		g := imageproc.Grid{Rows: size[0], Cols: size[1], Tokens: make([]int32, size[0]*size[1])}
		if i > 0 {
			g.Tile = v.Side
		}
		if i < len(p.frames) {
			g.Frame = p.frames[i]
		}
		for k, s := range patches[:len(g.Tokens)] {
			g.Tokens[k] = -1
			if t, ok := token[s]; ok {
				g.Tokens[k] = t
			}
		}
		patches = patches[len(g.Tokens):]
		if v.Texts == nil {
			g.Ends = ends(&g, source)
		}
		grids = append(grids, g)
	}
	return grids
}

// cuts returns, for a picture encoded in views, the grids on which its tokens lie, without the
// padding that was cut off at their edges.
func (p *picture) cuts() []reduce.Cut {
	var out []reduce.Cut
	for _, g := range p.viewGrids() {
		top, left, bottom, right := g.Rows, g.Cols, 0, 0
		for k, t := range g.Tokens {
			if t >= 0 {
				y, x := k/g.Cols, k%g.Cols
				top, left, bottom, right = min(top, y), min(left, x), max(bottom, y+1),
					max(right, x+1)
			}
		}
		if top >= bottom {
			continue
		}
		c := reduce.Cut{H: bottom - top, W: right - left}
		for y := top; y < bottom; y++ {
			c.Tokens = append(c.Tokens, g.Tokens[y*g.Cols+left:y*g.Cols+right]...)
		}
		out = append(out, c)
	}
	return out
}

// moments returns the grids of a video whose moments are one list; nil if s is none.
func moments(s *model.Shape) []reduce.Cut {
	var out []reduce.Cut
	n := s.FrameH * s.FrameW
	for at := int32(0); n > 0 && int(at)+n <= s.N; at += int32(n) {
		c := reduce.Cut{H: s.FrameH, W: s.FrameW, Tokens: make([]int32, n)}
		for i := range c.Tokens {
			c.Tokens[i] = at + int32(i)
		}
		out = append(out, c)
	}
	return out
}

// rectangles sets the sides of the views whose tokens fill a rectangle of one of the grids.
func rectangles(views []reduce.View, grids []imageproc.Grid) {
	type place struct{ grid, y, x int }
	at := map[int32]place{}
	for i, g := range grids {
		for k, t := range g.Tokens {
			at[t] = place{i, k / g.Cols, k % g.Cols}
		}
	}
	for i := range views {
		v := &views[i]
		if len(v.Tokens) == 0 {
			continue
		}
		first, last := at[v.Tokens[0]], at[v.Tokens[len(v.Tokens)-1]] // raster order
		h, w := last.y-first.y+1, last.x-first.x+1
		fills := h*w == len(v.Tokens)
		for k, t := range v.Tokens {
			fills = fills && at[t] == place{first.grid, first.y + k/w, first.x + k%w}
		}
		if fills {
			v.H, v.W = h, w
		}
	}
}

// ends returns the index of the newline after each row of g, or nil if there are none.
func ends(g *imageproc.Grid, source []int32) []int32 {
	out, any := make([]int32, g.Rows), false
	for y := range out {
		out[y] = -1
		for _, t := range g.Tokens[y*g.Cols : (y+1)*g.Cols] {
			if next := int(t) + 1; t >= 0 && next < len(source) && source[next] < 0 {
				out[y], any = int32(next), true
			}
		}
	}
	if !any {
		return nil
	}
	return out
}
