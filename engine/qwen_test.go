package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/engine"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/tensor"
)

var axesPrompts = map[string][]string{
	"qwen25vl-tiny":      {"one-image", "two-images", "text-only", "two-turns"},
	"qwen25vl-tied-tiny": {"one-image", "two-images", "text-only"},
}

// axesReference returns the reference of one prompt of a checkpoint whose
// positions have three axes, with the pixel values of its pictures.
func axesReference(t testing.TB, name, prompt string) map[string]*tensor.Tensor {
	t.Helper()
	dir := filepath.Join("testdata", name)
	ref, err := golden.Read(filepath.Join(dir, prompt+".ref"))
	if err != nil {
		t.Fatal(err)
	}
	var pics []*imageproc.Picture
	for i := 0; ; i++ {
		raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%d.png", prompt, i)))
		if os.IsNotExist(err) {
			break
		}
		must(t, err)
		pic, err := imageproc.Decode(raw, prompt, imageproc.DefaultDecodeOptions())
		must(t, err)
		pics = append(pics, pic)
	}
	if len(pics) == 0 {
		return ref
	}
	config, err := os.ReadFile(filepath.Join(dir, "preprocessor_config.json"))
	must(t, err)
	proc, err := imageproc.ParseProcessor(config)
	must(t, err)
	px, err := proc.Process(pics)
	must(t, err)
	ref["pixel_values"] = tensor.FromFloat32s(px.Shape, px.Data)
	var grid []int64
	for _, g := range px.GridTHW {
		grid = append(grid, int64(g[0]), int64(g[1]), int64(g[2]))
	}
	made := tensor.FromInt64s([]int{len(pics), 3}, grid)
	must(t, golden.Compare(made, ref["image_grid_thw"], 0))
	return ref
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tolSharp is for decoder attention where the encoder's noise, which the
// reference has as well, meets rows with one probability near 1/2: there both
// stand 1e-5 from the float64 result, on either side.
const tolSharp = 4e-5

// tolFloat64 is against the reference's float64 logits: what the float32
// reference itself misses them by, doubled.
const tolFloat64 = 1e-5

// Ensure that every stage of every prompt equals transformers' and that greedy
// tokens are the same: windows cut at both edges, empty windows, several
// pictures, none, tied and untied heads.
func TestAxesStages(t *testing.T) {
	for name, prompts := range axesPrompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkAxes(t, e, axesReference(t, name, prompt))
			})
		}
	}
}

func checkAxes(t *testing.T, e *engine.Engine, ref map[string]*tensor.Tensor) {
	t.Helper()
	got, err := e.Trace(context.Background(), engine.TraceRequest{Inputs: ref, Tokens: 24})
	must(t, err)
	for name, want := range ref {
		if strings.HasPrefix(name, "turn") || name == "split" { // see TestTwoTurns
			continue
		}
		tol := tolStage
		switch {
		case name == "logits.f64_residual":
			logits, err := ref["logits"].Float32s()
			must(t, err)
			rest, err := want.Float32s()
			must(t, err)
			for i, v := range rest {
				rest[i] = logits[i] + v
			}
			name, want, tol = "logits", tensor.FromFloat32s(want.Shape, rest), tolFloat64
		case strings.HasPrefix(name, "text.") && strings.HasSuffix(name, ".attn"):
			tol = tolSharp
		case want.DType != tensor.F32:
			tol = 0
		}
		if got[name] == nil {
			t.Errorf("%s: not in the trace", name)
		} else if err := golden.Compare(got[name], want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ensure that the config form of transformers 5 describes the same model.
func TestAxesNewConfigForm(t *testing.T) {
	for name := range axesPrompts {
		dir := copyDir(t, filepath.Join("testdata", name))
		data, err := os.ReadFile(filepath.Join(dir, "config-5.x.ref"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644))
		checkAxes(t, open(t, dir, 1), axesReference(t, name, "one-image"))
	}
}
