package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// internVLPrompts have one tile, tiles in a row, in a column and in a grid, two pictures, a
// conversation, and no picture; the second checkpoint is of InternVL3.5's kind, with RMSNorm and
// norms of queries and keys in the tower as the largest have.
var internVLPrompts = map[string][]string{
	"internvl-tiny":       {"small", "wide", "tall", "two", "strip", "turns", "text"},
	"internvl-qwen3-tiny": {"wide", "two"},
	"internvl-llama-tiny": {"tall"},
}

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same,
// with both forms of the documents.
func TestInternVLStages(t *testing.T) {
	checkForms(t, internVLPrompts, "preprocessor_config.json")
}

// Ensure that pixel values equal those of the library's processor, which cuts pictures although
// crop_to_patches is false.
func TestInternVLPixels(t *testing.T) { checkPixels(t, internVLPrompts) }

// dialogue returns the messages of the prompt, whose pictures stand first in their turns.
func (p *asked) dialogue(t testing.TB) (out []engine.Message) {
	t.Helper()
	pics := engine.Pictures(p.decoded(t, p.Pictures)...)
	for turn := range strings.SplitSeq(p.Text, "<|im_start|>") {
		role, text, ok := strings.Cut(turn, "\n")
		text, _, said := strings.Cut(text, "<|im_end|>")
		if !ok || !said {
			continue
		}
		m := engine.Message{Role: role}
		for {
			rest, found := strings.CutPrefix(text, "<IMG_CONTEXT>\n")
			if !found {
				break
			}
			m.Parts, pics, text = append(m.Parts, engine.Part{Image: pics[0]}), pics[1:], rest
		}
		out = append(out, engine.Message{
			Role: m.Role, Parts: append(m.Parts, engine.Part{Text: text}),
		})
	}
	return out
}

// Ensure that dialogues with pictures' files have the reference's answers: the tokens around
// pictures are the processor's.
func TestInternVLAnswers(t *testing.T) {
	for name, prompts := range internVLPrompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			p := openAsked(t, name, prompt)
			p.checkAnswer(t, e, name+"/"+prompt, p.dialogue(t))
		}
	}
}

// Ensure that the text of users never becomes a picture's place or a token around one.
func TestInternVLText(t *testing.T) {
	e := open(t, "testdata/internvl-tiny", 2)
	pic := openAsked(t, "internvl-tiny", "small")
	ask := func(text string) (*engine.Answer, error) {
		return e.Ask(context.Background(), engine.Request{
			Prompt: text, Images: engine.Pictures(pic.decoded(t, pic.Pictures)...), MaxTokens: 1,
		})
	}
	got, err := ask("<img><IMG_CONTEXT></img>")
	must(t, err)
	plain, err := ask("")
	must(t, err)
	if n := got.Report.PromptTokens - plain.Report.PromptTokens; n < 10 ||
		got.Report.ImageTokens != plain.Report.ImageTokens {
		t.Errorf("%d tokens of text, %d of pictures", n, got.Report.ImageTokens)
	}
}

