package nn

import (
	"math"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that activations have the same names as in transformers' ACT2FN.
func TestActivations(t *testing.T) {
	gelu := func(x float64) float64 { return x * (1 + math.Erf(x/math.Sqrt2)) / 2 }
	tanh := func(x float64) float64 {
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	quick := func(x float64) float64 { return x / (1 + math.Exp(-1.702*x)) }
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	want := map[string]func(x float64) float64{
		"gelu": gelu, "gelu_pytorch_tanh": tanh, "gelu_new": tanh, "gelu_fast": tanh,
		"quick_gelu": quick, "silu": silu, "swish": silu,
	}
	p := kernel.NewPool(1)
	defer p.Close()
	for name, f := range Activations {
		x := []float32{-3, -1, 0, 0.5, 2}
		y := append([]float32(nil), x...)
		f(p, y)
		for i := range x {
			if w := want[name](float64(x[i])); !(math.Abs(float64(y[i])-w) <= 1e-6) {
				t.Errorf("%s(%v): got %v, want %v", name, x[i], y[i], w)
			}
		}
	}
}
