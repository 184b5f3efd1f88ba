package hf

import (
	"slices"

	"github.com/restore-vlm/restore/internal/checkpoint"
)

// Names within LLaVA's modules. Rules list the vision tower's own modules, so that no rule for a
// tower without "vision_model." matches a name with it.
var (
	TowerModules = []string{"embeddings.", "encoder.", "pre_layrnorm.", "post_layernorm."}
	textModules  = []string{"embed_tokens.", "layers.", "norm.", "rotary_emb."}
)

// llavaForm is a form of LLaVA and LLaVA-NeXT, defined by the prefixes of the decoder, its head (""
// if it has none), the tower, and of projector and newline.
func llavaForm(name, by, text, head, tower, rest string) checkpoint.Form {
	const lm = "language_model."
	rules := slices.Concat(
		checkpoint.Renamed(text, lm+"model.", textModules...),
		checkpoint.Renamed(tower, "vision_tower.vision_model.", TowerModules...),
		checkpoint.Renamed(rest, "", "multi_modal_projector.", "image_newline"))
	if head != "" {
		rules = append(rules, [2]string{head, lm + "lm_head."})
	}
	return checkpoint.Form{Name: name, By: by, Rules: rules}
}

// qwenForm is a form of Qwen2.5-VL, defined by the prefixes of decoder, head and tower.
func qwenForm(name, by, text, head, tower string) checkpoint.Form {
	rules := append(checkpoint.Renamed(text, "model.", textModules...), [2]string{tower, "visual."})
	if head != "" {
		rules = append(rules, [2]string{head, "lm_head."})
	}
	return checkpoint.Form{Name: name, By: by, Rules: rules}
}

// forms lists the forms of each architecture. save_pretrained of a base class writes forms without
// a head; a model with a tied head needs none.
var forms = func() map[string][]checkpoint.Form {
	const loaded = "transformers to 4.51, 4.52.4 to 5.2, 5.6 on"
	llava := []checkpoint.Form{
		llavaForm(
			"hub",
			loaded,
			"language_model.model.",
			"language_model.lm_head.",
			"vision_tower.vision_model.",
			"",
		),
		llavaForm("hub-5x", "transformers 5.6 on, of a model that was made from a configuration",
			"language_model.model.", "language_model.lm_head.", "vision_tower.", ""),
		llavaForm("module-4.52", "transformers 4.52.1 to 4.52.3, and state_dict() of 4.52 to 5.5",
			"model.language_model.", "lm_head.", "model.vision_tower.vision_model.", "model."),
		llavaForm(
			"module-5x",
			"transformers 5 with save_original_format=False, and state_dict() of 5.6 on",
			"model.language_model.",
			"lm_head.",
			"model.vision_tower.",
			"model.",
		),
		llavaForm(
			"mixed-5.5",
			"transformers 5.4 and 5.5",
			"model.language_model.model.",
			"language_model.lm_head.",
			"model.vision_tower.vision_model.",
			"model.",
		),
		llavaForm("base-module-4.52", "a base class of transformers 4.52.1 to 4.52.3",
			"language_model.", "", "vision_tower.vision_model.", ""),
		llavaForm(
			"base-module-5x",
			"a base class of transformers 5.6 and 5.8",
			"language_model.",
			"",
			"vision_tower.",
			"",
		),
	}
	return map[string][]checkpoint.Form{
		"LlavaForConditionalGeneration":     llava,
		"LlavaNextForConditionalGeneration": llava,
		"Qwen2_5_VLForConditionalGeneration": {
			qwenForm("hub", loaded, "model.", "lm_head.", "visual."),
			qwenForm("module", "transformers 4.52.1 to 4.52.3, and state_dict() of 4.52 on",
				"model.language_model.", "lm_head.", "model.visual."),
			qwenForm(
				"mixed-5.5",
				"transformers 5.4 and 5.5",
				"model.",
				"lm_head.",
				"model.visual.",
			),
			qwenForm(
				"base-module",
				"a base class of transformers 4.52.1 to 4.52.3 and 5.4 on",
				"language_model.",
				"",
				"visual.",
			),
		},
	}
}()
