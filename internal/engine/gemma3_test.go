package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// gemma3Prompts have a picture, two next to each other, two turns with pictures, and none. They are
// longer than the window, which is shorter than a picture.
var gemma3Prompts = map[string][]string{"gemma3-tiny": {"wide", "two", "turns", "text"}}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same,
// with both forms of the documents.
func TestGemma3Stages(t *testing.T) {
	checkForms(t, gemma3Prompts, "preprocessor_config.json")
}

// Ensure that files without a head have one that is tied, as in transformers 5.24, unless the top
// level of config.json denies it.
func TestGemma3Head(t *testing.T) {
	const name, key = "gemma3-tiny", "tie_word_embeddings"
	for _, denied := range []bool{false, true} {
		dir := copyDir(t, "testdata/"+name)
		path := filepath.Join(dir, "config.json")
		var config map[string]any
		golden.JSON(t, path, &config)
		config["text_config"].(map[string]any)[key] = false
		if delete(config, key); denied {
			config[key] = false
		}
		data, err := json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o644))
		if !denied {
			checkPrompt(t, open(t, dir, 2), reference(t, name, "text"))
			continue
		}
		_, err = engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1})
		if err == nil || !strings.Contains(err.Error(), `missing "language_model.lm_head.weight"`) {
			t.Errorf("without a head that is not tied: got %v", err)
		}
	}
}

// Ensure that pixel values equal those of the library's processor.
func TestGemma3Pixels(t *testing.T) { checkPixels(t, gemma3Prompts) }

// spoken is a dialogue of a reference.
type spoken struct {
	Messages []struct {
		Role    string
		Content []struct{ Type, Text string }
	}
}

// gemma3Dialogue returns the messages of a prompt.
func gemma3Dialogue(t testing.TB, name, prompt string) (out []engine.Message, p *asked) {
	t.Helper()
	p = openAsked(t, name, prompt)
	var s spoken
	golden.JSON(t, filepath.Join(p.dir, prompt+".ref.json"), &s)
	pics := engine.Pictures(p.decoded(t, p.Pictures)...)
	for _, m := range s.Messages {
		said := engine.Message{Role: m.Role}
		for _, c := range m.Content {
			if c.Type == "text" {
				said.Parts = append(said.Parts, engine.Part{Text: c.Text})
				continue
			}
			said.Parts, pics = append(said.Parts, engine.Part{Image: pics[0]}), pics[1:]
		}
		out = append(out, said)
	}
	return out, p
}

// Ensure that dialogues with pictures' files have the reference's prompts and answers: the texts
// around pictures are the processor's, and a prompt begins with one <bos>.
func TestGemma3Answers(t *testing.T) {
	for name, prompts := range gemma3Prompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			said, p := gemma3Dialogue(t, name, prompt)
			read, err := e.NewPrompt(context.Background(), engine.Request{Messages: said})
			must(t, err)
			want, err := reference(t, name, prompt)["input_ids"].Int64s()
			must(t, err)
			if !slices.Equal(read.IDs(), want) {
				t.Errorf("%s/%s: got the prompt %v, want %v", name, prompt, read.IDs(), want)
			}
			p.checkAnswer(t, e, name+"/"+prompt, said)
		}
	}
}

// Ensure that the text of users never becomes a picture's place or a token around one, also in
// places within it, and that a dialogue whose roles do not alternate is refused by the template.
func TestGemma3Text(t *testing.T) {
	e := open(t, "testdata/gemma3-tiny", 2)
	pic := openAsked(t, "gemma3-tiny", "wide")
	ask := func(text string, places ...int) *engine.Answer {
		t.Helper()
		got, err := e.Ask(context.Background(), engine.Request{
			Prompt: text, Images: engine.Pictures(pic.decoded(t, pic.Pictures)...), MaxTokens: 1,
			Places: places,
		})
		must(t, err)
		return got
	}
	got, plain := ask("<start_of_image><image_soft_token><end_of_image>"), ask("x")
	if n := got.Report.PromptTokens - plain.Report.PromptTokens; n < 20 ||
		got.Report.ImageTokens != plain.Report.ImageTokens {
		t.Errorf("%d tokens of text, %d of pictures", n, got.Report.ImageTokens)
	}
	// x, and the newlines before the picture, which are one token with the template's otherwise
	if n := ask("xy", 1).Report.PromptTokens - plain.Report.PromptTokens; n != 2 {
		t.Errorf("%d tokens more with a picture within the text, want 2", n)
	}
	user := engine.Message{Role: "user", Parts: []engine.Part{{Text: "x"}}}
	_, err := e.Ask(context.Background(), engine.Request{
		Messages: []engine.Message{user, user}, MaxTokens: 1,
	})
	if err == nil || !strings.Contains(err.Error(), "roles must alternate") {
		t.Errorf("two questions in a row: got %v, want a refusal", err)
	}
}

