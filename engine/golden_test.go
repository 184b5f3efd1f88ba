package engine_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/checkpoint"
	"github.com/restore-vlm/restore/engine"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
)

// tolStage is three times the references' own float32 noise against float64,
// over all stages, as a share of a tensor's largest value.
const tolStage = 2e-5

// tolLogits is absolute, on logits of size 12: 3 to 6 times the released code's
// own float32 error; the smallest effect of any switch is 60 times larger.
const tolLogits = 3e-4

func open(t testing.TB, dir string, threads int) *engine.Engine {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(ck, engine.Options{Threads: threads})
	if err != nil {
		ck.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// Ensure that every stage of every prompt equals transformers' and that greedy
// tokens are the same.
func TestStages(t *testing.T) {
	for _, name := range []string{"llava15-tiny", "llava15-tiny-f16", "llava15-tiny-bf16-sharded", "llava15-gqa-full-tiny"} {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range []string{"one-image", "two-images", "text-only"} {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				ref, err := golden.Read(filepath.Join("testdata", name, prompt+".ref"))
				if err != nil {
					t.Fatal(err)
				}
				checkStages(t, e, ref)
			})
		}
	}
}

func checkStages(t *testing.T, e *engine.Engine, ref map[string]*tensor.Tensor) {
	got, err := e.Trace(context.Background(), engine.TraceRequest{Inputs: ref, Tokens: 24})
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for name, want := range ref {
		if strings.HasSuffix(name, "f64_residual") || name == "gen.margin" {
			continue
		}
		g, ok := got[name]
		if !ok {
			t.Errorf("%s: not in the trace", name)
			continue
		}
		tol := tolStage
		if want.DType == tensor.I64 {
			tol = 0
		}
		if err := golden.Compare(g, want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compared++
	}
	if compared < 5 {
		t.Fatalf("compared %d tensors, want the reference's stages", compared)
	}
}

// Ensure that the config form of transformers 5 describes the same model.
func TestNewConfigForm(t *testing.T) {
	for _, name := range []string{"llava15-tiny", "llava15-gqa-full-tiny"} {
		dir := copyDir(t, filepath.Join("testdata", name))
		data, err := os.ReadFile(filepath.Join("testdata", name, "config-5.x.ref"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		ref, err := golden.Read(filepath.Join("testdata", name, "one-image.ref"))
		if err != nil {
			t.Fatal(err)
		}
		checkStages(t, open(t, dir, 1), ref)
	}
}

func copyDir(t testing.TB, src string) string {
	t.Helper()
	dst := t.TempDir()
	if err := os.CopyFS(dst, os.DirFS(src)); err != nil {
		t.Fatal(err)
	}
	return dst
}

type restoreInputs struct {
	ImageTokenID int32 `json:"image_token_id"`
	Prompts      []struct {
		Picture string  `json:"picture"`
		Prefix  []int64 `json:"prefix_ids"`
		Suffix  []int64 `json:"suffix_ids"`
	} `json:"prompts"`
}

// restoreTrace returns a function that traces prompt p (0 or 1) of the reference
// runs of released code and paper.
func restoreTrace(t testing.TB, threads int) func(t testing.TB, p int, o reduce.Options) map[string]*tensor.Tensor {
	e := open(t, "testdata/restore-tiny", threads)
	data, err := os.ReadFile("testdata/restore-tiny/ref-inputs.json")
	if err != nil {
		t.Fatal(err)
	}
	var in restoreInputs
	if err := json.Unmarshal(data, &in); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile("testdata/restore-tiny/preprocessor_config.json")
	if err != nil {
		t.Fatal(err)
	}
	proc, err := imageproc.ParseProcessor(config)
	if err != nil {
		t.Fatal(err)
	}
	var inputs []map[string]*tensor.Tensor
	for _, p := range in.Prompts {
		raw, err := os.ReadFile("testdata/restore-tiny/ref-" + p.Picture)
		if err != nil {
			t.Fatal(err)
		}
		pic, err := imageproc.Decode(raw, p.Picture, imageproc.DefaultDecodeOptions())
		if err != nil {
			t.Fatal(err)
		}
		px, err := proc.Process([]*imageproc.Picture{pic})
		if err != nil {
			t.Fatal(err)
		}
		ids := append(append(append([]int64(nil), p.Prefix...), int64(in.ImageTokenID)), p.Suffix...)
		inputs = append(inputs, map[string]*tensor.Tensor{
			"input_ids":    tensor.FromInt64s([]int{len(ids)}, ids),
			"pixel_values": tensor.FromFloat32s(px.Shape, px.Data),
		})
	}
	return func(t testing.TB, p int, o reduce.Options) map[string]*tensor.Tensor {
		t.Helper()
		out, err := e.Trace(context.Background(), engine.TraceRequest{Inputs: inputs[p], Reduce: o, Tokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}
