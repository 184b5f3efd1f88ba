package golden

import (
	"math"
	"testing"

	"github.com/restore-vlm/restore/internal/tensor"
)

func TestCompareFails(t *testing.T) {
	want := tensor.From([]int{3}, []float32{1, -2, 0.5})
	nan := float32(math.NaN())
	for name, got := range map[string]*tensor.Tensor{
		"nan":   tensor.From([]int{3}, []float32{1, nan, 0.5}),
		"value": tensor.From([]int{3}, []float32{1, -2, 0.51}),
		"shape": tensor.From([]int{1, 3}, []float32{1, -2, 0.5}),
		"shift": tensor.From([]int{3}, []float32{-2, 0.5, 1}),
	} {
		if Compare(got, want, 1e-3) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := Compare(want, want, 0); err != nil {
		t.Error(err)
	}
}
