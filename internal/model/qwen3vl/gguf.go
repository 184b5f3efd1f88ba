package qwen3vl

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// gguf is how llama.cpp writes Qwen3-VL.
var gguf = &checkpoint.GGUF{
	Decoders: []string{"qwen3vl"}, Projector: "qwen3vl_merger", Theta: 5e6,
	Names: [][2]string{
		{"blk.N.attn_q_norm", "model.layers.N.self_attn.q_norm"},
		{"blk.N.attn_k_norm", "model.layers.N.self_attn.k_norm"},
		{"v.patch_embd", "visual.patch_embed.proj"}, {"v.position_embd", "visual.pos_embed"},
		{"v.blk.N.attn_qkv", "visual.blocks.N.attn.qkv"},
		{"v.blk.N.attn_out", "visual.blocks.N.attn.proj"},
		{"v.blk.N.ln1", "visual.blocks.N.norm1"}, {"v.blk.N.ln2", "visual.blocks.N.norm2"},
		{"v.blk.N.ffn_up", "visual.blocks.N.mlp.linear_fc1"},
		{"v.blk.N.ffn_down", "visual.blocks.N.mlp.linear_fc2"},
		{"v.post_ln", "visual.merger.norm"},
		{"mm.0", "visual.merger.linear_fc1"}, {"mm.2", "visual.merger.linear_fc2"},
	},
	More:    deepNames,
	Picture: `<|vision_start|><|image_pad|><|vision_end|>`,
	Video:   `<|vision_start|><|video_pad|><|vision_end|>`,
	Convert: convert,
	Joined: &checkpoint.Joined{
		Architecture: "qwen3vl",
		Keys: [][2]string{
			{"rope.mrope_section", "rope.dimension_sections"},
			{"vision.shortest_edge", "clip.vision.image_min_pixels"},
			{"vision.longest_edge", "clip.vision.image_max_pixels"},
		},
		Names: [][2]string{
			{"v.patch_embed", "v.patch_embd"}, {"v.pos_embed", "v.position_embd"},
			{"v.blk.N.norm1", "v.blk.N.ln1"}, {"v.blk.N.norm2", "v.blk.N.ln2"},
			{"v.blk.N.mlp.linear_fc1", "v.blk.N.ffn_up"},
			{"v.blk.N.mlp.linear_fc2", "v.blk.N.ffn_down"},
			{"v.merger.norm", "v.post_ln"},
			{"v.merger.linear_fc1", "mm.0"}, {"v.merger.linear_fc2", "mm.2"},
		},
		More: joined,
	},
}

// joined returns what Ollama's files leave out: all published models have the same axes of the
// rotation. Ollama counts the mergers after blocks that the decoder reads too.
func joined(f checkpoint.Metadata) (map[string]any, [][2]string, error) {
	const sections, list = "qwen3vl.rope.mrope_section", "qwen3vl.vision.deepstack_visual_indexes"
	const blocks, base = "qwen3vl.vision.block_count", "qwen3vl.vision.rope.freq_base"
	const rotaryBase = 1e4
	if x := f.Float(base, rotaryBase); x != rotaryBase {
		return nil, nil, fmt.Errorf("key %q: got %v: %w, want %v", base, x, errs.ErrUnsupported,
			rotaryBase)
	}
	read := f.Numbers(list)
	values := map[string]any{"qwen3vl.n_deepstack_layers": len(read)}
	if f.Numbers(sections) == nil && f.Numbers("qwen3vl.rope.dimension_sections") == nil {
		values["qwen3vl.rope.dimension_sections"] = []int{24, 20, 20}
	}
	if len(read) == 0 {
		return values, nil, nil
	}
	n, err := f.Required(blocks)
	if err != nil {
		return nil, nil, err
	}
	var names [][2]string
	reads := make([]bool, n)
	for i, block := range read {
		if block < 0 || block >= n || i > 0 && block <= read[i-1] {
			return nil, nil, fmt.Errorf("key %q: got %v, want ascending numbers below the %d "+
				"blocks", list, read, n)
		}
		reads[block] = true
		for _, part := range [][2]string{
			{"norm", "norm"}, {"linear_fc1", "fc1"}, {"linear_fc2", "fc2"},
		} {
			names = append(names, [2]string{fmt.Sprintf("v.deepstack_merger.%d.%s", i, part[0]),
				fmt.Sprintf("v.deepstack.%d.%s", block, part[1])})
		}
	}
	values["clip.vision.is_deepstack_layers"] = reads
	return values, names, nil
}

