package idefics3

import (
	"fmt"
	"maps"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// gguf is how llama.cpp writes Idefics3, SmolVLM and SmolVLM2.
var gguf = &checkpoint.GGUF{
	Decoders: []string{"llama"}, Projector: "idefics3", Prefix: decoder,
	Permuted: true, Theta: 10000,
	Names: append(checkpoint.CLIPNames(tower),
		[2]string{"mm.model.fc", "model.connector.modality_projection.proj"}),
	Picture: place,
	Convert: convert,
}

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted) error {
	m.Text["model_type"] = "llama"
	id := m.Token(place)
	if m.Tokens != nil && id == checkpoint.NoToken {
		return fmt.Errorf("tokenizer: no token %q", place)
	}
	maps.Copy(m.Config, map[string]any{
		"text_config": m.Text, "tie_word_embeddings": m.Text["tie_word_embeddings"],
		"image_token_id": id,
	})
	p := m.Projector
	if p == nil {
		return nil
	}
	if !p.Flag("clip.use_gelu", false) {
		return fmt.Errorf("key %q: false: %w, want true", "clip.use_gelu", errs.ErrUnsupported)
	}
	side, err := p.Required("clip.vision.image_size")
	if err != nil {
		return err
	}
	m.Vision["image_size"], m.Vision["model_type"] = side, "idefics3_vision"
	m.Vision["hidden_act"] = "gelu_pytorch_tanh"
	m.Config["vision_config"] = m.Vision
	m.Config["scale_factor"] = p.Number("clip.vision.projector.scale_factor", 2)
	maps.Copy(m.Processor, map[string]any{
		"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": true,
		"resample": 1, "max_image_size": map[string]any{"longest_edge": side},
		// older files do not have it; it is the published models'
		"size": map[string]any{
			"longest_edge": p.Number("clip.vision.preproc_image_size", across*side),
		},
	})
	return nil
}
