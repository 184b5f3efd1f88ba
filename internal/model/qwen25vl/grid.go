package qwen25vl

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
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
		for y := range rows {
			for x := range cols {
				for p := range merge * merge {
					o.pos = append(o.pos, nn.Pos{
						0, float64(y*merge + p/merge), float64(x*merge + p%merge),
					})
				}
			}
		}
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

// moments returns grids of one frame each; a video's grids are consecutive. The encoder's
// attention does not cross moments.
func moments(grids [][3]int) [][3]int {
	var out [][3]int
	for _, g := range grids {
		for range g[0] {
			out = append(out, [3]int{1, g[1], g[2]})
		}
	}
	return out
}

// checkGrids returns an error unless px's grids describe its patches, of pictures or of a video.
func checkGrids(px *imageproc.Pixels, merge int) error {
	total, rows := 0, px.Shape[0]
	for i, g := range px.GridTHW {
		if g[0] != 1 && !(px.SecondsPerMoment > 0 && g[0] > 0 && g[0] <= rows) {
			return fmt.Errorf("qwen25vl: image_grid_thw: picture %d: got %d frames, want 1", i,
				g[0])
		}
		for _, n := range g[1:] {
			if n < 1 || n > rows || n%merge != 0 {
				return fmt.Errorf(
					"qwen25vl: image_grid_thw: picture %d: got %dx%d patches, want positive "+
						"multiples of spatial_merge_size %d", i, g[1], g[2], merge)
			}
		}
		if g[1]*g[2] > rows || g[0]*g[1]*g[2] > rows {
			total = -1
			break
		}
		if total += g[0] * g[1] * g[2]; total > rows {
			break
		}
	}
	if total != rows || rows == 0 {
		return fmt.Errorf("qwen25vl: image_grid_thw: %v, want grids of %d patches together "+
			"(the rows of pixel_values)", px.GridTHW, rows)
	}
	return nil
}
