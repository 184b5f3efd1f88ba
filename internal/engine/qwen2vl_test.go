package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

var qwen2Prompts = map[string][]string{
	"qwen2vl-tiny": {"one-image", "two-images", "two-turns", "video", "text-only"},
	"qwen2vl-tied-tiny": {
		"one-image", "huge", "small", "tall", "image-and-video", "text-only",
	},
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same,
// with both forms of the documents.
func TestQwen2Stages(t *testing.T) {
	checkForms(t, qwen2Prompts, "preprocessor_config.json")
}

// Ensure that a model without a head is tied if the top level of config.json says so and
// text_config denies it, as in transformers 5.24, and that one with a head keeps it.
func TestQwenTiedOnTop(t *testing.T) {
	for _, name := range []string{"qwen2vl-tied-tiny", "qwen25vl-tied-tiny", "qwen2vl-tiny"} {
		dir := copyDir(t, filepath.Join("testdata", name))
		var config map[string]any
		golden.JSON(t, filepath.Join(dir, "config-5.x.ref"), &config)
		config["text_config"].(map[string]any)["tie_word_embeddings"] = false
		config["tie_word_embeddings"] = true
		data, err := json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644))
		want := golden.Read(t, filepath.Join(dir, "text-only.ref"))
		got, err := lab.Trace(context.Background(), open(t, dir, 2), lab.TraceRequest{Inputs: want})
		must(t, err)
		addTails(t, got, want)
		for part, w := range want {
			if !strings.HasPrefix(part, "logits") {
				continue
			}
			if err := golden.Compare(got[part], w, tolStage); err != nil {
				t.Errorf("%s: %s: %v", name, part, err)
			}
		}
	}
}

// Ensure that pictures have the reference's pixel values.
func TestQwen2Pixels(t *testing.T) { checkPixels(t, qwen2Prompts) }

// Ensure that the files of llama.cpp's converter, and a projector's of its first one, give the same
// stages and tokens, and the decoder's file alone text's.
func TestQwen2GGUF(t *testing.T) {
	const name = "qwen2vl-tiny"
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	e := open(t, dir, 2)
	for _, prompt := range qwen2Prompts[name] {
		t.Run(prompt, func(t *testing.T) { checkPrompt(t, e, reference(t, name, prompt)) })
	}
	file := "mmproj-" + name + ".gguf"
	old, err := engine.Open(formats.Files{
		Model: filepath.Join(dir, name+".gguf"), Projector: filepath.Join(dir, "old", file),
	}, engine.Options{Threads: 2})
	must(t, err)
	defer old.Close()
	checkPrompt(t, old, reference(t, name, "two-images"))
	must(t, os.Remove(filepath.Join(dir, file)))
	checkPrompt(t, open(t, dir, 2), reference(t, name, "text-only"))
}

// Ensure that questions with files have the reference's answers: the template's own system prompt,
// and the places of pictures and videos in it.
func TestQwen2Answers(t *testing.T) {
	checkAnswers(t, map[string][]string{
		"qwen2vl-tiny":      {"one-image", "two-images", "video", "text-only"},
		"qwen2vl-tied-tiny": {"huge", "small", "tall", "image-and-video", "text-only"},
	})
}

// Ensure that methods keep to budgets, or are refused for a named reason.
func TestQwen2Methods(t *testing.T) { checkQwenMethods(t, "qwen2vl-tied-tiny") }

// Ensure that a conversation with cached keys and values equals one read from scratch, with
// pictures of different sizes arriving in different turns.
func TestQwen2Conversation(t *testing.T) {
	checkConversation(t, open(t, "testdata/qwen2vl-tiny", 2), []methods.Options{
		{}, {Base: "divprune", NVis: 8, Restore: true}, {Base: "dart", NVis: 8},
	})
}

