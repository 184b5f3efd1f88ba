package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

var qwen3Prompts = map[string][]string{
	"qwen3vl-tiny": {"one-image", "two-images", "video", "text-only"},
	"qwen3vl-tied-tiny": {
		"one-image", "huge", "small", "tall", "two-turns", "video", "image-and-video", "text-only",
	},
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same,
// with both forms of the documents.
func TestQwen3Stages(t *testing.T) {
	checkForms(t, qwen3Prompts, "preprocessor_config.json", "video_preprocessor_config.json")
}

// Ensure that the files of llama.cpp's converter give the same stages and tokens, the decoder's
// file alone those of text, and that the tokenizer in it splits text as the folder's does.
func TestQwen3GGUF(t *testing.T) {
	const name = "qwen3vl-tiny"
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	e := open(t, dir, 2)
	for _, prompt := range qwen3Prompts[name] {
		t.Run(prompt, func(t *testing.T) { checkPrompt(t, e, reference(t, name, prompt)) })
	}
	const text = "What is it? <|im_end|> 12 Äpfel"
	want, err := open(t, filepath.Join("testdata", name), 1).Tokenizer().Encode(
		text, tokenizer.EncodeOptions{})
	must(t, err)
	got, err := e.Tokenizer().Encode(text, tokenizer.EncodeOptions{})
	must(t, err)
	if !slices.Equal(got.IDs, want.IDs) {
		t.Errorf("tokens of %q: got %v, want %v", text, got.IDs, want.IDs)
	}
	must(t, os.Remove(filepath.Join(dir, "mmproj-"+name+".gguf")))
	checkPrompt(t, open(t, dir, 2), reference(t, name, "text-only"))
}

// Ensure that a decoder of K-quants (Q2_K to Q6_K, a tied head) with a projector's file reads
// pictures as float64 does with the dequantised weights. llama.cpp's ggml quantised them, its gguf
// package dequantised them.
func TestQwen3KQuants(t *testing.T) {
	dir := unzip(t, filepath.Join("testdata", "gguf", "qwen3vl-k-tiny.zip"))
	ref := golden.Read(t, filepath.Join(dir, "ref.safetensors"))
	checkTrace(t, formats.Files{Model: filepath.Join(dir, "qwen3vl-k-tiny.gguf")}, ref, "logits")
}

// Ensure that RESTORE over HoloV and DivPrune equals the reference's: cells as positions, the
// distances of interleaved axes, and the means of the members' rows for the decoder's first layers.
func TestQwen3Reduced(t *testing.T) {
	for name := range qwen3Prompts {
		checkReductions(t, name)
	}
}

// Ensure that a kept token to which others only add size keeps its own rows for the decoder's first
// layers, as it keeps its feature.
func TestQwen3Counted(t *testing.T) {
	const name = "qwen3vl-tied-tiny"
	e, ctx := open(t, filepath.Join("testdata", name), 2), context.Background()
	ref := openAsked(t, name, "one-image")
	reduced := func(o methods.Options) (out *engine.Reduced) {
		p, err := e.NewPrompt(ctx, engine.Request{
			Prompt: "?", Images: engine.Pictures(ref.decoded(t, ref.Pictures)...), Reduce: o,
		})
		must(t, err)
		must(t, e.Do(ctx, func(r *model.Run) error {
			out, err = p.Reduce(r, 0)
			return err
		}))
		return out
	}
	whole := reduced(methods.Options{})
	got := reduced(methods.Options{Base: "divprune", NVis: 2, Restore: true, Join: "count"})
	n, h, counted := got.Reduction.N, got.Reduction.Width, 0
	for i, row := range got.Reduction.Rows {
		if row.Merged || row.Size == 1 {
			continue
		}
		counted++
		for level := range len(whole.Deep) / n / h {
			own := got.Deep[(level*len(got.Reduction.Rows)+i)*h:][:h]
			if !slices.Equal(own, whole.Deep[(level*n+int(row.Anchor))*h:][:h]) {
				t.Errorf("row %d, level %d: not the rows of token %d", i, level, row.Anchor)
			}
		}
	}
	if counted == 0 {
		t.Error("no kept row has more than one token")
	}
}

// Ensure that questions with files have the reference's answers. The text of a video is that of the
// model's release: a time before each moment, and no pair of marks around all.
func TestQwen3Answers(t *testing.T) {
	checkAnswers(t, map[string][]string{
		"qwen3vl-tiny":      {"one-image", "two-images", "video"},
		"qwen3vl-tied-tiny": {"huge", "video", "image-and-video"},
	})
}

// checkAnswers checks the answers of prompts of checkpoints. The tokens of a prompt with a video
// are those of the reference in the older form, where there is one.
func checkAnswers(t *testing.T, prompts map[string][]string) {
	t.Helper()
	ctx := context.Background()
	for name, prompts := range prompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			p := openAsked(t, name, prompt)
			want := p.Tokens
			if _, err := os.Stat(filepath.Join(p.dir, prompt+"-4.57.ref.json")); err == nil {
				want = openAsked(t, name, prompt+"-4.57").Tokens
			}
			text := p.question()
			text = text[strings.LastIndex(text, ">")+1:]
			got, err := e.Ask(ctx, engine.Request{
				Prompt: text, Images: engine.Pictures(p.decoded(t, p.Pictures)...),
				Video: p.video(t), VideoAfter: min(len(p.Clips), len(p.Pictures)),
				MaxTokens: len(want), IgnoreEnd: true,
			})
			must(t, err)
			if !slices.Equal(got.Tokens, want) {
				t.Errorf("%s/%s: got %v, want %v", name, prompt, got.Tokens, want)
			}
		}
	}
}

