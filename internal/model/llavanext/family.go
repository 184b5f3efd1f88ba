package llavanext

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// architecture is the class in config.json.
const architecture = "LlavaNextForConditionalGeneration"

// Family is LLaVA-NeXT.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "llava_next", Architectures: []string{architecture}, Forms: llava.Forms,
		Export: llava.Export("LlavaNextProcessor"), GGUF: llava.GGUF(true, convert),
	},
	New: New, Text: llava.NewText,
	Processors: []imageproc.Kind{
		{Classes: []string{"LlavaNextImageProcessor"}, New: imageproc.NewTiles},
	},
	Published: []string{"llava-next-7b"}, Shapes: shapes,
	Across: 2, Budgets: []string{"all", "640", "320", "160"},
	System: llava.System,
}

//go:embed shapes
var shapes embed.FS
