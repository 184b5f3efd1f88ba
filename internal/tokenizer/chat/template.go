package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/jinja"
)

// Template is a parsed chat template. It is immutable and safe for concurrent use.
type Template struct {
	t      *jinja.Template
	values map[string]any // available in every rendering
}

// Options are a template's input in addition to the messages.
type Options struct {
	// AddGenerationPrompt adds the beginning of the assistant's turn at the end.
	AddGenerationPrompt bool
	// ContinueFinalMessage ends the prompt after the last message's text, without the template's
	// ending, so that the model continues it.
	ContinueFinalMessage bool
	// AddVisionID numbers pictures ("Picture 1: "), if the template supports it.
	AddVisionID bool
	// Tools is a JSON array of tool descriptions, or nil.
	Tools json.RawMessage
	// SpecialTokens maps names such as bos_token to their texts.
	SpecialTokens map[string]string
	// KeepStrings passes content to the template unchanged. Otherwise a string whose text the
	// template does not print becomes one text part (many templates silently drop a string), and
	// text parts whose texts it does not print become one string, if it prints that.
	KeepStrings bool
	// Now is the time that strftime_now uses; zero means the clock.
	Now time.Time
}

// Segment is a piece of a prompt. User is set if the text came from messages or tools: then it
// contains no control tokens. A tokenizer that joins letters across pieces must encode adjacent
// pieces together, and look for control tokens piece by piece.
type Segment struct {
	Text string
	User bool
}

// RefusedError is returned when a template refuses messages, for example because their roles do not
// alternate. Other errors of a template are its own faults.
type RefusedError = jinja.RaisedError

// Parse reads a template. It checks tags and expressions; whether filters, tests and names exist is
// checked only when they are used.
func Parse(template string) (*Template, error) {
	t, err := jinja.Parse(template)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return &Template{t: t}, nil
}

// Render returns the prompt for messages; there must be at least one.
func (t *Template) Render(msgs []Message, o Options) (string, error) {
	s, err := t.render(msgs, o)
	return s.String(), err
}

// RenderSegments returns the same text, split into the template's and the caller's text. No segment
// is empty, and adjacent segments differ in User.
func (t *Template) RenderSegments(msgs []Message, o Options) ([]Segment, error) {
	s, err := t.render(msgs, o)
	return segments(s), err
}

func (t *Template) render(msgs []Message, o Options) (jinja.Text, error) {
	if len(msgs) == 0 {
		return jinja.Text{}, errors.New("chat: messages: got none, want at least one")
	}
	if o.AddGenerationPrompt && o.ContinueFinalMessage {
		return jinja.Text{}, errors.New(
			"chat: options: got both a generation prompt and a message to continue, want " +
				"one of them")
	}
	vars := maps.Clone(t.values)
	if vars == nil {
		vars = map[string]any{}
	}
	for name, token := range o.SpecialTokens {
		vars[name] = jinja.Plain(token)
	}
	vars["tools"], vars["documents"] = nil, nil
	vars["add_generation_prompt"] = o.AddGenerationPrompt
	if o.AddVisionID {
		vars["add_vision_id"] = true
	}
	if o.Tools != nil {
		v, err := jinja.FromJSON(o.Tools)
		if err != nil {
			return jinja.Text{}, fmt.Errorf("chat: tools: %w", err)
		}
		vars["tools"] = v
	}
	var now func() time.Time
	if !o.Now.IsZero() {
		now = func() time.Time { return o.Now }
	}
	turn := make([]bool, len(msgs))
	if !o.KeepStrings {
		turn = t.turns(msgs, vars, now)
	}
	list, err := values(msgs, turn)
	if err != nil {
		return jinja.Text{}, err
	}
	if !o.ContinueFinalMessage {
		return t.run(list, vars, now)
	}
	mark := unusedMarks(msgs)(0)
	final, err := appendToFinal(list[len(list)-1].(*jinja.Dict), mark+" ")
	if err != nil {
		return jinja.Text{}, err
	}
	out, err := t.run(list, vars, now)
	if err != nil {
		return jinja.Text{}, err
	}
	return cutAt(out, mark, final)
}

