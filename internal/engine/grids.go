package engine

import (
	"github.com/restore-vlm/restore/internal/imageproc"
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
		g.Ends = ends(&g, source)
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
