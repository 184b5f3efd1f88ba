package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// within lists runs of the authors' released code inside the encoder, and of RESTORE over it.
var within = []struct {
	name string
	o    methods.Options
}{
	{"tome_t12", methods.Options{Base: "tome", NVis: 12, Compat: "released"}},
	{"tome_r4_noprop", methods.Options{Base: "tome", Compat: "released", Own: map[string]any{"tome-r": "4", "proportional-attention": "false"}}},
	{"tome_cap", methods.Options{Base: "tome", Compat: "released", Own: map[string]any{"tome-r": "12,12,12,12,12,12"}}},
	{"restore_tome_t12", methods.Options{Base: "tome", NVis: 12, Compat: "paper", Restore: true}},
	{"flowcut_t12", methods.Options{Base: "flowcut", NVis: 12, Compat: "released"}},
	{"restore_flowcut_t12_g50", methods.Options{Base: "flowcut", NVis: 12, Compat: "paper", Restore: true}},
	{"restore_flowcut_t12_g75", methods.Options{Base: "flowcut", NVis: 12, Compat: "paper", Restore: true, Gamma: new(0.75)}},
}

// Ensure that the inputs and outputs of every block, features, positions, logits and greedy tokens
// equal the released code's and the RESTORE reference's.
func TestInsideEncoder(t *testing.T) {
	dir := filepath.Join("testdata", "inmodel-tiny")
	in := golden.Read(t, filepath.Join(dir, "prompt.ref"))
	e := open(t, dir, 2)
	for _, c := range within {
		t.Run(c.name, func(t *testing.T) {
			ref := golden.Read(t, filepath.Join(dir, c.name+".ref"))
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: c.o, Tokens: 12,
			})
			if err != nil {
				t.Fatal(err)
			}
			known := 0
			for name := range ref {
				switch { // the decoder's groups are the encoder's, sorted
				// without groups: this run merges nothing
				case c.name == "flowcut_t12" &&
					(strings.Contains(name, ".group_") || strings.HasSuffix(name, ".sizes")):
				case strings.HasPrefix(name, "llm_"), strings.HasSuffix(name, "_size_only"):
				default:
					known++
				}
			}
			if compared := compareInside(t, got, ref); compared < known {
				t.Errorf("compared %d of %d tensors", compared, known)
			}
			if !c.o.Restore {
				return
			}
			if err := golden.Compare(got["positions"], ref["llm_pos"], 0); err != nil {
				t.Errorf("positions: %v", err)
			}
			if err := golden.Compare(got["sizes"], ref["llm_size"], 0); err != nil {
				t.Errorf("sizes: %v", err)
			}
			o := c.o
			o.DecodeDistance = new(false)
			if got, err = lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: o, Tokens: 12,
			}); err != nil {
				t.Fatal(err)
			}
			compareInside(t, got, map[string]*tensor.Tensor{
				"tokens": ref["tokens_size_only"], "logits": ref["logits_size_only"],
			})
		})
	}
}

