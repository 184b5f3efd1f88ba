package methods

// DART: "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More"
// (arXiv:2502.11494), without text.

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const dartPivots = 8

var dartMethod = &method{
	Method: reduce.Method{
		Name: "dart",
		Title: "DART: pivots with large keys, and the tokens least like them (text-free, " +
			"before the decoder)",
		Summary: "Keeps a few strong patches and those least like them.",
		Paper:   "https://arxiv.org/abs/2502.11494",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.Keys},
		Minimum: "1 token",
		Cost:    "8·N·C (cosines to the pivots)",
		Notes: reduce.Notes{
			Equations: `
The pivots are the k tokens, at most eight, with the largest keys in the encoder's feature layer
(L1 norm over all heads). In order of falling norm each pivot keeps the (k-8)/8 tokens of lowest
cosine to it (features after the projector) that no earlier pivot took.`,
			Departures: `
The authors prune between the decoder's second and third layer: four of the picture's tokens and
four of the text's after it, with the largest keys, are pivots, features are those after the
final norm, and 4 + 8·floor(n/8) tokens remain. This form acts on the encoder's output
and reads no text (dart-text is the authors' form): all pivots are the picture's, and it keeps
exactly k tokens: the first (k-8) mod 8 pivots keep one token more. The authors take turns in the
order of a Python set of sequence positions, which do not exist before there is a sequence.`,
		},
	},
	parameters: func() own { return new(dartParams) },
	raster:     true,
	places:     true,
	ops: func(o *Plan, d Dims) float64 {
		return float64(o.own.(*dartParams).pivots) * float64(o.N) * float64(d.C)
	},
	pick: func(w *work, k int) (*selection, error) {
		in := w.in
		length := make([]float64, in.N)
		for h := range in.Heads {
			for i, v := range in.Keys[(h*(in.N+1)+1)*in.KeyDim:][:in.N*in.KeyDim] {
				length[i/in.KeyDim] += math.Abs(float64(v))
			}
		}
		pivots := topK(length, min(k, w.o.own.(*dartParams).pivots))
		share := make([]int, len(pivots))
		for i := range share {
			share[i] = (k - len(pivots)) / len(pivots)
			if i < (k-len(pivots))%len(pivots) {
				share[i]++
			}
		}
		d := newDart(w.pool, in.X, in.C)
		kept := slices.Clone(pivots)
		for _, picked := range d.turns(pivots, others(in.N, pivots), share) {
			kept = append(kept, picked...)
		}
		return &selection{
			kept: kept, scores: map[string][]float32{"key_norm": float32s(length)},
			indices: map[string][]int32{"pivots": pivots},
		}, nil
	},
}

// dartParams are DART's parameters.
type dartParams struct{ pivots int }

// Declare implements own.
func (p *dartParams) Declare(d *reduce.Declaration) {
	p.pivots = dartPivots
	d.Int(&p.pivots, reduce.Parameter{
		Name: "dart-pivots", Unit: "N", Least: new(1.),
		Default: fmt.Sprintf("%d, or as many as DART keeps", dartPivots),
		Help:    "tokens that the others are compared with",
	})
}

// complete refuses more pivots than DART keeps tokens, because every pivot is kept.
func (p *dartParams) complete(o *Plan, d *reduce.Declaration) error {
	switch {
	case !d.Given("dart-pivots"):
		p.pivots = min(p.pivots, o.Keep)
	case p.pivots > o.Keep:
		return refused("dart-pivots", errs.TooLarge, strconv.Itoa(p.pivots),
			fmt.Sprintf("at most %d", o.Keep), "the tokens that dart keeps itself")
	}
	return nil
}

// dart compares rows of x [*, width] with the given norms.
type dart struct {
	x     []float32
	width int
	norm  []float64
	pool  *kernel.Pool
}

func newDart(p *kernel.Pool, x []float32, width int) *dart {
	d := &dart{x: x, width: width, norm: make([]float64, len(x)/width), pool: p}
	p.Run(len(d.norm), func(i int) { d.norm[i] = norm(x[i*width:][:width]) })
	return d
}

// dartFloor is the smallest length by which a cosine is divided.
const dartFloor = 1e-8

// turns gives every pivot its share of pool: the remaining rows of lowest cosine to it, lowest
// first, ties in pool order. If float32 cannot tell two apart, float64 decides.
func (d *dart) turns(pivots, pool []int32, share []int) [][]int32 {
	picks := make([][]int32, len(pivots))
	pool = slices.Clone(pool)
	for i, p := range pivots {
		a := d.x[int(p)*d.width:][:d.width]
		exact := func(j int32) float64 { return -d.cosine(p, pool[j]) }
		away := make([]float64, len(pool))
		d.pool.Run(len(pool), func(j int) {
			t := pool[j]
			if n, m := d.norm[p], d.norm[t]; min(n, m) >= dartFloor && max(n, m) < plainNorms {
				away[j] = -float64(kernel.Dot(a, d.x[int(t)*d.width:][:d.width])) / (n * m)
				return
			}
			away[j] = exact(int32(j))
		})
		for _, j := range rankExactly(away, share[i], exact)[:share[i]] {
			picks[i] = append(picks[i], pool[j])
			pool[j] = -1
		}
		pool = slices.DeleteFunc(pool, func(t int32) bool { return t < 0 })
	}
	return picks
}

// cosine is the cosine of rows p and t.
func (d *dart) cosine(p, t int32) float64 {
	dot, b := 0.0, d.x[int(t)*d.width:][:d.width]
	for k, v := range d.x[int(p)*d.width:][:d.width] {
		dot += float64(v) * float64(b[k])
	}
	return dot / (max(d.norm[p], dartFloor) * max(d.norm[t], dartFloor))
}
