package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

// scaledTol bounds the rounding of one product and one sum of numbers near 1.
const scaledTol = 4e-7

// Ensure that rows are scaled by column, for every length of rows and numbers of them that one task
// and several take.
func TestAddScaled(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := NewPool(2)
	defer p.Close()
	for width := 1; width < 40; width++ {
		for _, rows := range []int{0, 1, 3, rowsPerTask, rowsPerTask + 1, 5 * rowsPerTask} {
			dst, x := make([]float32, rows*width), make([]float32, rows*width)
			w, want := make([]float32, width), make([]float64, rows*width)
			for i := range w {
				w[i] = rng.Float32()
			}
			for i := range dst {
				dst[i], x[i] = rng.Float32(), rng.Float32()
				want[i] = float64(dst[i]) + float64(w[i%width])*float64(x[i])
			}
			AddScaled(p, dst, x, w)
			for i := range dst {
				if !(math.Abs(float64(dst[i])-want[i]) <= scaledTol) {
					t.Fatalf("%d rows of %d: %v at %d, want %v", rows, width, dst[i], i, want[i])
				}
			}
		}
	}
}