// Ensure that two pictures of one request are reduced as each alone, and that an encoded picture
// can be reduced again and again.
func TestInsideEncoderPictures(t *testing.T) {
	m := open(t, "", 2)
	ctx := context.Background()
	pics := []*imageproc.Picture{picture(t, 11), picture(t, 12)}
	both, err := m.Encode(ctx, engine.Pictures(pics...))
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"tome", "flowcut"} {
		o := methods.Options{Base: base, NVis: 48, Restore: true}
		together, err := m.Ask(ctx, engine.Request{
			Prompt: "Describe the image.", Encoded: both, Reduce: o, MaxTokens: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if together.Report.Encode <= 0 {
			t.Errorf("%s: no time for encoding", base)
		}
		for i, p := range pics {
			alone, err := m.Ask(ctx, engine.Request{
				Prompt: "Describe the image.", Images: engine.Pictures(p), Reduce: o,
				MaxTokens: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			a, b := alone.Report.Images[0].Reduction, together.Report.Images[i].Reduction
			if !slices.Equal(a.Group, b.Group) {
				t.Errorf("%s: picture %d is reduced differently next to another", base, i)
			}
			whole := *a
			whole.Features = make([]float32, len(a.Rows)*a.Width) // reports have none
			if err := whole.Check(); err != nil {
				t.Errorf("%s: %v", base, err)
			}
		}
	}
}

// Ensure that a method for which an encoder cannot be reduced inside, or a picture cannot shrink,
// is refused with the reason.
func TestInsideEncoderRefused(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"llava15-gqa-full-tiny": {"tome": "vision_feature_layer", "flowcut": "vision_feature_layer", "downsample": "class token"},
		"qwen25vl-tiny":         {"tome": "windows", "flowcut": "windows"},
	} {
		e := open(t, filepath.Join("testdata", name), 1)
		var in map[string]*tensor.Tensor
		if name == "qwen25vl-tiny" {
			in = axesReference(t, name, "one-image")
		} else {
			in = golden.Read(t, filepath.Join("testdata", name, "one-image.ref"))
		}
		for base, reason := range want {
			_, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: methods.Options{Base: base, NVis: 4},
			})
			if err == nil || !strings.Contains(err.Error(), reason) ||
				!strings.Contains(err.Error(), "base: got "+base) {
				t.Errorf("%s, %s: got %v, want a refusal that names %q", name, base, err, reason)
			}
		}
	}
}

// Ensure that a method that needs what an encoder does not compute is refused before a picture is
// encoded, that the error says what is missing, and that the methods that it names work.
func TestOtherBases(t *testing.T) {
	const embedding = "are the embedding, before any block"
	for _, c := range []struct {
		model, picture string
		edit           func(config map[string]any) // nil: none
		want           map[string]string
	}{
		{
			"internvl-tiny", "wide.png",
			func(config map[string]any) { config["vision_feature_layer"] = 0 },
			map[string]string{
				"holov": "needs cls_attn of the encoder's blocks", "vispruner": embedding,
				"visionzip": embedding, "fastervlm": embedding, "scope": embedding,
				"hiprune": embedding, "vscan": embedding, "tome": "joins 4 patches",
				"dart": "needs keys of the encoder's blocks", "flowcut": "joins 4 patches",
				"downsample": "tiles",
			},
		},
		{"smolvlm-tiny", "smolvlm-tiny-odd-0-53x29.png", nil, map[string]string{
			"prumerge":      "class token of the encoder's last layer, and this model's encoder has no",
			"prumerge-plus": "no class token", "tome": "joins 2x2", "flowcut": "joins 2x2",
			"downsample": "tiles",
		}},
	} {
		dir := copyDir(t, filepath.Join("testdata", c.model))
		if c.edit != nil {
			path, config := filepath.Join(dir, "config.json"), map[string]any{}
			golden.JSON(t, path, &config)
			c.edit(config)
			data, err := json.Marshal(config)
			must(t, err)
			must(t, os.WriteFile(path, data, 0o644))
		}
		e := open(t, dir, 1)
		request := func(base string) engine.Request {
			o := methods.Options{Base: base, NVis: 4, Restore: true}
			if m, err := methods.Lookup(base); err == nil && m.Site == reduce.InsideDecoder {
				o.NVis, o.KeepRatio = 0, 0.5
			} else if base == "none" {
				o = methods.Options{}
			}
			return engine.Request{
				Prompt: "?", Reduce: o, MaxTokens: 1,
				Images: engine.Pictures(decoded(t, filepath.Join(dir, c.picture))),
			}
		}
		var others []string
		for base, want := range c.want {
			_, err := e.NewPrompt(context.Background(), request(base))
			var bad *errs.OptionError
			if !errors.As(err, &bad) || bad.Name != "base" || bad.Got != base ||
				!strings.Contains(bad.Why, want) {
				t.Errorf("%s, %s: got %v, want %q", c.model, base, err, want)
				continue
			}
			others = strings.Split(strings.TrimPrefix(bad.Want, "one of "), ", ")
			for _, m := range methods.Methods() {
				if listed := slices.Contains(others, m.Name); listed == (c.want[m.Name] != "" ||
					m.Site == reduce.BeforeEncoder) {
					t.Errorf("%s, %s: %s listed: %v", c.model, base, m.Name, listed)
				}
			}
		}
		for _, base := range others {
			_, err := e.Ask(context.Background(), request(base))
			if err != nil && base != "fitprune" { // it needs a recipe too
				t.Errorf("%s: %s was named and is refused: %v", c.model, base, err)
			}
		}
	}
}

