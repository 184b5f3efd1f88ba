package llama_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// tolLast is for sums of float32 in another order: those of one row, next to those of many.
const tolLast = 1e-5

// Ensure that passes of which only the last row is read give that row and all keys and values of
// whole passes, which have goldens, also after other rows, with sizes and with a window, and that
// they leave the other rows alone.
func TestLastOnly(t *testing.T) {
	d, _ := fitDecoder(t)
	for _, window := range []int{0, 7} {
		for i := range d.Layers {
			d.Attention(i).Window = window
		}
		for _, ends := range [][]int{{40}, {1}, {2}, {30, 31, 50}} {
			t.Run(fmt.Sprint(window, ends), func(t *testing.T) {
				whole, x := passes(d, ends, false)
				got, y := passes(d, ends, true)
				if len(got) != len(whole) {
					t.Fatalf("%d tensors, want %d", len(got), len(whole))
				}
				for name, want := range whole {
					if err := golden.Compare(got[name], want, tolLast); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				if n := ends[len(ends)-1]; n > 1 && slices.Equal(x, y) {
					t.Error("the first row was computed")
				}
			})
		}
	}
}

// passes reads random rows in passes that end at ends. It returns the last row of each pass and all
// keys and values, and the first row.
func passes(
	d *llama.Decoder, ends []int, last bool,
) (out map[string]*tensor.Tensor, first []float32) {
	r, n, h := rand.New(rand.NewPCG(1, 2)), ends[len(ends)-1], d.Hidden
	x, pos, size := make([]float32, n*h), make([]nn.Pos, n), make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for i := range pos {
		pos[i], size[i] = nn.At(float64(i)), float32(1+i%3)
	}
	out = map[string]*tensor.Tensor{}
	cache := nn.NewKVPool(d.KVHeads, d.HeadDim, false).NewCache(d.Layers)
	defer cache.Free()
	lo := 0
	for _, hi := range ends {
		d.Forward(&model.Run{Pool: kernel.NewPool(1)}, x[lo*h:hi*h], []model.Span{{
			Pos: pos[lo:hi], Size: size[lo:hi], Cache: cache, LastOnly: last,
			Calib: &nn.Calibration{Size: true},
		}})
		out[fmt.Sprint("row ", hi-1)] = tensor.From([]int{h}, slices.Clone(x[(hi-1)*h:hi*h]))
		lo = hi
	}
	for i := range d.Layers {
		l := cache.Layer(i)
		shape := []int{n, d.KVHeads * d.HeadDim}
		out[fmt.Sprint("keys ", i)] = tensor.From(shape, l.Keys(0))
		out[fmt.Sprint("values ", i)] = tensor.From(shape, l.Values(0))
	}
	return out, x[:h]
}
