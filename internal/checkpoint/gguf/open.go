package gguf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// Format is llama.cpp's.
var Format = checkpoint.Format{
	Name: "GGUF", Looks: "a GGUF file", Companion: true, Is: is,
	Open: func(p *checkpoint.Place) (checkpoint.Bundle, error) {
		path := p.Path
		if p.Start == nil {
			var err error
			if path, err = Only(path); err != nil {
				return nil, err
			}
		}
		return Open(path, p.Companion, p.Families)
	},
	Tensors: func(p *checkpoint.Place) (*checkpoint.Store, error) {
		return Read(p.Path, p.Families)
	},
}

// is reports whether p is a GGUF file, or a folder with one and without config.json.
func is(p *checkpoint.Place) (bool, error) {
	if p.Start != nil {
		return bytes.HasPrefix(p.Start, []byte(magic)) || filepath.Ext(p.Path) == ".gguf", nil
	}
	if _, err := os.Stat(filepath.Join(p.Path, "config.json")); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	model, err := Only(p.Path)
	return model != "", err
}

// Open opens the model of a decoder's file at path, which is the first part if it is split, and the
// encoder's and projector's file (mmproj) at projector. If projector is empty, it is the only file
// next to path with mmproj in its name; without such a file, the model takes no pictures.
func Open(path, projector string, families checkpoint.Families) (*checkpoint.Store, error) {
	s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
	if err := openModel(s, path, projector, families); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Seal()
	return s, nil
}

