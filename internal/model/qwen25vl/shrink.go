package qwen25vl

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Shrink implements model.Picture.
func (p *picture) Shrink(r *model.Run, rows, cols int) ([]float32, error) {
	if p.shape.Fixed != "" {
		return nil, fmt.Errorf("qwen25vl: %s", p.shape.Fixed)
	}
	e := p.m.vision
	to := [3]int{1, rows * e.Merge, cols * e.Merge}
	out, err := e.encode(r, e.shrink(r, p.px, p.grid, to), arrange([][3]int{to}, e.Merge, e.side()),
		model.Needs{})
	if err != nil {
		return nil, err
	}
	return out.x, nil
}

// shrink resizes a picture from one grid to another: patches in block order.
func (e *encoder) shrink(r *model.Run, px []float32, from, to [3]int) []float32 {
	channels, row := 3*e.Frames, e.patch.In
	n, small := from[1]*from[2], to[1]*to[2]
	raster, picture := r.Buffer("qwen25vl.raster", max(n, small)*row),
		r.Buffer("qwen25vl.picture", n*row)
	nn.Gather(raster, px, inRaster(from, e.Merge), row)
	nn.Unpatch(picture, raster, 1, channels, from[1]*e.Patch, from[2]*e.Patch, e.Patch)
	resized := nn.Resize(picture, channels, from[1]*e.Patch, from[2]*e.Patch, 1, to[1]*e.Patch,
		to[2]*e.Patch, true)
	nn.Patches(raster, resized, 1, channels, to[1]*e.Patch, to[2]*e.Patch, e.Patch)
	out := make([]float32, small*row)
	nn.Gather(out, raster, inverse(inRaster(to, e.Merge)), row)
	return out
}

// inRaster returns, for every patch of a grid, row by row, its index in block order.
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
