package jinja

import (
	"encoding/json"
	"fmt"
	"time"
)

// maxTemplate is the longest template, in bytes. The longest that is in use has about 20 kB.
const maxTemplate = 1 << 20

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct{ body []stmt }

// Parse reads a template. Tags and expressions are checked; that filters, tests and names exist
// is seen when they are used.
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

// Render returns the template's text for values by name: nil, bool, int64, float64, Text, *List
// or *Dict. now tells the time; nil is the clock.
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

// Segment is a piece of a text. User is set when it came from the caller.
type Segment struct {
	Text string
	User bool
}

// Plain is a text of the template's own.
func Plain(s string) Text { return plain(s) }

// FromUser is a text of the caller's.
func FromUser(s string) Text { return tainted(s) }

// String returns the text.
func (t Text) String() string { return t.s }

// Segments splits the text where it changes whose it is. No segment is empty.
func (t Text) Segments() []Segment { return t.segments() }

// Slice returns the bytes [a, b).
func (t Text) Slice(a, b int) Text { return t.slice(a, b) }

// TrimRight returns the text without the white space at its end, as Python has it.
func (t Text) TrimRight() Text { return t.trim("", false, true) }

// Concat joins texts.
func Concat(parts ...Text) Text { return concat(parts...) }

// IsSpace reports whether Python takes r for white space.
func IsSpace(r rune) bool { return isSpace(r) }

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

// NewDict returns an empty dict, which keeps the order in which keys are set.
func NewDict() *Dict { return newDict() }

// Set stores v under a key.
func (d *Dict) Set(key Text, v any) { d.set(key, v) }

// Get returns the value of a key.
func (d *Dict) Get(key string) (any, bool) { return d.name(key) }

// FromJSON returns the value of JSON text. Its strings are the caller's, objects keep their
// order, and integers beyond 64 bits become floats.
func FromJSON(raw json.RawMessage) (any, error) { return decodeJSON(raw) }

// ToJSON writes a value as the filter tojson does.
func ToJSON(v any) ([]byte, error) {
	text, err := (&interp{}).run([]stmt{outStmt{e: &filterExpr{x: &literal{v}, name: "tojson"}}},
		nil)
	if err != nil {
		return nil, err
	}
	return []byte(text.s), nil
}
