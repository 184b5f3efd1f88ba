package hf

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/model/families"
)

// family returns the family of an architecture.
func family(architecture string) *checkpoint.Family {
	return families.Files.Of([]byte(`{"architectures":["` + architecture + `"]}`))
}

// Ensure that every name that 19 releases of transformers write, in every form, gets the canonical
// name under which they load it. testdata/names.json.gz has, by family and canonical name, the name
// in each form.
func TestForms(t *testing.T) {
	var published map[string]map[string]map[string]*string
	golden.JSON(t, "testdata/names.json", &published)
	for kind, architecture := range map[string]string{
		"llava15": "LlavaForConditionalGeneration", "llavanext": "LlavaNextForConditionalGeneration",
		"qwen25vl": "Qwen2_5_VLForConditionalGeneration", "qwen25vl-tied": "Qwen2_5_VLForConditionalGeneration",
	} {
		byForm := map[string]map[string]string{}
		for canonical, names := range published[kind] {
			for form, name := range names {
				if name == nil { // the form has no head
					continue
				}
				if byForm[form] == nil {
					byForm[form] = map[string]string{}
				}
				byForm[form][*name] = canonical
			}
		}
		if len(byForm) < 4 {
			t.Fatalf("%s: %d forms", kind, len(byForm))
		}
		for form, names := range byForm {
			s := &checkpoint.Store{
				Weights: map[string]*checkpoint.Weight{"text.rotary_emb.inv_freq": {}},
			}
			for name, canonical := range names {
				s.Weights[name] = &checkpoint.Weight{Stored: canonical}
			}
			err := s.Rename(family(architecture).Forms)
			if err != nil || strings.Contains(s.What.Names, "match no known form") ||
				len(s.Weights) != len(names) {
				t.Errorf("%s, %s: %d of %d names: %q, %v", kind, form, len(s.Weights), len(names),
					s.What.Names, err)
			}
			for name, w := range s.Weights {
				if w.Stored != name {
					t.Errorf("%s, %s: %q is called %q", kind, form, w.Stored, name)
				}
			}
		}
	}
}

// Ensure that the names that mlx-vlm 0.7 wrote for tiny models get the canonical names.
func TestMLXForms(t *testing.T) {
	const layer = "layers.1.self_attn.q_proj.weight"
	for architecture, names := range map[string][][2]string{
		"Mistral3ForConditionalGeneration": {
			{"language_model.model." + layer, "language_model.model." + layer},
			{"language_model.lm_head.weight", "language_model.lm_head.weight"},
			{"multi_modal_projector.linear_1.weight", "multi_modal_projector.linear_1.weight"},
			{"vision_tower.vision_model.ln_pre.weight", "vision_tower.ln_pre.weight"},
			{"vision_tower.vision_model.patch_conv.weight", "vision_tower.patch_conv.weight"},
			{
				"vision_tower.vision_model.transformer.layers.0.ffn_norm.weight",
				"vision_tower.transformer.layers.0.ffn_norm.weight",
			},
		},
		"SmolVLMForConditionalGeneration": {
			{"language_model." + layer, "language_model.model." + layer},
			{"language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight"},
			{"language_model.lm_head.weight", "language_model.lm_head.weight"},
			{"vision_model.post_layernorm.weight", "model.vision_model.post_layernorm.weight"},
			{
				"connector.modality_projection.proj.weight",
				"model.connector.modality_projection.proj.weight",
			},
		},
		"Qwen3VLForConditionalGeneration": {
			{"language_model.model." + layer, "model." + layer},
			{"language_model.lm_head.weight", "lm_head.weight"},
			{"vision_tower.pos_embed.weight", "visual.pos_embed.weight"},
		},
		"Qwen2_5_VLForConditionalGeneration": {
			{"language_model.model.norm.weight", "model.norm.weight"},
			{"vision_tower.merger.mlp.0.bias", "visual.merger.mlp.0.bias"},
		},
		"InternVLForConditionalGeneration": { // with the authors' config.json
			{"language_model.model." + layer, "language_model.model." + layer},
			{"mlp1.0.weight", "multi_modal_projector.layer_norm.weight"},
			{"vision_model.encoder.layers.0.ls1", "vision_tower.encoder.layer.0.lambda_1"},
		},
	} {
		s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
		for _, n := range names {
			s.Weights[n[0]] = &checkpoint.Weight{}
		}
		if err := s.Rename(family(architecture).Forms); err != nil ||
			strings.Contains(s.What.Names, "match no known form") {
			t.Errorf("%s: %q, %v", architecture, s.What.Names, err)
		}
		for _, n := range names {
			if s.Weights[n[1]] == nil {
				t.Errorf("%s: %q: got %v, want %q", architecture, n[0],
					slices.Collect(maps.Keys(s.Weights)), n[1])
			}
		}
	}
}

// Ensure that the names of a family which the reader has never seen need nothing but its value, and
// that they stay as they are without it.
func TestOtherFamily(t *testing.T) {
	dir := lay(t, map[string][]byte{
		"config.json":       []byte(`{"architectures":["OtherModel"]}`),
		"model.safetensors": weights(t, "body.a", "body.b"),
	})
	other := &checkpoint.Family{
		Architectures: []string{"OtherModel"},
		Forms: []checkpoint.Form{
			{Name: "hub", By: "a program", Rules: checkpoint.Renamed("body.", "model.", "a", "b")},
		},
	}
	for prefix, list := range map[string]checkpoint.Families{
		"body.": families.Files, "model.": append(slices.Clone(families.Files), other),
	} {
		f, err := folder.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(f, list)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{prefix + "a", prefix + "b"}; !slices.Equal(s.Names(), want) {
			t.Errorf("got %v, want %v", s.Names(), want)
		}
		s.Close()
	}
}

// Ensure that the error for names which transformers would not load tells what wrote them, and that
// two tensors with one name are an error.
func TestStrangers(t *testing.T) {
	const q, lm = "model.layers.0.self_attn.q_proj.",
		"model.language_model.layers.0.self_attn.q_proj."
	qwen := family("Qwen2_5_VLForConditionalGeneration")
	for want, names := range map[string][]string{
		"peft model": {"base_model.model." + q + "weight"}, "DataParallel": {"module." + q + "weight"},
		"compiled": {"_orig_mod." + q + "weight"}, "not merged": {q + "base_layer.weight", q + "lora_A.default.weight"},
		"1 of 2 names": {q + "weight", "adapter.scale"},
	} {
		s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
		for _, name := range names {
			s.Weights[name] = &checkpoint.Weight{}
		}
		err := s.Rename(qwen.Forms)
		if err != nil || !strings.Contains(s.What.Names, want) {
			t.Errorf("%q: got %q %v, want %q", names, s.What.Names, err, want)
		}
	}
	s := &checkpoint.Store{
		Weights: map[string]*checkpoint.Weight{
			lm + "weight": {},
			lm + "bias":   {},
			q + "weight":  {},
		},
	}
	if err := s.Rename(qwen.Forms); err == nil || !strings.Contains(err.Error(), "two tensors") {
		t.Errorf("two tensors of one name: %v", err)
	}
}
