package qwen25vl

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// gguf is how llama.cpp writes Qwen2.5-VL.
var gguf = &checkpoint.GGUF{
	Decoder: "qwen2vl", Projector: "qwen2.5vl_merger", Theta: 1e6,
	Names: [][2]string{
		{"v.patch_embd", "visual.patch_embed.proj"}, {"v.post_ln", "visual.merger.ln_q"},
		{"v.blk.N.attn_qkv", "visual.blocks.N.attn.qkv"},
		{"v.blk.N.attn_out", "visual.blocks.N.attn.proj"},
		{"v.blk.N.ln1", "visual.blocks.N.norm1"}, {"v.blk.N.ln2", "visual.blocks.N.norm2"},
		{"v.blk.N.ffn_gate", "visual.blocks.N.mlp.gate_proj"},
		{"v.blk.N.ffn_up", "visual.blocks.N.mlp.up_proj"},
		{"v.blk.N.ffn_down", "visual.blocks.N.mlp.down_proj"},
		{"mm.0", "visual.merger.mlp.0"}, {"mm.2", "visual.merger.mlp.2"},
	},
	Picture: `<|vision_start|><|image_pad|><|vision_end|>`,
	Video:   `<|vision_start|><|video_pad|><|vision_end|>`,
	Convert: convert,
}

// Sizes of the encoder that are in no metadata: all published models have them.
const (
	mergeSide    = 2
	momentFrames = 2
	windowSide   = 112
	perSecond    = 2
)

// Limits on a picture's visual tokens in the repositories.
const (
	minTokens = 4
	maxTokens = 16384
)

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted) error {
	sections := m.Decoder.Numbers("qwen2vl.rope.dimension_sections")
	if len(sections) == 4 && sections[3] == 0 {
		sections = sections[:3]
	}
	if len(sections) != 3 {
		return fmt.Errorf("key %q: got %v, want three numbers and a zero",
			"qwen2vl.rope.dimension_sections", sections)
	}
	delete(m.Text, "head_dim") // always hidden_size / num_attention_heads
	maps.Copy(m.Config, m.Text)
	m.Config["rope_scaling"] = map[string]any{"type": "mrope", "mrope_section": sections}
	m.Config["image_token_id"] = m.Token("<|image_pad|>")
	if m.Tokens != nil && m.Token("<|image_pad|>") == checkpoint.NoToken {
		return fmt.Errorf("tokenizer: no token %q, which stands for pictures", "<|image_pad|>")
	}
	for key, token := range map[string]string{
		"video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
		"vision_end_token_id": "<|vision_end|>",
	} {
		if id := m.Token(token); id != checkpoint.NoToken {
			m.Config[key] = id
		}
	}
	if m.Projector == nil {
		return nil
	}
	return convertEncoder(m)
}

// convertEncoder completes what the documents say of encoder and pictures.
func convertEncoder(m *checkpoint.Converted) error {
	p := m.Projector
	blocks, patch := m.Vision["num_hidden_layers"].(int), m.Vision["patch_size"].(int)
	full := p.Numbers("clip.vision.fullatt_block_indexes")
	if every := p.Number("clip.vision.n_wa_pattern", 0); full == nil && every > 0 {
		for i := every - 1; i < blocks; i += every {
			full = append(full, i)
		}
	}
	if full == nil {
		return fmt.Errorf("key %q: missing or 0, want at least 1", "clip.vision.n_wa_pattern")
	}
	last := p.Shape("mm.2.weight")
	if len(last) != 2 {
		return fmt.Errorf("tensor %q is missing", "mm.2.weight")
	}
	if !p.Flag("clip.use_silu", true) {
		return fmt.Errorf("key %q: false: %w, want true", "clip.use_silu", errs.ErrUnsupported)
	}
	side := p.Number("clip.vision.spatial_merge_size", mergeSide)
	m.Config["vision_config"] = map[string]any{
		"model_type": "qwen2_5_vl", "depth": blocks, "hidden_size": m.Vision["hidden_size"],
		"intermediate_size": m.Vision["intermediate_size"],
		"num_heads":         m.Vision["num_attention_heads"], "patch_size": patch,
		"spatial_patch_size": patch, "in_chans": 3, "hidden_act": "silu",
		"spatial_merge_size": side, "temporal_patch_size": momentFrames,
		"window_size":           p.Number("clip.vision.window_size", windowSide),
		"fullatt_block_indexes": full, "out_hidden_size": last[0],
		"tokens_per_second": perSecond,
	}
	token := patch * side * patch * side // pixels of a visual token
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch,
		"temporal_patch_size": momentFrames, "merge_size": side,
		"min_pixels": p.Number("clip.vision.image_min_pixels", minTokens*token),
		"max_pixels": p.Number("clip.vision.image_max_pixels", maxTokens*token),
	})
	return nil
}
