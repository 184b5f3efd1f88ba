package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// oneVisionPrompts have one picture in tiles, also shrunk to the cap and padded, two pictures, a
// video, both, and none.
var oneVisionPrompts = map[string][]string{
	"llava-onevision-tiny": {
		"odd", "huge", "wide", "small", "two-images", "video", "image-and-video", "text-only",
	},
	"llava-onevision-tied-tiny": {"huge", "two-images", "video"},
}

// tolReceived is three times the float32 error of the reference's received attention.
const tolReceived = 3e-5

// tolLevel is one of the 255 levels of a frame's pixel, a step of 2/255 between -1 and 1, as a
// share of the largest value of these frames, which is at least 0.85.
const tolLevel = 2.0 / 255 / 0.85

// asked is a prompt of the reference, with its pictures and clips.
type asked struct {
	dir      string
	Text     string
	Pictures []string
	Clips    []struct {
		Frames []string
		FPS    float64
	}
	Tokens []int32 `json:"greedy_tokens"`
}

func openAsked(t testing.TB, name, prompt string) *asked {
	t.Helper()
	p := &asked{dir: filepath.Join("testdata", name)}
	golden.JSON(t, filepath.Join(p.dir, prompt+".ref.json"), p)
	return p
}

func (p *asked) decoded(t testing.TB, names []string) (pics []*imageproc.Picture) {
	t.Helper()
	for _, name := range names {
		pics = append(pics, decoded(t, filepath.Join(p.dir, name)))
	}
	return pics
}

func (p *asked) video(t testing.TB) *imageproc.Video {
	t.Helper()
	if len(p.Clips) == 0 {
		return nil
	}
	return &imageproc.Video{Frames: p.decoded(t, p.Clips[0].Frames), FPS: p.Clips[0].FPS}
}

// checkAnswer asks e and compares the answer with the reference's.
func (p *asked) checkAnswer(
	t *testing.T, e *engine.Engine, what string, messages []engine.Message,
) {
	t.Helper()
	got, err := e.Ask(context.Background(), engine.Request{
		Messages: messages, MaxTokens: len(p.Tokens), IgnoreEnd: true,
	})
	must(t, err)
	if !slices.Equal(got.Tokens, p.Tokens) {
		t.Errorf("%s: got %v, want %v", what, got.Tokens, p.Tokens)
	}
}

// question is the user's text in the prompt.
func (p *asked) question() string {
	text := p.Text[strings.LastIndex(p.Text, "<|im_start|>user\n")+len("<|im_start|>user\n"):]
	text, _, _ = strings.Cut(text, "<|im_end|>")
	return text[strings.LastIndex(text, "\n")+1:]
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same,
// with both forms of the documents.
func TestOneVisionStages(t *testing.T) {
	checkForms(t, oneVisionPrompts, "preprocessor_config.json")
}

// Ensure that LLaVA-NeXT with a SigLIP tower reads pictures whose map is not shrunk as
// LLaVA-OneVision, which has the same layout of them.
func TestSigLIPTiles(t *testing.T) {
	const name = "llava-onevision-tiny"
	dir := copyDir(t, filepath.Join("testdata", name))
	for _, edit := range [][3]string{
		{"config.json", "LlavaOnevisionFor", "LlavaNextFor"},
		{"config.json", "llava_onevision", "llava_next"},
		{"preprocessor_config.json", "LlavaOnevisionImage", "LlavaNextImage"},
		{"preprocessor_config.json", `"size"`, `"crop_size": 17, "size"`},
	} {
		file := filepath.Join(dir, edit[0])
		data, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, bytes.Replace(data, []byte(edit[1]), []byte(edit[2]), 1), 0o644))
	}
	e := open(t, dir, 2)
	for _, prompt := range []string{"odd", "small", "wide"} {
		t.Run(prompt, func(t *testing.T) {
			p, ref := openAsked(t, name, prompt), reference(t, name, prompt)
			checkPrompt(t, e, ref)
			checkPixelsOf(t, e, filepath.Join(dir, p.Pictures[0]), ref)
		})
	}
}

