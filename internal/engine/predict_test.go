package engine_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
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
	for _, c := range []struct {
		text, gen int
		want      string
	}{
		{3520, 0, "<nil>"}, {3520, 1, "gen: got 1, want at most 0, what the prompt leaves of the model's"},
		{3500, 20, "<nil>"}, {3521, 0, "prompt: 4097 positions, want at most the model's context of 4096"},
	} {
		_, err := plain.PredictMemory(plain.Source(), question(300, 200, 64, c.text, c.gen))
		if !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	loaded := openWith(t, "", engine.Options{}, engine.Hooks{})
	if _, err := loaded.PredictMemory(loaded.Source(), question(300, 200, 0, 0, 0)); err == nil {
		t.Error("weights are loaded: accepted")
	}
}

// Ensure that predictions and answers count the same visual tokens, texts between the parts of a
// picture never among them, and take the same budgets.
func TestPredictedTokens(t *testing.T) {
	pic := &imageproc.Picture{Width: 336, Height: 336, Pix: make([]byte, 3*336*336)}
	for _, c := range []struct {
		model       string
		tokens      int // of the picture
		most        int // of a budget: without newlines
		text, texts int
	}{
		{"smolvlm-tiny", 45, 45, 10, 13}, {"pixtral-tiny", 100, 100, 10, 10},
		{"llava-onevision-tiny", 99, 90, 10, 0},
	} {
		m := openWith(t, "testdata/"+c.model, engine.Options{}, engine.Hooks{})
		dry := openWith(t, "testdata/"+c.model, engine.Options{}, engine.Hooks{Describe: true})
		for _, n := range []int{0, 4, c.most, c.most + 1} {
			kept := n
			if n == 0 || n == c.most {
				kept = c.tokens
			}
			o := methods.Options{Base: "grid", NVis: n}
			if n == 0 {
				o = methods.Options{}
			}
			f, err := dry.PredictMemory(dry.Source(), question(336, 336, n, c.text, 1))
			ans, err2 := m.Ask(t.Context(), engine.Request{
				Prompt: "x", Images: []*engine.Image{{Picture: pic}}, Reduce: o, MaxTokens: 1,
			})
			if n > c.most {
				if err == nil || err2 == nil {
					t.Errorf("%s: %d: got %v and %v, want two errors", c.model, n, err, err2)
				}
				continue
			}
			if err != nil || err2 != nil {
				t.Fatalf("%s: %d: %v, %v", c.model, n, err, err2)
			}
			if f.Tokens != c.tokens || f.Kept != kept || f.Prompt != kept+c.text+c.texts {
				t.Errorf("%s: %d: predicted %+v, want %+v", c.model, n, f, c)
			}
			if r := ans.Report; r.Before != c.tokens || r.Kept+r.Merged != kept {
				t.Errorf("%s: %d: answered with %d of %d tokens, want %d of %d", c.model, n,
					r.Kept+r.Merged, r.Before, kept, c.tokens)
			}
		}
	}
}
