package engine_test

import (
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/nn"
)

func question(width, height, nVis, text, generated int) engine.Question {
	return engine.Question{
		Width: width, Height: height, NVis: nVis, Text: text, Generated: generated,
	}
}

// Ensure that predictions add up and follow the plan and the budget, and that impossible questions
// are refused.
func TestFootprint(t *testing.T) {
	describing := engine.Hooks{Describe: true}
	plain := openWith(t, "", engine.Options{}, describing)
	small := openWith(t, "", engine.Options{Quant: "q4", EncoderQuant: "q8", CacheType: "f32"},
		describing)
	all, err := plain.PredictMemory(plain.Source(), question(300, 200, 0, 60, 32))
	if err != nil {
		t.Fatal(err)
	}
	few, err := small.PredictMemory(small.Source(), question(300, 200, 64, 60, 32))
	if err != nil {
		t.Fatal(err)
	}
	if all.Tokens != 576 || all.Kept != 576 || few.Kept != 64 || all.Prompt != 636 ||
		few.Prompt != 124 ||
		few.Weights >= all.Weights || few.Decoder >= all.Decoder || few.Encoder != all.Encoder {
		t.Errorf("all tokens: %+v\n64: %+v", all, few)
	}
	for _, f := range []*engine.Footprint{all, few} {
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
		q := question(c.w, c.h, c.n, c.text, c.gen)
		if _, err := plain.PredictMemory(plain.Source(), q); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	loaded := openWith(t, "", engine.Options{}, engine.Hooks{})
	if _, err := loaded.PredictMemory(loaded.Source(), question(300, 200, 0, 0, 0)); err == nil {
		t.Error("weights are loaded: accepted")
	}
}
