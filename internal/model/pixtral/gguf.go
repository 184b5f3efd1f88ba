package pixtral

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// place is the token of a picture's rows.
const place = "[IMG]"

// Keys and tensors of the projector's file.
const (
	mergeKey = "clip.vision.spatial_merge_size"
	merging  = "mm.patch_merger.weight"
)

// chat gives the prompts of Mistral Small's published chat template, which has a system message of
// its own where there is none.
const chat = `{{ bos_token }}
{%- macro said(content) %}
    {%- if content is string %}{{ content }}{% else %}
        {%- for part in content %}{{ '[IMG]' if part['type'] == 'image' else part['text'] }}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- '[SYSTEM_PROMPT]' + said(message['content']) + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'user' %}{{ '[INST]' + said(message['content']) + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}{{ said(message['content']) + eos_token }}
    {%- else %}{{ raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}`

// joined is how Ollama writes Mistral Small and Ministral 3.
var joined = &checkpoint.Joined{
	Architecture: "mistral3",
	Keys: [][2]string{
		{"rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"},
		{"rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"},
		{"rope.scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"},
		{"rope.scaling_beta", "attention.temperature_scale"},
		{"spatial_merge_size", mergeKey}, {"vision.rope.freq_base", "clip.rope.freq_base"},
	},
	Names: [][2]string{
		{"v.patch_conv", "v.patch_embd"}, {"v.encoder_norm", "v.pre_ln"},
		{"v.blk.N.attn_norm", "v.blk.N.ln1"}, {"v.blk.N.ffn_norm", "v.blk.N.ln2"},
		{"v.blk.N.attn_output", "v.blk.N.attn_out"},
		{"mm.linear_1", "mm.1"}, {"mm.linear_2", "mm.2"}, {"mm.norm", "mm.input_norm"},
		{"mm.patch_merger.merging_layer", "mm.patch_merger"},
	},
	More: moreOfJoined,
}

// moreOfJoined returns what Ollama's files leave out or have otherwise: the pre-tokenizer, and what
// all published towers have.
func moreOfJoined(f checkpoint.Metadata) (map[string]any, [][2]string, error) {
	const (
		kind         = "mistral3.rope.scaling.type"
		mscale, all  = "mistral3.rope.scaling.mscale", "mistral3.rope.scaling.mscale_all_dim"
		act          = "mistral3.mm.projector_hidden_act"
		width, heads = "mistral3.vision.embedding_length", "mistral3.vision.attention.head_count"
		head         = "mistral3.vision.attention.key_length"
		norm         = "mistral3.vision.attention.layer_norm_epsilon"
	)
	values := map[string]any{
		"clip.use_silu": true, "clip.vision.attention.layer_norm_epsilon": f.Float(norm, eps),
		"clip.vision.image_mean": imageproc.CLIPMean[:],
		"clip.vision.image_std":  imageproc.CLIPStd[:],
	}
	if pre := "tokenizer.ggml.pre"; f.Text(pre, "default") == "default" {
		values[pre] = "tekken"
	}
	if got := f.Text(kind, ""); got == "" || got == "default" {
		values[kind] = "none"
	}
	if x, y := f.Float(mscale, 0), f.Float(all, 0); (x != 0 || y != 0) && (x != 1 || y == 0) {
		return nil, nil, fmt.Errorf("keys %q and %q: got %v and %v: %w, want 1 and a number, or "+
			"none", mscale, all, x, y, errs.ErrUnsupported)
	}
	if got := f.Text(act, "gelu"); got != "gelu" {
		return nil, nil, fmt.Errorf("key %q: %q: %w, want gelu", act, got, errs.ErrUnsupported)
	}
	hidden, n := f.Number(width, 0), max(f.Number(heads, 1), 1)
	if got := f.Number(head, hidden/n); got != hidden/n {
		return nil, nil, fmt.Errorf("key %q: got %d: %w, want %d (embedding_length/head_count)",
			head, got, errs.ErrUnsupported, hidden/n)
	}
	return values, nil, nil
}

