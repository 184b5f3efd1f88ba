package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// framePrompts have a video whose frames are pictures: alone, of one frame, and between pictures
// (tools/fixtures/videos.py).
var framePrompts = map[string][]string{
	"internvl-tiny": {"video", "video-between"}, "smolvlm-tiny": {"video", "video-one"},
}

// between is a prompt of the reference with a video between pictures.
type between struct {
	*asked
	After    int // pictures before the video
	Question string
}

func openBetween(t testing.TB, name, prompt string) *between {
	t.Helper()
	p := &between{asked: openAsked(t, name, prompt)}
	golden.JSON(t, filepath.Join(p.dir, prompt+".ref.json"), p)
	return p
}

// request returns the question with its pictures and its video.
func (p *between) request(t testing.TB) engine.Request {
	return engine.Request{
		Prompt: p.Question, Images: engine.Pictures(p.decoded(t, p.Pictures)...),
		Video: p.video(t), VideoAfter: p.After, MaxTokens: len(p.Tokens), IgnoreEnd: true,
	}
}

// Ensure that questions about videos become transformers' prompts, with its texts around frames,
// and that logits and answers are the same; pixel values differ by one level at most, since the
// library resizes frames with another program.
func TestFrames(t *testing.T) {
	for name, prompts := range framePrompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				p, ref := openBetween(t, name, prompt), reference(t, name, prompt)
				checkPrompt(t, e, ref)
				asked, err := e.NewPrompt(context.Background(), p.request(t))
				must(t, err)
				want, err := ref["input_ids"].Int64s()
				must(t, err)
				if got := asked.IDs(); !slices.Equal(got, want) {
					t.Errorf("ids: got %v, want %v", got, want)
				}
				answer, err := e.Ask(context.Background(), p.request(t))
				must(t, err)
				if !slices.Equal(answer.Tokens, p.Tokens) {
					t.Errorf("got %v, want %v", answer.Tokens, p.Tokens)
				}
				px := p.pixels(t, e)
				if err := golden.Compare(tensor.From(ref["pixel_values"].Shape, px),
					ref["pixel_values"], tolLevel); err != nil {
					t.Errorf("pixel values: %v", err)
				}
			})
		}
	}
}

// pixels returns the pixel values of pictures and frames, in the order of the prompt.
func (p *between) pixels(t testing.TB, e *engine.Engine) (out []float32) {
	t.Helper()
	pics := p.decoded(t, p.Pictures)
	for i := range len(pics) + 1 {
		if i == p.After {
			px, err := e.Pixels(nil, p.video(t))
			must(t, err)
			out = append(out, px.Data...)
		}
		if i < len(pics) {
			px, err := e.Pixels(pics[i:i+1], nil)
			must(t, err)
			out = append(out, px.Data...)
		}
	}
	return out
}

// Ensure that InternVL's files in its authors' form and of llama.cpp's converter read videos as the
// folder in transformers' form, also in the authors' conversation, which has a system message.
func TestFramesOfOtherForms(t *testing.T) {
	const name = "internvl-tiny"
	talk := original(t, name)
	must(t, os.Remove(filepath.Join(talk, "chat_template.jinja")))
	for what, dir := range map[string]string{
		"authors": original(t, name), "conversation": talk,
		"GGUF": unzip(t, filepath.Join("testdata", "gguf", name+".zip")),
	} {
		e := open(t, dir, 2)
		for _, prompt := range framePrompts[name] {
			p := openBetween(t, name, prompt)
			asked, err := e.NewPrompt(context.Background(), p.request(t))
			must(t, err)
			want, err := reference(t, name, prompt)["input_ids"].Int64s()
			must(t, err)
			got := asked.IDs()
			if what == "conversation" && len(got) > len(want) {
				got = got[len(got)-len(want):]
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s: got %v, want %v", what, prompt, got, want)
			}
		}
	}
}

// Ensure that each frame is reduced by itself to the budget, while the texts stay, and that a
// budget of all tokens is no reduction.
func TestFramesReduced(t *testing.T) {
	for name := range framePrompts {
		e, p := open(t, filepath.Join("testdata", name), 2), openBetween(t, name, "video")
		ask := func(o methods.Options) *engine.Answer {
			req := p.request(t)
			req.Reduce = o
			got, err := e.Ask(context.Background(), req)
			must(t, err)
			return got
		}
		whole := ask(methods.Options{}).Report
		frames := len(whole.Images)
		for _, o := range []methods.Options{
			{Base: "holov", NVis: 4, Restore: true}, {Base: "divprune", NVis: 4},
			{Base: "visionzip", NVis: 4, Restore: true},
		} {
			got := ask(o).Report
			if less := whole.PromptTokens - got.PromptTokens; less != frames*(9-4) {
				t.Errorf("%s, %s: %d tokens less, want 5 of each of %d frames", name, o.Base, less,
					frames)
			}
			o.NVis = 9
			if all := ask(o); !slices.Equal(all.Tokens, p.Tokens) {
				t.Errorf("%s, %s with all tokens: got %v, want %v", name, o.Base, all.Tokens,
					p.Tokens)
			}
		}
	}
}

// Ensure that a conversation with a video, a picture, and another video answers like the same from
// scratch, and that a user's text has no place for a video.
func TestFramesConversation(t *testing.T) {
	for name := range framePrompts {
		e, p := open(t, filepath.Join("testdata", name), 2), openBetween(t, name, "video")
		other := openBetween(t, "internvl-tiny", "video-between")
		for _, how := range []methods.Options{{}, {Base: "divprune", NVis: 4, Restore: true}} {
			var answers [2][]int32
			for i := range answers {
				c := e.NewConversation(how)
				for turn, req := range []engine.Request{
					{Prompt: "What happens?<video>", Video: p.video(t)},
					{Prompt: "<video>", Images: engine.Pictures(
						other.decoded(t, other.Pictures[:1])...)},
					{Prompt: "And here?", Video: other.video(t)},
				} {
					req.MaxTokens, req.IgnoreEnd, req.NoCache = 6, true, i == 1
					if i == 1 && turn > 0 {
						c.Forget()
					}
					a, err := c.Ask(context.Background(), req)
					must(t, err)
					answers[i] = append(answers[i], a.Tokens...)
				}
			}
			if !slices.Equal(answers[0], answers[1]) {
				t.Errorf("%s, %+v: got %v, without caches %v", name, how, answers[0], answers[1])
			}
		}
	}
}
