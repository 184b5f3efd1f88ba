package gemma3

import (
	"fmt"
	"maps"

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
