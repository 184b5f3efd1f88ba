package engine_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/tensor"
)

// tolFileLogits is for logits of float32 on the exact values of the weights, against
// transformers'; the worst measured is 1.6e-5.
const tolFileLogits = 1e-4

// unzip writes the files of an archive into a new folder.
func unzip(t *testing.T, archive string) string {
	t.Helper()
	z, err := zip.OpenReader(archive)
	must(t, err)
	defer z.Close()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, z))
	return dir
}

// checkTrace compares the logits under name of a reference, and greedy tokens where it
// has them.
func checkTrace(t *testing.T, files formats.Files, ref map[string]*tensor.Tensor, name string) {
	t.Helper()
	e, err := engine.Open(files, engine.Options{Threads: 2, Quant: "f32"})
	if err != nil {
		t.Error(err)
		return
	}
	defer e.Close()
	tokens := ref["gen.tokens"]
	req := lab.TraceRequest{Inputs: ref}
	if tokens != nil {
		req.Tokens = tokens.Len()
	}
	got, err := lab.Trace(t.Context(), e, req)
	if err != nil {
		t.Errorf("%s: %v", files.Model, err)
		return
	}
	if err := golden.Compare(got["logits"], ref[name], tolFileLogits); err != nil {
		t.Errorf("%s: logits: %v", files.Model, err)
	}
	if tokens != nil {
		if err := golden.Compare(got["gen.tokens"], tokens, 0); err != nil {
			t.Errorf("%s: tokens: %v", files.Model, err)
		}
	}
}

// Ensure that a model of llama.cpp's older converter, bf16 with a projector of f16,
// and the parts of a split one, text alone, give transformers' logits.
func TestGGUF(t *testing.T) {
	dir := unzip(t, filepath.Join("testdata", "gguf", "llava15-tiny.zip"))
	for folder, file := range map[string]string{
		"llava15-tiny-classic-bf16": "llava15-tiny-bf16.gguf",
		"llava15-tiny-split-f16":    "llava15-tiny-f16-00001-of-00003.gguf",
	} {
		ref := golden.Read(t, filepath.Join(dir, folder, "ref.safetensors"))
		checkTrace(t, formats.Files{Model: filepath.Join(dir, folder, file)}, ref, "logits")
	}
}

