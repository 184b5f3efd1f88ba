package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/jinja"
)

// Part is one piece of a message's content: text, or a placeholder such as an image. JSON keys
// other than type and text are kept for the template.
type Part struct {
	Type  string // "text", "image", "video", …
	Text  string
	Extra []Field

	order []string // the keys in the order of the JSON; nil for a Part made in Go
}

// Field is a JSON key that has no field of its own.
type Field struct {
	Name  string
	Value json.RawMessage
}

// Message is one turn. In JSON the content is a string or an array of parts;
// Content holds either as parts. Keys other than role and content (name,
// tool_calls, tool_call_id, …) are kept for the template.
type Message struct {
	Role    string // "system", "user", "assistant", "tool", …
	Content []Part
	Extra   []Field

	order []string // the keys in the order of the JSON; nil for a Message made in Go
	form  contentForm
}

// contentForm is the form of the content in JSON.
type contentForm uint8

const (
	formParts  contentForm = iota // an array, or a Message made in Go
	formString                    // one string
	formNull                      // null
	formAbsent                    // no such key
)

// UnmarshalJSON reads an object whose type and text, if present, are strings.
func (p *Part) UnmarshalJSON(b []byte) error {
	fields, err := objectFields(b)
	if err != nil {
		return fmt.Errorf("chat: part: %w", err)
	}
	*p = Part{order: []string{}}
	for _, f := range fields {
		p.order = append(p.order, f.Name)
		switch f.Name {
		case "type":
			p.Type, err = stringField("part", f)
		case "text":
			p.Text, err = stringField("part", f)
		default:
			p.Extra = append(p.Extra, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// UnmarshalJSON reads an object with a role and a content: a string, an array of
// parts, or null.
func (m *Message) UnmarshalJSON(b []byte) error {
	fields, err := objectFields(b)
	if err != nil {
		return fmt.Errorf("chat: message: %w", err)
	}
	*m = Message{order: []string{}, form: formAbsent}
	for _, f := range fields {
		m.order = append(m.order, f.Name)
		switch f.Name {
		case "role":
			m.Role, err = stringField("message", f)
		case "content":
			err = m.setContent(f)
		default:
			m.Extra = append(m.Extra, f)
		}
		if err != nil {
			return err
		}
	}
	if m.Role == "" {
		return fmt.Errorf("chat: message: role missing, want user, assistant, system or another")
	}
	return nil
}

func (m *Message) setContent(f Field) error {
	switch f.Value[0] {
	case '"':
		text, err := stringField("message", f)
		m.form, m.Content = formString, []Part{{Type: "text", Text: text}}
		return err
	case '[':
		m.form = formParts
		return json.Unmarshal(f.Value, &m.Content)
	case 'n':
		m.form = formNull
		return nil
	}
	return fmt.Errorf("chat: message: content: got %s, want a string or an array of parts",
		excerpt(f.Value))
}

// MarshalJSON writes the input of UnmarshalJSON: a content that was a string is a string again, and
// all other keys are included.
func (p Part) MarshalJSON() ([]byte, error) {
	v, err := p.value()
	return marshalValue(v, err)
}

// MarshalJSON is like [Part.MarshalJSON].
func (m Message) MarshalJSON() ([]byte, error) {
	v, err := m.value(false)
	return marshalValue(v, err)
}

func marshalValue(v any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	out, err := jinja.ToJSON(v)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return out, nil
}

// stringField reads a field that must be a string.
func stringField(what string, f Field) (s string, err error) {
	if json.Unmarshal(f.Value, &s) != nil || f.Value[0] != '"' {
		err = fmt.Errorf("chat: %s: %s: got %s, want a string", what, f.Name, excerpt(f.Value))
	}
	return s, err
}

// objectFields returns the fields of a JSON object in order; for a repeated key, the last value.
func objectFields(b []byte) ([]Field, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('{') {
		return nil, fmt.Errorf("got %s, want an object", excerpt(b))
	}
	var fields []Field
	at := map[string]int{}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		f := Field{Name: k.(string)}
		if err := d.Decode(&f.Value); err != nil {
			return nil, err
		}
		if i, ok := at[f.Name]; ok {
			fields[i] = f
			continue
		}
		at[f.Name] = len(fields)
		fields = append(fields, f)
	}
	return fields, nil
}

// excerpt returns the beginning of text, for an error.
func excerpt(b []byte) string {
	const limit = 40
	if len(b) > limit {
		return string(bytes.ToValidUTF8(b[:limit], nil)) + "…"
	}
	return string(b)
}

// value returns the part as a template sees it. A part made in Go has type unless it is empty, and
// text if it is a text part or has text.
func (p Part) value() (*jinja.Dict, error) {
	own := func(name string) (any, bool) {
		switch name {
		case "type":
			return trustedWord(p.Type), p.Type != "" || slices.Contains(p.order, name)
		case "text":
			return jinja.FromUser(p.Text), p.Text != "" || slices.Contains(p.order, name) ||
				p.order == nil && p.Type == "text"
		}
		return nil, false
	}
	return objectValue(p.order, []string{"type", "text"}, own, p.Extra)
}

// value returns the message as a template sees it. If turned, a string is one text part instead,
// and text parts are one string, with a line for each.
func (m Message) value(turned bool) (*jinja.Dict, error) {
	var content any
	switch {
	case m.form == formNull && len(m.Content) == 0:
	case m.isString() != turned:
		texts := make([]string, len(m.Content))
		for i, p := range m.Content {
			texts[i] = p.Text
		}
		content = jinja.FromUser(strings.Join(texts, "\n"))
	default:
		var parts []any
		for _, p := range m.Content {
			v, err := p.value()
			if err != nil {
				return nil, err
			}
			parts = append(parts, v)
		}
		content = jinja.NewList(parts...)
	}
	own := func(name string) (any, bool) {
		if name == "role" {
			return trustedWord(m.Role), true
		}
		return content, m.form != formAbsent || len(m.Content) > 0
	}
	return objectValue(m.order, []string{"role", "content"}, own, m.Extra)
}

// isString reports whether the content is a string.
func (m Message) isString() bool { return m.form == formString && len(m.Content) == 1 }

// onlyText reports whether the content has only text.
func (m Message) onlyText() bool {
	return len(m.Content) > 0 &&
		!slices.ContainsFunc(m.Content, func(p Part) bool { return p.Type != "text" })
}

// withTexts returns the message with text in place of each of its texts.
func (m Message) withTexts(text string) Message {
	m.Content = slices.Clone(m.Content)
	for i := range m.Content {
		if p := &m.Content[i]; p.Type == "text" || p.Text != "" {
			p.Text = text
		}
	}
	return m
}

// objectValue builds a dict in the order of the original JSON, followed by new keys.
func objectValue(
	order, names []string,
	own func(string) (any, bool),
	extra []Field,
) (*jinja.Dict, error) {
	d := jinja.NewDict()
	byName := make(map[string]json.RawMessage, len(extra))
	for _, f := range extra {
		byName[f.Name] = f.Value
	}
	add := func(name string) error {
		if slices.Contains(names, name) {
			if v, ok := own(name); ok {
				d.Set(trustedWord(name), v)
			}
			return nil
		}
		raw, ok := byName[name]
		if !ok {
			return nil
		}
		v, err := jinja.FromJSON(raw)
		if err != nil {
			return fmt.Errorf("chat: %s: %w", name, err)
		}
		d.Set(jinja.FromUser(name), v)
		return nil
	}
	for _, name := range order {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		if _, ok := d.Get(name); !ok {
			if err := add(name); err != nil {
				return nil, err
			}
		}
	}
	for _, f := range extra {
		if _, ok := d.Get(f.Name); !ok {
			if err := add(f.Name); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// trustedWord marks the common roles, types and keys as the template's: they are constants of the
// format, and a tokenizer may join them with adjacent text. Any other word is the caller's.
func trustedWord(s string) jinja.Text {
	switch s {
	case "system", "user", "assistant", "tool", "developer", "function",
		"text", "image", "image_url", "video", "audio", "type", "role", "content":
		return jinja.Plain(s)
	}
	return jinja.FromUser(s)
}
