// Package hf reads models written by Hugging Face transformers.
package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// Format is transformers'.
var Format = checkpoint.Format{
	Name: "Hugging Face folder", Looks: "a model's folder (config.json and weights)",
	Is: func(p *checkpoint.Place) (bool, error) { return p.Start == nil, nil },
	Open: func(p *checkpoint.Place) (checkpoint.Bundle, error) {
		f, err := folder.Open(p.Path)
		if err != nil {
			return nil, err
		}
		return Open(f, p.Families)
	},
}

// Open reads the model of f, of one of the families.
func Open(f *folder.Folder, families checkpoint.Families) (_ *checkpoint.Store, err error) {
	s := &checkpoint.Store{What: checkpoint.About{Name: f.Name}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("checkpoint: %s: %w", f.Name, err), s.Close())
		}
	}()
	if s.Docs.Config, err = f.Config(); err != nil {
		return nil, err
	}
	if err = f.Weights(s); err != nil {
		return nil, err
	}
	if err = documents(f, &s.Docs); err != nil {
		return nil, err
	}
	if err = unpackMLX(s); err != nil {
		return nil, err
	}
	if original := families.Original(s.Docs.Config.Data); original != nil {
		if err = original.Translate(s); err != nil {
			return nil, err
		}
	}
	// otherwise the table of architectures returns an error
	family := families.Of(s.Docs.Config.Data)
	if family != nil {
		if err = s.Rename(family.Forms); err != nil {
			return nil, err
		}
	}
	if err = unquantise(f, s, family); err != nil {
		return nil, err
	}
	s.What.Files = f.Read()
	s.Seal()
	return s, nil
}

// documents reads everything except configuration and weights.
func documents(f *folder.Folder, p *checkpoint.Parts) (err error) {
	if p.Tokenizer, err = f.Part("tokenizer.json"); err == nil && p.Tokenizer.Data == nil {
		if p.Tokenizer, p.Settings, err = SentencePiece(f); err == nil && p.Tokenizer.Data == nil {
			err = bytePairs(f, p)
		}
	} else if err == nil {
		p.Settings, err = Settings(f)
	}
	if err != nil {
		return err
	}
	if err = Generation(f, p); err != nil {
		return err
	}
	if p.Processor, err = Processor(f); err != nil {
		return err
	}
	if p.Video, err = part(f, "video_processor", "video_preprocessor_config.json"); err != nil {
		return err
	}
	if p.Template, err = FindTemplate(f); err != nil {
		return err
	}
	p.Specials, err = Specials(f)
	return err
}

// Generation reads the settings of generation, with this program's own: FitPrune's recipe and the
// thresholds for budgets by content.
func Generation(f *folder.Folder, p *checkpoint.Parts) (err error) {
	if p.Generation, err = f.Part("generation_config.json"); err != nil {
		return err
	}
	if p.Recipe, err = f.Part("fitprune.json"); err != nil {
		return err
	}
	p.Budgets, err = f.Part("budget.json")
	return err
}

// Processor returns the picture processor.
func Processor(f *folder.Folder) (checkpoint.Part, error) {
	return part(f, "image_processor", "preprocessor_config.json")
}

// part returns a processor. Since transformers 5 it is the object key in processor_config.json,
// which that version reads first; otherwise it is the file older.
func part(f *folder.Folder, key, older string) (checkpoint.Part, error) {
	const newer = "processor_config.json"
	data, ok, err := f.File(newer)
	if err != nil {
		return checkpoint.Part{From: newer}, err
	}
	if ok {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			return checkpoint.Part{}, fmt.Errorf("%s: %w", newer, err)
		}
		if p := fields[key]; p != nil && string(p) != "null" {
			return checkpoint.Part{Data: p, From: newer}, nil
		}
	}
	return f.Part(older)
}

// SentencePiece returns a folder's tokenizer.model, which may be absent, and the settings in its
// tokenizer_config.json with the tokens of added_tokens.json.
func SentencePiece(f *folder.Folder) (model, settings checkpoint.Part, err error) {
	const absent = "tokenizer.json"
	model, err = f.Part("tokenizer.model")
	if err != nil || model.Data == nil {
		return checkpoint.Part{From: absent}, settings, err
	}
	settings, err = completeSettings(f)
	return model, settings, err
}

