package chat

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Find looks for a checkpoint's chat template in the files that may hold one.
// file returns a file's content, ok false when there is none, as a checkpoint's
// File does. The first of these wins, the order of release 5.23 of the reference
// for processors, with the tokenizer's own template last:
//
//	processor_config.json, chat_template.json, chat_template.jinja, tokenizer_config.json
//
// source is the file's name. Without any template both are empty and err is nil.
func Find(file func(name string) ([]byte, bool, error)) (template, source string, err error) {
	for _, name := range []string{"processor_config.json", "chat_template.json", "chat_template.jinja", "tokenizer_config.json"} {
		data, ok, err := file(name)
		if err != nil {
			return "", "", err
		}
		if !ok {
			continue
		}
		template := ""
		if name == "chat_template.jinja" {
			if !utf8.Valid(data) {
				return "", "", fmt.Errorf("chat: %s: got invalid UTF-8, want text", name)
			}
			template = string(data)
		} else if template, err = FromJSON(data); err != nil {
			return "", "", fmt.Errorf("chat: %s: %w", name, err)
		}
		if template != "" {
			return template, name, nil
		}
	}
	return "", "", nil
}

// FromJSON returns the chat_template of a JSON object: a string, or named
// templates, as a list of {"name", "template"} or an object, of which default is
// taken. It is "" when the key is absent or null.
func FromJSON(data []byte) (string, error) {
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
		return "", fmt.Errorf("%s: got %s, want a string or named templates", key, excerpt(raw))
	}
	t, ok := byName[want]
	if !ok {
		return "", fmt.Errorf("%s: got %d named templates, want one called %s", key, len(byName), want)
	}
	return t, nil
}
