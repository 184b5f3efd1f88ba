package internvl

import (
	"embed"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// Names in config.json and preprocessor_config.json.
const (
	architecture   = "InternVLForConditionalGeneration"
	modelType      = "internvl"
	processorClass = "GotOcr2ImageProcessor"
)

// Prefixes of the canonical names.
const (
	decoder = "language_model."
	tower   = "vision_tower."
)

// Family is InternVL.
var Family = model.Family{
	Family: checkpoint.Family{
		Name: modelType, Architectures: []string{architecture}, Forms: forms, Bias: llama.Biased,
		GGUF: gguf, Export: export, Original: original,
	},
	New: New,
	Text: func(ck *model.Source) (model.Multimodal, error) {
		return textonly.New(architecture+", text only", decoder,
			func(v *model.Values) llama.Config {
				var c Config
				c.readText(v)
				_, head := ck.Tensor(decoder + "lm_head.weight")
				c.Text.Tie(head)
				return c.Text
			})(ck)
	},
	Processors: []imageproc.Kind{{
		Classes: []string{processorClass}, New: imageproc.NewCrops,
	}},
	Videos:    []imageproc.VideoKind{{Class: "InternVLVideoProcessor", New: withClips}},
	Texts:     map[string]string{"start_image_token": before, "end_image_token": after},
	Published: []string{"internvl3-1b", "internvl3-2b", "internvl3-8b"}, Shapes: shapes,
	Across: 3, Budgets: []string{"all", "1280", "640", "320"},
}

//go:embed shapes
var shapes embed.FS

// export is what transformers' processor needs: without it, it would write 256 tokens for a tile.
var export = &checkpoint.Export{
	Vocabulary: []string{decoder + "model.embed_tokens.weight", decoder + "lm_head.weight"},
	Named: map[string]string{
		"start_image_token": before, "end_image_token": after, "context_image_token": place,
		"video_token": videoPlace,
	},
	Processor: model.Settings(ParseConfig, func(c *Config) map[string]any {
		return map[string]any{
			"processor_class": "InternVLProcessor", "image_seq_length": c.tokens(),
		}
	}),
}

// form is defined by the prefixes of the decoder, its head, and all else.
func form(name, by, text, head, rest string) checkpoint.Form {
	return checkpoint.NewForm(name, by, decoder, text, head,
		checkpoint.Renamed(rest, "", tower, "multi_modal_projector.")...)
}

// forms are the forms of the weights' names.
var forms = []checkpoint.Form{
	form("hub", checkpoint.Loaded, "language_model.model.", "language_model.lm_head.", ""),
	form("module", "transformers 4.52.1 to 4.52.3 and 5 with save_original_format=False, and "+
		"state_dict()", "model.language_model.", "lm_head.", "model."),
	form("mixed-5.5", "transformers 5.4 and 5.5", "model.language_model.model.",
		"language_model.lm_head.", "model."),
	originalForm,
}
