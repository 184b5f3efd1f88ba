package engine

import (
	"context"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/racetest"
	"github.com/restore-vlm/restore/internal/sample"
)

// Ensure that a decoded token allocates nothing, sampling included: plain, calibrated with whole
// and with fractional positions, with every kind of weight and with all kernels.
func TestDecodeDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	kernels := kernel.Implementations()[1:] // the reference allocates
	if len(kernels) == 0 {
		t.Skip("only the reference is here")
	}
	pic := drawn(t, 7)
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
		t.Run(c.name, func(t *testing.T) {
			e := opened(t, Options{Threads: 2, Quant: c.quant, CacheType: c.cache})
			decodeDoesNotAllocate(t, e, pic, c.reduce, kernels)
		})
	}
}

// decodeDoesNotAllocate counts the allocations of the steps of two sequences, with each of kernels.
func decodeDoesNotAllocate(
	t *testing.T, e *Engine, pic *imageproc.Picture, reduce methods.Options,
	kernels []string,
) {
	use := func(name string) {
		if err := kernel.SetImplementation(name); err != nil {
			t.Fatal(err)
		}
	}
	defer use(kernel.Implementation())
	var batch []*sequence
	for _, prompt := range []string{"What is there?", "Describe the image."} {
		s, err := e.sequence(context.Background(), Request{
			Prompt: prompt, Images: Pictures(pic), Reduce: reduce, MaxTokens: 300,
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
		var lens [][]int // after the prompts
		var next []float64
		for _, s := range batch {
			in, err := (&Prompt{s}).Rows(r)
			if err != nil {
				return err
			}
			s.cache, s.next = e.newCache(), in.Next
			defer s.cache.Free()
			if _, err := s.read(r, in); err != nil {
				return err
			}
			lens, next = append(lens, s.cache.Lens(nil)), append(next, s.next)
		}
		step := func() {
			d.advance(batch)
			for i, s := range batch {
				s.id = sampler.Next(d.logits[i*vocab : (i+1)*vocab])
				s.next++
				s.fed = append(s.fed, unit{id: s.id})
			}
		}
		for _, k := range kernels {
			use(k)
			for i, s := range batch { // the same steps again
				for j, n := range lens[i] {
					s.cache.Layer(j).Truncate(n)
				}
				s.next, s.fed, s.slots = next[i], s.fed[:0], 0
			}
			step() // buffers grow
			if n := testing.AllocsPerRun(50, step); n != 0 {
				t.Errorf("%s: %v allocations a step", k, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
