package engine

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// tapTol bounds the difference between a tap on the attention kernel and the sums of the matrix of
// probabilities that a trace computes: both are float32.
const tapTol = 2e-6

// Ensure that the attention of any block, the class token's and what tokens receive, is that of the
// matrix of the block, for every family of encoders.
func TestTaps(t *testing.T) {
	for _, dir := range []string{
		"llava15-tiny", "llavanext-vicuna-tiny", "llava-onevision-tiny", "qwen25vl-tiny",
		"qwen2vl-tiny", "qwen3vl-tiny", "llava-siglip-tiny", "internvl-tiny",
		"internvl-qwen3-tiny",
	} {
		t.Run(dir, func(t *testing.T) {
			e := openedAt(t, "testdata/"+dir, Options{}, Hooks{})
			m := &Image{Picture: drawn(t, 5)}
			// one of several pictures, so that OneVision does not blend patches
			made, err := e.prepare(context.Background(), e.imageTask(m, e.as(m.key(), 2, nil)), 0)
			if err != nil {
				t.Fatal(err)
			}
			checkTaps(t, e, made[0].prepared)
		})
	}
}

func checkTaps(t *testing.T, e *Engine, p model.Picture) {
	t.Helper()
	s := p.Shape()
	need := model.Needs{ClsAttn: true, Received: s.Full}
	for b := range s.Blocks {
		if s.Full == nil {
			need.Received = append(need.Received, b)
		}
		if s.Class {
			need.Class = append(need.Class, b)
		}
	}
	probs, reverse := map[int][]float32{}, []int32(nil)
	var v *model.Visual
	err := e.Do(context.Background(), func(r *model.Run) error {
		r.Trace = func(name string, shape []int, data []float32) {
			var b int
			if n, _ := fmt.Sscanf(name, "vision.layer.%d.attn", &b); n == 0 {
				if n, _ = fmt.Sscanf(name, "vision.block.%d.attn", &b); n == 0 {
					return
				}
			}
			if name[len(name)-4:] == "attn" {
				probs[b] = slices.Clone(data)
			}
		}
		r.TraceInts = func(name string, shape []int, data []int32) {
			if name == "vision.reverse_index" {
				reverse = slices.Clone(data)
			}
		}
		defer func() { r.Trace, r.TraceInts = nil, nil }()
		all, err := e.m.Encode(r, []model.Picture{p}, need)
		if err == nil {
			v = all[0]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(need.Received) < 2 || len(v.Received) != len(need.Received) ||
		len(v.Class) != len(need.Class) {
		t.Fatalf("%d and %d blocks, want %d and %d", len(v.Received), len(v.Class),
			len(need.Received), len(need.Class))
	}
	for _, b := range slices.Sorted(maps.Keys(v.Received)) {
		class, received := fromProbs(t, s, probs[b], v.Heads, reverse)
		wantTap(t, fmt.Sprint("received in block ", b), v.Received[b], received)
		if s.Class {
			wantTap(t, fmt.Sprint("class token in block ", b), v.Class[b], class)
		}
	}
	last := need.Received[len(need.Received)-1]
	if s.Class && !slices.Equal(v.Class[last], v.ClsAttn) ||
		s.NoClass && !slices.Equal(v.Received[last], v.ClsAttn) {
		t.Error("the last block's differs from the attention of the features' block")
	}
}

// fromProbs returns the class token's attention and what rows receive, for each view [heads, T],
// from the probabilities of a block: [views, heads, rows, rows].
func fromProbs(
	t *testing.T, s *model.Shape, p []float32, heads int, reverse []int32,
) (class, received []float32) {
	t.Helper()
	views := 1
	if s.Views != nil {
		views = s.Views.Count
	}
	rows := int(math.Round(math.Sqrt(float64(len(p) / views / heads))))
	if rows*rows*heads*views != len(p) || rows == 0 {
		t.Fatalf("%d probabilities of %d views and %d heads", len(p), views, heads)
	}
	for m := range views * heads {
		matrix := p[m*rows*rows:][:rows*rows]
		class = append(class, joined(matrix[:rows], s)...)
		sum := make([]float64, rows)
		for i, x := range matrix {
			sum[i%rows] += float64(x) / float64(rows)
		}
		cells := make([]float32, s.N)
		if s.Class || s.Views != nil {
			cells = make([]float32, rows)
		}
		each := rows / len(cells) // patches of a cell
		for i, x := range sum {
			cells[i/each] += float32(x / float64(each))
		}
		if reverse != nil {
			cells = nn.Gathered(cells, reverse, 1)
		}
		if !s.Class {
			received = append(received, 0)
		}
		received = append(received, joined(cells, s)...)
	}
	return class, received
}

// joined returns what the class token and the cells of a view have, if its encoder has a class
// token and joins patches: the means over squares of patches of row, whose first value is the class
// token's.
func joined(row []float32, s *model.Shape) []float32 {
	if !s.Class || len(row) == s.T {
		return row
	}
	side := func(n int) int { return int(math.Round(math.Sqrt(float64(n)))) }
	patches, cells := side(len(row)-1), side(s.T-1)
	merge := patches / cells
	out := make([]float32, s.T)
	out[0] = row[0]
	for i, v := range row[1:] {
		out[1+i/patches/merge*cells+i%patches/merge] += v / float32(merge*merge)
	}
	return out
}

func wantTap(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-float64(want[i])) <= tapTol) {
			t.Fatalf("%s: value %d: got %v, want %v", what, i, got[i], want[i])
		}
	}
}