// Ensure that a conversation with a video and then a picture answers like the same after its caches
// forgot all.
func TestQwen3Conversation(t *testing.T) {
	const name = "qwen3vl-tiny"
	e := open(t, filepath.Join("testdata", name), 2)
	clip, pics := openAsked(t, name, "video"), openAsked(t, name, "two-images")
	for _, how := range []methods.Options{
		{}, {Base: "divprune", NVis: 4, Restore: true}, {Base: "fastv", NVis: 4},
	} {
		var answers [2][]int32
		for i := range answers {
			c := e.NewConversation(how)
			for turn, req := range []engine.Request{
				{Prompt: "What happens?", Video: clip.video(t)},
				{Prompt: "And here?", Images: engine.Pictures(pics.decoded(t, pics.Pictures)...)},
			} {
				req.MaxTokens, req.IgnoreEnd, req.NoCache = 6, true, i == 1
				if i == 1 && turn == 1 {
					c.Forget()
				}
				a, err := c.Ask(context.Background(), req)
				must(t, err)
				answers[i] = append(answers[i], a.Tokens...)
			}
		}
		if !slices.Equal(answers[0], answers[1]) {
			t.Errorf("%+v: got %v, without caches %v", how, answers[0], answers[1])
		}
	}
}

// Ensure that a video without a video processor's file is read by the pictures' settings, as in
// transformers.
func TestQwen3VideoSettings(t *testing.T) {
	dir := copyDir(t, "testdata/qwen3vl-tiny")
	file := filepath.Join(dir, "video_preprocessor_config.json")
	pictures, err := os.ReadFile(filepath.Join(dir, "preprocessor_config.json"))
	must(t, err)
	var prompts [2]engine.Report
	for i, write := range []func() error{
		func() error { return os.Remove(file) },
		func() error { return os.WriteFile(file, pictures, 0o644) },
	} {
		must(t, write())
		got, err := open(t, dir, 1).Ask(context.Background(), engine.Request{
			Prompt: "?", Video: openAsked(t, "qwen3vl-tiny", "video").video(t), MaxTokens: 1,
		})
		must(t, err)
		prompts[i] = got.Report
	}
	if a, b := prompts[0], prompts[1]; a.PromptTokens != b.PromptTokens ||
		a.ImageTokens != b.ImageTokens || a.ImageTokens == 0 {
		t.Errorf("got %+v, with the pictures' settings in the file %+v", a, b)
	}
}

// Ensure that methods keep to budgets, or are refused for a named reason.
func TestQwen3Methods(t *testing.T) { checkQwenMethods(t, "qwen3vl-tied-tiny") }

// checkQwenMethods is TestQwen3Methods for a checkpoint.
func checkQwenMethods(t *testing.T, name string) {
	t.Helper()
	checkMethods(t, name, "huge", 9, onePart("vision.merger"), map[string]string{
		"tome": "merger joins 2x2", "flowcut": "merger joins 2x2", "prumerge": "class token",
		"prumerge-plus": "class token", "fitprune": "recipe", "pixelprune": "only pixel values",
	})
}

// Ensure that pictures have the reference's pixel values.
func TestQwen3Pixels(t *testing.T) { checkPixels(t, qwen3Prompts) }
