package qwen25vl

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model/qwen2vl"
)

// gguf is how llama.cpp and Ollama write Qwen2.5-VL.
var gguf = func() *checkpoint.GGUF {
	g := qwen2vl.GGUF("qwen2.5vl_merger", [][2]string{
		{"v.blk.N.ffn_gate", "visual.blocks.N.mlp.gate_proj"},
		{"v.blk.N.ffn_up", "visual.blocks.N.mlp.up_proj"},
		{"v.blk.N.ffn_down", "visual.blocks.N.mlp.down_proj"},
	}, convertEncoder)
	g.Joined = &checkpoint.Joined{
		Architecture: "qwen25vl",
		Keys: [][2]string{
			{"rope.mrope_section", "rope.dimension_sections"},
			{"vision.max_pixels", "clip.vision.image_max_pixels"},
		},
		Names: [][2]string{
			{"v.patch_embd_0.weight", "v.patch_embd.weight"},
			{"v.patch_embd_1.weight", "v.patch_embd.weight.1"},
			{"v.merger.ln_q", "v.post_ln"}, {"v.merger.mlp.0", "mm.0"}, {"v.merger.mlp.2", "mm.2"},
		},
		More: joined,
	}
	return g
}()

// joined returns what Ollama's files leave out.
func joined(f checkpoint.Metadata) (map[string]any, [][2]string, error) {
	const full, base = "qwen25vl.vision.fullatt_block_indexes", "qwen25vl.vision.rope.freq_base"
	if x := f.Float(base, rotaryBase); x != rotaryBase {
		return nil, nil, fmt.Errorf("key %q: got %v: %w, want %v", base, x, errs.ErrUnsupported,
			rotaryBase)
	}
	values := map[string]any{
		"clip.vision.image_mean": imageproc.CLIPMean[:],
		"clip.vision.image_std":  imageproc.CLIPStd[:],
	}
	if len(f.Numbers(full)) == 0 {
		values["clip.vision.fullatt_block_indexes"] = []int{7, 15, 23, 31}
	}
	return values, nil, nil
}

// Sizes of the encoder that are in no metadata: all published models have them.
const (
	windowSide = 112
	perSecond  = 2
	rotaryBase = 1e4
)

// convertEncoder completes vision_config.
func convertEncoder(m *checkpoint.Converted, vision map[string]any, out int) error {
	p, blocks := m.Projector, m.Vision["num_hidden_layers"].(int)
	full := p.Numbers("clip.vision.fullatt_block_indexes")
	if every := p.Number("clip.vision.n_wa_pattern", 0); full == nil && every > 0 {
		for i := every - 1; i < blocks; i += every {
			full = append(full, i)
		}
	}
	if full == nil {
		return fmt.Errorf("key %q: missing or 0, want at least 1", "clip.vision.n_wa_pattern")
	}
	if !p.Flag("clip.use_silu", true) {
		return fmt.Errorf("key %q: false: %w, want true", "clip.use_silu", errs.ErrUnsupported)
	}
	maps.Copy(vision, map[string]any{
		"model_type": "qwen2_5_vl", "hidden_size": m.Vision["hidden_size"],
		"intermediate_size": m.Vision["intermediate_size"], "hidden_act": "silu",
		"window_size":           p.Number("clip.vision.window_size", windowSide),
		"fullatt_block_indexes": full, "out_hidden_size": out, "tokens_per_second": perSecond,
	})
	return nil
}
