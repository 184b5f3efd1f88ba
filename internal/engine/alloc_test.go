package engine

import (
	"bytes"
	"context"
	"github.com/restore-vlm/restore/internal/formats"
	"image/png"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/internal/scene"
)

// Ensure that a decoded token allocates nothing, sampling included: plain, calibrated with whole
// and with fractional positions, and with every kind of weight.
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
		reduce      methods.Options
		cache       string
	}{
		{"float16 keys and values", "", methods.Options{Base: "holov", NVis: 64, Restore: true}, "f16"},
		{"plain", "", methods.Options{}, ""},
		{"only text tokens are calibrated by distance", "q8", methods.Options{Base: "holov", NVis: 64, Restore: true, Calibrate: "distance"}, ""},
		{"calibrated", "q4", methods.Options{Base: "holov", NVis: 64, Restore: true}, ""},
		{"whole positions", "f32", methods.Options{Base: "holov", NVis: 64, Restore: true, MergePosition: "first"}, ""},
		{"after FastV, positions closed up", "", methods.Options{Base: "fastv", NVis: 192, Positions: "sequential"}, ""},
		{"after PyramidDrop", "q8", methods.Options{Base: "pdrop", NVis: 192, Restore: true}, ""},
		{"means", "bf16", methods.Options{Base: "divprune", NVis: 64, Restore: true, MergePosition: "mean"}, ""},
	} {
		ck, err := formats.Open("")
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(ck, Options{Threads: 2, Quant: c.quant, CacheType: c.cache}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		var batch []*sequence
		for _, prompt := range []string{"What is there?", "Describe the image."} {
			s, err := e.sequence(context.Background(), Request{
				Prompt: prompt, Images: []*imageproc.Picture{pic}, Reduce: c.reduce, MaxTokens: 300,
				NoCache: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, s)
		}
		sampler, err := sample.New(sample.Options{Temp: 0.7, TopK: 40, TopP: 0.9, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		err = e.Do(context.Background(), func(r *model.Run) error {
			d, vocab := e.device, e.shape.Vocab
			for _, s := range batch {
				in, err := (&Prompt{s}).Rows(r)
				if err != nil {
					return err
				}
				s.cache, s.next = e.newCache(), in.Next
				if _, err := s.read(r, in); err != nil {
					return err
				}
			}
			step := func() {
				d.advance(batch)
				for i, s := range batch {
					s.id = sampler.Next(d.logits[i*vocab : (i+1)*vocab])
					s.next++
					s.fed = append(s.fed, unit{id: s.id})
				}
			}
			step() // buffers grow
			if n := testing.AllocsPerRun(50, step); n != 0 {
				t.Errorf("%s: %v allocations a step", c.name, n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
