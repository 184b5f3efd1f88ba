package jinja

import (
	"fmt"
	"time"

	"github.com/restore-vlm/restore/internal/pytext"
)

// maxTemplate is the most bytes of a template. The longest one in use has about 20 kB.
const maxTemplate = 1 << 20

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct{ body []stmt }

// Parse reads a template. It checks tags and expressions; whether filters, tests and names exist is
// checked only when they are used.
func Parse(text string) (*Template, error) {
	if len(text) > maxTemplate {
		return nil, fmt.Errorf("template: got %d bytes, want at most %d", len(text), maxTemplate)
	}
	body, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	return &Template{body}, nil
}

// Render returns the template's text for values by name: nil, bool, int64, float64, Text, *List or
// *Dict. now returns the time; nil means the clock.
func (t *Template) Render(values map[string]any, now func() time.Time) (Text, error) {
	if now == nil {
		now = time.Now
	}
	vars := globals()
	for name, v := range values {
		vars[name] = v
	}
	out, err := (&interp{now: now}).run(t.body, vars)
	if err != nil {
		return Text{}, fmt.Errorf("template: %w", err)
	}
	return out, nil
}

// Segment is a piece of a text. User is set if it came from the caller.
type Segment struct {
	Text string
	User bool
}

// String returns the text.
func (t Text) String() string { return t.s }

// TrimRight returns the text without white space, as Python defines it, at its end.
func (t Text) TrimRight() Text { return t.trim("", false, true) }

// IsSpace reports whether r is white space in Python.
func IsSpace(r rune) bool { return pytext.IsSpace(r) }

// NewList returns a list of values.
func NewList(items ...any) *List {
	l := &List{}
	for _, v := range items {
		l.items = append(l.items, v)
	}
	return l
}

// Items returns a list's values.
func (l *List) Items() []any {
	out := make([]any, len(l.items))
	for i, v := range l.items {
		out[i] = v
	}
	return out
}

// Set stores v under a key.
func (d *Dict) Set(key Text, v any) { d.set(key, v) }

// Get returns the value of a key.
func (d *Dict) Get(key string) (any, bool) { return d.name(key) }

// ToJSON writes a value like the filter tojson.
func ToJSON(v any) ([]byte, error) {
	filter := outStmt{e: &filterExpr{x: &literal{v}, name: "tojson"}}
	text, err := (&interp{}).run([]stmt{filter}, nil)
	if err != nil {
		return nil, err
	}
	return []byte(text.s), nil
}
