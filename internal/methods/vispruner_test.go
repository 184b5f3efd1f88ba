package methods

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that thinning by lists of neighbours drops what a search over all of the other half drops,
// in the same order: with copies among the tokens, long after every list has run dry, and down to
// two tokens.
func TestThinning(t *testing.T) {
	const n, width = 400, 6
	rng := rand.New(rand.NewPCG(3, 0))
	x := make([]float32, n*width)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for i := range n / 10 { // copies
		copy(x[rng.IntN(n)*width:][:width], x[i*width:][:width])
	}
	pool := kernel.NewPool(2)
	defer pool.Close()
	c, err := newCosines(pool, x, n, width, "X")
	if err != nil {
		t.Fatal(err)
	}
	near, list := newNeighbours(c), iota32(n)
	for len(list) > 2 {
		var even, odd []int32
		for i, j := range list {
			if i%2 == 0 {
				even = append(even, j)
			} else {
				odd = append(odd, j)
			}
		}
		highest := make([]float64, n)
		for _, i := range even {
			highest[i] = math.Inf(-1)
			for _, j := range odd {
				highest[i] = max(highest[i], c.exact(i, j))
			}
		}
		want := slices.Clone(even)
		slices.SortStableFunc(want, func(i, j int32) int {
			switch {
			case highest[i] > highest[j]:
				return -1
			case highest[i] < highest[j]:
				return 1
			}
			return 0
		})
		got := bySimilarity(pool, near, even, odd)
		if !slices.Equal(got, want) {
			t.Fatalf("%d tokens left: got %v, want %v", len(list), got, want)
		}
		drop := min(8, len(even)-1)
		if len(list)-drop < 2 {
			drop = len(list) - 2
		}
		list = append(slices.Clone(got[drop:]), odd...)
	}
}
