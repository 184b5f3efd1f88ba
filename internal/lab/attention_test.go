package lab_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
)

// shareTolerance is the rounding error of a sum of some hundred float32 probabilities.
const shareTolerance = 1e-5

// scenePicture is a drawn scene.
func scenePicture(t *testing.T) *imageproc.Picture {
	t.Helper()
	p, err := imageproc.Decode(scene.New(3).PNG(), "scene", imageproc.DecodeOptions{EXIF: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// embedded opens the embedded model.
func embedded(t testing.TB, o engine.Options, h engine.Hooks) *engine.Engine {
	t.Helper()
	e, err := engine.OpenWith(formats.Files{}, o, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// Ensure that the shares match the attention matrices in a trace of the same request: with every
// token, with a reduction before the decoder (the picture's rows are then 35 to 35+n, because the
// trace expands the prompt's tokens), and with one inside it, where the rows differ by layer.
func TestAttentionShare(t *testing.T) {
	e, ctx := embedded(t, engine.Options{Threads: 2}, engine.Hooks{}), context.Background()
	pic := scenePicture(t)
	encoded, err := e.Encode(ctx, engine.Pictures(pic))
	if err != nil {
		t.Fatal(err)
	}
	const prompt = "How many circles are there?"
	for name, o := range map[string]methods.Options{
		"full":      {},
		"reduced":   {Base: "holov", NVis: 20},
		"RESTORE":   {Base: "holov", NVis: 20, Restore: true},
		"schedules": {Base: "fastv", Schedule: "1:40,3:9"},
	} {
		got, err := lab.Attention(ctx, e, prompt, nil, encoded, o)
		if err != nil {
			t.Fatal(name, err)
		}
		trace, err := lab.Trace(ctx, e, lab.TraceRequest{
			Prompt: prompt, Images: []*imageproc.Picture{pic}, Reduce: o,
		})
		if err != nil {
			t.Fatal(name, err)
		}
		ids, err := trace["input_ids"].Int64s()
		if err != nil {
			t.Fatal(err)
		}
		first, visual := -1, 0 // the picture's tokens before reduction
		for i, id := range ids {
			if id == 638 {
				visual++
				if first < 0 {
					first = i
				}
			}
		}
		for layer := range got.Text {
			a := trace[fmt.Sprintf("text.layer.%d.attn", layer)]
			p, err := a.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			heads, rows := a.Shape[0], a.Shape[1]
			n := visual - (len(ids) - rows)
			mean := func(lo, hi int) float64 {
				sum := 0.0
				for h := range heads {
					for q := lo; q < hi; q++ {
						for k := first; k < first+n; k++ {
							sum += float64(p[(h*rows+q)*rows+k])
						}
					}
				}
				return sum / float64(heads*(hi-lo))
			}
			for what, v := range map[string][2]float64{
				"visual": {got.Visual[layer], mean(first, first+n)},
				"text":   {got.Text[layer], mean(first+n, rows)},
				"last":   {got.Last[layer], mean(rows-1, rows)},
			} {
				if !(math.Abs(v[0]-v[1]) <= shareTolerance) {
					t.Errorf("%s: layer %d: %s: %v, want %v", name, layer, what, v[0], v[1])
				}
			}
		}
	}
	none, err := e.Encode(ctx, nil)
	if err == nil {
		_, err = lab.Attention(ctx, e, prompt, nil, none, methods.Options{})
	}
	if err == nil || !strings.Contains(err.Error(), "picture") {
		t.Errorf("no picture: %v", err)
	}
}
