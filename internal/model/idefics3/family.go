package idefics3

import (
	"embed"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/textonly"
)

// The classes in config.json.
const (
	architecture = "Idefics3ForConditionalGeneration"
	smolVLM      = "SmolVLMForConditionalGeneration"
)

// Family is Idefics3, and SmolVLM; in llama.cpp's files also SmolVLM2, which has no name of its own
// there.
var Family = family("idefics3", architecture, "Idefics3ImageProcessor", gguf,
	nil, "smolvlm-256m", "smolvlm-500m")

// SmolVLM2 is the same under other names, and takes videos.
var SmolVLM2 = family("smolvlm", smolVLM, "SmolVLMImageProcessor", nil,
	[]imageproc.VideoKind{{Class: "SmolVLMVideoProcessor", New: withClips}}, "smolvlm2-2.2b")

func family(
	name, class, processor string, g *checkpoint.GGUF, videos []imageproc.VideoKind,
	published ...string,
) model.Family {
	return model.Family{
		Family: checkpoint.Family{
			Name: name, Architectures: []string{class}, Forms: forms, GGUF: g,
			Export: export(strings.TrimSuffix(processor, "ImageProcessor") + "Processor"),
		},
		New: func(ck *model.Source) (model.Multimodal, error) {
			return newModel(ck, class)
		},
		Text:       textonly.New(class+", text only", decoder, parseText),
		Processors: []imageproc.Kind{{Classes: []string{processor}, New: imageproc.NewSplits}},
		Videos:     videos,
		Texts: map[string]string{
			"fake_image_token": fake, "global_image_token": global, "image_token": place,
		},
		Published: published, Shapes: shapes,
		Across: across, Longest: true,
		Budgets: []string{"all", "0.3333", "0.2222", "0.1111"},
	}
}

//go:embed shapes
var shapes embed.FS

// export is what transformers' processor of the given class needs: without it, it would write 169
// tokens for a tile.
func export(class string) *checkpoint.Export {
	return &checkpoint.Export{
		Processor: model.Settings(ParseConfig, func(c *Config) map[string]any {
			return map[string]any{
				"processor_class": class, "image_seq_len": c.side() * c.side(),
			}
		}),
	}
}

// forms are the forms of the weights' names. save_pretrained of a base class writes the one without
// a head; a model with a tied head needs none.
var forms = []checkpoint.Form{
	form("hub", checkpoint.Loaded, "model.text_model.", "lm_head.", "model."),
	form("base-module", "a base class", "text_model.", "", ""),
	form("mlx", "mlx-vlm", "language_model.", "language_model.lm_head.", ""),
}

// form is defined by the prefixes of the decoder, its head ("" if it has none), and all else.
func form(name, by, text, head, rest string) checkpoint.Form {
	return checkpoint.NewForm(name, by, decoder, text, head,
		checkpoint.Renamed(rest, "model.", "vision_model.", "connector.")...)
}