// Ensure that methods keep to budgets, or are refused for a named reason.
func TestGemma3Methods(t *testing.T) {
	for _, prompt := range []string{"wide", "two"} {
		checkMethods(t, "gemma3-tiny", prompt, 4, func(plain map[string]*tensor.Tensor) budgets {
			pictures := plain["projector.out"].Shape[0]
			return budgets{9 * pictures, pictures, 9}
		}, map[string]string{
			"tome": "joins 2x2 patches", "flowcut": "joins 2x2 patches", "fitprune": "recipe",
			"pixelprune": "needs", "prumerge": "no class token", "prumerge-plus": "no class token",
		})
	}
}

// Ensure that rows of a picture see each other in every layer, before and after a method inside the
// decoder has removed some, and nothing after them, and that a window counts the remaining rows.
func TestGemma3Sight(t *testing.T) {
	const name, window = "gemma3-tiny", 7
	e := open(t, "testdata/"+name, 2)
	for base, rows := range map[string][]int{"none": {9, 9, 9, 9}, "fastv": {9, 2, 2, 2}} {
		o := methods.Options{Base: base}
		if base == "fastv" {
			o.KeepRatio = 0.5
		}
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: reference(t, name, "two"), Reduce: o,
		})
		must(t, err)
		for layer, left := range rows {
			probs := got[fmt.Sprintf("text.layer.%d.attn", layer)]
			n, keys := probs.Shape[1], probs.Shape[2]
			data, err := probs.Float32s()
			must(t, err)
			var ends []int // of rows that see later ones
			for i := range n {
				row := data[i*keys : (i+1)*keys]
				first := slices.IndexFunc(row, func(p float32) bool { return p > 0 })
				end := keys
				for row[end-1] == 0 {
					end--
				}
				want := 0
				if own := keys - n + i; layer != 2 { // the third layer has no window
					want = max(0, own+1-window)
				}
				if first != want {
					t.Errorf("%s: layer %d, row %d sees keys from %d on, want %d", base, layer, i,
						first, want)
				}
				if end > keys-n+i+1 {
					ends = append(ends, end)
				}
			}
			if len(ends) != 2*(left-1) || len(slices.Compact(ends)) != 2 {
				t.Errorf("%s: layer %d: rows end at %v, want two blocks of %d rows", base, layer,
					ends, left)
			}
		}
	}
}

// Ensure that the calibration's distance term is, in each layer, by the layer's rotation.
func TestGemma3Calibration(t *testing.T) {
	e := open(t, "testdata/gemma3-tiny", 2)
	got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
		Inputs: reference(t, "gemma3-tiny", "wide"),
		Reduce: methods.Options{Base: "divprune", NVis: 4, Restore: true},
	})
	must(t, err)
	local, full := nn.NewRoPE(8, 1e4, nil), nn.NewRoPE(8, 1e6, nil)
	full.Stretch(nn.Uniform(8))
	pos, err := got["positions"].Float32s()
	must(t, err)
	size, err := got["sizes"].Float32s()
	must(t, err)
	for layer, rope := range []*nn.RoPE{local, local, full, local} {
		bias, err := got[fmt.Sprintf("text.layer.%d.bias", layer)].Float32s()
		must(t, err)
		for i, q := range pos {
			for j, k := range pos[:i+1] {
				want := nn.CalibrationBias(float64(size[j]), rope.Decay(float64(q-k)))
				// the rounding of two float32 numbers, of at most ln 2 and ln 9
				if b := float64(bias[i*len(pos)+j]); !(math.Abs(b-want) <= 1e-6) {
					t.Fatalf("layer %d: row %d, key %d: %v, want %v", layer, i, j, b, want)
				}
			}
		}
	}
}

// Ensure that a conversation with cached keys equals one from scratch.
func TestGemma3Conversation(t *testing.T) {
	checkConversation(t, open(t, "testdata/gemma3-tiny", 2), []methods.Options{
		{}, {Base: "divprune", NVis: 6, Restore: true}, {Base: "vispruner", NVis: 4},
		{Base: "fastv", KeepRatio: 0.5},
		{Base: "holov", NVis: 5, Restore: true},
	})
}

