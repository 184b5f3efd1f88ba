package nn

import (
	"math"
	"math/rand"
	"testing"
)

// Ensure that rows of a block see each other as far as the window allows, and no later row, in one
// pass, in pieces over a cache and in a pass of the last rows, with a scale of their own.
func TestBlocks(t *testing.T) {
	const heads, kv, dim, n, scale = 4, 2, 8, 29, 0.3
	rng := rand.New(rand.NewSource(4))
	random := func(k int) []float32 {
		v := make([]float32, k)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	q, k, v := random(n*heads*dim), random(n*kv*dim), random(n*kv*dim)
	pos := make([]Pos, n)
	for i := range pos {
		pos[i] = At(float64(i))
	}
	blocks := []Block{{2, 9}, {9, 9}, {9, 10}, {13, 20}}
	for _, window := range []int{0, 1, 3, 8, n} {
		a := Attention{Heads: heads, KVHeads: kv, HeadDim: dim, Window: window, Scale: scale}
		want := make([]float64, n*heads*dim)
		for i := range n {
			for h := range heads {
				var sum float64
				row := want[(i*heads+h)*dim:][:dim]
				for j := range n {
					seen := j <= i
					for _, b := range blocks {
						seen = seen || min(i, j) >= b.First && max(i, j) < b.End
					}
					if !seen || window > 0 && j <= i-window {
						continue
					}
					score, at := 0.0, (j*kv+h/(heads/kv))*dim
					for d := range dim {
						score += float64(q[(i*heads+h)*dim+d]) * float64(k[at+d])
					}
					p := math.Exp(scale * score)
					sum += p
					for d := range dim {
						row[d] += p * float64(v[at+d])
					}
				}
				for d := range row {
					row[d] /= sum
				}
			}
		}
		check := func(what string, out []float32, first int) {
			t.Helper()
			for i, g := range out {
				if w := want[first*heads*dim+i]; !(math.Abs(float64(g)-w) <= 4*tolWindow) {
					t.Fatalf("window %d, %s: value %d is %v, want %v", window, what, i, g, w)
				}
			}
		}
		within := func(lo, hi int) (out []Block) {
			for _, b := range blocks {
				if b.End > lo && b.First < hi {
					out = append(out, Block{b.First - lo, b.End - lo})
				}
			}
			return out
		}
		w := heads * dim
		for _, ends := range [][]int{{n}, {1, 2, 9, 10, 12, 20, 21, n}, {11, n}} {
			l := NewKVPool(kv, dim, false).NewCache(1).Layer(0)
			out, lo := make([]float32, n*w), 0
			for _, hi := range ends {
				l.Extend(pos[lo:hi], nil)
				a.Causal(nil, Call{
					Out: out[lo*w : hi*w], Q: q[lo*w : hi*w], K: k[lo*kv*dim : hi*kv*dim],
					V: v[lo*kv*dim : hi*kv*dim], Pos: pos[lo:hi], Blocks: within(lo, hi), Cache: l,
				})
				lo = hi
			}
			check("pieces", out, 0)
			for _, last := range []int{n - 1, 17, 13} {
				a.Causal(nil, Call{
					Out: out[last*w:], Q: q[last*w:], Pos: pos[last:], Blocks: within(last, n),
					Cache: l,
				})
				check("last rows", out[last*w:], last)
			}
		}
	}
}
