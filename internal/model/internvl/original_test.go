package internvl

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// originalConfig has the settings of OpenGVLab/InternVL3-1B.
const originalConfig = `{
 "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5,
 "dynamic_image_size": true, "force_image_size": 448, "hidden_size": 896, "image_fold": null,
 "llm_config": {
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "moe_config": null,
  "attn_implementation": "flash_attention_2", "hidden_size": 896, "intermediate_size": 4864,
  "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
  "sliding_window": null, "use_sliding_window": false, "hidden_act": "silu", "vocab_size": 151674
 },
 "max_dynamic_patch": 12, "min_dynamic_patch": 1, "pad2square": false, "ps_version": "v2",
 "select_layer": -1, "system_message": null, "template": "internvl2_5",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_backbone_lora": 0,
 "use_llm_lora": 0, "use_thumbnail": true,
 "vision_config": {
  "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b", "use_moe": false,
  "attention_dropout": 0.0, "drop_path_rate": 0.1, "dropout": 0.0, "initializer_factor": 0.1,
  "hidden_act": "gelu", "hidden_size": 1024, "image_size": 448, "intermediate_size": 4096,
  "layer_norm_eps": 1e-06, "qk_normalization": false, "norm_type": "layer_norm",
  "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14,
  "qkv_bias": true, "use_flash_attn": false
 }
}`

// Ensure that the authors' settings say the same as transformers' form of the model.
func TestOriginalSettings(t *testing.T) {
	s := store("x", 6)
	s.Docs.Tokenizer.Data = []byte(strings.Replace(originalTokens, "9", "151667", 1))
	if err := translate(s); err != nil {
		t.Fatal(err)
	}
	got, err := ParseConfig(s.Docs.Config.Data)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ParseConfig(Family.Shape("internvl3-1b"))
	if err != nil {
		t.Fatal(err)
	}
	want.Text.Denied = true // the authors' files say so
	if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	p, err := imageproc.ParseProcessor(s.Docs.Processor.Data, Family.Processors)
	if err != nil || p.(*imageproc.Crops).Side != 448 {
		t.Errorf("got %+v, %v", p, err)
	}
}

// Ensure that a setting which is missing, or has a value for which there is no code, is named in an
// error of one line.
func TestOriginalRefused(t *testing.T) {
	refused := func(text, names string) {
		t.Helper()
		_, _, err := settings([]byte(text))
		if text == originalConfig || err == nil || !strings.Contains(err.Error(), names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want one line that names %s", err, names)
		}
	}
	for _, key := range []string{
		"ps_version", "dynamic_image_size", "use_thumbnail", "template", "min_dynamic_patch",
		"max_dynamic_patch", "select_layer", "llm_config", "vision_config",
	} {
		key = `"` + key + `"`
		refused(strings.Replace(originalConfig, key, `"other"`, 1), key+": missing")
	}
	top, vision, _ := strings.Cut(originalConfig, `"vision_config"`)
	for _, key := range originalTower {
		key = `"` + key + `"`
		refused(top+`"vision_config"`+strings.Replace(vision, key, `"other"`, 1), key+": missing")
	}
	for _, c := range []struct{ old, new, names string }{
		{`"v2"`, `"v1"`, "ps_version"}, {`"v2"`, `2`, "ps_version"},
		{`"internvl2_5"`, `"Hermes-2"`, "template"}, {`"internvl2_5"`, `null`, "template"},
		{`"use_thumbnail": true`, `"use_thumbnail": false`, "use_thumbnail"},
		{`"dynamic_image_size": true`, `"dynamic_image_size": false`, "dynamic_image_size"},
		{`"pad2square": false`, `"pad2square": true`, "pad2square"},
		{`"use_llm_lora": 0`, `"use_llm_lora": 16`, "use_llm_lora"},
		{`"use_backbone_lora": 0`, `"use_backbone_lora": 16`, "use_backbone_lora"},
		{`"system_message": null`, `"system_message": "Hi."`, "system_message"},
		{`"image_fold": null`, `"image_fold": 2`, "image_fold"},
		{`"moe_config": null`, `"moe_config": {}`, "moe_config"},
		{`"use_moe": false`, `"use_moe": true`, "use_moe"},
		{`"intern_vit_6b"`, `"siglip_vision_model"`, "model_type"},
		{`"num_channels": 3`, `"num_channels": 1`, "num_channels"},
		{`"force_image_size": 448`, `"force_image_size": 224`, "force_image_size"},
		{`"max_dynamic_patch": 12`, `"max_dynamic_patch": 0`, "max_dynamic_patch"},
		{`"max_dynamic_patch": 12`, `"max_dynamic_patch": 1e9`, "max_dynamic_patch"},
		{`"min_dynamic_patch": 1`, `"min_dynamic_patch": 13`, "max_dynamic_patch"},
		{`"select_layer": -1`, `"select_layer": 25`, "select_layer"},
		{`"select_layer": -1`, `"select_layer": [-1]`, "select_layer"},
		{`"Qwen2ForCausalLM"`, `"InternLM2ForCausalLM"`, `"InternLM2ForCausalLM"`},
		{`"Qwen2ForCausalLM"`, `"Qwen3MoeForCausalLM"`, `"Qwen3MoeForCausalLM"`},
		{`["Qwen2ForCausalLM"]`, `[]`, `llm_config: "architectures"`},
		{`["Qwen2ForCausalLM"]`, `"Qwen2ForCausalLM"`, `llm_config: "architectures"`},
		{`"rms_norm_eps": 1e-06`, `"rms_norm_eps": -1`, `llm_config: "rms_norm_eps"`},
		{`"hidden_act": "silu"`, `"hidden_act": "relu"`, `llm_config: "hidden_act"`},
		{`"qkv_bias": true`, `"qkv_bias": 1`, "qkv_bias"},
		{`"qk_normalization": false`, `"qk_normalization": "no"`, "qk_normalization"},
		{
			`1e-06, "qk_normalization": false`, `1e-05, "qk_normalization": true`,
			"layer_norm_eps",
		},
		{`"vision_config": {`, `"vision_config": 5, "other": {`, "vision_config"},
		{`"llm_config": {`, `"llm_config": null, "other": {`, "llm_config"},
	} {
		refused(strings.Replace(originalConfig, c.old, c.new, 1), c.names)
	}
}

