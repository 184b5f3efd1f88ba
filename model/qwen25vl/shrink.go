package qwen25vl

import (
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
)

// later is the picture of grid g whose patches are px, to be encoded anew.
func (m *Model) later(px []float32, g [3]int) *model.Visual {
	e := m.vision
	rows, cols := g[1]/e.Merge, g[2]/e.Merge
	v := &model.Visual{N: rows * cols, C: e.Out, NoClass: true, Heads: e.Heads, T: rows*cols + 1, Cv: e.Out, KeyDim: e.attn.HeadDim}
	v.Grid(rows, cols)
	m.again(v, px, g)
	v.Again.Whole = func(r *model.Run) (*model.Visual, error) {
		one, err := m.Encode(r, &imageproc.Pixels{Shape: []int{g[1] * g[2], e.patch.In}, Data: px, GridTHW: [][3]int{g}}, model.Needs{})
		if err != nil {
			return nil, err
		}
		return one[0], nil
	}
	return v
}

// again says how the picture of grid g whose patches are px is encoded anew.
func (m *Model) again(v *model.Visual, px []float32, g [3]int) {
	v.Again.Closed = "its blocks attend in windows and its merger joins 2x2 patches, for which no such method is defined"
	if g[0] > 1 {
		v.Again.Fixed = "this is a video"
		return
	}
	v.Again.Shrink = func(r *model.Run, rows, cols int) ([]float32, error) {
		e := m.vision
		to := [3]int{1, rows * e.Merge, cols * e.Merge}
		out, err := e.encode(r, e.shrink(r, px, g, to), arrange([][3]int{to}, e.Merge, e.side()), model.Needs{})
		if err != nil {
			return nil, err
		}
		return out.x, nil
	}
}

// shrink resizes a picture from one grid to another: patches in block order.
func (e *encoder) shrink(r *model.Run, px []float32, from, to [3]int) []float32 {
	channels, row := 3*e.Frames, e.patch.In
	n, small := from[1]*from[2], to[1]*to[2]
	raster, picture := r.Buffer("qwen25vl.raster", max(n, small)*row), r.Buffer("qwen25vl.picture", n*row)
	nn.Gather(raster, px, inRaster(from, e.Merge), row)
	nn.Unpatch(picture, raster, 1, channels, from[1], from[2], e.Patch)
	resized := nn.Resize(picture, channels, from[1]*e.Patch, from[2]*e.Patch, 1, to[1]*e.Patch, to[2]*e.Patch, true)
	nn.Patches(raster, resized, 1, channels, to[1], to[2], e.Patch)
	out := make([]float32, small*row)
	nn.Gather(out, raster, inverse(inRaster(to, e.Merge)), row)
	return out
}

// inRaster returns for every patch of a grid, row by row, its place in block order.
func inRaster(g [3]int, merge int) []int32 {
	var out []int32
	for y := range g[1] {
		for x := range g[2] {
			cell := y/merge*(g[2]/merge) + x/merge
			out = append(out, int32(cell*merge*merge+y%merge*merge+x%merge))
		}
	}
	return out
}

func inverse(order []int32) []int32 {
	out := make([]int32, len(order))
	for i, j := range order {
		out[j] = int32(i)
	}
	return out
}
