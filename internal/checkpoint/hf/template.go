package hf

import (
	"encoding/json"
	"fmt"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
)

// FindTemplate searches for the chat template in the files that may hold one. The first one found
// is used, in the order of transformers 5.23 for processors, with the tokenizer's own template
// last.
func FindTemplate(f *folder.Folder) (checkpoint.Part, error) {
	for _, name := range []string{
		"processor_config.json", "chat_template.json", "chat_template.jinja",
		"tokenizer_config.json",
	} {
		data, ok, err := f.File(name)
		if err != nil {
			return checkpoint.Part{}, err
		}
		if !ok {
			continue
		}
		text := ""
		if name == "chat_template.jinja" {
			text = string(data)
		} else if text, err = Template(data); err != nil {
			return checkpoint.Part{}, fmt.Errorf("%s: %w", name, err)
		}
		if text != "" {
			return checkpoint.Part{Data: []byte(text), From: name}, nil
		}
	}
	return checkpoint.Part{}, nil
}

// Template returns the chat_template of a JSON object: a string, or the one named default of
// several named templates, which are a list of {"name", "template"} or an object. It is "" if the
// key is absent or null.
func Template(data []byte) (string, error) {
	const key, want = "chat_template", "default"
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return "", err
	}
	raw := fields[key]
	var text *string
	if raw == nil || json.Unmarshal(raw, &text) == nil {
		if text == nil {
			return "", nil
		}
		return *text, nil
	}
	byName := map[string]string{}
	var list []struct{ Name, Template string }
	if json.Unmarshal(raw, &list) == nil {
		for _, t := range list {
			byName[t.Name] = t.Template
		}
	} else if err := json.Unmarshal(raw, &byName); err != nil {
		return "", fmt.Errorf("%s: got %s, want a string or named templates", key,
			checkpoint.Excerpt(raw))
	}
	t, ok := byName[want]
	if !ok {
		return "", fmt.Errorf("%s: got %d named templates, want one called %s", key, len(byName),
			want)
	}
	return t, nil
}