const originalTokens = `{"added_tokens": [{"id": 5, "content": "<|im_end|>"}, ` +
	`{"id": 9, "content": "<IMG_CONTEXT>"}]}`

// store returns a model in the authors' form, with one weight.
func store(name string, shape ...int) *checkpoint.Store {
	w := &checkpoint.Weight{Tensor: *tensor.From(shape, []float32{1, 2, 3, 4, 5, 6})}
	s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{name: w}}
	s.Docs.Each(func(name string, part *checkpoint.Part) { part.From = name })
	s.Docs.Config.Data, s.Docs.Tokenizer.Data = []byte(originalConfig), []byte(originalTokens)
	return s
}

// Ensure that joined weights are split in the authors' order, in memory or read, that their other
// names become the canonical ones, and that shapes and documents that do not fit are errors.
func TestTranslate(t *testing.T) {
	const qkv = "vision_model.encoder.layers.10.attn.qkv.weight"
	for _, reads := range []bool{false, true} {
		s := store(qkv, 3, 2)
		if w := s.Weights[qkv]; reads {
			all := w.Tensor
			w.Data, w.Read = nil, func(dst []float32, at int) error {
				return tensor.Widen(dst, all.DType, all.Data, at)
			}
		}
		if err := translate(s); err != nil {
			t.Fatal(err)
		}
		if err := s.Rename(forms); err != nil || len(s.Weights) != 3 ||
			s.What.Names != "names of InternVL's own code (original)" {
			t.Fatalf("%v, %v, %s", s.Weights, err, s.What.Names)
		}
		for part, want := range map[string][]float32{"q": {1, 2}, "k": {3, 4}, "v": {5, 6}} {
			w := s.Weights["vision_tower.encoder.layer.10.attention."+part+"_proj.weight"]
			if got, err := w.Float32s(); err != nil || !slices.Equal(got, want) ||
				!slices.Equal(w.Shape, []int{1, 2}) {
				t.Errorf("%s: got %v %v, %v, want %v", part, w.Shape, got, err, want)
			}
		}
	}
	for want, change := range map[string]func(s *checkpoint.Store){
		"tokenizer: missing": func(s *checkpoint.Store) { s.Docs.Tokenizer.Data = nil },
		"no <IMG_CONTEXT>": func(s *checkpoint.Store) {
			s.Docs.Tokenizer.Data = []byte(`{"added_tokens": [{"id": 5, "content": "<|im_end|>"}]}`)
		},
		"tokenizer: invalid character": func(s *checkpoint.Store) { s.Docs.Tokenizer.Data = []byte("\x0a\x05") },
		"generation: got null": func(s *checkpoint.Store) {
			s.Docs.Generation.Data = []byte("null")
		},
		"config.json": func(s *checkpoint.Store) { s.Docs.Config.Data = []byte("{}") },
		`"a.attn.qkv.bias": shape [2 3]`: func(s *checkpoint.Store) {
			s.Weights["a.attn.qkv.bias"] = store("x", 2, 3).Weights["x"]
		},
		`"a.attn.qkv.bias": shape []`: func(s *checkpoint.Store) {
			s.Weights["a.attn.qkv.bias"] = &checkpoint.Weight{}
		},
	} {
		s := store(qkv, 3, 2)
		change(s)
		if err := translate(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Ensure that prompts without a template for pictures are what get_prompt of the authors'
// conversation.py makes, that a template with their place is kept, and that the end
// of a turn ends an answer.
func TestConversation(t *testing.T) {
	s := store("x", 6)
	s.Docs.Template.Data = []byte("{{ messages[0].content }}")
	s.Docs.Generation.Data = []byte(`{"eos_token_id": [1, 2], "top_k": 3}`)
	if err := translate(s); err != nil {
		t.Fatal(err)
	}
	if got := string(s.Docs.Generation.Data); got != `{"eos_token_id":5,"top_k":3}` {
		t.Errorf("generation: %s", got)
	}
	template, err := chat.Parse(string(s.Docs.Template.Data))
	if err != nil {
		t.Fatal(err)
	}
	says := func(role string, parts ...string) chat.Message {
		m := chat.Message{Role: role}
		for _, text := range parts {
			if text == "" {
				m.Content = append(m.Content, chat.Part{Type: "image"})
			} else {
				m.Content = append(m.Content, chat.Part{Type: "text", Text: text})
			}
		}
		return m
	}
	const system = "<|im_start|>system\n你是书生·万象，英文名是InternVL，是由上海人工智能实验室、" +
		"清华大学及多家合作单位联合开发的多模态大语言模型。<|im_end|>\n"
	for want, messages := range map[string][]chat.Message{
		system + "<|im_start|>user\n<image>\nWhat is it?<|im_end|>\n<|im_start|>assistant\n": {
			says("user", "", "What is it?"),
		},
		system + "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n": {
			says("user", "Hello."),
		},
		"<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\n<image>\nWhat is it?" +
			"<|im_end|>\n<|im_start|>assistant\nA thing.<|im_end|>\n<|im_start|>user\nAnd " +
			"<image>\n<image>\nthese?<|im_end|>\n<|im_start|>assistant\n": {
			says("system", "You are terse."), says("user", "", "What is it?"),
			says("assistant", "A thing."), says("user", "And ", "", "", "these?"),
		},
	} {
		segments, err := template.RenderSegments(messages, chat.Options{AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range segments {
			got += s.Text
		}
		if got = strings.ReplaceAll(got, place, "<image>"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	s = store("x", 6)
	s.Docs.Template.Data = []byte("<IMG_CONTEXT>")
	if err := translate(s); err != nil || string(s.Docs.Template.Data) != "<IMG_CONTEXT>" {
		t.Errorf("a template with places: got %s, %v", s.Docs.Template.Data, err)
	}
}

// FuzzOriginal ensures that no config.json makes the reader of the authors' form panic, and that
// what it makes of one is read or refused.
func FuzzOriginal(f *testing.F) {
	f.Add([]byte(originalConfig), []byte(originalTokens))
	f.Fuzz(func(t *testing.T, config, tokens []byte) {
		s := store("a.attn.qkv.weight", 3, 2)
		s.Docs.Config.Data, s.Docs.Tokenizer.Data = config, tokens
		if translate(s) != nil {
			return
		}
		if !json.Valid(s.Docs.Config.Data) || !json.Valid(s.Docs.Processor.Data) {
			t.Fatalf("got %s and %s", s.Docs.Config.Data, s.Docs.Processor.Data)
		}
		ParseConfig(s.Docs.Config.Data)
		imageproc.ParseProcessor(s.Docs.Processor.Data, Family.Processors)
	})
}
