package qwen25vl

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen2vl"
)

// architecture is the class in config.json.
const architecture = "Qwen2_5_VLForConditionalGeneration"

// Family is Qwen2.5-VL.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "qwen2_5_vl", Architectures: []string{architecture}, Forms: qwen2vl.Forms,
		Bias: llama.Biased, GGUF: gguf,
	},
	New: New, Text: qwen2vl.Text(architecture), Processors: qwen2vl.Processors,
	Videos:    qwen2vl.Videos,
	Published: []string{"qwen2.5-vl-3b", "qwen2.5-vl-7b"}, Shapes: shapes,
	Budgets: []string{"all", "0.3333", "0.2222", "0.1111"},
}

//go:embed shapes
var shapes embed.FS
