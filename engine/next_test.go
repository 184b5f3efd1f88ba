package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/internal/golden"
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
