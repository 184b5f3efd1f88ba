package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/checkpoint"
	"github.com/restore-vlm/restore/engine"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
)

var nextPrompts = map[string][]string{
	"llavanext-mistral-tiny": {"square", "wide", "tall", "odd", "tiny", "text-only"},
	"llavanext-vicuna-tiny":  {"odd", "two-images"},
}

// nextInputs returns the reference tensors of a prompt; where pictures lie
// beside it, pixel_values comes from them, prepared as the checkpoint says.
func nextInputs(t testing.TB, name, prompt string) map[string]*tensor.Tensor {
	t.Helper()
	dir := filepath.Join("testdata", name)
	ref, err := golden.Read(filepath.Join(dir, prompt+".ref"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(dir, "preprocessor_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	proc, err := imageproc.ParseProcessor(config)
	if err != nil {
		t.Fatal(err)
	}
	var pics []*imageproc.Picture
	for {
		raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%d.ref.png", prompt, len(pics))))
		if os.IsNotExist(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pic, err := imageproc.Decode(raw, prompt, imageproc.DefaultDecodeOptions())
		if err != nil {
			t.Fatal(err)
		}
		pics = append(pics, pic)
	}
	if len(pics) == 0 {
		return ref
	}
	px, err := proc.Process(pics)
	if err != nil {
		t.Fatal(err)
	}
	ref["pixel_values"] = tensor.FromFloat32s(px.Shape, px.Data)
	return ref
}

// Ensure that every stage of any-resolution prompts equals transformers', with
// both forms of the config, and that greedy tokens are the same.
func TestNextStages(t *testing.T) {
	for name, prompts := range nextPrompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) { checkStages(t, e, nextInputs(t, name, prompt)) })
		}
		dir := copyDir(t, filepath.Join("testdata", name))
		data, err := os.ReadFile(filepath.Join(dir, "config-5.x.ref"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		checkStages(t, open(t, dir, 1), nextInputs(t, name, "odd"))
	}
}

// countTokens returns the picture's tokens with and without newlines.
func countTokens(packed, newline []float32, width int) (all, plain int) {
	all = len(packed) / width
	for i := range all {
		row := packed[i*width : (i+1)*width]
		if !slices.Equal(row, newline) {
			plain++
		}
	}
	return all, plain
}

// Ensure every method runs on every shape of picture, with each treatment of
// newlines: the right number of rows in order of position, text behind the
// picture's unreduced length, and a budget of all tokens being no reduction.
func TestNextReductions(t *testing.T) {
	const name = "llavanext-vicuna-tiny"
	e := open(t, filepath.Join("testdata", name), 2)
	ck, err := checkpoint.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	w, _ := ck.Tensor("image_newline")
	newline, err := w.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	in := nextInputs(t, name, "odd")
	trace := func(o reduce.Options) (map[string]*tensor.Tensor, error) {
		return e.Trace(context.Background(), engine.TraceRequest{Inputs: in, Reduce: o, Tokens: 4})
	}
	plain, err := trace(reduce.Options{})
	if err != nil {
		t.Fatal(err)
	}
	packed, _ := plain["packed"].Float32s()
	all, patches := countTokens(packed, newline, plain["packed"].Shape[1])
	if all <= patches || all != int(plain["packed_lens"].Data[0]) {
		t.Fatalf("%d tokens, %d of them patches", all, patches)
	}
	text := in["input_ids"].Shape[0] - all
	for _, base := range append(bases, "prumerge", "prumerge-plus") {
		for _, mode := range []string{"", "drop", "skip", "keep"} {
			perView := base == "vispruner" || base == "visionzip" || strings.HasPrefix(base, "prumerge")
			n, span := patches, patches
			if mode == "keep" {
				n = all
			}
			if mode == "keep" || mode == "skip" {
				span = all
			}
			for _, on := range []bool{true, false} {
				o := reduce.Options{Base: base, Newlines: mode, Restore: on, NVis: n}
				if !(perView && mode == "keep") {
					got, err := trace(o)
					if err != nil {
						t.Fatalf("%s %q: %v", base, mode, err)
					}
					same(t, base+" "+mode+" with all tokens", got, plain, "logits", "gen.tokens", "gen.logits", "positions")
				}
				o.NVis = 24
				if base == "vispruner" && on { // tiles of 16 patches are too small for shares of 4
					o.NVis = 56
				}
				got, err := trace(o)
				if reason := map[string]string{"pool": "grid", "downsample": "tiles"}[base]; reason != "" {
					if err == nil || !strings.Contains(err.Error(), reason) {
						t.Errorf("%s: got %v, want a refusal for %s: tokens of several views are no grid", base, err, reason)
					}
					continue
				}
				if perView && mode == "keep" {
					if err == nil || !strings.Contains(err.Error(), "newlines: got keep") {
						t.Errorf("%s keep: got %v, want a refusal by name", base, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s %q restore=%v: %v", base, mode, on, err)
					continue
				}
				pos, _ := got["positions"].Float32s()
				if len(pos) != o.NVis+text || int(pos[len(pos)-1]) != span+text-1 {
					t.Errorf("%s %q restore=%v: %d rows to position %v, want %d to %d", base, mode, on, len(pos), pos[len(pos)-1], o.NVis+text, span+text-1)
				}
				if !slices.IsSorted(pos) {
					t.Errorf("%s %q restore=%v: positions fall: %v", base, mode, on, pos)
				}
			}
		}
	}
	if _, err := open(t, "testdata/llava15-tiny", 1).Trace(context.Background(), engine.TraceRequest{
		Inputs: mustRead(t, "testdata/llava15-tiny/one-image.ref"), Reduce: reduce.Options{Base: "holov", NVis: 4, Newlines: "keep"},
	}); err == nil || !strings.Contains(err.Error(), "newlines") {
		t.Errorf("newlines without any: got %v, want a refusal by name", err)
	}
}

func mustRead(t testing.TB, path string) map[string]*tensor.Tensor {
	t.Helper()
	ref, err := golden.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}
