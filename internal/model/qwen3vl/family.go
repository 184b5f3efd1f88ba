package qwen3vl

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// architecture is the class in config.json.
const architecture = "Qwen3VLForConditionalGeneration"

// Family is Qwen3-VL without experts. Its picture processor is Qwen2-VL's.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "qwen3_vl", Architectures: []string{architecture}, Forms: forms, GGUF: gguf,
	},
	New: New, Text: textonly.New(architecture+", text only", "", parseText),
	Processors: []imageproc.Kind{{
		Classes: []string{"Qwen2VLImageProcessor"}, New: imageproc.NewPatches,
	}},
	Videos:    []imageproc.VideoKind{Clips},
	Published: []string{"qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-8b"}, Shapes: shapes,
	Budgets: []string{"all", "0.3333", "0.2222", "0.1111"},
}

// Clips prepares videos.
var Clips = imageproc.VideoKind{Class: "Qwen3VLVideoProcessor", New: withClips}

//go:embed shapes
var shapes embed.FS

// forms are the forms of the weights' names. save_pretrained of a base class writes the one without
// a head; a model with a tied head needs none.
var forms = []checkpoint.Form{
	cells.Form("hub", checkpoint.Loaded, "model.language_model.", "lm_head.", "model.visual."),
	cells.Form("base-module", "a base class of transformers 4.57 on",
		"language_model.", "", "visual."),
	cells.MLX,
}
