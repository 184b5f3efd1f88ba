package engine_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// wideTol is absolute, for probabilities computed here in float64 from traced float32 queries and
// keys.
const wideTol = 1e-6

// Ensure that PruMerge reads the last layer's queries and keys as one head.
func TestPruMergeReadsTheLastLayer(t *testing.T) {
	got := restoreTrace(t, 2)(t, 1, methods.Options{Base: "prumerge", NVis: 64})
	floats := func(x *tensor.Tensor) []float32 {
		v, err := x.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	layers := 0
	for got[fmt.Sprintf("vision.layer.%d.k", layers)] != nil {
		layers++
	}
	last := fmt.Sprintf("vision.layer.%d.", layers-1)
	q, k, attention := floats(got[last+"q"]), floats(got[last+"k"]), floats(got["reduce.attention"])
	width := got[last+"k"].Shape[2]
	p, sum := make([]float64, len(attention)+1), 0.0
	for i := range p {
		dot := 0.0
		for j := range width {
			dot += float64(q[j]) * float64(k[i*width+j])
		}
		p[i] = math.Exp(dot / math.Sqrt(float64(width)))
		sum += p[i]
	}
	for i, a := range attention {
		if !(math.Abs(float64(a)-p[i+1]/sum) <= wideTol) {
			t.Fatalf("patch %d: got %v, want %v", i, a, p[i+1]/sum)
		}
	}
}

// Ensure that a method without RESTORE that determines its number of tokens reports it.
func TestAdaptiveBudget(t *testing.T) {
	trace := restoreTrace(t, 2)
	for _, base := range []string{"prumerge", "prumerge-plus"} {
		got := trace(t, 0, methods.Options{Base: base})
		rows := got["reduce.features"].Shape[0]
		if rows < 2 || rows >= 576 || got["reduce.size"].Len() != rows {
			t.Errorf("%s: got %d rows and %d sizes of 576 tokens", base, rows,
				got["reduce.size"].Len())
		}
	}
}