// openModel fills s from the files at both paths.
func openModel(s *checkpoint.Store, path, projector string, families checkpoint.Families) error {
	f, err := open(s, path, families)
	if err != nil {
		return err
	}
	f, p, err := f.separate(families)
	if err == nil && p != nil && projector != "" {
		err = &errs.OptionError{Name: "mmproj", Got: projector, Want: "none",
			Why: "the model's file has an encoder", Fault: errs.Conflict}
	}
	if err == nil && p == nil && projector == "" {
		projector, err = nextTo(path)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	if projector != "" {
		if p, err = open(s, projector, families); err != nil {
			return err
		}
	}
	s.What.Name = filepath.Base(path)
	if err := assemble(s, f, p, families); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return nil
}

// assemble makes the model from a decoder's file and a projector's, which may be nil.
func assemble(s *checkpoint.Store, f, p *file, families checkpoint.Families) (err error) {
	defer func() { // a value of another kind comes before what its default led to
		if p != nil && p.wrong != nil {
			err = p.inProjector(p.wrong)
		}
		if f.wrong != nil {
			err = f.wrong
		}
	}()
	if f.architecture() == archClip {
		return errors.New(
			"an encoder and a projector (mmproj), want the file of the decoder that it belongs to")
	}
	family, err := familyOf(f, p, families)
	if err != nil {
		return p.inProjector(err)
	}
	g := family.GGUF
	m := &checkpoint.Converted{
		Decoder: f, Config: object{
			"architectures": family.Architectures[:1], "model_type": family.Name,
			"vision_config": nil,
		},
	}
	if m.Text, err = f.decoderSizes(g.Theta); err != nil {
		return err
	}
	v, err := f.vocabulary(m.Text["vocab_size"].(int), g)
	if err != nil {
		return err
	}
	v.addTo(m.Text)
	m.Tokens = v.ids
	w := weights(s.Weights)
	if err := f.decoder(w, g, m.Text); err != nil {
		return err
	}
	if p != nil {
		if err := p.convert(w, g, m); err != nil {
			return p.inProjector(err)
		}
	}
	if err := g.Convert(m); err != nil {
		return err
	}
	return documents(s, f, v, g, m)
}

// inProjector wraps an error in the projector's file p, which is nil if there is none.
func (p *file) inProjector(err error) error {
	if p != nil && p.joined {
		return err
	}
	return fmt.Errorf("the projector's file (mmproj): %w", err)
}

// convert reads what all families have in the projector's file.
func (p *file) convert(w weights, g *checkpoint.GGUF, m *checkpoint.Converted) (err error) {
	names := g.Names
	if g.More != nil {
		names = slices.Concat(names, g.More(p))
	}
	if m.Vision, err = p.encoderSizes(); err != nil {
		return err
	}
	if err := p.tower(w, names, g, m.Vision["num_attention_heads"].(int)); err != nil {
		return err
	}
	m.Projector = p
	m.Processor, err = p.processor()
	return err
}

// documents sets the parts of s.
func documents(
	s *checkpoint.Store, f *file, v *vocabulary, g *checkpoint.GGUF, m *checkpoint.Converted,
) (err error) {
	from := s.What.Name + " (metadata)"
	d := &s.Docs
	d.Each(func(_ string, part *checkpoint.Part) { part.From = from })
	if !f.joined {
		d.Processor.From = "projector file (mmproj)"
	}
	if d.Config.Data, err = json.Marshal(m.Config); err != nil {
		return err
	}
	if m.Processor != nil {
		if d.Processor.Data, err = json.Marshal(m.Processor); err != nil {
			return err
		}
	}
	if m.Video != nil {
		if d.Video.Data, err = json.Marshal(m.Video); err != nil {
			return err
		}
		d.Video.From = d.Processor.From
	}
	d.Tokenizer.Data, d.Settings.Data, d.Specials.Data = v.file, v.settings, v.specials
	if v.file == nil {
		d.Tokenizer.From = "tokenizer.ggml.model in the metadata"
	}
	// llama.cpp's converter writes the name of a template for some models
	text := f.Text("tokenizer.chat_template", "")
	if !strings.Contains(text, "{") && g.Template != "" {
		text, d.Template.From = g.Template, "the published models' prompts (built in)"
	}
	if strings.Contains(text, "{") {
		d.Template.Data = []byte(withPictures(text, g))
	}
	var end []int
	add := func(id int) {
		if id >= 0 && !slices.Contains(end, id) {
			end = append(end, id)
		}
	}
	add(v.eos)
	for _, key := range []string{"eot_token_id", "eom_token_id"} {
		add(f.Number("tokenizer.ggml."+key, -1))
	}
	for _, id := range f.Numbers("tokenizer.ggml.eos_token_ids") { // Ollama's
		add(id)
	}
	for _, text := range ends {
		if id, ok := v.ids[text]; ok && v.pieces[id].Kind != tokenizer.NormalPiece {
			add(id)
		}
	}
	if len(end) > 0 {
		d.Generation.Data, err = json.Marshal(object{"eos_token_id": end})
	}
	return err
}

// ends are the tokens that end an answer wherever a vocabulary has them, besides those that a file
// names: llama.cpp knows them, too, because most files name only one.
var ends = []string{
	"</s>", "<eos>", "<end_of_turn>", "<end_of_utterance>", "<|im_end|>", "<|endoftext|>",
	"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
}

// withPictures adapts a chat template that does not support pictures: it puts a picture's text in
// its place before the template sees the messages. Decoders' files often have only the template of
// the language model.
func withPictures(template string, g *checkpoint.GGUF) string {
	if strings.Contains(template, "image") {
		return template
	}
	return strings.NewReplacer("IMAGE", g.Picture, "VIDEO", g.Video, "\n", "").Replace(`
{%- set plain = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- set joined = namespace(text='') -%}
{%- if message['content'] is string -%}{%- set joined.text = message['content'] -%}
{%- else -%}{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{%- set joined.text = joined.text + 'IMAGE' -%}
{%- elif part['type'] == 'video' -%}{%- set joined.text = joined.text + 'VIDEO' -%}
{%- elif part['type'] == 'text' -%}{%- set joined.text = joined.text + part['text'] -%}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- set plain.messages = plain.messages + [{'role': message['role'], 'content': joined.text}] -%}
{%- endfor -%}
{%- set messages = plain.messages +%}
`) + template
}

// nextTo returns the only projector file in the folder of path, "" if there is none.
func nextTo(path string) (string, error) {
	_, projectors, err := list(filepath.Dir(path))
	if err != nil || len(projectors) == 0 {
		return "", err
	}
	if len(projectors) > 1 {
		return "", &errs.OptionError{Name: "mmproj", Fault: errs.Missing,
			Want: "one of " + checkpoint.List(projectors, ", ")}
	}
	return filepath.Join(filepath.Dir(path), projectors[0]), nil
}

// Only returns the path of the only decoder in a folder, "" if there is none.
func Only(dir string) (string, error) {
	models, _, err := list(dir)
	if err != nil || len(models) == 0 {
		return "", err
	}
	if len(models) > 1 {
		return "", fmt.Errorf("checkpoint: %s: %d GGUF models, want the path of one: %s",
			dir, len(models), checkpoint.List(models, ", "))
	}
	return filepath.Join(dir, models[0]), nil
}

// list returns the names of the decoders in a folder (of split ones, the first part) and of the
// projectors.
func list(dir string) (models, projectors []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		switch {
		case !strings.HasSuffix(name, ".gguf") || laterPart(name):
		case strings.Contains(name, "mmproj"):
			projectors = append(projectors, e.Name())
		default:
			models = append(models, e.Name())
		}
	}
	return models, projectors, err
}
