package qwen2vl

import (
	"fmt"
	"maps"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// gguf is how llama.cpp writes Qwen2-VL.
var gguf = GGUF("qwen2vl_merger", [][2]string{
	{"v.blk.N.ffn_up", "visual.blocks.N.mlp.fc1"}, {"v.blk.N.ffn_down", "visual.blocks.N.mlp.fc2"},
}, convertEncoder)

// GGUF returns how llama.cpp writes a model with this decoder and a projector of that type. mlp are
// the names of the MLPs in its tower's blocks. encoder completes vision_config, given how wide the
// rows are that enter the decoder; what all have is there.
func GGUF(
	projector string, mlp [][2]string,
	encoder func(m *checkpoint.Converted, vision map[string]any, out int) error,
) *checkpoint.GGUF {
	return &checkpoint.GGUF{
		Decoders: []string{"qwen2vl"}, Projector: projector, Theta: 1e6,
		Names: slices.Concat([][2]string{
			{"v.patch_embd", "visual.patch_embed.proj"}, {"v.post_ln", "visual.merger.ln_q"},
			{"v.blk.N.attn_qkv", "visual.blocks.N.attn.qkv"},
			{"v.blk.N.attn_out", "visual.blocks.N.attn.proj"},
			{"v.blk.N.ln1", "visual.blocks.N.norm1"}, {"v.blk.N.ln2", "visual.blocks.N.norm2"},
			{"mm.0", "visual.merger.mlp.0"}, {"mm.2", "visual.merger.mlp.2"},
		}, mlp),
		Unread:  []string{"v.position_embd.weight"}, // the rotation has the positions
		Picture: `<|vision_start|><|image_pad|><|vision_end|>`,
		Video:   `<|vision_start|><|video_pad|><|vision_end|>`,
		Convert: func(m *checkpoint.Converted) error {
			if err := convertDecoder(m); err != nil || m.Projector == nil {
				return err
			}
			return convertPictures(m, encoder)
		},
	}
}

// Sizes of the encoder that are in no metadata: all published models have them.
const (
	mergeSide    = 2
	momentFrames = 2
)

// Limits on a picture's visual tokens in the repositories.
const (
	minTokens = 4
	maxTokens = 16384
)

// convertDecoder completes what the documents say of the decoder.
func convertDecoder(m *checkpoint.Converted) error {
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
	return nil
}

// convertPictures completes what the documents say of encoder and pictures.
func convertPictures(
	m *checkpoint.Converted,
	encoder func(m *checkpoint.Converted, vision map[string]any, out int) error,
) error {
	p, patch := m.Projector, m.Vision["patch_size"].(int)
	last := p.Shape("mm.2.weight")
	if len(last) != 2 {
		return fmt.Errorf("tensor %q is missing", "mm.2.weight")
	}
	side := p.Number("clip.vision.spatial_merge_size", mergeSide)
	vision := map[string]any{
		"depth": m.Vision["num_hidden_layers"], "num_heads": m.Vision["num_attention_heads"],
		"patch_size": patch, "spatial_patch_size": patch, "in_chans": 3,
		"spatial_merge_size": side, "temporal_patch_size": momentFrames,
	}
	m.Config["vision_config"] = vision
	token := patch * side * patch * side // pixels of a visual token
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch,
		"temporal_patch_size": momentFrames, "merge_size": side,
		"min_pixels": p.Number("clip.vision.image_min_pixels", minTokens*token),
		"max_pixels": p.Number("clip.vision.image_max_pixels", maxTokens*token),
	})
	return encoder(m, vision, last[0])
}

// convertEncoder completes vision_config. The converter writes another number for the width of the
// MLPs, so it is read from a weight.
func convertEncoder(m *checkpoint.Converted, vision map[string]any, out int) error {
	const first = "v.blk.0.ffn_up.weight" // or the second, in files of the older converter
	p, hidden := m.Projector, m.Vision["hidden_size"].(int)
	shape := p.Shape(first)
	if len(shape) != 2 {
		return fmt.Errorf("tensor %q is missing", first)
	}
	mlp := max(shape[0], shape[1])
	if min(shape[0], shape[1]) != hidden || mlp%hidden != 0 {
		return fmt.Errorf("tensor %q: shape %v, want embedding_length %d and a multiple of it",
			first, shape, hidden)
	}
	for _, key := range []string{"clip.use_silu", "clip.use_gelu"} {
		if p.Flag(key, false) {
			return fmt.Errorf("key %q: true: %w, want false", key, errs.ErrUnsupported)
		}
	}
	maps.Copy(vision, map[string]any{
		"model_type": "qwen2_vl", "embed_dim": hidden, "mlp_ratio": mlp / hidden,
		"hidden_act": "quick_gelu", "hidden_size": out,
	})
	return nil
}
