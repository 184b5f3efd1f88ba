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
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// idefics3Prompts have one picture in tiles, one among text that looks like control tokens, two
// pictures in two turns after a system message, and none.
var idefics3Prompts = map[string][]string{
	"idefics3-tiny": {"odd", "wide", "two-images", "text-only"},
	"smolvlm-tiny":  {"odd", "two-images"},
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same.
func TestIdefics3Stages(t *testing.T) {
	for name, prompts := range idefics3Prompts {
		e := open(t, "testdata/"+name, 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkPrompt(t, e, reference(t, name, prompt))
			})
		}
	}
}

// Ensure that pixel values equal transformers'.
func TestIdefics3Pixels(t *testing.T) { checkPixels(t, idefics3Prompts) }

// Ensure that dialogues with pictures' files become transformers' prompts and have its answers: the
// texts between tiles, system messages, pictures among text, and control tokens in a user's text.
func TestIdefics3Answers(t *testing.T) {
	for name, prompts := range idefics3Prompts {
		for _, threads := range []int{1, 2} {
			e := open(t, "testdata/"+name, threads)
			for _, prompt := range prompts {
				p := openAsked(t, name, prompt)
				pics := engine.Pictures(p.decoded(t, p.Pictures)...)
				got, err := e.Ask(context.Background(), engine.Request{
					Messages:  said(t, filepath.Join(p.dir, prompt+".ref.json"), pics),
					MaxTokens: len(p.Tokens), IgnoreEnd: true,
				})
				must(t, err)
				n := reference(t, name, prompt)["input_ids"].Shape[0]
				if !slices.Equal(got.Tokens, p.Tokens) || got.Report.PromptTokens != n {
					t.Errorf("%s/%s: got %v after %d tokens, want %v after %d", name, prompt,
						got.Tokens, got.Report.PromptTokens, p.Tokens, n)
				}
			}
		}
	}
}

// said returns the messages of a reference, with pics in their order.
func said(t testing.TB, path string, pics []*engine.Image) (out []engine.Message) {
	t.Helper()
	var file struct {
		Messages []struct {
			Role    string
			Content []struct {
				Type, Text string
				I          int
			}
		}
	}
	golden.JSON(t, path, &file)
	for _, m := range file.Messages {
		to := engine.Message{Role: m.Role}
		for _, c := range m.Content {
			part := engine.Part{Text: c.Text}
			if c.Type == "image" {
				part = engine.Part{Image: pics[c.I]}
			}
			to.Parts = append(to.Parts, part)
		}
		out = append(out, to)
	}
	return out
}

// Ensure that the texts of a reduced picture stay at their places, and that the decoder reads rows
// and positions as transformers does.
func TestIdefics3Reduced(t *testing.T) {
	for name := range idefics3Prompts {
		e := open(t, "testdata/"+name, 2)
		want := reference(t, name, "reduced")
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: reference(t, name, "odd"), Tokens: 1,
			Reduce: methods.Options{Base: "divprune", NVis: want["reduce.kept"].Shape[0]},
		})
		must(t, err)
		kept := numbers(t, want["reduce.kept"])
		if have := numbers(t, got["reduce.kept"]); !slices.Equal(have, kept) {
			t.Errorf("%s: kept %v, want %v", name, have, kept)
		}
		for _, part := range []string{"positions", "embeds", "logits"} {
			if err := golden.Compare(got[part], want[part], tolStage); err != nil {
				t.Errorf("%s: %s: %v", name, part, err)
			}
		}
	}
}

