package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// maxTemplate is the longest template, in bytes. The longest that is in use has
// about 20 kB.
const maxTemplate = 1 << 20

// Template is a parsed chat template. It is immutable and safe for concurrent use.
type Template struct {
	body  []stmt
	reads contentReads
}

// Options are what a template is told beside the messages.
type Options struct {
	// AddGenerationPrompt asks for the opening of the assistant's turn at the end.
	AddGenerationPrompt bool
	// ContinueFinalMessage ends the prompt behind the last message's text, without
	// what the template adds there, so that the model goes on with it.
	ContinueFinalMessage bool
	// AddVisionID asks for numbered pictures ("Picture 1: "), where a template has them.
	AddVisionID bool
	// Tools is a JSON array of tool descriptions, or nil.
	Tools json.RawMessage
	// SpecialTokens are names such as bos_token and what they stand for.
	SpecialTokens map[string]string
	// KeepStrings hands content to the template as it was written. Otherwise a
	// string becomes one text part, unless the template tests for strings or uses
	// content only as text (many templates drop a string without a word), and for
	// a template of the latter kind text parts become one string.
	KeepStrings bool
	// Now is what strftime_now tells; zero means the clock.
	Now time.Time
}

// Segment is a piece of a prompt. User is set when the text came from messages or
// tools: then nothing in it is a control token. A tokenizer that joins letters
// across pieces must encode neighbours together and only look for control tokens
// piece by piece.
type Segment struct {
	Text string
	User bool
}

// Parse reads a template. Tags and expressions are checked; that filters, tests
// and names exist is seen when they are used.
func Parse(template string) (*Template, error) {
	if len(template) > maxTemplate {
		return nil, fmt.Errorf("chat: template: got %d bytes, want at most %d", len(template), maxTemplate)
	}
	body, err := parse(template)
	if err != nil {
		return nil, fmt.Errorf("chat: template: %w", err)
	}
	return &Template{body, reads(body)}, nil
}

// Render returns the prompt for messages, of which there must be one at least.
func (t *Template) Render(msgs []Message, o Options) (string, error) {
	s, err := t.render(msgs, o)
	return s.s, err
}

// RenderSegments returns the same text, split into what the template wrote and
// what came from the caller. No segment is empty, and neighbours differ in User.
func (t *Template) RenderSegments(msgs []Message, o Options) ([]Segment, error) {
	s, err := t.render(msgs, o)
	return s.segments(), err
}

func (t *Template) render(msgs []Message, o Options) (str, error) {
	if len(msgs) == 0 {
		return str{}, errors.New("chat: messages: got none, want at least one")
	}
	if o.AddGenerationPrompt && o.ContinueFinalMessage {
		return str{}, errors.New("chat: options: got both a generation prompt and a message to continue, want one of them")
	}
	form := t.reads
	if o.KeepStrings {
		form = readsBoth
	}
	list := &list{}
	for i, m := range msgs {
		v, err := m.value(form)
		if err != nil {
			return str{}, fmt.Errorf("chat: message %d: %w", i, err)
		}
		list.items = append(list.items, v)
	}
	vars := globals()
	for name, token := range o.SpecialTokens {
		vars[name] = plain(token)
	}
	vars["messages"] = list
	vars["tools"], vars["documents"] = nil, nil
	vars["add_generation_prompt"] = o.AddGenerationPrompt
	if o.AddVisionID {
		vars["add_vision_id"] = true
	}
	if o.Tools != nil {
		v, err := decodeJSON(o.Tools)
		if err != nil {
			return str{}, fmt.Errorf("chat: tools: %w", err)
		}
		vars["tools"] = v
	}
	in := &interp{now: time.Now}
	if !o.Now.IsZero() {
		in.now = func() time.Time { return o.Now }
	}
	if !o.ContinueFinalMessage {
		out, err := in.run(t.body, vars)
		if err != nil {
			return str{}, fmt.Errorf("chat: template: %w", err)
		}
		return out, nil
	}
	mark := unusedMark(msgs)
	final, err := appendToFinal(list, mark+" ")
	if err != nil {
		return str{}, err
	}
	out, err := in.run(t.body, vars)
	if err != nil {
		return str{}, fmt.Errorf("chat: template: %w", err)
	}
	return cutAt(out, mark, final)
}

// unusedMark returns a word that no message has in it.
func unusedMark(msgs []Message) string {
	for n := 0; ; n++ {
		mark := fmt.Sprintf("\uE000%d\uE001", n) // private use
		used := false
		for _, m := range msgs {
			for _, p := range m.Content {
				used = used || strings.Contains(p.Text, mark)
			}
		}
		if !used {
			return mark
		}
	}
}

// appendToFinal adds a mark to the last text of the last message and returns that
// text as it was.
func appendToFinal(msgs *list, mark string) (final string, err error) {
	m := msgs.items[len(msgs.items)-1].(*dict)
	content, _ := m.name("content")
	switch content := content.(type) {
	case str:
		m.set(plain("content"), concat(content, tainted(mark)))
		return content.s, nil
	case *list:
		for i := len(content.items) - 1; i >= 0; i-- {
			part := content.items[i].(*dict)
			if v, ok := part.name("text"); ok {
				part.set(plain("text"), concat(v.(str), tainted(mark)))
				return v.(str).s, nil
			}
		}
	}
	return "", errors.New("chat: last message: got no text to continue, want a text part")
}

// cutAt ends the prompt before the mark. The mark was followed by a blank: when
// that is gone, the template trims texts, and blanks before the mark go too.
func cutAt(out str, mark, final string) (str, error) {
	i := strings.LastIndex(out.s, mark)
	if i < 0 || !strings.Contains(out.s, strings.TrimFunc(final, isSpace)) {
		return str{}, errors.New("chat: last message: its text is not in the prompt, so it cannot be continued (the template drops or changes it)")
	}
	cut := out.slice(0, i)
	if !strings.HasPrefix(out.s[i+len(mark):], " ") {
		cut = cut.trim("", false, true)
	}
	return cut, nil
}
