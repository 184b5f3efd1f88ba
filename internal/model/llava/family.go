package llava

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/textonly"
	"github.com/restore-vlm/restore/internal/tensor"
)

// architecture is the class in config.json.
const architecture = "LlavaForConditionalGeneration"

// Family is LLaVA-1.5.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "llava", Architectures: []string{architecture}, Forms: Forms,
		Export: Export("LlavaProcessor"), GGUF: GGUF(false, convert),
	},
	New: New, Text: NewText,
	Processors: []imageproc.Kind{
		{
			Classes: []string{"CLIPImageProcessor", "CLIPFeatureExtractor"},
			New:     imageproc.NewCLIP,
		},
		{Classes: []string{"LlavaImageProcessor"}, New: imageproc.NewPadded},
		{Classes: []string{"SiglipImageProcessor"}, New: imageproc.NewSigLIP},
	},
	Published: []string{"llava-1.5-7b", "llava-1.5-13b"}, Shapes: shapes,
	Across: 1, Budgets: []string{"576", "192", "128", "64"},
	System: System, Pad: true,
}

// System is the system message of LLaVA's scripts.
const System = "A chat between a curious user and an artificial intelligence assistant. " +
	"The assistant gives helpful, detailed, and polite answers to the user's questions."

//go:embed shapes
var shapes embed.FS

// Prefixes of the canonical names.
const (
	decoder = "language_model."
	tower   = "vision_tower.vision_model."
)

// form is defined by the prefixes of the decoder, its head ("" if it has none), the tower, and of
// projector and newline.
func form(name, by, text, head, vision, rest string) checkpoint.Form {
	return checkpoint.NewForm(name, by, decoder, text, head,
		append(checkpoint.Renamed(vision, tower, checkpoint.CLIPModules...),
			checkpoint.Renamed(rest, "", "multi_modal_projector.", "image_newline")...)...)
}

// Forms are the forms of the weights' names. save_pretrained of a base class writes those without
// a head.
var Forms = []checkpoint.Form{
	form("hub", checkpoint.Loaded, "language_model.model.", "language_model.lm_head.",
		"vision_tower.vision_model.", ""),
	form("hub-5x", "transformers 5.6 on, of a model that was made from a configuration",
		"language_model.model.", "language_model.lm_head.", "vision_tower.", ""),
	form("module-4.52", "transformers 4.52.1 to 4.52.3, and state_dict() of 4.52 to 5.5",
		"model.language_model.", "lm_head.", "model.vision_tower.vision_model.", "model."),
	form("module-5x",
		"transformers 5 with save_original_format=False, and state_dict() of 5.6 on",
		"model.language_model.", "lm_head.", "model.vision_tower.", "model."),
	form("mixed-5.5", "transformers 5.4 and 5.5", "model.language_model.model.",
		"language_model.lm_head.", "model.vision_tower.vision_model.", "model."),
	form("base-module-4.52", "a base class of transformers 4.52.1 to 4.52.3", "language_model.",
		"", "vision_tower.vision_model.", ""),
	form("base-module-5x", "a base class of transformers 5.6 and 5.8", "language_model.", "",
		"vision_tower.", ""),
}

// Export completes models of this family, whose processor is of the given class.
func Export(class string) *checkpoint.Export {
	return &checkpoint.Export{
		Vocabulary: []string{decoder + "model.embed_tokens.weight", decoder + "lm_head.weight"},
		Unread:     lastNorm,
		Processor: func(config map[string]json.RawMessage) (any, error) {
			return processorConfig(class, config)
		},
	}
}

// lastNorm returns the norm after the vision tower if b has none: transformers would warn that it
// created one.
func lastNorm(b checkpoint.Bundle) map[string]*checkpoint.Weight {
	before, ok := b.Tensor(tower + "encoder.layers.0.layer_norm1.weight")
	if _, has := b.Tensor(tower + "post_layernorm.weight"); has || !ok {
		return nil
	}
	ones := bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, before.Len())
	more := map[string]*checkpoint.Weight{}
	for name, data := range map[string][]byte{"weight": ones, "bias": make([]byte, len(ones))} {
		more[tower+"post_layernorm."+name] = &checkpoint.Weight{
			Tensor: tensor.Tensor{DType: tensor.F32, Shape: before.Shape, Data: data},
		}
	}
	return more
}

// processorConfig returns the settings of the processor, which computes how many tokens a picture
// becomes.
func processorConfig(class string, config map[string]json.RawMessage) (any, error) {
	var vision struct {
		Patch json.RawMessage `json:"patch_size"`
		Type  string          `json:"model_type"`
	}
	if err := json.Unmarshal(config["vision_config"], &vision); err != nil {
		return nil, fmt.Errorf("vision_config: %w", err)
	}
	strategy := config["vision_feature_select_strategy"]
	if strategy == nil {
		strategy = json.RawMessage(`"default"`)
	}
	classTokens, patch := 1, "32"
	if vision.Type == clip.SigLIPType {
		classTokens, patch = 0, "16"
	}
	if vision.Patch == nil {
		vision.Patch = json.RawMessage(patch)
	}
	return map[string]any{
		"processor_class":                class,
		"image_token":                    "<image>",
		"num_additional_image_tokens":    classTokens,
		"patch_size":                     vision.Patch,
		"vision_feature_select_strategy": strategy,
	}, nil
}

// NewText binds the decoder of a model of this family.
var NewText = TextOnly("LlamaForCausalLM", "llama")

// TextOnly returns a constructor of the decoder alone, for files without an encoder; kind is as for
// [ReadText].
func TextOnly(architecture, kind string) func(*model.Source) (model.Multimodal, error) {
	return textonly.New(architecture, decoder,
		func(v *model.Values) llama.Config { return ReadText(v, kind) })
}
