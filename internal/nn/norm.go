package nn

import "github.com/restore-vlm/restore/internal/kernel"

// RMSNorm is y = w ⊙ x / sqrt(mean(x²) + eps) over rows of length len(W).
type RMSNorm struct {
	W   []float32
	Eps float32
}

// Apply normalises rows rows of x [rows, len(W)] into y; y may be x.
func (n *RMSNorm) Apply(p *kernel.Pool, y, x []float32, rows int) {
	d := len(n.W)
	kernel.RMSNorm(p, y[:rows*d], x[:rows*d], rows, n.W, n.Eps)
}

// LayerNorm is y = w ⊙ (x − mean(x)) / sqrt(var(x) + eps) + b over rows of length len(W).
type LayerNorm struct {
	W, B []float32
	Eps  float32
}

// Apply normalises rows rows of x [rows, len(W)] into y; y may be x.
func (n *LayerNorm) Apply(p *kernel.Pool, y, x []float32, rows int) {
	d := len(n.W)
	kernel.LayerNorm(p, y[:rows*d], x[:rows*d], rows, n.W, n.B, n.Eps)
}
