// Package llava reads LLaVA 1.5, 1.6 and OneVision in the form their authors published:
// LlavaLlamaForCausalLM and LlavaMistralForCausalLM of the repository haotian-liu/LLaVA, and
// LlavaQwenForCausalLM of LLaVA-VL/LLaVA-NeXT.
//
// Such a folder has the decoder and the projector. The tower is a separate repository, which
// the configuration names (mm_vision_tower). Its configuration is always needed, its weights only
// if the checkpoint has none. No token of the vocabulary stands for a picture: the prompt is split
// at the picture's place. A picture is padded to a square (image_aspect_ratio pad), or cut into
// tiles (anyres).
package llava

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
)

// Format is the original LLaVA's.
var Format = checkpoint.Format{
	Name: "original LLaVA folder", Companion: true,
	Is: func(p *checkpoint.Place) (bool, error) {
		if p.Start != nil {
			return false, nil
		}
		f, err := folder.Open(p.Path)
		if err != nil {
			return false, err
		}
		config, err := f.Config()
		if err != nil {
			return false, fmt.Errorf("checkpoint: %s: %w", f.Name, err)
		}
		return is(config.Data), nil
	},
	Open: func(p *checkpoint.Place) (checkpoint.Bundle, error) {
		f, err := folder.Open(p.Path)
		if err != nil {
			return nil, err
		}
		return Open(f, p.Companion, p.Find)
	},
}

// decoders are the model types of the decoders by architecture.
var decoders = map[string]string{
	"LlavaLlamaForCausalLM":   "llama",
	"LlavaMistralForCausalLM": "mistral",
	"LlavaQwenForCausalLM":    "qwen2",
}

// is reports whether a config.json belongs to an original LLaVA.
func is(config []byte) bool {
	var c struct{ Architectures []string }
	return json.Unmarshal(config, &c) == nil &&
		slices.ContainsFunc(c.Architectures, func(a string) bool { return decoders[a] != "" })
}

// forms are the forms of the weights' names: with the tower, or without it.
var forms = func() []checkpoint.Form {
	const lm = "language_model."
	own := slices.Concat(
		checkpoint.Renamed("model.", lm+"model.", "embed_tokens.", "layers.", "norm."),
		[][2]string{
			{"lm_head.", lm + "lm_head."},
			{"model.mm_projector.0.", "multi_modal_projector.linear_1."},
			{"model.mm_projector.2.", "multi_modal_projector.linear_2."},
			{"model.image_newline", "image_newline"},
		},
	)
	form := func(name, tower string) checkpoint.Form {
		rules := append(checkpoint.Renamed(tower, towerName, checkpoint.CLIPModules...), own...)
		return checkpoint.Form{Name: name, By: "LLaVA's own code", Rules: rules}
	}
	return []checkpoint.Form{
		form("original", "model.vision_tower.vision_tower.vision_model."),
		form("original, tower of transformers 5", "model.vision_tower.vision_tower."),
	}
}()

// towerName is the prefix of the canonical names of the tower's weights.
const towerName = "vision_tower.vision_model."

// Open reads the model of f. tower, if not "", is the folder of its vision tower. find, which may
// be nil, returns the folder of a repository.
func Open(
	f *folder.Folder, tower string, find func(name string) (string, error),
) (_ *checkpoint.Store, err error) {
	s := &checkpoint.Store{What: checkpoint.About{Name: f.Name}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("checkpoint: %s: %w", f.Name, err), s.Close())
		}
	}()
	config, err := f.Config()
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(config.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config.From, err)
	}
	if err = f.Weights(s); err != nil {
		return nil, err
	}
	if err = s.Rename(forms); err != nil {
		return nil, err
	}
	t, err := openTower(s, c, tower, find)
	if err != nil {
		return nil, err
	}
	if s.Docs.Config.Data, err = c.canonical(t.vision, t.side); err != nil {
		return nil, err
	}
	if s.Docs.Processor.Data, err = c.processor(t.processor, t.side); err != nil {
		return nil, fmt.Errorf("%s: %w", t.from, err)
	}
	s.Docs.Config.From, s.Docs.Processor.From = config.From, t.from
	if err = documents(f, s, c); err != nil {
		return nil, err
	}
	s.What.Files = append(f.Read(), t.files...)
	s.Seal()
	return s, nil
}

// documents reads tokenizer, template and generation settings.
func documents(f *folder.Folder, s *checkpoint.Store, c *config) (err error) {
	p := &s.Docs
	if p.Tokenizer, p.Settings, err = hf.SentencePiece(f); err == nil && p.Tokenizer.Data == nil {
		if p.Tokenizer, err = f.Part("tokenizer.json"); err == nil {
			p.Settings, err = hf.Settings(f)
		}
	}
	if err != nil {
		return err
	}
	if p.Specials, err = hf.Specials(f); err != nil {
		return err
	}
	if err = hf.Generation(f, p); err != nil {
		return err
	}
	// A template for text only has no place for a picture; the original code does not read one.
	if p.Template, err = hf.FindTemplate(f); err == nil &&
		!bytes.Contains(p.Template.Data, []byte("image")) {
		p.Template = c.template(f.Name)
	}
	return err
}
