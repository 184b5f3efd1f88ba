package internvl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// original is the form of InternVL's authors. Sources: their repository OpenGVLab/InternVL
// (internvl_chat), which has the settings of config.json, the conversation and the preparation of
// pictures, and transformers' convert_internvl_weights_to_hf.py, which has the weights' names.
var original = &checkpoint.Original{
	Architecture: "InternVLChatModel", Translate: translate,
	Config: func(config []byte) ([]byte, error) {
		c, _, err := settings(config)
		if err != nil {
			return nil, err
		}
		c["image_token_id"] = 0 // only the tokenizer has it
		return json.Marshal(c)
	},
}

// originalForm has the names of the authors' weights, whose joined queries, keys and values
// [translate] has split.
var originalForm = checkpoint.Form{
	Name: "original", By: "InternVL's own code",
	Rules: append(
		checkpoint.Renamed(decoder+"model.", decoder+"model.", checkpoint.TextModules...),
		[][2]string{
			{decoder + "lm_head.", decoder + "lm_head."},
			{vit + "embeddings.class_embedding", tower + "embeddings.cls_token"},
			{
				vit + "embeddings.patch_embedding.",
				tower + "embeddings.patch_embeddings.projection.",
			},
			{vit + "embeddings.position_embedding", tower + "embeddings.position_embeddings"},
			{layer + "attn.proj.", block + "attention.projection_layer."},
			{layer + "attn.", block + "attention."}, {layer + "mlp.", block + "mlp."},
			{layer + "norm1.", block + "layernorm_before."},
			{layer + "norm2.", block + "layernorm_after."},
			{layer + "ls1", block + "lambda_1"}, {layer + "ls2", block + "lambda_2"},
			{"mlp1.0.", "multi_modal_projector.layer_norm."},
			{"mlp1.1.", "multi_modal_projector.linear_1."},
			{"mlp1.3.", "multi_modal_projector.linear_2."},
		}...),
}

// Prefixes of the authors' names of the tower's weights and of a block's.
const (
	vit   = "vision_model."
	layer = vit + "encoder.layers.N."
)

// translate implements [checkpoint.Original]'s Translate.
func translate(s *checkpoint.Store) error {
	d := &s.Docs
	config, processor, err := settings(d.Config.Data)
	if err != nil {
		return err
	}
	ids, err := added(&d.Tokenizer, place, turnEnd)
	if err != nil {
		return err
	}
	config["image_token_id"] = ids[place]
	if d.Config.Data, err = json.Marshal(config); err != nil {
		return err
	}
	if d.Processor.Data, err = json.Marshal(processor); err != nil {
		return err
	}
	// the authors' code reads neither the files of processors nor a template, which may be for text
	d.Processor.From, d.Video.Data = d.Config.From, nil
	if !strings.Contains(string(d.Template.Data), place) {
		d.Template.Data = []byte(conversation)
		d.Template.From = "InternVL's " + conversationName + " conversation (built in)"
	}
	generation := map[string]any{}
	if d.Generation.Data != nil {
		if err = checkpoint.CheckObject(d.Generation.Data); err != nil {
			return fmt.Errorf("%s: %w", d.Generation.From, err)
		}
		if err = json.Unmarshal(d.Generation.Data, &generation); err != nil {
			return fmt.Errorf("%s: %w", d.Generation.From, err)
		}
	}
	generation["eos_token_id"] = ids[turnEnd] // as their code does, whatever the file says
	if d.Generation.Data, err = json.Marshal(generation); err != nil {
		return err
	}
	return split(s.Weights)
}

// added returns the ids of tokens that tokenizer.json adds to its vocabulary, by their texts, of
// which all must be there.
func added(tokenizer *checkpoint.Part, texts ...string) (map[string]int, error) {
	var file struct {
		Added []struct {
			ID   int
			Text string `json:"content"`
		} `json:"added_tokens"`
	}
	if tokenizer.Data == nil {
		return nil, checkpoint.As(errs.ErrNotFound, fmt.Errorf("%s: missing", tokenizer.From))
	}
	if err := json.Unmarshal(tokenizer.Data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", tokenizer.From, err)
	}
	ids := map[string]int{}
	for _, t := range file.Added {
		ids[t.Text] = t.ID
	}
	for _, text := range texts {
		if _, ok := ids[text]; !ok {
			return nil, fmt.Errorf("%s: added_tokens: no %s", tokenizer.From, text)
		}
	}
	return ids, nil
}

// split replaces the tower's joined queries, keys and values by a weight for each.
func split(weights map[string]*checkpoint.Weight) error {
	for name, w := range weights {
		head, tail, ok := strings.Cut(name, ".attn.qkv.")
		if !ok {
			continue
		}
		if len(w.Shape) == 0 || w.Shape[0] == 0 || w.Shape[0]%3 != 0 {
			return fmt.Errorf("tensor %q: shape %v, want rows of queries, keys and values", name,
				w.Shape)
		}
		delete(weights, name)
		for i, part := range []string{"q", "k", "v"} {
			n := w.Shape[0] / 3
			weights[head+".attn."+part+"_proj."+tail] = w.Rows(i*n, (i+1)*n)
		}
	}
	return nil
}

