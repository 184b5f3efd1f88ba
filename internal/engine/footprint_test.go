package engine

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint/all"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// bufferTolerance is by how much buffers may differ from their prediction: those of
// one row and of a reducer are left out.
const bufferTolerance = 0.03

// Ensure that the memory that a forward and an encoder take is what is predicted:
// buffers to the tolerance, results besides.
func TestFootprintOfBuffers(t *testing.T) {
	pic := &imageproc.Picture{Width: 100, Height: 80, Pix: make([]byte, 3*100*80)}
	for _, name := range []string{"", "llavanext-vicuna-tiny", "qwen25vl-tiny"} {
		var ck checkpoint.Bundle
		var err error
		if name == "" {
			ck, err = all.Open("")
		} else {
			ck, err = all.Open(filepath.Join("testdata", name))
		}
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(ck, Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		px, err := e.proc.Process([]*imageproc.Picture{pic})
		if err != nil {
			t.Fatal(err)
		}
		r := &model.Run{Pool: e.pool}
		pics, err := e.m.Pictures(px)
		if err != nil {
			t.Fatal(err)
		}
		v, err := e.m.Encode(r, pics, model.Needs{})
		if err != nil {
			t.Fatal(err)
		}
		got, want := r.Bytes()+4*int64(len(v[0].X)), e.m.EncodeBytes(px)
		// results that are copied and a product's input are in the prediction
		if ratio := float64(want) / float64(got); !(ratio >= 0.95 && ratio <= 1.6) {
			t.Errorf("%q: encoder takes %d bytes, predicted %d", name, got, want)
		}

		r = &model.Run{Pool: e.pool}
		const n = 90
		cache, pos := e.newCache(), make([]nn.Pos, n)
		for i := range pos {
			pos[i] = nn.At(float64(i))
		}
		cache.Reserve(n, n)
		e.m.Decoder().Forward(r, make([]float32, n*e.shape.Hidden), []model.Span{
			{Pos: pos, Cache: cache},
		})
		if got, want := float64(r.Bytes()),
			float64(e.shape.ForwardBytes(n)); !(math.Abs(got/want-1) <= bufferTolerance) {
			t.Errorf("%q: forward takes %g bytes, predicted %g", name, got, want)
		}
		if got, want := int64(cache.Held())*e.pages.PageBytes(),
			e.shape.CacheBytes(n, e.half); got != want {
			t.Errorf("%q: cache takes %d bytes, predicted %d", name, got, want)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Ensure that predictions add up, follow the plan and the budget, and refuse what
// cannot be.
func TestFootprint(t *testing.T) {
	describe := func(o Options) *Engine {
		ck, err := all.Open("")
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(ck, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	plain, small := describe(Options{Describe: true}), describe(Options{
		Describe: true, Quant: "q4", EncoderQuant: "q8",
	})
	all, err := plain.Footprint(Question{300, 200, 0, 60, 32})
	if err != nil {
		t.Fatal(err)
	}
	few, err := small.Footprint(Question{300, 200, 64, 60, 32})
	if err != nil {
		t.Fatal(err)
	}
	if all.Tokens != 576 || all.Kept != 576 || few.Kept != 64 || all.Prompt != 636 ||
		few.Prompt != 124 ||
		few.Weights >= all.Weights || few.Decoder >= all.Decoder || few.Encoder != all.Encoder {
		t.Errorf("all tokens: %+v\n64: %+v", all, few)
	}
	for _, f := range []*Footprint{all, few} {
		if f.Peak != f.Weights+f.Cache+f.Encoder+f.Decoder+f.Program ||
			f.Cache*int64(nn.PagesOf(all.Prompt+32)) != all.Cache*int64(nn.PagesOf(f.Prompt+32)) {
			t.Errorf("%+v", f)
		}
	}
	for _, c := range []struct {
		w, h, n, text, gen int
		want               string
	}{
		{300, 200, 577, 0, 0, "n-vis: got 577, want 1 to the picture's 576 tokens"}, {300, 200, -1, 0, 0, "n-vis: got -1"},
		{0, 200, 0, 0, 0, "0 x 200 pixels"}, {300, 1 << 20, 0, 0, 0, "pixels"}, {300, 200, 0, -1, 0, "-1 tokens"}, {300, 200, 0, 0, math.MaxInt, "tokens"},
	} {
		if _, err := plain.Footprint(Question{c.w, c.h, c.n, c.text, c.gen}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := describe(Options{}).Footprint(Question{300, 200, 0, 0, 0}); err == nil {
		t.Error("weights are loaded: accepted")
	}
}