// checkForms checks the stages of prompts of checkpoints twice: with documents as on the hub, and
// with documents as transformers 5 writes them, without files of the given names.
func checkForms(t *testing.T, prompts map[string][]string, without ...string) {
	for name, prompts := range prompts {
		dir := copyDir(t, filepath.Join("testdata", name))
		for _, form := range []string{"hub", "5.x"} {
			if form == "5.x" {
				for _, file := range without {
					must(t, os.Remove(filepath.Join(dir, file)))
				}
				for _, file := range []string{"config", "processor_config"} {
					must(t, os.Rename(filepath.Join(dir, file+"-5.x.ref"),
						filepath.Join(dir, file+".json")))
				}
			}
			e := open(t, dir, 2)
			for _, prompt := range prompts {
				t.Run(name+"/"+prompt+"/"+form, func(t *testing.T) {
					checkPrompt(t, e, reference(t, name, prompt))
				})
			}
		}
	}
}

// checkPrompt compares every stage of a prompt with pictures and videos with its reference.
func checkPrompt(t *testing.T, e *engine.Engine, ref map[string]*tensor.Tensor) {
	t.Helper()
	got, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: ref, Tokens: 8})
	must(t, err)
	addTails(t, got, ref)
	mixed := ref["pixel_values"] != nil && ref["pixel_values_videos"] != nil
	for name, want := range joined(t, ref) {
		tol, have := tolStage, got[strings.Replace(name, "video.", "vision.", 1)]
		switch {
		case mixed && name == "packed_lens":
			continue // of pictures alone
		case mixed && name == "packed":
			have = lastRows(t, have, want.Shape[0])
		case strings.HasSuffix(name, "f64_residual"), name == "packed.source",
			name == "batch_num_images", name == "score", name == "video.score",
			name == "pixel_values_videos", name == "video_grid_thw", name == "mm_token_type_ids":
			continue // other tests, or inputs
		case want.DType != tensor.F32:
			tol = 0
		case strings.Contains(name, "received"), strings.HasSuffix(name, "attn"):
			tol = tolReceived
		case name == "vision.projector.out":
			have = got["projector.out"]
		case name == "video.pooled": // the newline follows
			rows := want.Shape[0] * want.Shape[1]
			have = firstRows(t, got["packed"], rows, want.Shape)
		}
		if have == nil {
			t.Errorf("%s: not in the trace", name)
		} else if err := golden.Compare(have, want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// joined returns ref with what it has of a video and of pictures as a trace of both has it: the
// video's rows first.
func joined(t testing.TB, ref map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	out := maps.Clone(ref)
	for name, video := range ref {
		other := strings.Replace(name, "video.", "vision.", 1)
		pictures := ref[other]
		if pictures == nil || other == name {
			continue
		}
		a, err := video.Float32s()
		must(t, err)
		b, err := pictures.Float32s()
		must(t, err)
		shape := slices.Clone(video.Shape)
		shape[0] += pictures.Shape[0]
		out[other] = tensor.From(shape, slices.Concat(a, b))
		delete(out, name)
	}
	return out
}

func firstRows(t testing.TB, x *tensor.Tensor, n int, shape []int) *tensor.Tensor {
	t.Helper()
	v, err := x.Float32s()
	must(t, err)
	return tensor.From(shape, v[:n*x.Shape[1]])
}

func lastRows(t testing.TB, x *tensor.Tensor, n int) *tensor.Tensor {
	t.Helper()
	v, err := x.Float32s()
	must(t, err)
	return tensor.From([]int{n, x.Shape[1]}, v[len(v)-n*x.Shape[1]:])
}

// Ensure that the pixel values of one picture and of several equal the reference's, and that those
// of frames differ by at most a level: the library resizes frames with another program.
func TestOneVisionPixels(t *testing.T) {
	checkPixels(t, oneVisionPrompts)
	for name, prompts := range oneVisionPrompts {
		frames := processor(t, name).(imageproc.VideoProcessor)
		for _, prompt := range prompts {
			want := reference(t, name, prompt)["pixel_values_videos"]
			if want == nil {
				continue
			}
			px, err := frames.ProcessVideo(openAsked(t, name, prompt).video(t))
			must(t, err)
			got := tensor.From(append([]int{1}, px.Shape...), px.Data)
			if err := golden.Compare(got, want, tolLevel); err != nil {
				t.Errorf("%s/%s: %v", name, prompt, err)
			}
		}
	}
}

// checkPixels checks that the pictures of prompts have the reference's pixel values.
func checkPixels(t *testing.T, prompts map[string][]string) {
	for name, prompts := range prompts {
		proc := processor(t, name)
		for _, prompt := range prompts {
			want := reference(t, name, prompt)["pixel_values"]
			if want == nil {
				continue
			}
			p := openAsked(t, name, prompt)
			px, err := proc.Process(p.decoded(t, p.Pictures))
			must(t, err)
			if err := golden.Compare(tensor.From(px.Shape, px.Data), want, 0); err != nil {
				t.Errorf("%s/%s: %v", name, prompt, err)
			}
		}
	}
}

// Ensure that RESTORE over HoloV and DivPrune equals the reference's: one picture in tiles, one
// whose tokens are blends, two pictures, and a video, which is one list.
func TestOneVisionReduced(t *testing.T) {
	for name := range oneVisionPrompts {
		checkReductions(t, name)
	}
}

// Ensure that the folder of the models' authors gives the same stages: their names of the weights
// (as transformers' conversion program reads them), the tower's configuration and weights from its
// own repository, with one layer more, and pictures between pieces of text that are encoded apart.
func TestOneVisionOriginal(t *testing.T) {
	const name, prompt = "llava-onevision-tiny", "odd"
	hub := filepath.Join("testdata", name)
	weights := golden.Read(t, filepath.Join(hub, "model.safetensors"))
	names := strings.NewReplacer(
		"language_model.model.", "model.", "language_model.lm_head.", "lm_head.",
		"multi_modal_projector.linear_1.", "model.mm_projector.0.",
		"multi_modal_projector.linear_2.", "model.mm_projector.2.",
		"image_newline", "model.image_newline",
		"vision_tower.vision_model.", "vision_model.")
	model, tower := map[string]*tensor.Tensor{}, map[string]*tensor.Tensor{
		"vision_model.head.probe": tensor.From([]int{1}, []float32{1}),
		"logit_scale":             tensor.From([]int{1}, []float32{1}),
	}
	for name, w := range weights {
		to := names.Replace(name)
		if !strings.HasPrefix(to, "vision_model.") {
			model[to] = w
			continue
		}
		tower[to] = w
		if strings.Contains(to, "layers.2.") { // another one, which is cut off
			tower[strings.Replace(to, "layers.2.", "layers.3.", 1)] = w
		}
	}
	towerDir := t.TempDir()
	write(t, towerDir, tower, map[string]any{
		"config.json": map[string]any{
			"model_type": "siglip", "vision_config": map[string]any{
				"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 4,
				"intermediate_size": 76, "image_size": 17, "patch_size": 5,
			},
		},
		"preprocessor_config.json": map[string]any{
			"image_processor_type": "SiglipImageProcessor", "do_resize": true, "resample": 3,
			"image_mean": []float64{0.5, 0.5, 0.5}, "image_std": []float64{0.5, 0.5, 0.5},
			"size": map[string]int{"height": 17, "width": 17},
		},
	})
	var config struct {
		Text map[string]any `json:"text_config"`
	}
	data, err := os.ReadFile(filepath.Join(hub, "config.json"))
	must(t, err)
	must(t, json.Unmarshal(data, &config))
	maps.Copy(config.Text, map[string]any{
		"architectures": []string{"LlavaQwenForCausalLM"}, "model_type": "llava",
		"image_aspect_ratio": "anyres_max_9", "image_grid_pinpoints": "(1x1),...,(6x6)",
		"mm_patch_merge_type": "spatial_unpad", "mm_projector_type": "mlp2x_gelu",
		"mm_vision_select_layer": -2, "mm_vision_tower": towerDir,
	})
	dir := t.TempDir()
	write(t, dir, model, map[string]any{"config.json": config.Text})
	for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(hub, file))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, file), data, 0o644))
	}
	e := open(t, dir, 2)
	ref := reference(t, name, prompt)
	const image, none = 271, -200
	ids, err := ref["input_ids"].Int64s()
	must(t, err)
	for i := range ids {
		if ids[i] == image {
			ids[i] = none
		}
	}
	ref["input_ids"] = tensor.From(ref["input_ids"].Shape, ids)
	checkPrompt(t, e, ref)

	p := openAsked(t, name, prompt)
	ask := func(e *engine.Engine) []int32 {
		t.Helper()
		got, err := e.Ask(context.Background(), engine.Request{
			Prompt: p.question(), System: "You are a helpful assistant.",
			Images: engine.Pictures(p.decoded(t, p.Pictures)...), MaxTokens: 8, IgnoreEnd: true,
		})
		must(t, err)
		return got.Tokens
	}
	if got, want := ask(e), ask(open(t, hub, 2)); !slices.Equal(got, want) {
		t.Errorf("got %v, want the answer of the hub's folder, %v", got, want)
	}
	if _, err := e.Ask(context.Background(), engine.Request{
		Prompt: "x", Video: openAsked(t, name, "video").video(t), MaxTokens: 1,
	}); err == nil || !strings.Contains(err.Error(), "takes no videos") {
		t.Errorf("a video: got %v, want a refusal", err)
	}
}

