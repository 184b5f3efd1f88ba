package qwen25vl

import (
	_ "embed" // shapes
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen2"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// architecture is the class in config.json.
const architecture = "Qwen2_5_VLForConditionalGeneration"

// Family is Qwen2.5-VL.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "qwen2_5_vl", Architectures: []string{architecture}, Forms: forms, Bias: biased,
		GGUF: gguf,
	},
	New: New,
	Processors: []imageproc.Kind{{
		Classes: []string{"Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"},
		New:     imageproc.NewPatches,
	}},
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

// form is defined by the prefixes of the decoder, its head ("" if it has none) and the tower.
func form(name, by, text, head, tower string) checkpoint.Form {
	rules := append(checkpoint.Renamed(text, "model.", checkpoint.TextModules...),
		[2]string{tower, "visual."})
	if head != "" {
		rules = append(rules, [2]string{head, "lm_head."})
	}
	return checkpoint.Form{Name: name, By: by, Rules: rules}
}

// forms are the forms of the weights' names. save_pretrained of a base class writes the one without
// a head; a model with a tied head needs none.
var forms = []checkpoint.Form{
	form("hub", checkpoint.Loaded, "model.", "lm_head.", "visual."),
	form("module", "transformers 4.52.1 to 4.52.3, and state_dict() of 4.52 on",
		"model.language_model.", "lm_head.", "model.visual."),
	form("mixed-5.5", "transformers 5.4 and 5.5", "model.", "lm_head.", "model.visual."),
	form("base-module", "a base class of transformers 4.52.1 to 4.52.3 and 5.4 on",
		"language_model.", "", "visual."),
}

// biased reports whether the module has a bias: queries, keys and values have.
func biased(module string) bool {
	return strings.HasSuffix(module, ".q_proj") || strings.HasSuffix(module, ".k_proj") ||
		strings.HasSuffix(module, ".v_proj")
}
