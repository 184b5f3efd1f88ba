package engine_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/lab"
)

// tolMLX is three times the error of the logits where weights are in blocks: products with them
// round activations to 8 bits.
const tolMLX = 8e-2

// Ensure that models that mlx-vlm wrote, under its names, with channels last and modules quantised
// in different ways, compute what transformers does with the same values
// (tools/fixtures/mlxweights.py).
func TestMLX(t *testing.T) {
	for _, name := range []string{"qwen2vl", "idefics3"} {
		dir := filepath.Join("testdata", "mlx", name)
		if name == "idefics3" { // texts between its tiles are tokens
			dir = copyDir(t, dir)
			tokens, err := os.ReadFile("testdata/idefics3-tiny/tokenizer.json")
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokens, 0o644))
		}
		ref := golden.Read(t, filepath.Join(dir, "one.ref"))
		for quant, tol := range map[string]float64{"f32": tolStage, "": tolMLX} {
			o := engine.Options{Threads: 2, Quant: quant, EncoderQuant: cmp.Or(quant, "stored")}
			e := openWith(t, dir, o, engine.Hooks{})
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: ref})
			must(t, err)
			if err := golden.Compare(got["logits"], ref["logits"], tol); err != nil {
				t.Errorf("%s, quant %q: %v", name, quant, err)
			}
		}
	}
}
