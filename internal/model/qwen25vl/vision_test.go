package qwen25vl

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/nn"
)

// Ensure that windows tile every grid: an order is a permutation with its inverse, a window holds
// at most one block of side×side cells, and pictures never share a window.
func TestArrange(t *testing.T) {
	for _, side := range []int{1, 3, 4} {
		for h := 1; h <= 9; h++ {
			for w := 1; w <= 9; w++ {
				grids := [][3]int{{1, 2 * h, 2 * w}, {1, 4, 2}}
				o := arrange(moments(grids), 2, side)
				sorted := slices.Clone(o.window)
				slices.Sort(sorted)
				for i, c := range sorted {
					if int(c) != i || int(o.window[o.reverse[i]]) != i {
						t.Fatalf("%dx%d, windows of %d: not a permutation with its inverse", h, w,
							side)
					}
				}
				if o.cells != h*w+2 || o.patches != 4*o.cells || len(o.pos) != o.patches ||
					len(o.inWindows) != o.patches {
					t.Fatalf("%dx%d: %d cells, %d patches, %d and %d positions", h, w, o.cells,
						o.patches, len(o.pos), len(o.inWindows))
				}
				if want := ((h+side-1)/side)*((w+side-1)/side) + (side+1)/side; side > 1 &&
					len(o.windows) != want+1 {
					t.Fatalf("%dx%d, windows of %d: %d bounds, want %d", h, w, side, len(o.windows),
						want+1)
				}
				for i := 1; i < len(o.windows); i++ {
					lo, hi := o.windows[i-1], o.windows[i]
					if lo >= hi || lo < o.pictures[1] && hi > o.pictures[1] {
						t.Fatalf("%dx%d: window %d to %d crosses pictures or is empty", h, w, lo,
							hi)
					}
					var rows, cols []float64
					for _, p := range o.inWindows[lo:hi] {
						rows, cols = append(rows, p[1]), append(cols, p[2])
					}
					if slices.Max(rows)-slices.Min(rows) >= float64(2*side) ||
						slices.Max(cols)-slices.Min(cols) >= float64(2*side) {
						t.Fatalf("%dx%d: window %d to %d spans too much", h, w, lo, hi)
					}
				}
			}
		}
	}
}

// BenchmarkEncode times two of the 7B tower's blocks, one with windows and one that sees the whole
// picture, and reports the time per patch.
func BenchmarkEncode(b *testing.B) {
	c := VisionConfig{
		Tower: cells.Tower{
			Hidden: 1280, Heads: 16, Layers: 1, MLP: 3420, Out: 3584, Patch: 14, Frames: 2,
			Merge: 2,
		},
		Window: 112,
	}
	rng := rand.New(rand.NewPCG(1, 2))
	vector := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64()) / 36
		}
		return v
	}
	linear := func(out, in int) *nn.Linear {
		return &nn.Linear{
			In: in, Out: out, W: kernel.MatrixF32(out, in, vector(out*in)), B: vector(out),
		}
	}
	norm := func() *nn.RMSNorm { return &nn.RMSNorm{W: vector(c.Hidden), Eps: cells.Eps} }
	e := &encoder{
		VisionConfig: c, rope: nn.NewAxialRoPE(80, 1e4),
		attn: nn.Attention{Heads: 16, KVHeads: 16, HeadDim: 80},
	}
	l := block{
		norm1: norm(), norm2: norm(), qkv: linear(3*1280, 1280), proj: linear(1280, 1280),
		gate: linear(c.MLP, 1280), mlpUp: linear(c.MLP, 1280), out: linear(1280, c.MLP),
	}
	pool := kernel.NewPool(2)
	defer pool.Close()
	for _, full := range []bool{false, true} {
		l.full, l.tap = full, full
		e.blocks = []block{l}
		for _, side := range []int{32, 64, 128} {
			b.Run(fmt.Sprintf("full=%v/patches=%d", full, side*side), func(b *testing.B) {
				o := arrange(moments([][3]int{{1, side, side}}), 2, 4)
				r := &model.Run{Pool: pool}
				x := vector(o.patches * 1280)
				cos, sin := make([]float32, o.patches*40), make([]float32, o.patches*40)
				e.rope.Tables(cos, sin, o.inWindows)
				b.ReportAllocs()
				for range b.N {
					e.block(r, 0, x, cos, sin, o, model.Needs{ClsAttn: true}, new(cells.Encoded))
				}
				linear := 2 * float64(o.patches) * (4*1280*1280 + 3*1280*3420)
				seen := 64.0
				if full {
					seen = float64(o.patches)
				}
				flops := linear + 4*float64(o.patches)*seen*1280
				s := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(s*1e6/float64(o.patches), "us/patch")
				b.ReportMetric(flops/s/1e9, "GFLOP/s")
			})
		}
	}
}

// moments returns the parts of pictures and videos of those grids.
func moments(grids [][3]int) []cells.Part {
	var parts []cells.Part
	for _, g := range grids {
		parts = append(parts, cells.Moments(g)...)
	}
	return parts
}