// Ensure that a method's middle and shallow layers agree with its description at every depth.
func TestBlocksOfMethods(t *testing.T) {
	e := opened(t, Options{})
	full := func(n int) (all []int) {
		for i := 7; i < n; i += 8 {
			all = append(all, i)
		}
		return all
	}
	for _, c := range []struct {
		shape           model.Shape
		middle, shallow int
	}{
		{model.Shape{Blocks: 23, Depth: 24, Class: true}, 8, 5},                    // ViT-L
		{model.Shape{Blocks: 32, Depth: 32, NoClass: true, Full: full(32)}, 15, 7}, // windows
		{model.Shape{Blocks: 26, Depth: 26, NoClass: true}, 12, 5},                 // SigLIP
		{model.Shape{Blocks: 27, Depth: 27, NoClass: true}, 12, 6},
		{model.Shape{Blocks: 11, Depth: 12, Class: true}, 3, 2}, // 4.5: even
		{model.Shape{Blocks: 1, Depth: 2, Class: true}, 0, 0},   // within 1
		{model.Shape{Blocks: 4, Depth: 4, NoClass: true, Full: []int{1, 3}}, 1, 1},
		// 5 is as near as 7: the lower one
		{model.Shape{Blocks: 12, Depth: 12, NoClass: true, Full: []int{2, 4, 6, 8}}, 4, 2},
	} {
		s := c.shape
		s.N, s.GridH, s.GridW, s.T = 36, 6, 6, 37
		for base, want := range map[string]int{"hiprune": c.middle, "vscan": c.shallow} {
			p, err := e.plan(&s, methods.Options{Base: base, NVis: 9, Restore: true})
			if err != nil {
				t.Fatal(err)
			}
			taps := p.plan.Taps()
			if len(taps) == 0 || taps[0].Block != want {
				t.Errorf("%s in %d blocks: taps %v, want block %d", base, s.Depth, taps, want)
			}
			if base == "hiprune" && s.Class && (len(taps) != 2 || taps[1].Block != s.Blocks-1) {
				t.Errorf("%s: taps %v, want the block of the features too", base, taps)
			}
		}
	}
	for layer, want := range map[int]string{24: "at most 23", 0: "at least 1"} {
		s := model.Shape{Blocks: 23, Depth: 24, Class: true, N: 36, GridH: 6, GridW: 6, T: 37}
		wantOption(t, e, &s, layer, want)
	}
	s := model.Shape{Blocks: 32, Depth: 32, NoClass: true, Full: full(32), N: 36, GridH: 6,
		GridW: 6, T: 37}
	wantOption(t, e, &s, 9, "one of 8,16,24,32")
}

func wantOption(t *testing.T, e *Engine, s *model.Shape, layer int, want string) {
	t.Helper()
	_, err := e.plan(s, methods.Options{
		Base: "hiprune", NVis: 9, Own: map[string]any{"hiprune-layer": layer},
	})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("layer %d: %v, want %q", layer, err, want)
	}
}