// gguf returns how llama.cpp writes one of the two families with a decoder of those architectures.
// merged tells that the projector joins patches.
func gguf(
	merged bool, joined *checkpoint.Joined, template string, decoders ...string,
) *checkpoint.GGUF {
	const block = tower + "transformer.layers.N."
	return &checkpoint.GGUF{
		Decoders: decoders, Projector: "pixtral", Prefix: decoder, Theta: 10000,
		Permuted: true, PermutedTower: true,
		Joined: joined, Template: template,
		Is: func(p checkpoint.Metadata) bool { return merged == (p.Shape(merging) != nil) },
		Names: [][2]string{
			{"v.patch_embd", tower + "patch_conv"}, {"v.pre_ln", tower + "ln_pre"},
			{"v.blk.N.ln1", block + "attention_norm"}, {"v.blk.N.ln2", block + "ffn_norm"},
			{"v.blk.N.attn_q", block + "attention.q_proj"},
			{"v.blk.N.attn_k", block + "attention.k_proj"},
			{"v.blk.N.attn_v", block + "attention.v_proj"},
			{"v.blk.N.attn_out", block + "attention.o_proj"},
			{"v.blk.N.ffn_gate", block + "feed_forward.gate_proj"},
			{"v.blk.N.ffn_up", block + "feed_forward.up_proj"},
			{"v.blk.N.ffn_down", block + "feed_forward.down_proj"},
			{"mm.1", projector + "linear_1"}, {"mm.2", projector + "linear_2"},
			{"mm.input_norm", projector + "norm"},
			{"mm.patch_merger", projector + "patch_merger.merging_layer"},
		},
		Unread:  []string{"v.token_embd.img_break"}, // a row of the decoder's embedding
		Picture: place,
		Convert: func(m *checkpoint.Converted) error { return convert(m, merged) },
	}
}

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted, merged bool) error {
	m.Text["model_type"], m.Text["sliding_window"] = "mistral", nil
	key := m.Decoder.Text("general.architecture", "") + ".attention.temperature_scale"
	if x := m.Decoder.Float(key, 0); x != 0 {
		rotation, ok := m.Text["rope_scaling"].(map[string]any)
		if !ok || rotation["rope_type"] != "yarn" {
			return fmt.Errorf("key %q: got %v: %w without rotary positions scaled by yarn", key, x,
				errs.ErrUnsupported)
		}
		m.Text["model_type"], rotation["llama_4_scaling_beta"] = "ministral3", x
	}
	maps.Copy(m.Config, map[string]any{
		"text_config": m.Text, "tie_word_embeddings": m.Text["tie_word_embeddings"],
		"image_token_index": m.Token(place), "vision_feature_layer": -1,
		"vision_feature_select_strategy": "full",
	})
	p := m.Projector
	if p == nil {
		return nil
	}
	for _, text := range []string{place, rowEnd, lastEnd} {
		if m.Token(text) == checkpoint.NoToken {
			return fmt.Errorf("tokenizer: no token %q, which stands in pictures", text)
		}
	}
	act := "silu"
	switch silu := p.Flag("clip.use_silu", false); {
	case silu == p.Flag("clip.use_gelu", false):
		return fmt.Errorf("keys %q and %q: both %v, want one true", "clip.use_silu",
			"clip.use_gelu", silu)
	case !silu:
		act = "gelu"
	}
	const norm = "clip.vision.attention.layer_norm_epsilon"
	if x := p.Float(norm, eps); float32(x) != eps {
		return fmt.Errorf("key %q: got %v: %w, want %v", norm, x, errs.ErrUnsupported, eps)
	}
	side, err := p.Required("clip.vision.image_size")
	if err != nil {
		return err
	}
	merge := p.Number(mergeKey, 1)
	if merged {
		if merge, err = p.Required(mergeKey); err != nil {
			return err
		}
	} else if merge != 1 {
		return fmt.Errorf("key %q: got %d, want 1 without tensor %q", mergeKey, merge, merging)
	}
	maps.Copy(m.Vision, map[string]any{
		"model_type": towerType, "image_size": side, "hidden_act": act,
		"rope_theta": p.Float("clip.rope.freq_base", 10000),
	})
	m.Config["vision_config"], m.Config["spatial_merge_size"] = m.Vision, merge
	m.Config["multimodal_projector_bias"] = p.Shape("mm.1.bias") != nil
	patch := m.Vision["patch_size"]
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "PixtralImageProcessor",
		"patch_size":           map[string]any{"height": patch, "width": patch},
		"size":                 map[string]any{"longest_edge": side},
	})
	return nil
}
