package clip

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

var rng = rand.New(rand.NewPCG(1, 2))

// vector returns n random numbers.
func vector(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64()) / 32
	}
	return v
}

// random returns a CLIP tower with random weights.
func random(c Config) *Encoder {
	d := c.Hidden
	linear := func(out, in int) *nn.Linear {
		return &nn.Linear{
			In: in, Out: out, W: kernel.MatrixF32(out, in, vector(out*in)), B: vector(out),
		}
	}
	norm := func() *nn.LayerNorm { return &nn.LayerNorm{W: vector(d), B: vector(d), Eps: 1e-5} }
	side := c.ImageSide / c.Patch
	e := &Encoder{
		Config: c, rows: side, cols: side, height: c.ImageSide, width: c.ImageSide,
		patch: linear(d, 3*c.Patch*c.Patch), class: vector(d), pos: vector((side*side + 1) * d),
		pre:  norm(),
		attn: nn.Attention{Heads: c.Heads, KVHeads: c.Heads, HeadDim: d / c.Heads},
	}
	for range c.Layers {
		e.layers = append(e.layers, layer{
			norm1: norm(), norm2: norm(), q: linear(d, d), k: linear(d, d), v: linear(d, d),
			o: linear(d, d), up: linear(c.MLP, d), down: linear(d, c.MLP),
		})
	}
	return e
}

// BenchmarkTiles times blocks of CLIP ViT-L/14 at 336 pixels on one picture and on a batch of the
// five tiles of one picture.
func BenchmarkTiles(b *testing.B) {
	const d, mlp, layers = 1024, 4096, 4
	e := random(Config{
		Hidden: d, Heads: 16, Layers: layers, MLP: mlp, ImageSide: 336, Patch: 14,
		Act: "quick_gelu",
	})
	pool := kernel.NewPool(2)
	defer pool.Close()
	for _, tiles := range []int{1, 5} {
		b.Run(fmt.Sprintf("tiles=%d", tiles), func(b *testing.B) {
			r := &model.Run{Pool: pool}
			rows := tiles * e.Tokens()
			x, out := vector(rows*d), &Output{Class: map[int][]float32{}}
			for range b.N {
				for i := range e.layers {
					e.block(r, i, x, tiles, out, model.Needs{ClsAttn: true}, i == layers-1)
				}
			}
			flops := float64(layers) * float64(rows) * (2*(4*d*d+2*d*mlp) + 4*d*float64(e.Tokens()))
			s := b.Elapsed().Seconds() / float64(b.N)
			b.ReportMetric(s*1e3/float64(tiles), "ms/tile")
			b.ReportMetric(flops/s/1e9, "GFLOP/s")
		})
	}
}
