package gemma3

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// place is the token of a picture's rows.
const place = "<image_soft_token>"

// gguf is how llama.cpp writes Gemma 3, also its sizes without an encoder.
var gguf = &checkpoint.GGUF{
	Decoders: []string{"gemma3"}, Projector: "gemma3", Prefix: decoder, Theta: 1e6, Offset: true,
	Names: append(checkpoint.CLIPNames(tower), [][2]string{
		{"blk.N.attn_q_norm", "model.layers.N.self_attn.q_norm"},
		{"blk.N.attn_k_norm", "model.layers.N.self_attn.k_norm"},
		{"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
		{"blk.N.ffn_norm", "model.layers.N.pre_feedforward_layernorm"},
		{"blk.N.post_ffw_norm", "model.layers.N.post_feedforward_layernorm"},
		{"mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight"},
		{"mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"},
	}...),
	Special: []string{
		"<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", end, before, after, place,
	},
	Picture: before,
	Convert: convert,
	Joined: &checkpoint.Joined{
		Architecture: "gemma3",
		Keys: [][2]string{
			{"rope.local.freq_base", "rope.freq_base_swa"},
			{"rope.global.freq_base", "rope.freq_base"},
		},
		Names: [][2]string{
			{"v.patch_embedding", "v.patch_embd"}, {"v.position_embedding", "v.position_embd"},
			{"v.post_layernorm", "v.post_ln"},
			{"v.blk.N.layer_norm1", "v.blk.N.ln1"}, {"v.blk.N.layer_norm2", "v.blk.N.ln2"},
			{"v.blk.N.attn_output", "v.blk.N.attn_out"},
			{"v.blk.N.mlp.fc1", "v.blk.N.ffn_up"}, {"v.blk.N.mlp.fc2", "v.blk.N.ffn_down"},
			{"mm.mm_input_projection", "mm.input_projection"},
			{"mm.mm_soft_emb_norm", "mm.soft_emb_norm"},
		},
		More: joined,
	},
	Template: template,
}

// template gives the prompts of the published chat template.
const template = `{{ bos_token }}
{%- macro said(content) -%}
    {%- if content is string %}{{ content | trim }}{% else %}
        {%- for part in content -%}
            {%- if part['type'] == 'image' %}{{ '<start_of_image>' }}
            {%- elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set first = namespace(text='', turns=messages) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set first.text = (system if system is string else system[0]['text']) + '\n\n' %}
    {%- set first.turns = messages[1:] %}
{%- endif %}
{%- for turn in first.turns %}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\n' }}
    {{- (first.text if loop.first else '') + said(turn['content']) + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}`

// What no file of Ollama says: that published models of 4B and more, all with an encoder, have a
// rotation stretched by 8 and a context of longContext, while its early files name a shorter one.
const (
	stretch     = 8
	longContext = 131072
	layers1b    = 26 // of a model for which some files name a softcapping that it does not have
)

// joined returns what Ollama's files leave out or have otherwise.
func joined(f checkpoint.Metadata) (map[string]any, [][2]string, error) {
	const (
		eps, kind     = "gemma3.attention.layer_norm_rms_epsilon", "gemma3.rope.scaling.type"
		pattern       = "gemma3.attention.sliding_window_pattern"
		blocks, patch = "gemma3.block_count", "gemma3.vision.patch_size"
	)
	half := []float64{0.5, 0.5, 0.5}
	values := map[string]any{
		eps: f.Float(eps, 1e-6), "tokenizer.ggml.add_space_prefix": false, "clip.use_gelu": true,
		"clip.vision.image_mean": half, "clip.vision.image_std": half,
	}
	encoder := f.Number(patch, 0) > 0
	if f.Text(kind, "") == "" &&
		(encoder || f.Number("gemma3.context_length", 0) >= longContext) {
		values[kind], values["gemma3.rope.scaling.factor"] = "linear", stretch
	}
	if f.Number(blocks, 0) == layers1b {
		values["gemma3.final_logit_softcapping"] = 0
	}
	if sliding := f.Flags(pattern); sliding != nil {
		every := slices.Index(sliding, false) + 1
		if every == 0 {
			every = len(sliding) + 1
		}
		for i, on := range sliding {
			if on == ((i+1)%every == 0) {
				return nil, nil, fmt.Errorf("key %q: %v: %w, want no window in every layer of the "+
					"same distance", pattern, sliding, errs.ErrUnsupported)
			}
		}
		values[pattern] = every
	}
	if !encoder {
		return values, nil, nil
	}
	side, err := f.Required("gemma3.vision.image_size")
	const tokens = "gemma3.mm.tokens_per_image"
	n := f.Number(tokens, 256)
	grid, along := side/f.Number(patch, 1), int(math.Sqrt(float64(n)))
	if err == nil && (along < 1 || along*along != n || grid%along != 0) {
		err = fmt.Errorf("key %q: got %d, want the square of a divisor of the %d patches along "+
			"a side", tokens, n, grid)
	} else if err == nil {
		values["clip.vision.projector.scale_factor"] = grid / along
	}
	return values, nil, err
}

// end is the token after a turn.
const end = "<end_of_turn>"

// What no file says of published models: which layers have no window, how many patches along a
// cell's side become a token, and the blocks of 27B, whose scores have a scale of their own.
const (
	fullEvery = 6
	poolSide  = 4
	blocks27b = 62
)

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted) error {
	d, t := m.Decoder, m.Text
	delete(t, "hidden_act")
	maps.Copy(t, map[string]any{
		"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
		"rope_local_base_freq":   d.Float("gemma3.rope.freq_base_swa", 1e4),
		"query_pre_attn_scalar":  t["head_dim"],
		"sliding_window_pattern": d.Number("gemma3.attention.sliding_window_pattern", fullEvery),
	})
	if t["num_hidden_layers"] == blocks27b {
		t["query_pre_attn_scalar"] = t["hidden_size"].(int) / t["num_attention_heads"].(int)
	}
	if window := d.Number("gemma3.attention.sliding_window", 0); window > 0 {
		t["sliding_window"] = window
	} else {
		t["sliding_window_pattern"] = 1 // every layer sees all
	}
	for _, key := range []string{
		"gemma3.attn_logit_softcapping", "gemma3.final_logit_softcapping",
	} {
		if x := d.Float(key, 0); x != 0 {
			return fmt.Errorf("key %q: got %v: %w, want 0", key, x, errs.ErrUnsupported)
		}
	}
	maps.Copy(m.Config, map[string]any{
		"text_config": t, "tie_word_embeddings": t["tie_word_embeddings"],
		"image_token_index": m.Token(place),
	})
	if m.Projector == nil {
		return nil
	}
	return convertEncoder(m)
}

