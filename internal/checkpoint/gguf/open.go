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
)

// Format is llama.cpp's.
var Format = checkpoint.Format{
	Name: "GGUF", Looks: "a GGUF file",
	Companion: "mmproj", Whole: "a model that is no GGUF file",
	Is: is,
	Open: func(p *checkpoint.Place) (checkpoint.Bundle, error) {
		path := p.Path
		if p.Start == nil {
			var err error
			if path, err = Only(path); err != nil {
				return nil, err
			}
		}
		return Open(path, p.Companion)
	},
	Tensors: Read,
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
func Open(path, projector string) (*checkpoint.Store, error) {
	s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
	if err := openModel(s, path, projector); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Seal()
	return s, nil
}

// openModel fills s from the files at both paths.
func openModel(s *checkpoint.Store, path, projector string) error {
	f, paths, err := open(path, &s.Maps)
	if err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	if projector == "" {
		if projector, err = nextTo(path); err != nil {
			return fmt.Errorf("checkpoint: %s: %w", path, err)
		}
	}
	var p *file
	if projector != "" {
		var more []string
		if p, more, err = open(projector, &s.Maps); err != nil {
			return fmt.Errorf("checkpoint: %s: %w", projector, err)
		}
		paths = append(paths, more...)
	}
	for _, file := range paths {
		abs, err := filepath.Abs(file)
		if err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		s.What.Files = append(s.What.Files, abs)
	}
	s.What.Name = filepath.Base(path)
	if err := assemble(s, f, p); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return nil
}

// assemble makes the model from a decoder's file and a projector's, which may be nil.
func assemble(s *checkpoint.Store, f, p *file) error {
	if f.text("general.architecture", "") == archClip {
		return errors.New(
			"an encoder and a projector (mmproj), want the file of the decoder that it belongs to")
	}
	c, err := f.decoderConfig()
	if err != nil {
		return err
	}
	v, err := f.vocabulary(c.vocab)
	if err != nil {
		return err
	}
	w := weights(s.Weights)
	if err := f.decoder(w, c); err != nil {
		return err
	}
	if p != nil {
		if err := p.addTo(s, w, c); err != nil {
			return fmt.Errorf("the projector's file (mmproj): %w", err)
		}
	}
	var config object
	if c.arch == archQwen {
		config, err = c.qwen(p, v)
	} else {
		config, err = c.llava(p, v)
	}
	if err != nil {
		return err
	}
	return documents(s, f, v, config)
}

// addTo adds the projector's weights and picture processor to s.
func (p *file) addTo(s *checkpoint.Store, w weights, c *decoderConfig) (err error) {
	if err := p.checkProjector(c.arch); err != nil {
		return err
	}
	if c.arch == archQwen {
		err = p.qwenTower(w)
	} else {
		err = p.llavaTower(w, p.number("clip.vision.embedding_length", 0))
	}
	if err != nil {
		return err
	}
	s.Docs.Processor.Data, err = p.processor(c.arch)
	return err
}

// documents sets the parts of s except the processor's data.
func documents(s *checkpoint.Store, f *file, v *vocabulary, config object) (err error) {
	from := s.What.Name + " (metadata)"
	d := &s.Docs
	d.Each(func(_ string, part *checkpoint.Part) { part.From = from })
	d.Processor.From = "projector file (mmproj)"
	if d.Config.Data, err = json.Marshal(config); err != nil {
		return err
	}
	d.Tokenizer.Data, d.Settings.Data, d.Specials.Data = v.file, v.settings, v.specials
	if text := f.text("tokenizer.chat_template", ""); text != "" {
		d.Template.Data = []byte(withPictures(text, f.text("general.architecture", "")))
	}
	end := []int{}
	for _, key := range []string{"eos_token_id", "eot_token_id"} {
		id := f.number("tokenizer.ggml."+key, -1)
		if key == "eos_token_id" {
			id = v.eos
		}
		if id >= 0 && !slices.Contains(end, id) {
			end = append(end, id)
		}
	}
	if len(end) > 0 {
		d.Generation.Data, err = json.Marshal(object{"eos_token_id": end})
	}
	return err
}

// pictureText is the text for a picture and for a video in a prompt.
var pictureText = map[string][2]string{
	archLlama: {`<image>\n`, ``},
	archQwen: {`<|vision_start|><|image_pad|><|vision_end|>`,
		`<|vision_start|><|video_pad|><|vision_end|>`},
}

// withPictures adapts a chat template that does not support pictures: it puts a picture's text in
// its place before the template sees the messages. Decoders' files often have only the template of
// the language model.
func withPictures(template, arch string) string {
	if strings.Contains(template, "image") {
		return template
	}
	text := pictureText[arch]
	return strings.NewReplacer("IMAGE", text[0], "VIDEO", text[1], "\n", "").Replace(`
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
