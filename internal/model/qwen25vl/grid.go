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
	// [patches] what attention adds to the scores of keys, window order; nil: nothing
	logSize []float32
}

// arrange lays out the cells of parts that are encoded, with windows of side cells. Windows stay
// where they are in the whole picture; those without a cell are empty.
func arrange(parts []cells.Part, merge, side int) *order {
	o := &order{raw: []int32{0}, pictures: []int32{0}}
	for i := range parts {
		rows, cols := parts[i].Grid[1]/merge, parts[i].Grid[2]/merge
		o.pos = append(o.pos, parts[i].Positions(merge)...)
		encoded := parts[i].Cells(merge)
		place := make([]int32, rows*cols) // 1 + index among the encoded cells; 0: left out
		for k, c := range encoded {
			place[c] = int32(k) + 1
		}
		// The reference pads each side to a multiple of the window; a side that already is a
		// multiple gets a whole window.
		for y := 0; y <= rows; y += side {
			for x := 0; x <= cols; x += side {
				for cy := y; cy < min(y+side, rows); cy++ {
					for cx := x; cx < min(x+side, cols); cx++ {
						if k := place[cy*cols+cx]; k > 0 {
							o.window = append(o.window, int32(o.cells)+k-1)
						}
					}
				}
				o.raw = append(o.raw, int32(len(o.window)*merge*merge))
			}
		}
		o.cells += len(encoded)
		o.patches += len(encoded) * merge * merge
		o.pictures = append(o.pictures, int32(o.patches))
	}
	o.windows = o.raw[:1:1]
	for i := 1; i < len(o.raw); i++ {
		if o.raw[i] != o.raw[i-1] {
			o.windows = append(o.windows, o.raw[i])
		}
	}
	if sizes := cells.LogSizes(parts, merge); sizes != nil {
		o.logSize = nn.Gathered(sizes, o.window, merge*merge)
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
