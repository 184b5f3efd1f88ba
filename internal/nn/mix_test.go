package nn

import (
	"slices"
	"testing"
)

// Ensure that rows are copied or averaged with their weights, and that later rows follow them.
func TestReplace(t *testing.T) {
	x := []float32{1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}
	Replace(nil, x, 6, 2, 1, 4, []Mix{
		{From: []int32{3}}, {From: []int32{0, 2}, Weight: []float32{3, 1}}, {From: []int32{0, 1}},
	})
	want := []float32{1, 10, 5, 50, 2.5, 25, 2.5, 25, 6, 60}
	if got := x[:10]; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Ensure that rows in the middle are replaced by rows made of them, moved or mixed, and that later
// rows move forward.
func TestReplaceMovesRows(t *testing.T) {
	for name, c := range map[string]struct {
		mixes []Mix
		want  []float32
	}{
		"all":     {[]Mix{{From: []int32{0}}, {From: []int32{1}}, {From: []int32{2}}}, []float32{1, 1, 2, 2, 4, 4, 8, 8, 16, 16}},
		"moved":   {[]Mix{{From: []int32{0}}, {From: []int32{2}}}, []float32{1, 1, 2, 2, 8, 8, 16, 16}},
		"last":    {[]Mix{{From: []int32{2}}}, []float32{1, 1, 8, 8, 16, 16}},
		"none":    {nil, []float32{1, 1, 16, 16}},
		"swapped": {[]Mix{{From: []int32{2}}, {From: []int32{0}}}, []float32{1, 1, 8, 8, 2, 2, 16, 16}},
		// (2+8)/2
		"mean": {[]Mix{{From: []int32{1}}, {From: []int32{0, 2}}}, []float32{1, 1, 4, 4, 5, 5, 16, 16}},
		// (3·2+4)/4
		"weighted": {[]Mix{{From: []int32{0, 1}, Weight: []float32{3, 1}}, {From: []int32{2}}}, []float32{1, 1, 2.5, 2.5, 8, 8, 16, 16}},
	} {
		x := []float32{1, 1, 2, 2, 4, 4, 8, 8, 16, 16}
		Replace(nil, x, 5, 2, 1, 3, c.mixes)
		if got := x[:len(c.want)]; !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
