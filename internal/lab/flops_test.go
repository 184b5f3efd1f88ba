package lab

import (
	"fmt"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
)

// llava7B is Table 20's model.
func llava7B() engine.Sizes {
	return engine.Sizes{
		Tokens: 576, Views: 1, Patch: 3 * 14 * 14, Projector: []int{1024, 4096, 4096}, Vocab: 32064,
		Vision: engine.Tower{
			Blocks: 24, Run: 23, Hidden: 1024, Heads: 16, Query: 1024, Key: 1024, MLP: 4096,
			Products: 2,
		},
		Text: engine.Tower{
			Blocks: 32, Run: 32, Hidden: 4096, Heads: 32, Query: 4096, Key: 4096, MLP: 11008,
			Products: 3,
		},
	}
}

func flops(s *engine.Sizes, o methods.Options, prompt int) (*FLOPs, error) {
	r, err := methods.Resolve(o, s.Facts())
	if err != nil {
		return nil, err
	}
	return CountFLOPs(s, r, o.NVis, prompt)
}

// Ensure that the paper's Tables 8 and 20 are reproduced to every printed digit.
func TestPaperTables(t *testing.T) {
	s := llava7B()
	for _, c := range []struct {
		n                        int
		decoder, total, overhead string
	}{
		{192, "1.649", "1.839", "0.074"}, {128, "1.227", "1.417", "0.096"}, {64, "0.807", "0.997", "0.136"},
	} {
		f, err := flops(&s, methods.Options{Base: "holov", NVis: c.n, Restore: true}, PaperPrompt)
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range map[string][2]string{
			"encoder (T)":     {"0.190", fmt.Sprintf("%.3f", f.Encoder/1e12)},
			"anchors (G)":     {"1.359", fmt.Sprintf("%.3f", f.Choice/1e9)},
			"decoder (T)":     {c.decoder, fmt.Sprintf("%.3f", f.Decoder/1e12)},
			"total (T)":       {c.total, fmt.Sprintf("%.3f", f.Total/1e12)},
			"overhead (in %)": {c.overhead, fmt.Sprintf("%.3f", f.Overhead())},
		} {
			if p[0] != p[1] {
				t.Errorf("n-vis %d: %s: got %s, want %s", c.n, name, p[1], p[0])
			}
		}
	}
}

// Ensure that a schedule is counted layer by layer: with FastV 2:64, 576, 576, 64 and 64 rows enter
// the 4 layers.
func TestFLOPsOfSchedules(t *testing.T) {
	s := llava7B()
	s.Text.Blocks, s.Text.Run = 4, 4
	f, err := flops(&s, methods.Options{Base: "fastv", Schedule: "2:64"}, 24)
	if err != nil {
		t.Fatal(err)
	}
	want := 0.0
	for _, n := range []float64{600, 600, 88, 88} {
		want += 4*n*4096*4096 + 2*n*n*4096 + 3*n*11008*4096
	}
	if f.Decoder != want || f.Mean != 320 {
		t.Errorf("decoder %v, mean %v, want %v and 320", f.Decoder, f.Mean, want)
	}
	s.Text.Blocks, s.Text.Run = 28, 28 // 576/28 is no float
	if f, err := flops(&s, methods.Options{}, 24); err != nil || f.Mean != 576 {
		t.Errorf("a mean of %v rows, %v, want 576", f.Mean, err)
	}
	if _, err := flops(&s, methods.Options{}, 0); err == nil ||
		err.Error() != "lab: flops: prompt: got 0 rows, want at least 1" {
		t.Errorf("no prompt: %v", err)
	}
	if _, err := flops(&s, methods.Options{Base: "prumerge"}, 1); err == nil ||
		err.Error() != "lab: flops: prumerge: finds the number of tokens in the picture, "+
			"want a budget" {
		t.Errorf("no budget: %v", err)
	}
}