// turns reports which messages' content the template reads only in the form that it does not have:
// a string as one text part, or text parts as a string. It renders messages whose texts are marks,
// so that neither chance nor what a text says plays a part. A mark in a printed list is escaped.
func (t *Template) turns(msgs []Message, vars map[string]any, now func() time.Time) []bool {
	mark := unusedMarks(msgs)
	marked := make([]Message, len(msgs))
	for i, m := range msgs {
		marked[i] = m.withTexts(mark(i))
	}
	// missing reports which texts are not printed.
	missing := func(turn []bool) (missing []bool, err error) {
		list, err := values(marked, turn)
		if err != nil {
			return nil, err
		}
		out, err := t.run(list, vars, now)
		text := out.String()
		for i, m := range msgs {
			missing = append(missing, m.onlyText() && !strings.Contains(text, mark(i)))
		}
		return missing, err
	}
	// A template may fail on a form: then all messages get one form.
	given, asStrings, asParts := make([]bool, len(msgs)), make([]bool, len(msgs)),
		make([]bool, len(msgs))
	for i, m := range msgs {
		asStrings[i], asParts[i] = m.onlyText() && !m.isString(), m.isString()
	}
	for _, turn := range [][]bool{given, asStrings, asParts} {
		absent, err := missing(turn)
		switch {
		case err != nil:
			continue
		case !slices.Contains(absent, true):
			return turn
		}
		other := slices.Clone(turn)
		for i := range absent {
			other[i] = turn[i] != absent[i]
		}
		if still, err := missing(other); err == nil {
			for i := range absent {
				if absent[i] && !still[i] {
					turn[i] = other[i]
				}
			}
		}
		return turn
	}
	return given
}

// values returns the messages as a template sees them, with the content of some turned into its
// other form.
func values(msgs []Message, turn []bool) ([]any, error) {
	list := make([]any, len(msgs))
	for i, m := range msgs {
		v, err := m.value(turn[i])
		if err != nil {
			return nil, fmt.Errorf("chat: message %d: %w", i, err)
		}
		list[i] = v
	}
	return list, nil
}

// run renders the template.
func (t *Template) run(
	messages []any, vars map[string]any, now func() time.Time,
) (jinja.Text, error) {
	vars["messages"] = jinja.NewList(messages...)
	out, err := t.t.Render(vars, now)
	if err != nil {
		return out, fmt.Errorf("chat: %w", err)
	}
	return out, nil
}

// segments splits a text into segments.
func segments(t jinja.Text) []Segment {
	var out []Segment
	for _, s := range t.Segments() {
		out = append(out, Segment(s))
	}
	return out
}

// unusedMarks returns words that occur in no message, by number.
func unusedMarks(msgs []Message) func(i int) string {
	for n := 0; ; n++ {
		begin := fmt.Sprintf("\uE000%d\uE001", n) // private use
		used := slices.ContainsFunc(msgs, func(m Message) bool {
			return slices.ContainsFunc(m.Content, func(p Part) bool {
				return strings.Contains(p.Text, begin)
			})
		})
		if !used {
			return func(i int) string { return fmt.Sprintf("%s%d\uE002", begin, i) }
		}
	}
}

// appendToFinal adds a mark to the last text of the last message and returns the original text.
func appendToFinal(m *jinja.Dict, mark string) (final string, err error) {
	content, _ := m.Get("content")
	switch content := content.(type) {
	case jinja.Text:
		m.Set(jinja.Plain("content"), jinja.Concat(content, jinja.FromUser(mark)))
		return content.String(), nil
	case *jinja.List:
		for _, item := range slices.Backward(content.Items()) {
			part := item.(*jinja.Dict)
			if v, ok := part.Get("text"); ok {
				text := v.(jinja.Text)
				part.Set(jinja.Plain("text"), jinja.Concat(text, jinja.FromUser(mark)))
				return text.String(), nil
			}
		}
	}
	return "", errors.New("chat: last message: got no text to continue, want a text part")
}

// cutAt ends the prompt before the mark. A space followed the mark: if it is gone, the template
// trims texts, so spaces before the mark are removed too.
func cutAt(out jinja.Text, mark, final string) (jinja.Text, error) {
	text := out.String()
	i := strings.LastIndex(text, mark)
	if i < 0 || !strings.Contains(text, strings.TrimFunc(final, jinja.IsSpace)) {
		return jinja.Text{}, errors.New(
			"chat: last message: its text is not in the prompt, so it cannot be continued " +
				"(the template drops or changes it)")
	}
	cut := out.Slice(0, i)
	if !strings.HasPrefix(text[i+len(mark):], " ") {
		cut = cut.TrimRight()
	}
	return cut, nil
}