// What an original config.json must say, with the values for which there is code. Keys of required
// must be there, because their absence means another value.
var (
	originalRequired = map[string]string{
		"ps_version": `"v2"`, "dynamic_image_size": "true", "use_thumbnail": "true",
		"template": `"` + conversationName + `"`,
	}
	originalOnly = map[string]string{
		"pad2square": "false", "use_backbone_lora": "0", "use_llm_lora": "0",
		"system_message": "null", "image_fold": "null",
	}
	originalDecoders = map[string]string{ // by architecture, with transformers' model_type
		"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama",
	}
	// originalTower are the keys of vision_config, all of which must be there.
	originalTower = []string{
		"hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size",
		"image_size", "patch_size", "hidden_act", "layer_norm_eps", "norm_type", "qkv_bias",
		"qk_normalization",
	}
	renamed = map[string]string{"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}
)

// settings returns the config.json of the same model in transformers' form, without the token of a
// picture's place, and a preprocessor_config.json that prepares pictures as the authors' load_image
// does. The error lists all problems.
func settings(data []byte) (config, processor map[string]any, err error) {
	v, err := model.ParseConfig(data)
	if err != nil {
		return nil, nil, err
	}
	for key, want := range originalRequired {
		if !v.Has(key) {
			v.Fail(key, "missing, want %s", want)
		}
	}
	v.Unsupported(originalRequired)
	v.Unsupported(originalOnly)
	least := v.Int("min_dynamic_patch", -1, 1, imageproc.MaxTiles)
	most := v.Int("max_dynamic_patch", -1, least, imageproc.MaxTiles)
	vision, text := v.Object("vision_config", true), v.Object("llm_config", true)
	vision.Unsupported(map[string]string{
		"use_moe": "false", "model_type": `"intern_vit_6b"`, "num_channels": "3",
	})
	for _, key := range originalTower {
		if !vision.Has(key) {
			vision.Fail(key, "missing")
		}
	}
	vision.Bool("qkv_bias", true)
	if eps := vision.Float("layer_norm_eps", clip.QKEps); vision.Bool("qk_normalization", false) &&
		eps != clip.QKEps {
		vision.Fail("layer_norm_eps", "got %v, want %v with qk_normalization", eps, clip.QKEps)
	}
	blocks := vision.Int("num_hidden_layers", 1, 1, 1<<10)
	v.Int("select_layer", -1, -blocks-1, blocks)
	side := vision.Int("image_size", 1, 1, 1<<14)
	if n := v.Int("force_image_size", side, 1, 1<<14); n != side {
		v.Fail("force_image_size", "got %d, want the tower's image_size %d", n, side)
	}
	text.Unsupported(map[string]string{"moe_config": "null"})
	classes := append(text.Strings("architectures"), "")
	kind := originalDecoders[classes[0]]
	if kind == "" {
		text.Fail("architectures", "got %q, want Qwen2ForCausalLM, Qwen3ForCausalLM or "+
			"LlamaForCausalLM", classes[0])
	}
	if kind != "" {
		llama.Parse(text, kind) // errors name the keys of this form
	}
	tied := text.Bool("tie_word_embeddings", v.Bool("tie_word_embeddings", false))
	if err := v.Err(); err != nil {
		return nil, nil, err
	}
	var fields map[string]json.RawMessage
	var parts struct {
		Text   map[string]json.RawMessage `json:"llm_config"`
		Vision map[string]json.RawMessage `json:"vision_config"`
	}
	if err := errors.Join(json.Unmarshal(data, &fields), json.Unmarshal(data, &parts)); err != nil {
		return nil, nil, err
	}
	for _, key := range []string{"auto_map", "attn_implementation", "_attn_implementation"} {
		delete(parts.Text, key) // of the program, not of the model
	}
	parts.Text["model_type"] = fmt.Appendf(nil, "%q", kind)
	encoder := map[string]any{"model_type": "internvl_vision"}
	for _, key := range originalTower {
		encoder[cmp.Or(renamed[key], key)] = parts.Vision[key]
	}
	config = map[string]any{
		"architectures": []string{architecture}, "model_type": modelType,
		"text_config": parts.Text, "vision_config": encoder,
		"vision_feature_layer": fields["select_layer"], "tie_word_embeddings": tied,
	}
	for _, key := range []string{
		"downsample_ratio", "torch_dtype", "dtype", "quantization_config",
	} {
		if fields[key] != nil {
			config[key] = fields[key]
		}
	}
	return config, map[string]any{
		"image_processor_type": processorClass, "resample": 3,
		"size":        map[string]int{"height": side, "width": side},
		"image_mean":  []float64{0.485, 0.456, 0.406}, // of ImageNet
		"image_std":   []float64{0.229, 0.224, 0.225},
		"min_patches": least, "max_patches": most,
	}, nil
}

// conversation is the authors' conversation conversationName (conversation.py) as a chat template.
// A system message replaces the default one. Each picture, or frame of a video, stands on a line of
// its own, as in their examples.
const (
	conversationName = "internvl2_5"
	conversation     = `
{%- if messages[0].role != 'system' -%}
  {{- '<|im_start|>system\n' ~ '你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。' ~ '` + turnEnd + `\n' -}}
{%- endif -%}
{%- for m in messages -%}
  {{- '<|im_start|>' ~ m.role ~ '\n' -}}
  {%- if m.content is string -%}{{- m.content -}}
  {%- else -%}{%- for part in m.content -%}
    {{- '` + place + `\n' if part.type == 'image'
      else '` + videoPlace + `\n' if part.type == 'video' else part.text -}}
  {%- endfor -%}{%- endif -%}
  {{- '` + turnEnd + `\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt -}}`
	turnEnd = "<|im_end|>" // ends an answer
)
