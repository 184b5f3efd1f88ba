package qwen25vl

import (
	_ "embed" // shapes

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen2"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// architecture is the class in config.json.
const architecture = "Qwen2_5_VLForConditionalGeneration"

// Family is Qwen2.5-VL.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "qwen2_5_vl", Architectures: []string{architecture}, Forms: forms, Bias: qwen2.Biased,
		GGUF: gguf,
	},
	New: New,
	Processors: []imageproc.Kind{{
		Classes: []string{"Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"},
		New:     imageproc.NewPatches,
	}},
	Video: imageproc.VideoKind{Class: "Qwen2VLVideoProcessor", New: withVideos},
	Published: []model.Published{
		{Name: "qwen2.5-vl-3b", Config: shape3b}, {Name: "qwen2.5-vl-7b", Config: shape7b},
	},
	Budgets: []string{"all", "0.3333", "0.2222", "0.1111"},
	Text: func(ck *model.Source) (model.Multimodal, error) {
		return textonly.New(ck, architecture+", text only", "",
			func(v *model.Values) (llama.Config, []int32) {
				c := qwen2.ParseConfig(v, qwen2.VL, false)
				return c.Config, c.EOS
			})
	},
}

var (
	//go:embed shapes/qwen2.5-vl-3b.json
	shape3b []byte
	//go:embed shapes/qwen2.5-vl-7b.json
	shape7b []byte
)

// forms are the forms of the weights' names. save_pretrained of a base class writes the one without
// a head; a model with a tied head needs none.
var forms = []checkpoint.Form{
	cells.Form("hub", checkpoint.Loaded, "model.", "lm_head.", "visual."),
	cells.Form("module", "transformers 4.52.1 to 4.52.3, and state_dict() of 4.52 on",
		"model.language_model.", "lm_head.", "model.visual."),
	cells.Form("mixed-5.5", "transformers 5.4 and 5.5", "model.", "lm_head.", "model.visual."),
	cells.Form("base-module", "a base class of transformers 4.52.1 to 4.52.3 and 5.4 on",
		"language_model.", "", "visual."),
}
