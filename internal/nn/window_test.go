package nn

import (
	"math"
	"math/rand"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/racetest"
)

// tolWindow is a few float32 roundings of sums of numbers near 1.
const tolWindow = 2e-6

// Ensure that a sliding window hides all but the last keys, in one pass, in pieces over a cache and
// one token at a time, with and without calibration.
func TestWindow(t *testing.T) {
	const heads, kv, dim, n = 4, 2, 8, 23
	rng := rand.New(rand.NewSource(3))
	random := func(k int) []float32 {
		v := make([]float32, k)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	q, k, v := random(n*heads*dim), random(n*kv*dim), random(n*kv*dim)
	for _, x := range [][]float32{k, v} { // so that a cache of float16 holds them exactly
		half := make([]uint16, len(x))
		kernel.NarrowHalf(half, x)
		kernel.WidenHalf(x, half)
	}
	pos, size := make([]Pos, n), make([]float32, n)
	for i := range pos {
		pos[i], size[i] = At(float64(2*i)), float32(1+i%3)
	}
	fractional := append([]Pos(nil), pos...)
	fractional[5] = At(10.5)
	rope := NewRoPE(dim, 10000, nil)
	pool := kernel.NewPool(3)
	defer pool.Close()
	for name, c := range map[string]struct {
		calib *Calibration
		pos   []Pos
	}{
		"plain":      {nil, pos},
		"calibrated": {&Calibration{Size: true, Distance: true, Distances: NewDistances(rope, 64)}, pos},
		"sizes":      {&Calibration{Size: true}, pos},
		"fractional": {&Calibration{Size: true, Distance: true, Distances: NewDistances(rope, 64)}, fractional},
	} {
		for _, window := range []int{1, 2, 7, n - 1, n, n + 5, 0} {
			all := Attention{Heads: heads, KVHeads: kv, HeadDim: dim}
			at := Attention{Heads: heads, KVHeads: kv, HeadDim: dim, Window: window}
			whole := NewKVPool(kv, dim, false).NewCache(1)
			whole.Layer(0).Append(nil, k, v, c.pos, size)
			call := Call{Q: q, Pos: c.pos, Cache: whole.Layer(0), Calib: c.calib}
			probs, got := all.CausalProbs(nil, call), at.CausalProbs(nil, call)
			want := make([]float32, n*heads*dim)
			for h := range heads {
				for i := range n {
					var sum float64
					row := probs[(h*n+i)*n : (h*n+i+1)*n]
					first := 0
					if window > 0 {
						first = max(0, i+1-window)
					}
					for j := first; j <= i; j++ {
						sum += float64(row[j])
					}
					for j := range row {
						p := 0.0
						if j >= first && j <= i {
							p = float64(row[j]) / sum
						}
						if g := float64(got[(h*n+i)*n+j]); !(math.Abs(g-p) <= tolWindow) {
							t.Fatalf(
								"%s, window %d: probability of key %d for query %d is %v, want %v",
								name, window, j, i, g, p)
						}
						for d := range dim {
							want[(i*heads+h)*dim+d] += float32(p) * v[(j*kv+h/(heads/kv))*dim+d]
						}
					}
				}
			}
			for _, piece := range []int{n, 9, 1, -n, -9, -1} {
				cache := NewKVPool(kv, dim, piece < 0).NewCache(1)
				if piece < 0 {
					piece = -piece
				}
				out := make([]float32, n*heads*dim)
				for lo := 0; lo < n; lo += piece {
					hi := min(lo+piece, n)
					cache.Layer(0).Extend(c.pos[lo:hi], size[lo:hi])
					w := heads * dim
					tap := &Tap{
						Mean: []int32{0, int32(hi-lo) - 1}, Largest: []int32{int32(hi-lo) / 2},
					}
					if hi-lo == 1 {
						tap.Mean = tap.Mean[:1]
					}
					at.Causal(pool, Call{
						Out: out[lo*w : hi*w], Q: q[lo*w : hi*w], K: k[lo*kv*dim : hi*kv*dim],
						V: v[lo*kv*dim : hi*kv*dim], Pos: c.pos[lo:hi], Cache: cache.Layer(0),
						Calib: c.calib, Tap: tap,
					})
					checkTap(t, tap, got, heads, n, lo, hi)
				}
				for i := range out {
					if !(math.Abs(float64(out[i]-want[i])) <= 4*tolWindow) {
						t.Fatalf("%s, window %d, pieces of %d: value %d is %v, want %v", name,
							window, piece, i, out[i], want[i])
					}
				}
			}
		}
	}
}

// checkTap compares the tap of queries [lo, hi) with the probabilities [heads, n, n] of all
// queries.
func checkTap(t *testing.T, tap *Tap, probs []float32, heads, n, lo, hi int) {
	t.Helper()
	for _, largest := range []bool{false, true} {
		list := tap.Mean
		if largest {
			list = tap.Largest
		}
		for _, q := range list {
			for j, g := range tap.Row(q, largest) {
				mean, top := 0.0, 0.0
				for h := range heads {
					p := float64(probs[(h*n+lo+int(q))*n+j])
					mean += p / float64(heads)
					top = max(top, p)
				}
				if largest {
					mean = top
				}
				if !(math.Abs(float64(g)-mean) <= 2*tolWindow) {
					t.Fatalf("rows %d to %d, query %d, largest %v: key %d has %v, want %v", lo, hi,
						q, largest, j, g, mean)
				}
			}
		}
	}
}

// Ensure that attention of one row allocates nothing, for any window and bias.
func TestOneRowDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	before := kernel.Implementation()
	t.Cleanup(func() {
		if err := kernel.SetImplementation(before); err != nil {
			t.Error(err)
		}
	})
	for _, name := range kernel.Implementations() {
		if err := kernel.SetImplementation(name); err != nil {
			t.Fatal(err)
		}
		if name != "go" { // the reference allocates
			t.Run(name, oneRowDoesNotAllocate)
		}
	}
}

func oneRowDoesNotAllocate(t *testing.T) {
	const heads, kv, dim, n = 4, 2, 8, 23
	q, k, out := make([]float32, heads*dim), make([]float32, n*kv*dim), make([]float32, heads*dim)
	distances := NewDistances(NewRoPE(dim, 10000, nil), 64)
	for name, shift := range map[string]float64{"whole": 0, "fractional": 0.5} {
		pos, size := make([]Pos, n), make([]float32, n)
		for i := range pos {
			pos[i], size[i] = At(float64(i)+shift*float64(i%2)), float32(1+i%3)
		}
		cache := NewKVPool(kv, dim, false).NewCache(1)
		l := cache.Layer(0)
		l.Append(nil, k, k, pos, size)
		for _, c := range []*Calibration{
			nil, {Size: true}, {Distance: true, DecodeDistance: true, Distances: distances},
			{Size: true, Distance: true, DecodeDistance: true, Distances: distances}} {
			for _, window := range []int{0, 5, n} {
				a := Attention{Heads: heads, KVHeads: kv, HeadDim: dim, Window: window}
				if got := testing.AllocsPerRun(20, func() {
					a.Causal(nil, Call{
						Out: out, Q: q, Pos: pos[n-1:], Cache: l, Calib: c, Decoding: true,
					})
				}); got != 0 {
					t.Errorf("%s positions, %+v, window %d: %v allocations", name, c, window, got)
				}
			}
		}
	}
}