// Sizes of the encoder that are in no metadata, and limits on the pixels of a picture in the
// repositories: all published models have them.
const (
	momentFrames = 2
	minPixels    = 256 * 256
	maxPixels    = 4096 * 4096
)

// deep returns the blocks whose output the decoder reads too.
func deep(projector checkpoint.Metadata) []int {
	list := []int{}
	for i, reads := range projector.Flags("clip.vision.is_deepstack_layers") {
		if reads {
			list = append(list, i)
		}
	}
	return list
}

// deepNames are the mergers after blocks that the decoder reads too: llama.cpp numbers them by
// block, Hugging Face counts them.
func deepNames(projector checkpoint.Metadata) [][2]string {
	var names [][2]string
	for i, block := range deep(projector) {
		for _, part := range [][2]string{
			{"norm", "norm"}, {"fc1", "linear_fc1"}, {"fc2", "linear_fc2"},
		} {
			names = append(names, [2]string{
				fmt.Sprintf("v.deepstack.%d.%s", block, part[0]),
				fmt.Sprintf("visual.deepstack_merger_list.%d.%s", i, part[1]),
			})
		}
	}
	return names
}

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted) error {
	sections := m.Decoder.Numbers("qwen3vl.rope.dimension_sections")
	if len(sections) == 4 && sections[3] == 0 {
		sections = sections[:3]
	}
	if len(sections) != 3 {
		return fmt.Errorf("key %q: got %v, want three numbers and a zero",
			"qwen3vl.rope.dimension_sections", sections)
	}
	m.Text["rope_scaling"] = map[string]any{
		"rope_type": "default", "mrope_interleaved": true, "mrope_section": sections,
	}
	m.Config["text_config"] = m.Text
	m.Config["tie_word_embeddings"] = m.Text["tie_word_embeddings"]
	for key, token := range map[string]string{
		"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
		"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
	} {
		id := m.Token(token)
		if m.Tokens != nil && id == checkpoint.NoToken {
			return fmt.Errorf("tokenizer: no token %q", token)
		}
		m.Config[key] = id
	}
	if m.Projector == nil {
		return nil
	}
	return convertEncoder(m)
}

// convertEncoder completes what the documents say of encoder, pictures and videos.
func convertEncoder(m *checkpoint.Converted) error {
	p := m.Projector
	table, last := p.Shape("v.position_embd.weight"), p.Shape("mm.2.weight")
	if len(table) != 2 || len(last) != 2 {
		return fmt.Errorf("tensor %q or %q is missing", "v.position_embd.weight", "mm.2.weight")
	}
	if !p.Flag("clip.use_gelu", true) {
		return fmt.Errorf("key %q: false: %w, want true", "clip.use_gelu", errs.ErrUnsupported)
	}
	if got, want := len(deep(p)), m.Decoder.Number("qwen3vl.n_deepstack_layers", 0); got != want {
		return fmt.Errorf("key %q: %d blocks, want the decoder's %d",
			"clip.vision.is_deepstack_layers", got, want)
	}
	side, err := p.Required("clip.vision.spatial_merge_size")
	if err != nil {
		return err
	}
	patch := m.Vision["patch_size"].(int)
	m.Config["vision_config"] = map[string]any{
		"model_type": "qwen3_vl", "depth": m.Vision["num_hidden_layers"],
		"hidden_size": m.Vision["hidden_size"], "intermediate_size": m.Vision["intermediate_size"],
		"num_heads": m.Vision["num_attention_heads"], "patch_size": patch, "in_channels": 3,
		"hidden_act": "gelu_pytorch_tanh", "spatial_merge_size": side,
		"temporal_patch_size": momentFrames, "num_position_embeddings": table[0],
		"out_hidden_size": last[0], "deepstack_visual_indexes": deep(p),
	}
	patches := map[string]any{
		"patch_size": patch, "temporal_patch_size": momentFrames, "merge_size": side,
	}
	m.Video = maps.Clone(m.Processor)
	maps.Copy(m.Video, patches)
	m.Video["video_processor_type"] = "Qwen3VLVideoProcessor"
	maps.Copy(m.Processor, patches)
	m.Processor["image_processor_type"] = "Qwen2VLImageProcessor"
	m.Processor["size"] = map[string]int{
		"shortest_edge": p.Number("clip.vision.image_min_pixels", minPixels),
		"longest_edge":  p.Number("clip.vision.image_max_pixels", maxPixels),
	}
	return nil
}
