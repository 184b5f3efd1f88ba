package gemma3

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// architecture is the class in config.json.
const architecture = "Gemma3ForConditionalGeneration"

// Prefixes of the canonical names.
const (
	decoder = "language_model."
	tower   = "vision_tower.vision_model."
)

// Family is Gemma 3.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "gemma3", Architectures: []string{architecture}, Forms: llava.Forms, Export: export,
		GGUF: gguf,
	},
	New: New, Text: textonly.New(architecture+", text only", decoder, parseText),
	Processors: []imageproc.Kind{{
		Classes: []string{"Gemma3ImageProcessor"}, New: imageproc.NewGemma3,
	}},
	Texts:     map[string]string{"boi_token": before, "eoi_token": after},
	Published: []string{"gemma3-4b", "gemma3-12b", "gemma3-27b"}, Shapes: shapes,
	Across: 1, Budgets: []string{"256", "128", "64", "32"},
}

//go:embed shapes
var shapes embed.FS

// export is what transformers' processor needs.
var export = &checkpoint.Export{
	Vocabulary: []string{decoder + "model.embed_tokens.weight", decoder + "lm_head.weight"},
	Named: map[string]string{
		"boi_token": before, "eoi_token": after, "image_token": place,
	},
	Processor: model.Settings(ParseConfig, func(c *Config) map[string]any {
		return map[string]any{
			"processor_class": "Gemma3Processor", "image_seq_length": c.side() * c.side(),
		}
	}),
}