// bytePairs makes the tokenizer.json of a folder with vocab.json and merges.txt, which may be
// absent.
func bytePairs(f *folder.Folder, p *checkpoint.Parts) error {
	vocab, err := f.Part("vocab.json")
	if err != nil || vocab.Data == nil {
		return err
	}
	merges, err := f.Part("merges.txt")
	if err != nil || merges.Data == nil {
		return err
	}
	if err = checkpoint.CheckObject(vocab.Data); err != nil {
		return fmt.Errorf("%s: %w", vocab.From, err)
	}
	if p.Settings, err = completeSettings(f); err != nil {
		return err
	}
	p.Tokenizer.From = vocab.From
	p.Tokenizer.Data, err = tokenizer.ConvertPairs(vocab.Data, merges.Data, p.Settings.Data)
	return err
}

// completeSettings is Settings with an empty object for a folder that has neither file.
func completeSettings(f *folder.Folder) (settings checkpoint.Part, err error) {
	if settings, err = Settings(f); err == nil && settings.Data == nil {
		settings.Data = []byte("{}")
	}
	return settings, err
}

// Settings returns tokenizer_config.json. If it has no added_tokens_decoder, the tokens of
// added_tokens.json are added.
func Settings(f *folder.Folder) (settings checkpoint.Part, err error) {
	if settings, err = f.Part("tokenizer_config.json"); err != nil {
		return settings, err
	}
	fields := map[string]json.RawMessage{}
	if settings.Data != nil {
		if err := checkpoint.CheckObject(settings.Data); err != nil {
			return settings, fmt.Errorf("%s: %w", settings.From, err)
		}
		if err := json.Unmarshal(settings.Data, &fields); err != nil {
			return settings, fmt.Errorf("%s: %w", settings.From, err)
		}
	}
	const key, file = "added_tokens_decoder", "added_tokens.json"
	if raw := fields[key]; raw != nil && string(raw) != "null" {
		return settings, nil
	}
	data, ok, err := f.File(file)
	if err != nil || !ok {
		return settings, err
	}
	var ids map[string]int32
	if err := json.Unmarshal(data, &ids); err != nil {
		return settings, fmt.Errorf("%s: %w", file, err)
	}
	added := map[string]any{}
	for text, id := range ids {
		added[fmt.Sprint(id)] = map[string]string{"content": text}
	}
	fields[key], _ = json.Marshal(added)
	settings.Data, err = json.Marshal(fields)
	return settings, err
}

// Specials returns the texts of bos_token, image_token, … for chat templates. They are in
// tokenizer_config.json and, if that has no added_tokens_decoder, in special_tokens_map.json, which
// then takes precedence, as in transformers. Others are in processor_config.json alone, which also
// names the places of pictures and videos; templates write these.
func Specials(f *folder.Folder) (checkpoint.Part, error) {
	part, found := checkpoint.Part{}, map[string]string{}
	const processor = "processor_config.json"
	for _, name := range []string{
		processor, "tokenizer_config.json", "special_tokens_map.json",
	} {
		data, ok, err := f.File(name)
		if err != nil {
			return part, err
		}
		if !ok {
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			return part, fmt.Errorf("%s: %w", name, err)
		}
		extra := map[string]json.RawMessage{}
		_ = json.Unmarshal(fields["extra_special_tokens"], &extra) // it may be a list without names
		for _, tokens := range []map[string]json.RawMessage{fields, extra} {
			for key, raw := range tokens {
				text := tokenizer.TokenText(raw)
				place := name == processor && (key == "image_token" || key == "video_token")
				if strings.HasSuffix(key, "_token") && text != "" && !place {
					found[key], part.From = text, name
				}
			}
		}
		if raw := fields["added_tokens_decoder"]; raw != nil && string(raw) != "null" {
			break
		}
	}
	if len(found) == 0 {
		return part, nil
	}
	var err error
	part.Data, err = json.Marshal(found)
	return part, err
}