// Ensure that two turns with a picture each, asked one after the other, end in the reference's
// answer to both.
func TestQwen2Turns(t *testing.T) {
	const name, prompt = "qwen2vl-tiny", "two-turns"
	p := openAsked(t, name, prompt)
	pics := engine.Pictures(p.decoded(t, p.Pictures)...)
	e := open(t, filepath.Join("testdata", name), 1)
	got, err := e.Ask(t.Context(), engine.Request{
		Messages: []engine.Message{
			{Role: "user", Parts: []engine.Part{{Image: pics[0]}, {Text: "What is here?"}}},
			{Role: "assistant", Parts: []engine.Part{{Text: "A wave."}}},
			{Role: "user", Parts: []engine.Part{{Image: pics[1]}, {Text: "And here?"}}},
		},
		MaxTokens: len(p.Tokens), IgnoreEnd: true,
	})
	must(t, err)
	if !slices.Equal(got.Tokens, p.Tokens) {
		t.Errorf("got %v, want %v", got.Tokens, p.Tokens)
	}
}

// Ensure that a video's moments are one position apart whatever its frames per second, and that
// text continues after the largest position, also of time.
func TestQwen2VideoPositions(t *testing.T) {
	e := open(t, "testdata/qwen2vl-tiny", 2)
	const rows, cols = 2, 3
	for _, c := range []struct {
		frames int
		fps    float64
	}{{1, 2}, {2, 0.5}, {5, 24}, {13, 2}} {
		v := &imageproc.Video{FPS: c.fps}
		for i := range c.frames {
			p := &imageproc.Picture{Width: 84, Height: 56, Pix: make([]byte, 84*56*3)}
			p.Pix[i] = 255
			v.Frames = append(v.Frames, p)
		}
		got, err := lab.Trace(t.Context(), e, lab.TraceRequest{
			Prompt: "What moves?", Video: v, Tokens: 2,
		})
		must(t, err)
		pos, ids := numbers(t, got["position_ids"]), numbers(t, got["input_ids"])
		start, n, moments := slices.Index(ids, 281), len(ids), (c.frames+1)/2
		for i := range moments * rows * cols {
			for axis, at := range []int{i / (rows * cols), i % (rows * cols) / cols, i % cols} {
				if g := pos[axis*n+start+i]; g != float64(start+at) {
					t.Errorf("%+v: token %d: axis %d at %v, want %d", c, i, axis, g, start+at)
				}
			}
		}
		after := start + max(moments, cols)
		if g := pos[start+moments*rows*cols]; g != float64(after) {
			t.Errorf("%+v: text continues at %v, want %d", c, g, after)
		}
	}
}

// Ensure that results do not depend on the number of threads.
func TestQwen2Threads(t *testing.T) {
	in := reference(t, "qwen2vl-tiny", "two-images")
	var one map[string]*tensor.Tensor
	for _, threads := range []int{1, 2, 5} {
		got := reduced(t, open(t, "testdata/qwen2vl-tiny", threads), in,
			methods.Options{Base: "vispruner", NVis: 4, Restore: true, MergePosition: "axes-mean"})
		if one == nil {
			one = got
		}
		same(t, fmt.Sprint(threads, " threads"), got, one, "vision.merger", "logits", "gen.logits")
	}
}

// Ensure that a projector's file of another activation, or without the weight that tells how wide
// the MLPs are, is refused by name.
func TestQwen2GGUFRefused(t *testing.T) {
	const name = "qwen2vl-tiny"
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	file := filepath.Join(dir, "old", "mmproj-"+name+".gguf")
	whole, err := os.ReadFile(file)
	must(t, err)
	for key, edit := range map[string]func(b []byte, at int){
		"clip.use_gelu":         func(b []byte, at int) { b[at+4] = 1 }, // after the value's type
		"v.blk.0.ffn_up.weight": func(b []byte, at int) { b[at-1] = 'x' },
	} {
		b := bytes.Clone(whole)
		edit(b, bytes.Index(b, []byte(key))+len(key))
		must(t, os.WriteFile(file, b, 0o666))
		_, err := engine.Open(formats.Files{
			Model: filepath.Join(dir, name+".gguf"), Projector: file,
		}, engine.Options{})
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v, want a refusal by name", key, err)
		}
	}
}