// Ensure that a picture of any size can shrink, and that one that keeps its size is not reduced.
func TestDownsampleAnySize(t *testing.T) {
	// 9x7 and 4x9 tokens
	e, in := open(t, "testdata/qwen25vl-tiny", 2), axesReference(t, "qwen25vl-tiny", "two-images")
	trace := func(o methods.Options) map[string]*tensor.Tensor {
		t.Helper()
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Reduce: o, Tokens: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	plain := trace(methods.Options{})
	same(t, "all tokens", trace(methods.Options{Base: "downsample", KeepRatio: 1}), plain, "logits",
		"gen.tokens", "positions")
	for _, o := range []methods.Options{
		{Base: "downsample", NVis: 12}, {Base: "downsample", NVis: 12, Restore: true},
	} {
		got := trace(o)
		if n := got["reduce.0.features"].Shape[0]; n != 12 ||
			got["reduce.1.features"].Shape[0] != 12 {
			t.Errorf("restore=%v: %d rows, want 12", o.Restore, n)
		}
		v, _ := got["position_ids"].Int64s()
		p, _ := plain["position_ids"].Int64s()
		if v[len(v)-1] != p[len(p)-1] || len(v) != len(p)-3*(63+36-24) {
			t.Errorf("restore=%v: %d positions to %d, want the last at %d", o.Restore, len(v)/3,
				v[len(v)-1], p[len(p)-1])
		}
	}
}

// Ensure that the tiles of a picture share the budget, merge within themselves and have positions
// among all patches.
func TestInsideEncoderTiles(t *testing.T) {
	e := open(t, "testdata/llavanext-vicuna-tiny", 2)
	in := nextInputs(t, "llavanext-vicuna-tiny", "odd")
	for _, base := range []string{"tome", "flowcut"} {
		for _, o := range []methods.Options{
			{Base: base, NVis: 26}, {Base: base, NVis: 26, Restore: true}, {Base: base, NVis: 26, Compat: "released"},
		} {
			name := fmt.Sprintf("%s restore=%v %s", base, o.Restore, o.Compat)
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: o, Tokens: 2,
			})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			n := got["reduce.group"].Shape[0]
			sizes, _ := got["reduce.size"].Float32s()
			if sizes == nil {
				ints, _ := got["reduce.size"].Int64s()
				for _, s := range ints {
					sizes = append(sizes, float32(s))
				}
			}
			sum := 0
			for _, s := range sizes {
				sum += int(s)
			}
			if len(sizes) != 26 || n%16 != 0 || (o.Restore || base == "tome") && sum != n {
				t.Errorf("%s: %d rows whose sizes sum to %d of %d patches", name, len(sizes), sum,
					n)
			}
		}
		for _, mode := range []string{"keep", "skip"} {
			_, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: methods.Options{Base: base, NVis: 26, Newlines: mode},
			})
			if err == nil || !strings.Contains(err.Error(), "newlines: got "+mode) {
				t.Errorf("%s newlines %s: got %v, want a refusal by name", base, mode, err)
			}
		}
	}
}
