package engine

import (
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tensor"
)

// tolTurns is a few times the references' own float32 noise, as a share of the largest logit.
const tolTurns = 1e-5

// Ensure that a prompt read in two pieces with one cache gives the logits of the reference for
// either piece. Positions continue after a picture that takes fewer positions than tokens.
func TestTwoTurns(t *testing.T) {
	dir := filepath.Join("testdata", "qwen25vl-tiny")
	e, err := OpenWith(formats.Files{Model: dir}, Options{Threads: 1}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ref := golden.Read(t, filepath.Join(dir, "two-turns.ref"))
	ints := func(name string) []int64 {
		v, err := ref[name].Int64s()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	grid, x, h := ints("image_grid_thw"), ref["vision.merger"], e.shape.Hidden
	data, err := x.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	v := &model.Shape{N: x.Shape[0], C: h}
	rows, cols := int(grid[1])/2, int(grid[2])/2
	v.Grid(rows, cols)
	pic := &picture{image: &image{shape: v}, tokens: &features{x: data}}
	if pic.planned, err = e.plan(v, methods.Options{}); err != nil {
		t.Fatal(err)
	}
	var units []unit
	split, tokens := 0, 0
	for i, id := range ints("input_ids") {
		if i == int(ints("split")[0]) {
			split = len(units)
		}
		switch {
		case int32(id) != e.m.ImageToken():
			units = append(units, unit{id: int32(id)})
		case tokens == 0:
			units = append(units, unit{pic: pic})
			tokens++
		default:
			tokens++
		}
	}
	if tokens != v.N {
		t.Fatalf("%d picture tokens, want %d", tokens, v.N)
	}
	r := &model.Run{Pool: e.pool}
	cache, at := e.newCache(), 0.0
	for i, piece := range [][]unit{units[:split], units[split:]} {
		name := []string{"turn1.", "turn2."}[i]
		in, err := e.layout(piece, at)
		if err != nil {
			t.Fatal(err)
		}
		n := len(in.Pos)
		spans := []model.Span{{Pos: in.Pos, Size: in.Size, Cache: cache}}
		if e.m.Decoder().Forward(r, in.X, spans); spans[0].Err != nil {
			t.Fatal(spans[0].Err)
		}
		logits := make([]float32, n*e.shape.Vocab)
		e.m.Decoder().Logits(r, logits, in.X, n)
		if err := golden.Compare(tensor.From([]int{n, e.shape.Vocab}, logits),
			ref[name+"logits"], tolTurns); err != nil {
			t.Errorf("%slogits: %v", name, err)
		}
		at = in.Next
		if i == 0 && int64(at)-int64(n) != ints("turn1.rope_delta")[0] {
			t.Errorf("after turn 1: position %v, want %d", at, int64(n)+ints("turn1.rope_delta")[0])
		}
	}
}
