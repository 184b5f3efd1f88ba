package qwen25vl

import "github.com/restore-vlm/restore/internal/model/cells"

// windows returns the cells of parts that are encoded, window by window, and the windows' bounds in
// patches. A window has side by side cells. Windows stay where they are in the whole picture; those
// without a cell are empty.
func windows(parts []cells.Part, merge, side int) (order, bounds []int32) {
	bounds = []int32{0}
	before := 0 // cells of the parts before
	for i := range parts {
		rows, cols := parts[i].Grid[1]/merge, parts[i].Grid[2]/merge
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
							order = append(order, int32(before)+k-1)
						}
					}
				}
				bounds = append(bounds, int32(len(order)*merge*merge))
			}
		}
		before += len(encoded)
	}
	return order, bounds
}