// write writes a model's folder.
func write(t testing.TB, dir string, weights map[string]*tensor.Tensor, docs map[string]any) {
	t.Helper()
	var b bytes.Buffer
	must(t, checkpoint.WriteSafetensors(&b, weights, nil))
	must(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), b.Bytes(), 0o644))
	for name, doc := range docs {
		data, err := json.Marshal(doc)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
}

// checkReductions compares the model's reductions with all references in its folder, whose names
// tell the prompt and the base method.
func checkReductions(t *testing.T, name string) {
	t.Helper()
	e := open(t, filepath.Join("testdata", name), 2)
	files, err := filepath.Glob(filepath.Join("testdata", name, "reduce", "*.ref.gz"))
	must(t, err)
	if len(files) == 0 {
		t.Fatalf("%s: no references", name)
	}
	for _, file := range files {
		run := strings.TrimSuffix(filepath.Base(file), ".ref.gz")
		t.Run(name+"/"+run, func(t *testing.T) {
			want := golden.Read(t, strings.TrimSuffix(file, ".gz"))
			i := strings.LastIndex(run, "-n")
			prompt, base := run[:strings.LastIndex(run[:i], "-")], "holov"
			if strings.Contains(run, "divprune") {
				base = "divprune"
			}
			n := want["reduce.size"]
			if n == nil {
				n = want["reduce.0.size"]
			}
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: reference(t, name, prompt), Tokens: 8, NoMaps: true,
				Reduce: methods.Options{
					Base: base, NVis: n.Shape[0], Restore: true, Compat: "paper",
				},
			})
			must(t, err)
			checkReduced(t, got, want)
		})
	}
}

