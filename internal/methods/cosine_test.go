package methods

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
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

// Ensure that exact gives the same bits in whatever order, one by one or a row at once: x·y summed
// in order with fused multiply-adds, each row divided by its length.
func TestExactCosines(t *testing.T) {
	const n, width = 203, 19
	rng := rand.New(rand.NewPCG(4, 1))
	x := make([]float32, n*width)
	for i := range x {
		x[i] = float32(1 + 0.01*rng.NormFloat64())
	}
	copy(x[5*width:6*width], x[3*width:4*width])
	clear(x[9*width : 10*width])
	pool := kernel.NewPool(2)
	defer pool.Close()
	c, err := newCosines(pool, x, n, width, "X")
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range rng.Perm(n * n) {
		i, j := pair/n, pair%n
		a, b, want := x[i*width:][:width], x[j*width:][:width], 0.0
		for k := 0; k < width && i != 9 && j != 9; k++ {
			want = math.FMA(float64(a[k])/norm(a), float64(b[k])/norm(b), want)
		}
		if got := c.exact(int32(i), int32(j)); got != want {
			t.Fatalf("cosine of %d and %d: got %v, want %v", i, j, got, want)
		}
	}
	if computed := len(c.fine); computed > n*n/wholeShare {
		t.Errorf("%d cosines were computed one by one, want at most one in %d", computed,
			wholeShare)
	}
}
