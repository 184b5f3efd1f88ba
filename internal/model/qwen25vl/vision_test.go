package qwen25vl

import (
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/model/cells"
)

// Ensure that windows tile every grid: each cell is in one window, a window holds at most one block
// of side×side cells, and pictures never share a window.
func TestWindows(t *testing.T) {
	for _, side := range []int{1, 3, 4} {
		for h := 1; h <= 9; h++ {
			for w := 1; w <= 9; w++ {
				parts := moments([][3]int{{1, 2 * h, 2 * w}, {1, 4, 2}})
				order, bounds := windows(parts, 2, side)
				for i, c := range slices.Sorted(slices.Values(order)) {
					if int(c) != i {
						t.Fatalf("%dx%d, windows of %d: not a permutation", h, w, side)
					}
				}
				bounds = slices.Compact(bounds)
				if len(order) != h*w+2 || int(bounds[len(bounds)-1]) != 4*len(order) {
					t.Fatalf("%dx%d: %d cells, bounds %v", h, w, len(order), bounds)
				}
				if want := ((h+side-1)/side)*((w+side-1)/side) + (side+1)/side; side > 1 &&
					len(bounds) != want+1 {
					t.Fatalf("%dx%d, windows of %d: %d bounds, want %d", h, w, side, len(bounds),
						want+1)
				}
				pos := append(parts[0].Positions(2), parts[1].Positions(2)...)
				for i := 1; i < len(bounds); i++ {
					lo, hi := int(bounds[i-1]/4), int(bounds[i]/4)
					if lo >= hi || lo < h*w && hi > h*w {
						t.Fatalf("%dx%d: window %d to %d crosses pictures or is empty", h, w, lo,
							hi)
					}
					var rows, cols []float64
					for _, c := range order[lo:hi] {
						for _, p := range pos[4*c : 4*c+4] {
							rows, cols = append(rows, p[1]), append(cols, p[2])
						}
					}
					if slices.Max(rows)-slices.Min(rows) >= float64(2*side) ||
						slices.Max(cols)-slices.Min(cols) >= float64(2*side) {
						t.Fatalf("%dx%d: window %d to %d spans too much", h, w, lo, hi)
					}
				}
			}
		}
	}
}

// moments returns the parts of pictures and videos of those grids.
func moments(grids [][3]int) []cells.Part {
	var parts []cells.Part
	for _, g := range grids {
		parts = append(parts, cells.Moments(g)...)
	}
	return parts
}