// checkReduced compares the choice of tokens, their features, the rows' positions and sizes, and
// the answer.
func checkReduced(t *testing.T, got, want map[string]*tensor.Tensor) {
	t.Helper()
	addTails(t, got, want)
	for name, w := range want {
		tol := tolStage
		switch {
		case strings.HasSuffix(name, ".group"), strings.HasSuffix(name, ".kept"),
			strings.HasSuffix(name, ".anchors"), strings.HasSuffix(name, ".size"),
			strings.HasSuffix(name, ".position"), strings.HasSuffix(name, ".alloc"),
			name == "positions", name == "sizes", w.DType == tensor.I64:
			tol = 0
		case strings.HasSuffix(name, ".attention"), strings.HasSuffix(name, ".w"),
			strings.HasSuffix(name, ".Q"):
			tol = tolReceived
		}
		have := got[strings.Replace(name, "kept", "retained", 1)]
		if have == nil {
			t.Errorf("%s: not in the trace", name)
		} else if strings.HasSuffix(name, ".anchors") { // the reference has sorted them
			a, b := numbers(t, have), numbers(t, w)
			if slices.Sort(a); !slices.Equal(a, b) {
				t.Errorf("%s: got %v, want %v", name, a, b)
			}
		} else if err := golden.Compare(have, w, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ensure that methods keep to budgets of a picture in tiles and of a video, or are refused for a
// named reason.
func TestOneVisionMethods(t *testing.T) {
	const name = "llava-onevision-tied-tiny"
	for _, prompt := range []string{"huge", "video"} {
		checkMethods(t, name, prompt, 7, func(plain map[string]*tensor.Tensor) budgets {
			rows := plain["packed"].Shape[0]
			if prompt == "huge" {
				return budgets{rows, 1, reference(t, name, prompt)["score"].Shape[0]}
			}
			return budgets{rows, 1, rows - 1} // one newline after a video
		}, map[string]string{
			"tome": "no class token", "flowcut": "no class token", "prumerge": "class token",
			"prumerge-plus": "class token", "downsample": "", "fitprune": "recipe",
			"pixelprune": "needs all patches",
		})
	}
}

// Ensure that questions with pictures' files have the reference's answers: also a video after a
// picture, and a conversation whose second picture changes how the first is read.
func TestOneVisionAnswers(t *testing.T) {
	const name = "llava-onevision-tiny"
	e := open(t, filepath.Join("testdata", name), 2)
	ctx := context.Background()
	for _, prompt := range []string{"odd", "huge", "two-images", "video", "image-and-video"} {
		p := openAsked(t, name, prompt)
		got, err := e.Ask(ctx, engine.Request{
			Prompt: p.question(), Images: engine.Pictures(p.decoded(t, p.Pictures)...),
			Video: p.video(t), MaxTokens: len(p.Tokens), IgnoreEnd: true,
		})
		must(t, err)
		if !slices.Equal(got.Tokens, p.Tokens) {
			t.Errorf("%s: got %v, want %v", prompt, got.Tokens, p.Tokens)
		}
	}
	p := openAsked(t, name, "two-turns")
	parts := strings.Split(p.Text, "<|im_end|>")
	said := func(i int, role string) string {
		_, text, _ := strings.Cut(parts[i], "<|im_start|>"+role+"\n")
		return strings.ReplaceAll(text, "<image>\n", "")
	}
	pics := engine.Pictures(p.decoded(t, p.Pictures)...)
	ask := func(i int, text string) engine.Message {
		return engine.Message{Role: "user", Parts: []engine.Part{{Image: pics[i]}, {Text: text}}}
	}
	got, err := e.Ask(ctx, engine.Request{
		Messages: []engine.Message{
			ask(0, said(0, "user")),
			{Role: "assistant", Parts: []engine.Part{{Text: said(1, "assistant")}}},
			ask(1, said(2, "user")),
		},
		MaxTokens: len(p.Tokens), IgnoreEnd: true,
	})
	must(t, err)
	if !slices.Equal(got.Tokens, p.Tokens) {
		t.Errorf("two turns: got %v, want %v", got.Tokens, p.Tokens)
	}
}

// Ensure that a conversation answers like the whole dialogue each time, when its first picture is
// no longer the only one, and when it is again.
func TestOneVisionConversation(t *testing.T) {
	const name = "llava-onevision-tiny"
	e := open(t, filepath.Join("testdata", name), 2)
	p := openAsked(t, name, "two-images")
	pics := engine.Pictures(p.decoded(t, p.Pictures)...)
	ctx := context.Background()
	for _, how := range []methods.Options{{}, {Base: "divprune", NVis: 6, Restore: true}} {
		c := e.NewConversation(how)
		var dialogue []engine.Message
		turn := func(text string, images ...*engine.Image) {
			t.Helper()
			said, err := c.Ask(ctx, engine.Request{
				Prompt: text, Images: images, MaxTokens: 6, IgnoreEnd: true,
			})
			must(t, err)
			m := engine.Message{Role: "user"}
			for _, image := range images {
				m.Parts = append(m.Parts, engine.Part{Image: image})
			}
			dialogue = append(dialogue, engine.Message{
				Role: m.Role, Parts: append(m.Parts, engine.Part{Text: text}),
			})
			want, err := e.Ask(ctx, engine.Request{
				Messages: dialogue, Reduce: how, MaxTokens: 6, IgnoreEnd: true, NoCache: true,
			})
			must(t, err)
			if !slices.Equal(said.Tokens, want.Tokens) {
				t.Errorf("%q: got %v, want %v", text, said.Tokens, want.Tokens)
			}
			dialogue = append(dialogue, engine.Message{
				Role: "assistant", Parts: []engine.Part{{Text: strings.TrimPrefix(said.Text, " ")}},
			})
		}
		turn("What is it?", pics[0])
		turn("And here?", pics[1])
		turn("Which is larger?")
		for range 2 {
			c.Undo()
		}
		dialogue = dialogue[:2]
		turn("What colour?")
	}
}

// Ensure that a conversation survives an earlier picture that cannot be prepared as one of several,
// because the question was cancelled: that is its error, and the next question is answered.
func TestOneVisionCancelledAgain(t *testing.T) {
	dir := "testdata/llava-onevision-tiny"
	e := open(t, dir, 1)
	image := func(name string) []*engine.Image {
		data, err := os.ReadFile(filepath.Join(dir, "llava-onevision-tiny-"+name+".png"))
		must(t, err)
		return []*engine.Image{{File: data}}
	}
	first, second := image("odd-0-47x31"), image("small-0-9x7")
	_, err := e.Ask(t.Context(), engine.Request{ // the second is then known as one of several
		Prompt: "?", Images: slices.Concat(second, second), MaxTokens: 1,
	})
	must(t, err)
	c := e.NewConversation(methods.Options{})
	_, err = c.Ask(t.Context(), engine.Request{Prompt: "?", Images: first, MaxTokens: 1})
	must(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	next := engine.Request{Prompt: "?", Images: second, MaxTokens: 1}
	if _, err := c.Ask(gone, next); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cancellation", err)
	}
	if _, err := c.Ask(t.Context(), next); err != nil {
		t.Error(err)
	}
}
