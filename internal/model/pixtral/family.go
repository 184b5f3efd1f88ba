package pixtral

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// Classes in config.json, and the model_type of the tower in it.
const (
	architecture = "LlavaForConditionalGeneration"
	mistral3     = "Mistral3ForConditionalGeneration"
	towerType    = "pixtral"
)

// Prefixes of the canonical names.
const (
	decoder   = "language_model."
	tower     = "vision_tower."
	projector = "multi_modal_projector."
)

// Family is Pixtral.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: "llava", Architectures: []string{architecture}, Tower: towerType, Forms: forms,
		Export: export(ParseConfig), GGUF: gguf(false, nil, "", "llama"),
	},
	New: func(ck *model.Source) (model.Multimodal, error) {
		return newModel(ck, architecture, ParseConfig)
	},
	Text: llava.NewText, Processors: processors, Cell: cell(ParseConfig), Texts: texts,
	Published: []string{"pixtral-12b"}, Shapes: shapes,
	Longest: true, Budgets: []string{"all", "0.3333", "0.2222", "0.1111"},
}

// Mistral3 is Mistral Small 3.1 and Ministral 3.
var Mistral3 = model.Family{
	Family: checkpoint.Family{
		Name: "mistral3", Architectures: []string{mistral3}, Forms: forms,
		Export: export(ParseMistral3), GGUF: gguf(true, joined, chat, "llama", "mistral3"),
	},
	New: func(ck *model.Source) (model.Multimodal, error) {
		return newModel(ck, mistral3, ParseMistral3)
	},
	Text:       llava.TextOnly(mistral3+", text only", "mistral"),
	Processors: processors, Cell: cell(ParseMistral3), Texts: texts,
	Published: []string{"mistral-small-3.1"}, Shapes: shapes,
	Longest: true, Budgets: Family.Budgets,
}

//go:embed shapes
var shapes embed.FS

var texts = map[string]string{"image_break_token": rowEnd, "image_end_token": lastEnd}

var processors = []imageproc.Kind{{
	Classes: []string{"PixtralImageProcessor"}, New: imageproc.NewLongest,
}}

// cell returns the family's Cell.
func cell(parse func([]byte) (*Config, error)) func([]byte) (patch, merge int, err error) {
	return func(config []byte) (patch, merge int, err error) {
		c, err := parse(config)
		if err != nil {
			return 0, 0, err
		}
		return c.Vision.Patch, c.Vision.Merge, nil
	}
}

// form is defined by the prefixes of the decoder, its head ("" if it has none), the tower, and of
// the projector. Rules list the tower's modules, so that none matches a name with "vision_model.".
func form(name, by, text, head, vision, rest string) checkpoint.Form {
	return checkpoint.NewForm(name, by, decoder, text, head,
		append(checkpoint.Renamed(vision, tower, "patch_conv.", "ln_pre.", "transformer."),
			checkpoint.Renamed(rest, "", projector)...)...)
}

// forms are the forms of the weights' names. save_pretrained of a base class writes the one without
// a head.
var forms = []checkpoint.Form{
	form("hub", checkpoint.Loaded, "language_model.model.", "language_model.lm_head.", tower, ""),
	form("module", "transformers 4.52.1 to 4.52.3, state_dict() of 4.52 on, and transformers 5 "+
		"with save_original_format=False", "model.language_model.", "lm_head.", "model."+tower,
		"model."),
	form("mixed-5.5", "transformers 5.4 and 5.5", "model.language_model.model.",
		"language_model.lm_head.", "model."+tower, "model."),
	form("base-module", "a base class", "language_model.", "", tower, ""),
	form("mlx", "mlx-vlm", "language_model.model.", "language_model.lm_head.",
		tower+"vision_model.", ""),
}

// export is what transformers' processor needs.
func export(parse func([]byte) (*Config, error)) *checkpoint.Export {
	return &checkpoint.Export{
		Vocabulary: []string{decoder + "model.embed_tokens.weight", decoder + "lm_head.weight"},
		Processor: model.Settings(parse, func(c *Config) map[string]any {
			return map[string]any{
				"processor_class": "PixtralProcessor", "image_token": place,
				"image_break_token": rowEnd, "image_end_token": lastEnd,
				"patch_size": c.Vision.Patch, "spatial_merge_size": c.Vision.Merge,
			}
		}),
	}
}
