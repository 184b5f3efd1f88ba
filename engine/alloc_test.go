package engine

import (
	"bytes"
	"context"
	"image/png"
	"testing"

	"github.com/restore-vlm/restore/builtin"
	"github.com/restore-vlm/restore/checkpoint"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/kernel"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/sample"
	"github.com/restore-vlm/restore/scene"
	"github.com/restore-vlm/restore/tokenizer/chat"
)

// Ensure that a decoded token allocates nothing, sampling included: plain, calibrated
// with whole positions and with fractional ones, and with every kind of weight.
func TestDecodeDoesNotAllocate(t *testing.T) {
	if kernel.Implementation() == "go" {
		t.Skip("the reference allocates")
	}
	var b bytes.Buffer
	if err := png.Encode(&b, scene.New(7).Image()); err != nil {
		t.Fatal(err)
	}
	pic, err := imageproc.Decode(b.Bytes(), "scene", imageproc.DefaultDecodeOptions())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, quant string
		reduce      reduce.Options
		cache       string
	}{
		{"float16 keys and values", "", reduce.Options{Base: "holov", NVis: 64, Restore: true}, "f16"},
		{"plain", "", reduce.Options{}, ""},
		{"text tokens alone are calibrated by distance", "q8", reduce.Options{Base: "holov", NVis: 64, Restore: true, Calibrate: "distance"}, ""},
		{"calibrated", "q4", reduce.Options{Base: "holov", NVis: 64, Restore: true}, ""},
		{"whole positions", "f32", reduce.Options{Base: "holov", NVis: 64, Restore: true, MergePosition: "first"}, ""},
		{"after FastV, positions closed up", "", reduce.Options{Base: "fastv", NVis: 192, Positions: "sequential"}, ""},
		{"after PyramidDrop", "q8", reduce.Options{Base: "pdrop", NVis: 192, Restore: true}, ""},
		{"means", "bf16", reduce.Options{Base: "divprune", NVis: 64, Restore: true, MergePosition: "mean"}, ""},
	} {
		ck, err := checkpoint.OpenFS(builtin.FS(), ".")
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(ck, Options{Threads: 2, Quant: c.quant, CacheType: c.cache})
		if err != nil {
			t.Fatal(err)
		}
		conv := e.NewConversation(c.reduce)
		r := e.run()
		r.Context = context.Background()
		req := &Request{Images: []*imageproc.Picture{pic}, MaxTokens: 200}
		ans := &Answer{}
		pics, err := conv.look(r, req, &ans.Report)
		if err != nil {
			t.Fatal(err)
		}
		units, err := e.prompt([]chat.Message{userMessage("What is there?", pics)}, pics)
		if err != nil {
			t.Fatal(err)
		}
		s := &sequence{e: e, most: 200, cache: conv.cache, calib: calibrationOf(e, pics)}
		if err := conv.prefill(r, s, units, &ans.Report); err != nil {
			t.Fatal(err)
		}
		sampler, err := sample.New(sample.Options{Temp: 0.7, TopK: 40, TopP: 0.9, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		step := func() {
			if err := s.step(r, sampler.Next(s.logits)); err != nil {
				t.Fatal(err)
			}
		}
		step() // buffers grow
		if n := testing.AllocsPerRun(50, step); n != 0 {
			t.Errorf("%s: %v allocations a token", c.name, n)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
