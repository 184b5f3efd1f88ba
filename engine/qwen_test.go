package engine_test

import (
	"context"
	"encoding/json"
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

// Ensure that edits of these checkpoints are refused by name, too.
func TestAxesMutated(t *testing.T) {
	data, err := os.ReadFile("testdata/mutations.json")
	must(t, err)
	var all struct{ Cases []mutation }
	must(t, json.Unmarshal(data, &all))
	cases := append(all.Cases, configCases()...)
	n := 0
	for _, c := range cases {
		if axesPrompts[c.Base] == nil {
			continue
		}
		n++
		t.Run(c.ID, func(t *testing.T) {
			dir := copyDir(t, filepath.Join("testdata", c.Base))
			for _, op := range c.Ops {
				if op.Op == "copy_tensor" { // always the embedding as the head
					copyHead(t, filepath.Join(dir, "model.safetensors"))
				} else {
					op.apply(t, dir)
				}
			}
			err := load(dir)
			if (err == nil) != (c.Expect == "ok") {
				t.Fatalf("got %v, want %s", err, c.Expect)
			}
			if err == nil {
				return
			}
			t.Log(err)
			for _, want := range append(c.ErrorNames, "") {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%q does not name %q on one line", err, want)
				}
			}
		})
	}
	if n < 9+len(configCases()) {
		t.Errorf("%d cases, want all", n)
	}
}

// configCases are edits of config.json beyond the shared list.
func configCases() []mutation {
	set := func(id, value string, path ...string) mutation {
		return mutation{
			ID: id, Base: "qwen25vl-tiny", Expect: "error", ErrorNames: path[len(path)-1:],
			Ops: []edit{{Op: "set_json", File: "config.json", Path: path, Value: json.RawMessage(value)}},
		}
	}
	return []mutation{
		set("two sections", "[4, 4]", "rope_scaling", "mrope_section"),
		set("negative section", "[-2, 5, 5]", "rope_scaling", "mrope_section"),
		set("no sections", "null", "rope_scaling", "mrope_section"),
		set("another rotation", `"yarn"`, "rope_scaling", "type"),
		set("image token outside", "340", "image_token_id"),
		set("sliding window", "true", "use_sliding_window"),
		set("sliding layer", `["full_attention", "sliding_attention", "full_attention"]`, "layer_types"),
		set("kv heads", "3", "num_key_value_heads"),
		set("heads", "3", "num_attention_heads"),
		set("odd head dim", "64", "num_attention_heads"),
		set("no vision", "null", "vision_config"),
		set("vision heads", "3", "vision_config", "num_heads"),
		set("vision head dim", "16", "vision_config", "num_heads"),
		set("channels", "4", "vision_config", "in_chans"),
		set("no full block", "[]", "vision_config", "fullatt_block_indexes"),
		set("activation", `"gelu"`, "vision_config", "hidden_act"),
		set("window between cells", "100", "vision_config", "window_size"),
		set("merge", "0", "vision_config", "spatial_merge_size"),
		set("quantised", `{"bits": 4}`, "quantization_config"),
	}
}

// copyHead stores the embedding a second time, as the head.
func copyHead(t *testing.T, path string) {
	head, data := readHeader(t, path)
	e := head["model.embed_tokens.weight"]
	out := map[string]any{}
	for k, v := range head {
		out[k] = v
	}
	blob := data[e.Offsets[0]:e.Offsets[1]]
	out["lm_head.weight"] = entry{e.Dtype, e.Shape, [2]int64{int64(len(data)), int64(len(data) + len(blob))}}
	writeHeader(t, path, out, append(data[:len(data):len(data)], blob...))
}
