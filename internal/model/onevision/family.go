package onevision

import (
	"embed"
	"encoding/json"
	"fmt"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// architecture is the class in config.json.
const architecture = "LlavaOnevisionForConditionalGeneration"

// Family is LLaVA-OneVision. llama.cpp does not write it.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "llava_onevision", Architectures: []string{architecture}, Forms: llava.Forms,
		Bias: llama.Biased, Export: export,
	},
	New: New, Text: llava.TextOnly(architecture+", text only", "qwen2"),
	Processors: []imageproc.Kind{{
		Classes: []string{"LlavaOnevisionImageProcessor"}, New: newProcessor,
	}},
	Videos: []imageproc.VideoKind{
		{Class: "LlavaOnevisionVideoProcessor", New: withVideos},
	},
	Published: []string{"llava-onevision-0.5b", "llava-onevision-7b"}, Shapes: shapes,
	Across: 3, Budgets: []string{"all", "1458", "640", "320"},
}

//go:embed shapes
var shapes embed.FS

// export is what transformers' processor needs.
var export = &checkpoint.Export{
	Vocabulary: []string{
		"language_model.model.embed_tokens.weight", "language_model.lm_head.weight",
	},
	Processor: func(config map[string]json.RawMessage) (any, error) {
		var vision struct {
			Side  int `json:"image_size"`
			Patch int `json:"patch_size"`
		}
		vision.Side, vision.Patch = 224, 16 // defaults of SiglipVisionConfig
		if err := json.Unmarshal(config["vision_config"], &vision); err != nil {
			return nil, fmt.Errorf("vision_config: %w", err)
		}
		ratio := config["vision_aspect_ratio"]
		if ratio == nil {
			ratio = json.RawMessage(`"anyres_max_9"`)
		}
		grid := vision.Side / max(1, vision.Patch)
		return map[string]any{
			"processor_class": "LlavaOnevisionProcessor", "image_token": "<image>",
			"video_token": "<video>", "num_image_tokens": grid * grid,
			"vision_aspect_ratio": ratio, "vision_feature_select_strategy": "full",
		}, nil
	},
}