// Ensure that a chat template that writes no place for a picture, or two, is refused with what it
// writes, and that tokens around the place are the template's and the processor's, as in
// transformers.
func TestInternVLTemplates(t *testing.T) {
	const name, file = "internvl-tiny", "chat_template.jinja"
	p := openAsked(t, name, "small")
	for _, c := range []struct{ writes, want string }{
		{"<img><IMG_CONTEXT></img>", ""},
		{"<image>", `the chat template (chat_template.jinja) writes "<|im_start|>user\n` +
			`A<image>\nB<|im_end|>\n" for text A, a picture and text B, want "<IMG_CONTEXT>" once`},
		{"<IMG_CONTEXT><IMG_CONTEXT>", `A<IMG_CONTEXT><IMG_CONTEXT>\nB`},
		{"", `A\nB`},
		{"no template", `the chat template (LLaVA's v1 conversation (built in)) writes "`},
	} {
		dir := copyDir(t, filepath.Join("testdata", name))
		path := filepath.Join(dir, file)
		data, err := os.ReadFile(path)
		must(t, err)
		if c.writes == "no template" {
			must(t, os.Remove(path))
		} else {
			text := strings.Replace(string(data), "<IMG_CONTEXT>", c.writes, 1)
			must(t, os.WriteFile(path, []byte(text), 0o644))
		}
		got, err := open(t, dir, 1).Ask(context.Background(), engine.Request{
			Messages: p.dialogue(t), MaxTokens: 1,
		})
		if c.want == "" {
			must(t, err)
			n := reference(t, name, "small")["input_ids"].Shape[0]
			if got.Report.PromptTokens != n+2 {
				t.Errorf("%q: %d tokens, want %d and another <img> and </img>", c.writes,
					got.Report.PromptTokens, n)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.writes, err, c.want)
		}
	}
}

// Ensure that methods keep to budgets of pictures of one tile and of several, or are refused for a
// named reason.
func TestInternVLMethods(t *testing.T) {
	for _, prompt := range []string{"small", "wide", "two"} {
		refused := map[string]string{
			"tome": "joins 4 patches", "flowcut": "joins 4 patches", "fitprune": "recipe",
			"pixelprune": "needs",
		}
		if prompt != "small" {
			refused["downsample"] = "cuts pictures into tiles"
		}
		checkMethods(t, "internvl-tiny", prompt, 4, func(plain map[string]*tensor.Tensor) budgets {
			lens := numbers(t, plain["packed_lens"])
			b := budgets{parts: len(lens)}
			for _, n := range lens {
				b.rows += int(n)
			}
			if b.parts == 1 {
				b.tokens = b.rows
			}
			return b
		}, refused)
	}
}

// Ensure that a conversation with cached keys equals one from scratch.
func TestInternVLConversation(t *testing.T) {
	checkConversation(t, open(t, "testdata/internvl-tiny", 2), []methods.Options{
		{}, {Base: "divprune", NVis: 6, Restore: true}, {Base: "vispruner", NVis: 8},
		{Base: "visionzip", NVis: 6, Compat: "released"},
	})
}

// Ensure that the files of llama.cpp's converter give the same stages and tokens, with a decoder of
// Qwen2 and of Qwen3, and answer dialogues with pictures; the decoder's file alone answers text.
func TestInternVLGGUF(t *testing.T) {
	for _, name := range []string{"internvl-tiny", "internvl-qwen3-tiny"} {
		dir := unzip(t, filepath.Join("testdata", "gguf", name+".zip"))
		e := open(t, dir, 2)
		for _, prompt := range internVLPrompts[name] {
			p := openAsked(t, name, prompt)
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkPrompt(t, e, reference(t, name, prompt))
				p.checkAnswer(t, e, name+"/"+prompt, p.dialogue(t))
			})
		}
		must(t, os.Remove(filepath.Join(dir, "mmproj-"+name+".gguf")))
		if alone := open(t, dir, 2); name == "internvl-tiny" {
			checkPrompt(t, alone, reference(t, name, "text"))
		}
	}
}

// Ensure that the names of the weights that other releases of transformers write (4.52.3, 5.5, and
// state_dict) give the same answer.
func TestInternVLForms(t *testing.T) {
	const name = "internvl-tiny"
	p := openAsked(t, name, "small")
	weights := golden.Read(t, filepath.Join("testdata", name, "model.safetensors"))
	for _, names := range []*strings.Replacer{
		strings.NewReplacer("language_model.model.", "model.language_model.",
			"language_model.lm_head.", "lm_head.", "vision_tower.", "model.vision_tower.",
			"multi_modal_projector.", "model.multi_modal_projector."),
		strings.NewReplacer("language_model.model.", "model.language_model.model.",
			"vision_tower.", "model.vision_tower.",
			"multi_modal_projector.", "model.multi_modal_projector."),
	} {
		renamed := map[string]*tensor.Tensor{}
		for name, w := range weights {
			renamed[names.Replace(name)] = w
		}
		dir := copyDir(t, filepath.Join("testdata", name))
		write(t, dir, renamed, nil)
		p.checkAnswer(t, open(t, dir, 2), dir, p.dialogue(t))
	}
}

