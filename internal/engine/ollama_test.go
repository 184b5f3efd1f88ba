package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
)

// ollama returns the path of a file that Ollama's converter wrote (tools/fixtures/ollama.py), with
// decoder, encoder and projector. Like Ollama's own, it has no ending, and others lie next to it.
func ollama(t *testing.T, name string) string {
	t.Helper()
	dir := unzip(t, filepath.Join("testdata", "ollama", name+".zip"))
	must(t, os.WriteFile(filepath.Join(dir, "mmproj-of-another.gguf"), nil, 0o644))
	path := filepath.Join(dir, "sha256-"+name)
	must(t, os.Rename(filepath.Join(dir, name+".gguf"), path))
	return path
}

// exact opens a model in one file, whose weights are computed with as they are stored.
func exact(t *testing.T, path string) *engine.Engine {
	t.Helper()
	e, err := engine.Open(formats.Files{Model: path}, engine.Options{Threads: 2, Quant: "f32"})
	must(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// Ensure that Ollama's file of Gemma 3, which says nothing of the rotation's stretch, the layers
// without a window and the epsilon, and has no chat template, has transformers' stages, prompts and
// answers.
func TestOllamaGemma3(t *testing.T) {
	const name = "gemma3-six-tiny"
	e := exact(t, ollama(t, name))
	for _, prompt := range []string{"wide", "two", "turns", "text"} {
		said, p := gemma3Dialogue(t, name, prompt)
		ref := reference(t, name, prompt)
		checkPrompt(t, e, ref)
		p.checkAnswer(t, e, prompt, said)
		read, err := e.NewPrompt(context.Background(), engine.Request{Messages: said})
		must(t, err)
		if want, err := ref["input_ids"].Int64s(); err != nil || !slices.Equal(read.IDs(), want) {
			t.Errorf("%s: got the prompt %v, want %v, %v", prompt, read.IDs(), want, err)
		}
	}
	if _, p := gemma3Dialogue(t, name, "wide"); len(p.Pictures) > 0 {
		ref := reference(t, name, "wide")
		checkPixelsOf(t, e, filepath.Join("testdata", name, p.Pictures[0]), ref)
	}
	if got := e.Info().Template; !strings.Contains(got, "built in") {
		t.Errorf("a template from %q, want the program's", got)
	}
	if got := e.Info().End; !slices.Contains(got, 1) || !slices.Contains(got, 6) {
		t.Errorf("ends of an answer: got %v, want <eos> and <end_of_turn>", got)
	}
}

// Ensure that Ollama's file of Mistral Small, whose queries and keys of the encoder have another
// order than llama.cpp's, has transformers' stages, pixels, prompts and answers.
func TestOllamaMistral3(t *testing.T) {
	const name = "mistral3-tiny"
	e := exact(t, ollama(t, name))
	prompts := pixtralPrompts[name]
	checkPixtralAnswers(t, e, name, prompts...)
	for _, prompt := range prompts {
		checkPrompt(t, e, reference(t, name, prompt))
	}
}

// Ensure that Ollama's files of Qwen2.5-VL and Qwen3-VL give transformers' logits and tokens.
func TestOllamaQwen(t *testing.T) {
	for _, name := range []string{"qwen25vl-tiny", "qwen3vl-tiny"} {
		e := exact(t, ollama(t, name))
		checkPrompt(t, e, golden.Read(t, filepath.Join("testdata", "ollama", name+".ref")))
		if info := e.Info(); info.Processor == "" || info.Tokens == 0 {
			t.Errorf("%s: got %+v, want a tokenizer and a picture processor", name, info)
		}
	}
}

// Ensure that a second encoder is refused, and by its key what Ollama's files may say and is not
// computed.
func TestOllamaRefusals(t *testing.T) {
	path := ollama(t, "mistral3-tiny")
	_, err := engine.Open(formats.Files{Model: path, Projector: path}, engine.Options{Threads: 1})
	var option *errs.OptionError
	if !errors.As(err, &option) || option.Name != "mmproj" || option.Fault != errs.Conflict {
		t.Errorf("two encoders: got %v", err)
	}
	const u32 = "\x04\x00\x00\x00"
	for _, c := range []struct{ name, from, to, want string }{
		{"mistral3-tiny", "\x00gelu", "\x00relu", `"mistral3.mm.projector_hidden_act": "relu"`},
		{"mistral3-tiny", "vision.attention.key_length" + u32 + "\x08",
			"vision.attention.key_length" + u32 + "\x06", `key_length": got 6`},
		{"gemma3-six-tiny", "tokens_per_image" + u32 + "\x09", "tokens_per_image" + u32 + "\x08",
			`"gemma3.mm.tokens_per_image": got 8`},
		{"gemma3-six-tiny", "vision.patch_size" + u32, "vision.patch_size\x06\x00\x00\x00",
			`key "gemma3.vision.patch_size": got a FLOAT32`},
		{"gemma3-six-tiny", "v.patch_embedding.w", "v.patch_embadding.w", "v.patch_embadding.w"},
		{"qwen25vl-tiny", "vision.rope.freq_base\x06\x00\x00\x00\x00", "vision.rope.freq_base" +
			"\x06\x00\x00\x00\x01", `"qwen25vl.vision.rope.freq_base": got 10000.0`},
		{"qwen25vl-tiny", "qwen25vl.rope.mrope_section", "qwen25vl.rope.mrope_sektion",
			`rope.dimension_sections": got []`},
		{"qwen3vl-tiny", "indexes\x09\x00\x00\x00\x05\x00\x00\x00\x01" + strings.Repeat("\x00", 7) +
			"\x01", "indexes\x09\x00\x00\x00\x05\x00\x00\x00\x01" + strings.Repeat("\x00", 7) +
			"\x02", `deepstack_visual_indexes": got [2]`},
	} {
		path := ollama(t, c.name)
		b, err := os.ReadFile(path)
		must(t, err)
		if !strings.Contains(string(b), c.from) {
			t.Fatalf("%s has no %q", c.name, c.from)
		}
		must(t, os.WriteFile(path, []byte(strings.Replace(string(b), c.from, c.to, 1)), 0o644))
		_, err = engine.Open(formats.Files{Model: path}, engine.Options{Threads: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s: got %v, want %q", c.name, c.to, err, c.want)
		}
	}
}
