package internvl

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// gguf is how llama.cpp writes InternVL with a decoder of Qwen2 or Qwen3.
var gguf = &checkpoint.GGUF{
	Decoders: []string{"qwen2", "qwen3"}, Projector: "internvl", Prefix: decoder, Theta: 1e6,
	Names: [][2]string{
		{"blk.N.attn_q_norm", "model.layers.N.self_attn.q_norm"},
		{"blk.N.attn_k_norm", "model.layers.N.self_attn.k_norm"},
		{"v.class_embd", tower + "embeddings.cls_token"},
		{"v.position_embd.weight", tower + "embeddings.position_embeddings"},
		{"v.patch_embd", tower + "embeddings.patch_embeddings.projection"},
		{"v.blk.N.attn_q", block + "attention.q_proj"},
		{"v.blk.N.attn_k", block + "attention.k_proj"},
		{"v.blk.N.attn_v", block + "attention.v_proj"},
		{"v.blk.N.attn_q_norm", block + "attention.q_norm"},
		{"v.blk.N.attn_k_norm", block + "attention.k_norm"},
		{"v.blk.N.attn_out", block + "attention.projection_layer"},
		{"v.blk.N.ln1", block + "layernorm_before"}, {"v.blk.N.ln2", block + "layernorm_after"},
		{"v.blk.N.ls1.weight", block + "lambda_1"}, {"v.blk.N.ls2.weight", block + "lambda_2"},
		{"v.blk.N.ffn_up", block + "mlp.fc1"}, {"v.blk.N.ffn_down", block + "mlp.fc2"},
		{"mm.model.mlp.0", "multi_modal_projector.layer_norm"},
		{"mm.model.mlp.1", "multi_modal_projector.linear_1"},
		{"mm.model.mlp.3", "multi_modal_projector.linear_2"},
	},
	Picture: place + `\n`, Video: videoPlace + `\n`,
	Convert: convert,
}

// block is the prefix of a block of the tower.
const block = tower + "encoder.layer.N."

// Fewest and most tiles of a picture where the file has none: all published models have them.
const (
	fewestTiles = 1
	mostTiles   = 12
)

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted) error {
	m.Text["model_type"] = m.Decoder.Text("general.architecture", "")
	id := m.Token(place)
	if m.Tokens != nil && id == checkpoint.NoToken && m.Projector != nil {
		return fmt.Errorf("tokenizer: no token %q, which stands for pictures", place)
	}
	maps.Copy(m.Config, map[string]any{
		"text_config": m.Text, "tie_word_embeddings": m.Text["tie_word_embeddings"],
		"image_token_id": id,
	})
	p := m.Projector
	if p == nil {
		return nil
	}
	side, err := p.Required("clip.vision.image_size")
	if err != nil {
		return err
	}
	merge, err := p.Required("clip.vision.projector.scale_factor")
	if err != nil {
		return err
	}
	if !p.Flag("clip.use_gelu", true) {
		return fmt.Errorf("key %q: false: %w, want true", "clip.use_gelu", errs.ErrUnsupported)
	}
	norm := "layer_norm"
	if p.Shape("v.blk.0.ln1.bias") == nil {
		norm = "rms_norm"
	}
	maps.Copy(m.Vision, map[string]any{
		"model_type": "internvl_vision", "image_size": side, "hidden_act": "gelu",
		"norm_type":      norm,
		"attention_bias": p.Shape("v.blk.0.attn_q.bias") != nil,
		"use_qk_norm":    p.Shape("v.blk.0.attn_q_norm.weight") != nil,
	})
	m.Config["vision_config"], m.Config["downsample_ratio"] = m.Vision, 1/float64(merge)
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": processorClass,
		"size":                 map[string]any{"height": side, "width": side},
		"min_patches":          p.Number("clip.vision.preproc_min_tiles", fewestTiles),
		"max_patches":          p.Number("clip.vision.preproc_max_tiles", mostTiles),
	})
	return nil
}