// original returns a copy of a checkpoint in the form of InternVL's authors: their names of weights
// and settings, joined queries, keys and values of the tower, a tokenizer in parts, and the picture
// processor of CLIP that their repositories name and their code does not use.
func original(t *testing.T, name string) string {
	dir := copyDir(t, filepath.Join("testdata", name))
	var words struct {
		Added []map[string]any `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int
			Merges [][2]string
		}
	}
	golden.JSON(t, filepath.Join(dir, "tokenizer.json"), &words)
	merges, added := "#version: 0.2\n", map[string]any{}
	for _, pair := range words.Model.Merges {
		merges += pair[0] + " " + pair[1] + "\n"
	}
	for _, token := range words.Added {
		added[fmt.Sprint(token["id"])] = token
	}
	must(t, os.WriteFile(filepath.Join(dir, "merges.txt"), []byte(merges), 0o644))
	names := strings.NewReplacer("vision_tower.", "vision_model.", "cls_token", "class_embedding",
		"position_embeddings", "position_embedding", "patch_embeddings.projection",
		"patch_embedding", "encoder.layer.", "encoder.layers.",
		"attention.projection_layer", "attn.proj", "attention.", "attn.",
		"layernorm_before", "norm1", "layernorm_after", "norm2", "lambda_", "ls",
		"multi_modal_projector.layer_norm", "mlp1.0", "multi_modal_projector.linear_1", "mlp1.1",
		"multi_modal_projector.linear_2", "mlp1.3")
	stored := golden.Read(t, filepath.Join(dir, "model.safetensors"))
	weights := map[string]*tensor.Tensor{}
	for from, w := range stored {
		to := from
		if !strings.HasPrefix(from, "language_model.") {
			to = names.Replace(from)
		}
		switch {
		case strings.HasSuffix(from, "mask_token"),
			strings.Contains(from, ".attention.k_proj."),
			strings.Contains(from, ".attention.v_proj."):
			continue
		case strings.Contains(from, ".attention.q_proj."):
			joined := *w
			joined.Shape = append([]int{3 * w.Shape[0]}, w.Shape[1:]...)
			for _, part := range []string{"k_proj", "v_proj"} {
				joined.Data = slices.Concat(joined.Data,
					stored[strings.Replace(from, "q_proj", part, 1)].Data)
			}
			w, to = &joined, strings.Replace(to, "q_proj", "qkv", 1)
		}
		weights[to] = w
	}
	var c struct {
		Ratio  float64        `json:"downsample_ratio"`
		Layer  int            `json:"vision_feature_layer"`
		Text   map[string]any `json:"text_config"`
		Vision map[string]any `json:"vision_config"`
	}
	golden.JSON(t, filepath.Join(dir, "config.json"), &c)
	var p struct {
		Least int `json:"min_patches"`
		Most  int `json:"max_patches"`
	}
	golden.JSON(t, filepath.Join(dir, "preprocessor_config.json"), &p)
	c.Text["architectures"] = []string{map[string]string{
		"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM",
	}[c.Text["model_type"].(string)]}
	vision := map[string]any{
		"architectures": []string{"InternVisionModel"}, "model_type": "intern_vit_6b",
		"image_size": 24, "patch_size": 4, "qkv_bias": c.Vision["attention_bias"],
		"qk_normalization": c.Vision["use_qk_norm"], "use_flash_attn": true, "dropout": 0.0,
		"initializer_factor": 1.0, "num_channels": 3, "drop_path_rate": 0.1,
	}
	for _, key := range []string{"hidden_size", "num_attention_heads", "num_hidden_layers",
		"intermediate_size", "hidden_act", "layer_norm_eps", "norm_type"} {
		vision[key] = c.Vision[key]
	}
	for _, file := range []string{"tokenizer.json", "processor_config.json"} {
		must(t, os.Remove(filepath.Join(dir, file)))
	}
	write(t, dir, weights, map[string]any{
		"vocab.json": words.Model.Vocab,
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added,
			"eos_token": "<|im_end|>", "add_bos_token": false,
		},
		"config.json": map[string]any{
			"architectures": []string{"InternVLChatModel"}, "model_type": "internvl_chat",
			"downsample_ratio": c.Ratio, "select_layer": c.Layer, "ps_version": "v2",
			"min_dynamic_patch": p.Least, "max_dynamic_patch": p.Most, "use_thumbnail": true,
			"dynamic_image_size": true, "force_image_size": 24, "template": "internvl2_5",
			"system_message": nil, "pad2square": false, "use_llm_lora": 0,
			"tie_word_embeddings": false, "llm_config": c.Text, "vision_config": vision,
		},
		"preprocessor_config.json": map[string]any{
			"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 448, "size": 448,
			"do_center_crop": true, "image_mean": []float64{0.5, 0.5, 0.5},
		},
	})
	return dir
}

// Ensure that folders in the form of InternVL's authors give transformers' pixels, stages, tokens
// and answers.
func TestInternVLOriginal(t *testing.T) {
	for name, prompts := range internVLPrompts {
		dir := original(t, name)
		e := open(t, dir, 2)
		for _, prompt := range prompts {
			p := openAsked(t, name, prompt)
			ref := reference(t, name, prompt)
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkPrompt(t, e, ref)
				p.checkAnswer(t, e, name+"/"+prompt, p.dialogue(t))
			})
			if want := ref["pixel_values"]; want != nil {
				px, err := e.Pixels(p.decoded(t, p.Pictures), nil)
				must(t, err)
				if err := golden.Compare(tensor.From(px.Shape, px.Data), want, 0); err != nil {
					t.Errorf("%s/%s: %v", name, prompt, err)
				}
			}
		}
	}
}

// Ensure that prompts in the conversation of InternVL's authors have the answers of their own code,
// its chat method, with the weights and pictures of the tiny checkpoints
// (tools/fixtures/internvlauthors.py).
func TestInternVLConversationOfAuthors(t *testing.T) {
	for name, questions := range map[string][]struct {
		picture, text string
		want          []int32
	}{
		"internvl-tiny": {
			{"wide", "What is here?", []int32{0, 20, 168, 21, 43, 144, 214, 294}},
			{"square", "Why?", []int32{213, 292, 253, 168, 33, 297, 247, 50}},
			{"tall", "What is it?", []int32{213, 14, 74, 148, 56, 193, 172, 193}},
		},
		"internvl-qwen3-tiny": {
			{"wide", "What is here?", []int32{104, 85, 281, 281, 281, 281, 281, 281}},
			{"square", "Why?", []int32{104, 256, 256, 256, 256, 256, 256, 256}},
		},
	} {
		dir := original(t, name)
		must(t, os.Remove(filepath.Join(dir, "chat_template.jinja")))
		e := open(t, dir, 2)
		for _, q := range questions {
			file := filepath.Join("testdata", name, q.picture+".png")
			got, err := e.Ask(context.Background(), engine.Request{
				Prompt: q.text, Images: engine.Pictures(decoded(t, file)), MaxTokens: 8,
				IgnoreEnd: true,
			})
			must(t, err)
			if !slices.Equal(got.Tokens, q.want) {
				t.Errorf("%s, %s: got %v, want %v", name, q.picture, got.Tokens, q.want)
			}
		}
	}
}
