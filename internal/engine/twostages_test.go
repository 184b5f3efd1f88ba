package engine_test

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// second is what a trace says about the second stage of a picture: for each row its members, its
// size, and the features that entered the layer before and after it.
type second struct {
	members       [][]int // of the picture's tokens
	size          []float64
	start         int // the picture's first row
	layer, width  int
	before, after []float64
	group         []float64 // of every token, after the first stage
	firstSize     []float64
}

func secondStage(
	t *testing.T, got map[string]*tensor.Tensor, imageToken float64, layer int,
) second {
	t.Helper()
	s := second{
		size: numbers(t, got["stage.0.size"]), layer: layer, width: got["embeds"].Shape[1],
		start: slices.Index(numbers(t, got["input_ids"]), imageToken),
		group: numbers(t, got["reduce.group"]), firstSize: numbers(t, got["reduce.size"]),
		after: numbers(t, got[name("text.layer.", layer, ".in")]),
	}
	s.before = numbers(t, got[name("text.layer.", layer-1, ".out")])
	members := numbers(t, got["stage.0.group_members"])
	offsets := numbers(t, got["stage.0.group_offsets"])
	for i := range s.size {
		var row []int
		for _, m := range members[int(offsets[i]):int(offsets[i+1])] {
			row = append(row, int(m))
		}
		s.members = append(s.members, row)
	}
	return s
}

func name(before string, layer int, after string) string {
	return before + string(rune('0'+layer)) + after
}

// Ensure, for positions of three axes and for pictures in tiles, that every token is in one row
// after the second stage, that a row is the mean of the first stage's rows of its members, weighted
// by their sizes, and lies where its members say, and that results do not depend on threads.
func TestTwoStages(t *testing.T) {
	for _, c := range []struct {
		model string
		in    map[string]*tensor.Tensor
		image float64
		layer int
		o     methods.Options
	}{
		{"qwen25vl-tiny", axesReference(t, "qwen25vl-tiny", "one-image"), 336, 2, methods.Options{Base: "divprune", NVis: 4}},
		{"qwen25vl-tiny", axesReference(t, "qwen25vl-tiny", "one-image"), 336, 2, methods.Options{Base: "divprune", NVis: 4, MergePosition: "axes-mean"}},
		{"llavanext-vicuna-tiny", nextInputs(t, "llavanext-vicuna-tiny", "odd"), 320, 2, methods.Options{Base: "holov", NVis: 10, Newlines: "skip"}},
		{"llavanext-mistral-tiny", nextInputs(t, "llavanext-mistral-tiny", "odd"), 330, 2, methods.Options{Base: "visionzip", KeepRatio: 0.2}},
		{"qwen2vl-tiny", reference(t, "qwen2vl-tiny", "one-image"), 280, 2, methods.Options{Base: "divprune", NVis: 4}},
		{"internvl-tiny", reference(t, "internvl-tiny", "wide"), 292, 2, methods.Options{Base: "holov", NVis: 10}},
		// all tokens before the second stage
		{"qwen25vl-tiny", axesReference(t, "qwen25vl-tiny", "one-image"), 336, 2, methods.Options{Base: "downsample", NVis: 13}},
		{"llavanext-vicuna-tiny", nextInputs(t, "llavanext-vicuna-tiny", "odd"), 320, 2, methods.Options{Base: "downsample", NVis: 54}},
	} {
		c.o.Restore, c.o.TwoStages, c.o.SecondLayer = true, true, c.layer
		what := c.model + " " + c.o.Base + " " + c.o.MergePosition
		trace := func(threads int) map[string]*tensor.Tensor {
			t.Helper()
			got, err := lab.Trace(context.Background(), open(t, filepath.Join("testdata", c.model),
				threads), lab.TraceRequest{Inputs: c.in, Reduce: c.o, Tokens: 3})
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return got
		}
		got := trace(1)
		same(t, what, trace(2), got, "gen.logits", "stage.0.group_members", "stage.0.size")
		s := secondStage(t, got, c.image, c.layer)
		seen := make([]bool, len(s.group))
		for i, members := range s.members {
			if s.size[i] != float64(len(members)) {
				t.Errorf("%s: row %d: size %v, want %d", what, i, s.size[i], len(members))
			}
			weight := map[int]float64{} // by row of the first stage
			for _, m := range members {
				if seen[m] {
					t.Fatalf("%s: token %d is in two rows", what, m)
				}
				seen[m] = true
				weight[int(s.group[m])] = s.firstSize[int(s.group[m])]
			}
			for k := range s.width {
				want, sum := 0.0, 0.0
				for row, w := range weight {
					want, sum = want+w*s.before[(s.start+row)*s.width+k], sum+w
				}
				if sum != s.size[i] {
					t.Fatalf("%s: row %d: a row of the first stage was split", what, i)
				}
				if v := s.after[(s.start+i)*s.width+k]; !(math.Abs(v-want/sum) <= 1e-5) {
					t.Fatalf("%s: row %d: feature %d: got %v, want %v", what, i, k, v, want/sum)
				}
			}
		}
		if slices.Contains(seen, false) {
			t.Errorf("%s: a token is in no row", what)
		}
		if c.model == "qwen25vl-tiny" {
			pos := numbers(t, got[name("cache.", c.layer, ".position_ids")])
			checkCells(t, what, c.o.MergePosition, &s, pos)
		}
	}
}

// checkCells compares the rows' positions pos [3, rows] with their members' cells in a picture of
// three columns.
func checkCells(t *testing.T, what, how string, s *second, pos []float64) {
	t.Helper()
	const cols = 3
	rows := len(pos) / 3
	for i, members := range s.members {
		mid := members[(len(members)-1)/2]
		want := [2]float64{float64(mid / cols), float64(mid % cols)}
		if how == "axes-mean" {
			want = [2]float64{}
			for _, m := range members {
				want[0] += float64(m/cols) / float64(len(members))
				want[1] += float64(m%cols) / float64(len(members))
			}
		}
		for axis, w := range want {
			if v := pos[(axis+1)*rows+s.start+i] - float64(s.start); !(math.Abs(v-w) <= 1e-5) {
				t.Errorf("%s: row %d of %v: axis %d at %v, want %v", what, i, members, axis, v, w)
			}
		}
	}
}
