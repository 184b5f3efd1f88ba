package pixtral

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// place is the token of a picture's rows.
const place = "[IMG]"

// Keys and tensors of the projector's file.
const (
	mergeKey = "clip.vision.spatial_merge_size"
	merging  = "mm.patch_merger.weight"
)

// gguf returns how llama.cpp writes one of the two families with a decoder of those architectures.
// merged tells that the projector joins patches.
func gguf(merged bool, decoders ...string) *checkpoint.GGUF {
	const block = tower + "transformer.layers.N."
	return &checkpoint.GGUF{
		Decoders: decoders, Projector: "pixtral", Prefix: decoder, Theta: 10000,
		Permuted: true, PermutedTower: true,
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