// Ensure that decoders with a stretched rotation, Llama 3.1's and a linear one, give transformers'
// logits, converted by llama.cpp.
func TestGGUFStretched(t *testing.T) {
	dir := filepath.Join("testdata", "gguf")
	for _, name := range []string{"llama-llama3-tiny", "llama-linear-tiny"} {
		ref := golden.Read(t, filepath.Join(dir, name+".ref"))
		model := filepath.Join(unzip(t, filepath.Join(dir, name+".zip")), name+".gguf")
		checkTrace(t, formats.Files{Model: model}, ref, "logits")
	}
	for name, c := range map[string]struct{ old, text, want string }{
		"llama-linear-tiny": {"linear", "yarned", `scaled by "yarned"`},
		"llama-llama3-tiny": {"\x00\x00\x00A\x00\x00\x00A", "\x00\x00\xc0\x7f\x00\x00\x00A",
			`"rope_freqs.weight": got NaN`},
	} {
		model := filepath.Join(unzip(t, filepath.Join(dir, name+".zip")), name+".gguf")
		b, err := os.ReadFile(model)
		must(t, err)
		must(t, os.WriteFile(model, bytes.Replace(b, []byte(c.old), []byte(c.text), 1), 0o666))
		_, err = engine.Open(formats.Files{Model: model}, engine.Options{Threads: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// Ensure that the projector's file of a SigLIP tower, as llama.cpp's older converter writes it,
// gives transformers' pixels, logits and tokens: also without the layer of the features, which it
// did not always write, and with either value of clip.use_gelu (tools/fixtures/siglipgguf.py).
func TestGGUFSigLIP(t *testing.T) {
	const name = "llava-siglip-tiny"
	ref := golden.Read(t, filepath.Join("testdata", "gguf", name+".ref"))
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	files := formats.Files{Model: filepath.Join(dir, name+".gguf")}
	tower, err := os.ReadFile(filepath.Join(dir, "mmproj-"+name+".gguf"))
	must(t, err)
	changed := func(from, to string) formats.Files {
		if !bytes.Contains(tower, []byte(from)) {
			t.Fatalf("the file has no %q", from)
		}
		f := formats.Files{Model: files.Model, Projector: filepath.Join(t.TempDir(), "mmproj.gguf")}
		b := bytes.Replace(tower, []byte(from), []byte(to), 1)
		must(t, os.WriteFile(f.Projector, b, 0o666))
		return f
	}
	checkTrace(t, files, ref, "logits")
	checkTrace(t, changed("vision.feature_layer", "vision.feature_other"), ref, "logits")
	const off, on = "\a\x00\x00\x00\x00", "\a\x00\x00\x00\x01" // bool
	checkTrace(t, changed("clip.use_gelu"+off, "clip.use_gelu"+on), ref, "logits")

	e := open(t, dir, 1)
	checkPixelsOf(t, e, filepath.Join("testdata", name, "picture.png"), ref)

	_, err = engine.Open(changed("clip.use_gelu"+off, "clip.use_silu"+on),
		engine.Options{Threads: 1})
	if err == nil || !strings.Contains(err.Error(), `"clip.use_silu": true in a SigLIP tower`) {
		t.Errorf("silu: got %v, want a refusal", err)
	}
}

// Ensure that pictures have their places in prompts whose template knows of none, and
// in models whose vocabulary has no token for them: the same rows as with one.
func TestGGUFPlaces(t *testing.T) {
	dir := filepath.Join(unzip(t, filepath.Join("testdata", "gguf", "llava15-tiny.zip")),
		"llava15-tiny-classic-bf16")
	const tokens, tower = "llava15-tiny-bf16.gguf", "mmproj-llava15-tiny-classic-f16.gguf"
	b, err := os.ReadFile(filepath.Join(dir, tokens))
	if err != nil {
		t.Fatal(err)
	}
	without := filepath.Join(dir, "without.gguf")
	b = bytes.Replace(b, []byte("<image>"), []byte("<other>"), 1)
	if err := os.WriteFile(without, b, 0o666); err != nil {
		t.Fatal(err)
	}
	picture := &imageproc.Picture{Width: 30, Height: 20, Pix: make([]byte, 3*30*20)}
	var ids [2][]int64
	for i, model := range []string{filepath.Join(dir, tokens), without} {
		files := formats.Files{Model: model, Projector: filepath.Join(dir, tower)}
		e, err := engine.Open(files, engine.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		got, err := lab.Trace(t.Context(), e, lab.TraceRequest{Prompt: "What is <image> there?",
			Images: []*imageproc.Picture{picture}})
		if err != nil {
			t.Fatal(err)
		}
		if ids[i], err = got["input_ids"].Int64s(); err != nil {
			t.Fatal(err)
		}
	}
	pictures := 0
	for i, id := range ids[0] {
		if id == 318 {
			pictures++
			ids[1][i] = id
		}
	}
	if pictures != 16 || !slices.Equal(ids[0], ids[1]) {
		t.Errorf("got %d rows of the picture in\n%v, and without a token\n%v", pictures, ids[0],
			ids[1])
	}
}

// Ensure that weights of 4 and 8 bits as a file stores them give a prompt the same log
// probabilities, to the last bit, whatever part of it was in memory.
func TestGGUFPrefixBits(t *testing.T) {
	dir := unzip(t, filepath.Join("testdata", "gguf", "qwen3vl-k-tiny.zip"))
	e, err := engine.Open(formats.Files{Model: filepath.Join(dir, "qwen3vl-k-tiny.gguf")},
		engine.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if types := e.Info().Kept; types["Q4M"] == 0 {
		t.Fatalf("weights in memory: %v, want some of 4 bits with a minimum", types)
	}
	ask := func(ids []int32, fresh bool) *engine.Answer {
		a, err := e.Ask(t.Context(), engine.Request{
			Tokens: ids, MaxTokens: 4, IgnoreEnd: true, LogProbs: true, NoCache: fresh,
		})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, left := range []int{1, 5, 17, 25, 40} {
		ids := make([]int32, 70)
		for i := range ids {
			ids[i] = int32((left*7919 + i*i*31 + i*17) % 200)
		}
		whole := ask(ids, true)
		ask(ids[:len(ids)-left], false)
		rest := ask(ids, false)
		if rest.Report.CachedTokens < len(ids)-left-4 {
			t.Errorf("%d tokens left: %d were in memory", left, rest.Report.CachedTokens)
		}
		if !slices.EqualFunc(whole.Scored, rest.Scored, func(a, b engine.Token) bool {
			return a.ID == b.ID && a.LogProb == b.LogProb
		}) {
			t.Errorf("%d tokens left: got %v, fresh %v", left, rest.Scored, whole.Scored)
		}
	}
}

// Ensure the same of every file of the reference set.
func TestGGUFReferences(t *testing.T) {
	root := os.Getenv("RESTORE_ORACLE")
	if root == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	root = filepath.Join(root, "formats", "gguf")
	var tiny map[string]struct{ Files []string }
	raw, err := os.ReadFile(filepath.Join(root, "tiny.json"))
	if err := errors.Join(err, json.Unmarshal(raw, &tiny)); err != nil {
		t.Fatal(err)
	}
	for folder, x := range tiny {
		ref := golden.Read(t, filepath.Join(root, folder, "ref.safetensors"))
		files := formats.Files{Model: filepath.Join(root, folder, x.Files[0])}
		if folder == "qwen25vl-tiny-mmf16" {
			files = formats.Files{Model: filepath.Join(root, "qwen25vl-tiny", x.Files[0]),
				Projector: filepath.Join(root, folder, x.Files[1])}
		}
		checkTrace(t, files, ref, "logits")
	}
	const wide = "llava15-wide-tiny"
	ref := golden.Read(t, filepath.Join(root, wide, "ref.safetensors"))
	for _, q := range []string{"Q2_K", "Q4_K_M", "Q6_K"} {
		checkTrace(t, formats.Files{Model: filepath.Join(root, wide, wide+"-"+q+".gguf")}, ref,
			q+".logits")
	}
}

// Ensure that tokenizer, chat template, picture processor and every weight of each
// family's files fit what the metadata say.
func TestGGUFHeaders(t *testing.T) {
	dir := unzip(t, filepath.Join("..", "checkpoint", "gguf", "testdata", "headers.zip"))
	var sizes map[string]int64
	raw, err := os.ReadFile(filepath.Join(dir, "sizes.json"))
	if err := errors.Join(err, json.Unmarshal(raw, &sizes)); err != nil {
		t.Fatal(err)
	}
	for name, size := range sizes {
		if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
			t.Fatal(err)
		}
	}
	for name := range sizes {
		if base := filepath.Base(name); base[:6] == "mmproj" ||
			slices.Contains([]string{"llava15-tiny-f16-00002-of-00003.gguf",
				"llava15-tiny-f16-00003-of-00003.gguf"}, base) {
			continue
		}
		e, err := engine.OpenWith(formats.Files{Model: filepath.Join(dir, name)},
			engine.Options{Threads: 1}, engine.Hooks{Describe: true})
		if err != nil {
			t.Error(err)
			continue
		}
		info := e.Info()
		if info.Format != "GGUF" || info.Tokens == 0 || len(info.End) == 0 ||
			info.Processor == "" &&
				filepath.Dir(name) != "llava15-tiny-split-f16" {
			t.Errorf("%s: got %+v", name, info)
		}
		e.Close()
	}
}
