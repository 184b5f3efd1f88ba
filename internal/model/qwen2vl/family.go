package qwen2vl

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen3vl"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// architecture is the class in config.json.
const architecture = "Qwen2VLForConditionalGeneration"

// Family is Qwen2-VL.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "qwen2_vl", Architectures: []string{architecture}, Forms: Forms, Bias: llama.Biased,
		GGUF: gguf,
	},
	New: New, Text: Text(architecture), Processors: Processors, Videos: Videos,
	Published: []string{"qwen2-vl-2b", "qwen2-vl-7b"}, Shapes: shapes,
	Budgets: []string{"all", "0.3333", "0.2222", "0.1111"},
}

//go:embed shapes
var shapes embed.FS

// Processors prepare pictures. The last class is mlx-vlm's, which also writes it for older models,
// and with it the class of Qwen3-VL's videos.
var Processors = []imageproc.Kind{{
	Classes: []string{
		"Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor", "Qwen3VLImageProcessor",
	},
	New: imageproc.NewPatches,
}}

// Videos prepare videos.
var Videos = []imageproc.VideoKind{
	{Class: "Qwen2VLVideoProcessor", New: withVideos}, qwen3vl.Clips,
}

// Text returns the constructor of a model without encoder.
func Text(architecture string) func(ck *model.Source) (model.Multimodal, error) {
	return textonly.New(architecture+", text only", "", parseText)
}

// Forms are the forms of the weights' names. save_pretrained of a base class writes the one without
// a head; a model with a tied head needs none.
var Forms = []checkpoint.Form{
	cells.Form("hub", checkpoint.Loaded, "model.", "lm_head.", "visual."),
	cells.Form("module", "transformers 4.52.1 to 4.52.3, and state_dict() of 4.52 on",
		"model.language_model.", "lm_head.", "model.visual."),
	cells.Form("mixed-5.5", "transformers 5.4 and 5.5", "model.", "lm_head.", "model.visual."),
	cells.Form("base-module", "a base class of transformers 4.52.1 to 4.52.3 and 5.4 on",
		"language_model.", "", "visual."),
	cells.MLX,
}
