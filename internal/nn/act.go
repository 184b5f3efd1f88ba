package nn

import "github.com/restore-vlm/restore/internal/kernel"

// Pool is the worker pool that every layer uses.
type Pool = kernel.Pool

// Add is x += y for slices of equal length: a residual connection.
func Add(p *Pool, x, y []float32) { kernel.Add(p, x, y) }

// AddScaled is x += w ⊙ y over rows of length len(w): a residual connection with layer scale.
// Without w it is Add.
func AddScaled(p *Pool, x, y, w []float32) {
	if w == nil {
		Add(p, x, y)
		return
	}
	kernel.AddScaled(p, x, y, w)
}

// Activations are activation functions, in place, by their names in config.json.
var Activations = map[string]func(p *Pool, x []float32){
	"gelu": GELU, "gelu_pytorch_tanh": GELUTanh, "gelu_new": GELUTanh, "gelu_fast": GELUTanh,
	"quick_gelu": QuickGELU, "silu": SiLU, "swish": SiLU,
}

// GELU is x·Φ(x) in place, computed exactly by erf.
func GELU(p *Pool, x []float32) { kernel.GELU(p, x) }

// GELUTanh is x·(1+tanh(√(2/π)·(x+0.044715·x³)))/2 in place.
func GELUTanh(p *Pool, x []float32) { kernel.GELUTanh(p, x) }

// QuickGELU is x·sigmoid(1.702·x) in place.
func QuickGELU(p *Pool, x []float32) { kernel.QuickGELU(p, x) }

// SiLU is x·sigmoid(x) in place.
func SiLU(p *Pool, x []float32) { kernel.SiLU(p, x) }

// GEGLUErf is gate = GELU(gate) ⊙ up in place.
func GEGLUErf(p *Pool, gate, up []float32) { kernel.GELUMul(p, gate, up) }

// GEGLU is gate = GELUTanh(gate) ⊙ up in place.
func GEGLU(p *Pool, gate, up []float32) { kernel.GELUTanhMul(p, gate, up) }

// SwiGLU is gate = SiLU(gate) ⊙ up in place.
func SwiGLU(p *Pool, gate, up []float32) { kernel.SiLUMul(p, gate, gate, up) }
