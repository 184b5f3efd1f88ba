package methods

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Ensure that cosines do not depend on the length of rows, not even where float32 cannot hold their
// products, and that copies stay copies.
func TestCosinesOfAnyLength(t *testing.T) {
	const n, width = 37, 70
	rng := rand.New(rand.NewPCG(3, 1))
	x := make([]float32, n*width)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	copy(x[5*width:6*width], x[3*width:4*width])
	clear(x[9*width : 10*width])
	want, err := newCosines(nil, x, n, width, "X")
	if err != nil {
		t.Fatal(err)
	}
	for name, scale := range map[string]func(i int) float64{
		"short": func(int) float64 { return 0x1p-70 }, "long": func(int) float64 { return 0x1p80 },
		"mixed": func(i int) float64 { return math.Ldexp(1, i*3-60) }, "one long": func(i int) float64 { return math.Ldexp(1, 60*(i/(n-1))) },
	} {
		y := make([]float32, len(x))
		for i := range y {
			y[i] = float32(float64(x[i]) * scale(i/width))
		}
		got, err := newCosines(nil, y, n, width, "X")
		if err != nil {
			t.Fatal(err)
		}
		for i := range want.c {
			// float32Margin bounds what two orders of rounding differ by.
			if !(math.Abs(float64(got.c[i])-float64(want.c[i])) <= float32Margin) {
				t.Fatalf("%s: cosine of %d and %d: got %v, want %v", name, i/n, i%n, got.c[i],
					want.c[i])
			}
		}
		for j := range n {
			if name != "mixed" && got.c[3*n+j] != got.c[5*n+j] || got.c[9*n+j] != 0 ||
				j != 9 && got.c[j*n+j] != 1 {
				t.Errorf("%s: copies %v and %v, zeros %v, itself %v", name, got.c[3*n+j],
					got.c[5*n+j], got.c[9*n+j], got.c[j*n+j])
			}
		}
	}
}