// convertEncoder completes what the documents say of encoder, projector and pictures.
func convertEncoder(m *checkpoint.Converted) error {
	p := m.Projector
	for _, text := range []string{before, after} {
		if m.Tokens != nil && m.Token(text) == checkpoint.NoToken {
			return fmt.Errorf("tokenizer: no token %q, which stands next to pictures", text)
		}
	}
	if !p.Flag("clip.use_gelu", true) {
		return fmt.Errorf("key %q: false: %w, want true", "clip.use_gelu", errs.ErrUnsupported)
	}
	side, err := p.Required("clip.vision.image_size")
	if err != nil {
		return err
	}
	const key = "clip.vision.projector.scale_factor"
	grid, pool := side/m.Vision["patch_size"].(int), p.Number(key, poolSide)
	if pool < 1 || grid%pool != 0 {
		return fmt.Errorf("key %q: got %d, want a divisor of the %d patches along a side", key,
			pool, grid)
	}
	maps.Copy(m.Vision, map[string]any{
		"model_type": "siglip_vision_model", "image_size": side,
		"hidden_act": "gelu_pytorch_tanh", "vision_use_head": false,
	})
	m.Config["vision_config"] = m.Vision
	m.Config["mm_tokens_per_image"] = (grid / pool) * (grid / pool)
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "Gemma3ImageProcessor", "resample": 2,
		"size": map[string]any{"height": side, "width": side},
	})
	return nil
}