// Ensure that a model whose projector is missing, or has another shape, is refused.
func TestGemma3Projector(t *testing.T) {
	const name, projector = "gemma3-tiny", "multi_modal_projector.mm_input_projection_weight"
	dir := copyDir(t, "testdata/"+name)
	keepWeights(t, dir, func(name string) bool { return name != projector })
	wide := rewritten(t, name, "config.json", `"hidden_size": 24`, `"hidden_size": 28`)
	for dir, want := range map[string]string{
		dir: `missing "` + projector + `" [16 24]`, wide: "weights do not fit config.json: mis-shaped",
	} {
		_, err := engine.Open(formats.Files{Model: dir}, engine.Options{Threads: 1})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Ensure that the files of llama.cpp's converters, the present one and the first one of encoders,
// give the same stages, prompts, answers and tokens, and the decoder's file alone text's.
func TestGemma3GGUF(t *testing.T) {
	const name = "gemma3-six-tiny"
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	model := filepath.Join(dir, name+".gguf")
	check := func(f formats.Files) {
		t.Helper()
		e, err := engine.Open(f, engine.Options{Threads: 2, Quant: "f32"})
		must(t, err)
		defer e.Close()
		for _, prompt := range []string{"wide", "two", "turns", "text"} {
			if prompt != "text" && e.Info().Encoder == nil {
				continue
			}
			said, p := gemma3Dialogue(t, name, prompt)
			ref := reference(t, name, prompt)
			checkPrompt(t, e, ref)
			p.checkAnswer(t, e, prompt, said)
			read, err := e.NewPrompt(context.Background(), engine.Request{Messages: said})
			must(t, err)
			if want, err := ref["input_ids"].Int64s(); err != nil ||
				!slices.Equal(read.IDs(), want) {
				t.Errorf("%s: got the prompt %v, want %v, %v", prompt, read.IDs(), want, err)
			}
		}
	}
	projector := "mmproj-" + name + ".gguf"
	check(formats.Files{Model: model})
	check(formats.Files{Model: model, Projector: filepath.Join(dir, "old", projector)})
	must(t, os.Remove(filepath.Join(dir, projector)))
	check(formats.Files{Model: model})
}

// Ensure that the scores of 27B, which its file tells by the number of layers alone, have their own
// scale.
func TestGemma3GGUFScale(t *testing.T) {
	const name = "gemma3-27b-tiny"
	dir := filepath.Join("testdata", "gguf")
	ref := golden.Read(t, filepath.Join(dir, name+".ref"))
	model := filepath.Join(unzip(t, filepath.Join(dir, name+".zip")), name+".gguf")
	checkTrace(t, formats.Files{Model: model}, ref, "logits")
}

// Ensure that files whose vocabulary has no token for pictures, as older converters cut it off, and
// files that call a turn's token normal text, as others do, give the same prompts and answers, that
// a turn's end ends an answer, and that what cannot be honoured is refused by name.
func TestGemma3GGUFVariants(t *testing.T) {
	const name, startOfTurn = "gemma3-six-tiny", 5
	dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
	model, projector := filepath.Join(dir, name+".gguf"), filepath.Join(dir, "mmproj-"+name+".gguf")
	read := func(path string) string {
		b, err := os.ReadFile(path)
		must(t, err)
		return string(b)
	}
	text, tower := read(model), read(projector)
	types := strings.Index(text, "tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") +
		4 + 4 + 8 + 4*startOfTurn
	open := func(text, tower string) (*engine.Engine, error) {
		dir := t.TempDir()
		f := formats.Files{Model: filepath.Join(dir, name+".gguf")}
		must(t, os.WriteFile(f.Model, []byte(text), 0o644))
		must(t, os.WriteFile(filepath.Join(dir, "mmproj.gguf"), []byte(tower), 0o644))
		return engine.Open(f, engine.Options{Threads: 2, Quant: "f32"})
	}
	said, p := gemma3Dialogue(t, name, "two")
	want, err := reference(t, name, "two")["input_ids"].Int64s()
	must(t, err)
	for what, changed := range map[string]string{
		"no picture's token": strings.Replace(text, "<image_soft_token>", "<image_hard_token>", 1),
		"a normal token":     text[:types] + "\x01" + text[types+1:],
	} {
		e, err := open(changed, tower)
		must(t, err)
		defer e.Close()
		got, err := e.NewPrompt(context.Background(), engine.Request{Messages: said})
		must(t, err)
		ids := got.IDs()
		for i, id := range ids {
			if id == checkpoint.NoToken {
				ids[i] = want[i]
			}
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%s: got the prompt %v, want %v", what, ids, want)
		}
		p.checkAnswer(t, e, what, said)
		if end := e.Info().End; !slices.Equal(end, []int32{1, startOfTurn + 1}) {
			t.Errorf("%s: tokens %v end an answer", what, end)
		}
	}
	number := func(key string, typ, n byte) string {
		return key + string([]byte{typ, 0, 0, 0, n, 0, 0, 0})
	}
	const u32 = 4
	pool := "clip.vision.projector.scale_factor"
	for _, c := range []struct{ from, to, names string }{
		{number("gemma3.block_count", u32, 7), number("gemma3.block_count", u32, 6), "layers.6."},
		{number(pool, u32, 2), number(pool, u32, 5), "scale_factor"},
		{number(pool, u32, 2), number(pool, u32, 0), "scale_factor"},
		{"clip.use_gelu\a\x00\x00\x00\x01", "clip.use_gelu\a\x00\x00\x00\x00", "use_gelu"},
		{"<end_of_image>", "<end_of_imago>", `"<end_of_image>"`},
		{"linear", "yarned", "yarned"},
	} {
		from := strings.Replace(text, c.from, c.to, 1)
		to := strings.Replace(tower, c.from, c.to, 1)
		if from == text && to == tower {
			t.Fatalf("%q: nothing to change", c.from)
		}
		if _, err := open(from, to); err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want one line that names %s", c.to, err, c.names)
		}
	}
}
