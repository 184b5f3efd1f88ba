package qwen25vl

import (
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/nn"
)

// order describes the order of the patches of one batch of pictures. A cell is one merged token,
// merge×merge patches. Patches arrive cell by cell in raster order (block order). The blocks
// process them window by window (window order), which keeps a cell's patches together.
type order struct {
	patches, cells int
	window         []int32  // [cells] index in window order → cell
	reverse        []int32  // [cells] its inverse
	raw            []int32  // window bounds in patches, including empty windows
	windows        []int32  // the same without the empty ones
	pictures       []int32  // picture bounds in patches
	pos            []nn.Pos // [patches] row and column of each patch, block order
	inWindows      []nn.Pos // the same in window order
}

// arrange lays out pictures of grids (frames, rows, columns in patches), with windows of side
// cells.
func arrange(grids [][3]int, merge, side int) *order {
	o := &order{raw: []int32{0}, pictures: []int32{0}}
	for _, g := range grids {
		rows, cols := g[1]/merge, g[2]/merge
		o.pos = append(o.pos, cells.Positions(g, merge)...)
		// The reference pads each side to a multiple of the window; a side that already is a
		// multiple gets a whole window.
		for y := 0; y <= rows; y += side {
			for x := 0; x <= cols; x += side {
				for cy := y; cy < min(y+side, rows); cy++ {
					for cx := x; cx < min(x+side, cols); cx++ {
						o.window = append(o.window, int32(o.cells+cy*cols+cx))
					}
				}
				o.raw = append(o.raw, int32(len(o.window)*merge*merge))
			}
		}
		o.cells += rows * cols
		o.patches += rows * cols * merge * merge
		o.pictures = append(o.pictures, int32(o.patches))
	}
	o.windows = o.raw[:1:1]
	for i := 1; i < len(o.raw); i++ {
		if o.raw[i] != o.raw[i-1] {
			o.windows = append(o.windows, o.raw[i])
		}
	}
	o.reverse = make([]int32, o.cells)
	for at, cell := range o.window {
		o.reverse[cell] = int32(at)
		for p := range merge * merge {
			o.inWindows = append(o.inWindows, o.pos[int(cell)*merge*merge+p])
		}
	}
	return o
}