// Ensure that every method reads pictures in tiles with the budget that was asked for, while the
// texts stay, or is refused for a named reason, and that a budget of all tokens equals no
// reduction.
func TestIdefics3Methods(t *testing.T) {
	const name = "idefics3-tiny"
	e := open(t, "testdata/"+name, 2)
	in := reference(t, name, "odd")
	trace := func(o methods.Options) (map[string]*tensor.Tensor, error) {
		return traced(t, e, in, o)
	}
	plain, err := trace(methods.Options{})
	must(t, err)
	x := plain["projector.out"].Shape
	tokens := x[0] * x[1]
	text := plain["embeds"].Shape[0] - tokens
	refused := map[string]string{
		"tome": "no such method", "flowcut": "no such method", "prumerge": "class token",
		"prumerge-plus": "class token", "downsample": "another size", "fitprune": "recipe",
		"pixelprune": "needs all patches",
	}
	for _, m := range methods.Methods()[1:] { // not "none"
		for _, on := range []bool{false, true} {
			for _, o := range []methods.Options{
				{Positions: "original"}, {Positions: "sequential"}, {Compat: "released"},
			} {
				o.Base, o.NVis, o.Restore = m.Name, 9, on
				got, err := trace(o)
				if why, ok := refused[m.Name]; ok {
					if err == nil || !strings.Contains(err.Error(), why) {
						t.Errorf("%s: got %v, want a refusal: %s", m.Name, err, why)
					}
					continue
				}
				if err != nil {
					if m.Site != reduce.InsideDecoder {
						t.Errorf("%s restore=%v: %v", m.Name, on, err)
					}
					continue
				}
				if m.Site == reduce.InsideDecoder {
					continue
				}
				if rows := got["embeds"].Shape[0]; rows != text+9 {
					t.Errorf("%s restore=%v: %d rows, want %d of text and 9", m.Name, on, rows,
						text)
				}
				at := numbers(t, got["positions"])
				last := float64(text + tokens - 1)
				if o.Positions == "sequential" {
					last = float64(text + 9 - 1)
				}
				if o.Compat == "" && (at[len(at)-1] != last || !slices.IsSorted(at)) {
					t.Errorf("%s restore=%v: positions %v", m.Name, on, at)
				}
			}
			if _, ok := refused[m.Name]; ok || m.Site == reduce.InsideDecoder {
				continue
			}
			got, err := trace(methods.Options{Base: m.Name, NVis: tokens, Restore: on})
			if err != nil {
				t.Errorf("%s restore=%v, all tokens: %v", m.Name, on, err)
				continue
			}
			same(t, m.Name+" with all tokens", got, plain, "logits", "gen.tokens", "gen.logits",
				"positions")
		}
	}
	_, err = trace(methods.Options{Base: "holov", NVis: 9, Newlines: "keep"})
	if err == nil || !strings.Contains(err.Error(), "no newline tokens") {
		t.Errorf("newlines: got %v, want a refusal", err)
	}
}

// Ensure that a conversation with cached keys answers like one that is read from scratch.
func TestIdefics3Conversation(t *testing.T) {
	for name := range idefics3Prompts {
		checkConversation(t, open(t, "testdata/"+name, 2), []methods.Options{
			{}, {Base: "divprune", NVis: 8, Restore: true},
			{Base: "holov", NVis: 6, Positions: "sequential"}, {Base: "dart", NVis: 6},
		})
	}
}

// Ensure that a picture without splitting is one view, and that Idefics3's videos, and settings of
// pictures that the model cannot read, are refused by name.
func TestIdefics3Refusals(t *testing.T) {
	const name = "smolvlm-tiny"
	p := openAsked(t, name, "odd")
	pics := p.decoded(t, p.Pictures)
	ask := func(change string) (*engine.Answer, error) {
		dir := copyDir(t, "testdata/"+name)
		from, to, _ := strings.Cut(change, " -> ")
		file := filepath.Join(dir, "preprocessor_config.json")
		data, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, []byte(strings.Replace(string(data), from, to, 1)), 0o644))
		e, err := engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1})
		if err != nil {
			return nil, err
		}
		defer e.Close()
		return e.Ask(context.Background(), engine.Request{
			Prompt: "?", Images: engine.Pictures(pics...), MaxTokens: 1,
		})
	}
	got, err := ask(`"do_image_splitting": true -> "do_image_splitting": false`)
	must(t, err)
	if n := got.Report.ImageTokens; n != 9+3 {
		t.Errorf("one view: got %d tokens, want 9 and 3 of text", n)
	}
	for change, want := range map[string]string{
		`"longest_edge": 24 -> "longest_edge": 12`: "max_image_size",
		`"longest_edge": 48 -> "height": 48`:       "longest_edge",
	} {
		if _, err := ask(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", change, err, want)
		}
	}
	_, err = open(t, "testdata/idefics3-tiny", 1).Ask(context.Background(), engine.Request{
		Prompt: "?", Video: &imageproc.Video{Frames: pics, FPS: 1}, MaxTokens: 1,
	})
	if err == nil || !strings.Contains(err.Error(), "takes no videos") {
		t.Errorf("a video: got %v, want a refusal", err)
	}
}

// Ensure that the files of llama.cpp's converter give the same stages and tokens, the decoder's
// file alone text's, and that pictures' files have the same answers as with the folder.
func TestIdefics3GGUF(t *testing.T) {
	for name, prompts := range idefics3Prompts {
		dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
		e := open(t, dir, 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkPrompt(t, e, reference(t, name, prompt))
			})
			p := openAsked(t, name, prompt)
			got, err := e.Ask(context.Background(), engine.Request{
				Messages: said(t, filepath.Join(p.dir, prompt+".ref.json"),
					engine.Pictures(p.decoded(t, p.Pictures)...)),
				MaxTokens: len(p.Tokens), IgnoreEnd: true,
			})
			must(t, err)
			if !slices.Equal(got.Tokens, p.Tokens) {
				t.Errorf("%s/%s: got %v, want %v", name, prompt, got.Tokens, p.Tokens)
			}
		}
		if name == "idefics3-tiny" {
			must(t, os.Remove(filepath.Join(dir, "mmproj-"+name+".gguf")))
			checkPrompt(t, open(t, dir, 2), reference(t, name, "text-only"))
		}
	}
}
