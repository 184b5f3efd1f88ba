package nn

import (
	"slices"
	"testing"
)

// Ensure rows are copied, averaged by their weights, and followed by what came behind them.
func TestReplace(t *testing.T) {
	x := []float32{1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}
	Replace(nil, x, 6, 2, 1, 4, []Mix{{From: []int32{3}}, {From: []int32{0, 2}, Weight: []float32{3, 1}}, {From: []int32{0, 1}}})
	want := []float32{1, 10, 5, 50, 2.5, 25, 2.5, 25, 6, 60}
	if got := x[:10]; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
