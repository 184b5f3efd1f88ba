package llava

import (
	"fmt"
	"maps"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model/clip"
)

// GGUF is how llama.cpp writes models of this family. tiled tells that pictures are cut into tiles,
// whose rows end with a newline; convert completes Convert.
func GGUF(tiled bool, convert func(*checkpoint.Converted) error) *checkpoint.GGUF {
	return &checkpoint.GGUF{
		Decoders: []string{"llama"}, Projector: "mlp", Prefix: decoder,
		Permuted: true, Theta: 10000,
		Is: func(p checkpoint.Metadata) bool {
			return tiled == (p.Shape("model.image_newline") != nil)
		},
		Names: append(checkpoint.CLIPNames(tower), [][2]string{
			{"mm.0", "multi_modal_projector.linear_1"},
			{"mm.2", "multi_modal_projector.linear_2"},
			{"model.image_newline", "image_newline"},
		}...),
		Unread:  sigLIPHead,
		Picture: `<image>\n`,
		Convert: func(m *checkpoint.Converted) error {
			if err := convertShared(m); err != nil || m.Projector == nil {
				return err
			}
			return convert(m)
		},
	}
}

// sigLIPHead are a SigLIP tower's weights that pool the patches, as llama.cpp's older converter
// names them. No LLaVA reads them.
var sigLIPHead = []string{
	"v.head.probe", "v.head.attention.in_weight", "v.head.attention.in_bias",
	"v.head.attention.out.weight", "v.head.attention.out.bias",
	"v.head.ln.weight", "v.head.ln.bias",
	"v.head.ffn_up.weight", "v.head.ffn_up.bias",
	"v.head.ffn_down.weight", "v.head.ffn_down.bias",
}

// convertShared completes the documents as far as models of this family agree.
func convertShared(m *checkpoint.Converted) error {
	m.Text["model_type"], m.Text["architectures"] = "llama", []string{"LlamaForCausalLM"}
	maps.Copy(m.Config, map[string]any{
		"text_config": m.Text, "tie_word_embeddings": m.Text["tie_word_embeddings"],
		"image_token_index": m.Token("<image>"), "projector_hidden_act": "gelu",
		"vision_feature_select_strategy": "default",
	})
	p := m.Projector
	if p == nil {
		return nil
	}
	if old := p.Text("clip.vision.mm_projector_type", ""); old != "" &&
		!strings.HasPrefix(old, "mlp2x") {
		return fmt.Errorf("mm_projector_type %q: %w, want mlp2x_gelu", old, errs.ErrUnsupported)
	}
	side, err := p.Required("clip.vision.image_size")
	if err != nil {
		return err
	}
	if m.Config["vision_feature_layer"], err = featureLayer(m); err != nil {
		return err
	}
	m.Vision["image_size"], m.Config["vision_config"] = side, m.Vision
	m.Config["multimodal_projector_bias"] = p.Shape("mm.0.bias") != nil
	if p.Shape("v.class_embd") == nil {
		return convertSigLIP(m, side)
	}
	act := "quick_gelu"
	switch {
	case p.Flag("clip.use_gelu", false):
		act = "gelu"
	case p.Flag("clip.use_silu", false):
		act = "silu"
	}
	m.Vision["hidden_act"], m.Vision["model_type"] = act, "clip_vision_model"
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "CLIPImageProcessor",
		"size":                 map[string]any{"shortest_edge": side},
		"crop_size":            map[string]any{"height": side, "width": side},
		"do_center_crop":       true,
	})
	return nil
}

// convertSigLIP completes the documents for a tower without a class token. The activation is what
// every SigLIP has: clip.use_gelu is false for each hidden_act but "gelu", so it does not tell the
// tanh form from QuickGELU.
func convertSigLIP(m *checkpoint.Converted, side int) error {
	if m.Projector.Flag("clip.use_silu", false) {
		return fmt.Errorf("key %q: true in a SigLIP tower: %w, want false", "clip.use_silu",
			errs.ErrUnsupported)
	}
	maps.Copy(m.Vision, map[string]any{
		"model_type": clip.SigLIPType, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": false,
	})
	m.Config["vision_feature_select_strategy"] = "full"
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "SiglipImageProcessor",
		"size":                 map[string]any{"height": side, "width": side},
		"do_center_crop":       false,
	})
	return nil
}

// featureLayer returns a layer, or a list of them.
func featureLayer(m *checkpoint.Converted) (any, error) {
	const key = "clip.vision.feature_layer"
	blocks := m.Vision["num_hidden_layers"].(int)
	layers := m.Projector.Numbers(key)
	for _, l := range layers {
		if l < 0 || l > blocks {
			return nil, fmt.Errorf("key %q: got %d, want 0 to the %d blocks of the file", key, l,
				blocks)
		}
	}
	switch len(layers) {
	case 0:
		return blocks, nil // the converter leaves out blocks that no feature needs
	case 1:
		return layers[0], nil
	}
	return layers, nil
}

// Only checks that a text of an encoder's metadata, if it has it, is the one that is computed.
func Only(p checkpoint.Metadata, key, want string) error {
	key = "clip.vision." + key
	if got := p.Text(key, want); got != want {
		return fmt.Errorf("key %q: %q: %w, want %s", key, got, errs.ErrUnsupported, want)
	}
	return nil
}

// convert completes the documents of a model that reads one square.
func convert(m *checkpoint.Converted) error {
	const aspect = "image_aspect_ratio"
	if m.Projector.Text("clip.vision."+aspect, "") == "pad" {
		m.Processor["image_processor_type"], m.Processor["do_pad"] = "LlavaImageProcessor", true
	} else if err := Only(m.Projector, aspect, "square"); err != nil {
		return err
	}
	return Only(m.Projector, "mm_patch_merge_type", "flat")
}
