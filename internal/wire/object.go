package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Object is a JSON object of a body. Its readers return the zero value for absent fields and record
// the first error; Err returns it.
type Object struct {
	body   *document
	path   string // "" for the body
	keys   []string
	fields map[string]json.RawMessage // without nulls
	read   map[string]bool
	err    **Error // first error of the whole body
}

// Parse reads a body: one JSON object in UTF-8.
func Parse(data []byte) (*Object, error) {
	if i := invalidUTF8(data); i >= 0 {
		return nil, Bad("invalid_json", "", "invalid JSON at byte %d: not UTF-8", i+1)
	}
	b := &document{data, map[int]longString{}}
	if err := b.check(); err != nil {
		return nil, err
	}
	var e *Error
	o := &Object{body: b, err: &e}
	o.fill(data)
	if e != nil {
		return nil, e
	}
	return o, nil
}

func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// check finds the first byte that is not valid JSON, and the long strings.
func (b *document) check() *Error {
	data := b.data
	s := scanner{data: data, body: b}
	if s.value(0) && s.space() != 0 {
		s.fail("data after the first value")
	}
	if s.err != "" || s.at < len(data) {
		return Bad("invalid_json", "", "invalid JSON at byte %d: %s", min(s.at+1, len(data)), s.err)
	}
	return nil
}

// fill reads the members of an object.
func (o *Object) fill(data json.RawMessage) {
	o.fields, o.read = map[string]json.RawMessage{}, map[string]bool{}
	if Kind(data) != "an object" {
		o.fail("invalid_type", o.path, "got %s, want an object", Describe(data))
		return
	}
	s := o.body.scanner(data)
	s.space()
	s.members(0, '}', func() bool {
		s.space()
		start := s.at
		s.text()
		name, _ := o.body.bytes(data[start:s.at])
		key := string(name)
		s.space()
		s.at++
		raw := s.next()
		if !slices.Contains(o.keys, key) && len(o.keys) < maxKeys {
			o.keys = append(o.keys, key)
		}
		if delete(o.fields, key); Kind(raw) != "null" {
			o.fields[key] = raw
		}
		return true
	})
}

// next returns the next value of JSON that was checked before.
func (s *scanner) next() json.RawMessage {
	s.space()
	start := s.at
	s.value(0)
	return s.data[start:s.at]
}

// maxKeys limits the field names that are remembered in order.
const maxKeys = 1000

// Kind names the type of a JSON value.
func Kind(data json.RawMessage) string {
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) == 0 {
		return "nothing"
	}
	switch data[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// Describe shows a value in an error.
func Describe(data json.RawMessage) string {
	kind := Kind(data)
	if kind == "an object" || kind == "a list" || kind == "nothing" {
		return kind
	}
	return Clip(string(bytes.TrimSpace(data)))
}

// Err returns the first error in the whole body.
func (o *Object) Err() error {
	if *o.err == nil {
		return nil
	}
	return *o.err
}

// Fail records an error about a field, unless there was one before.
func (o *Object) Fail(code, name, format string, args ...any) {
	o.fail(code, o.Path(name), format, args...)
}

func (o *Object) fail(code, path, format string, args ...any) {
	if *o.err == nil {
		*o.err = Bad(code, path, format, args...)
	}
}

// Lack records that the model cannot do what a field requests. The text does not name the field, as
// in other servers.
func (o *Object) Lack(name, format string, args ...any) {
	if *o.err == nil {
		*o.err = New(http.StatusBadRequest, "unsupported_parameter", o.Path(name), format, args...)
	}
}

// Path returns the path of a field, or of the object itself for "".
func (o *Object) Path(name string) string {
	switch {
	case o.path == "":
		return name
	case name == "":
		return o.path
	}
	return o.path + "." + name
}

// Has reports whether a field is there and not null.
func (o *Object) Has(name string) bool {
	_, ok := o.fields[name]
	return ok
}

// Raw returns a field as written, nil if it is absent.
func (o *Object) Raw(name string) json.RawMessage {
	o.read[name] = true
	return o.fields[name]
}

// Ignore marks fields as known.
func (o *Object) Ignore(names ...string) {
	for _, name := range names {
		o.read[name] = true
	}
}

// Unread lists the fields that were never read, in their order.
func (o *Object) Unread() []string {
	var out []string
	for _, key := range o.keys {
		if o.Has(key) && !o.read[key] {
			out = append(out, key)
		}
	}
	return out
}

// Names returns the fields that are present and not null, in their order.
func (o *Object) Names() []string {
	var out []string
	for _, key := range o.keys {
		if o.Has(key) {
			out = append(out, key)
		}
	}
	return out
}

// Require records an error if a field is missing.
func (o *Object) Require(name, want string) bool {
	if o.Has(name) {
		return true
	}
	o.Fail("missing_required_parameter", name, "missing, want %s", want)
	return false
}

// String reads a string.
func (o *Object) String(name string) string {
	return string(o.Bytes(name))
}

// Bytes reads a string like String. The bytes may be part of the body.
func (o *Object) Bytes(name string) []byte {
	raw := o.Raw(name)
	if raw == nil {
		return nil
	}
	s, ok := o.body.bytes(raw)
	if !ok {
		o.Fail("invalid_type", name, "got %s, want a string", Describe(raw))
	}
	return s
}

// bytes decodes a string of the body. A string without escapes is not copied.
func (b *document) bytes(raw json.RawMessage) ([]byte, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return nil, false
	}
	plain := false
	if len(raw) >= longBytes {
		plain = b.long[b.at(raw)].plain
	} else {
		plain = bytes.IndexByte(raw, '\\') < 0
	}
	if plain {
		return raw[1 : len(raw)-1], true
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return []byte(s), err == nil
}

// Bool reads a boolean.
func (o *Object) Bool(name string) bool {
	raw := o.Raw(name)
	if raw == nil {
		return false
	}
	if Kind(raw) != "a boolean" {
		o.Fail("invalid_type", name, "got %s, want true or false", Describe(raw))
	}
	return string(bytes.TrimSpace(raw)) == "true"
}

// Int reads a whole number between least and most. A number that does not fit into int64 counts as
// the nearest one that does.
func (o *Object) Int(name string, least, most int64) (n int64, given bool) {
	raw := o.Raw(name)
	if raw == nil {
		return 0, false
	}
	s := string(bytes.TrimSpace(raw))
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && (Kind(raw) != "a number" || !errors.Is(err, strconv.ErrRange)) {
		o.Fail("invalid_type", name, "got %s, want an integer", Describe(raw))
		return 0, false
	}
	switch {
	case n < least:
		o.Fail("integer_below_min_value", name, "got %s, want at least %d", Clip(s), least)
	case n > most:
		o.Fail("integer_above_max_value", name, "got %s, want at most %d", Clip(s), most)
	}
	return n, true
}

// Exact records an error if a whole number does not fit into int64.
func (o *Object) Exact(name string) {
	raw := o.fields[name]
	if raw == nil {
		return
	}
	s := string(bytes.TrimSpace(raw))
	if _, err := strconv.ParseInt(s, 10, 64); errors.Is(err, strconv.ErrRange) {
		code, want := "integer_above_max_value", "at most "+strconv.FormatInt(math.MaxInt64, 10)
		if s[0] == '-' {
			code, want = "integer_below_min_value", "at least "+strconv.FormatInt(math.MinInt64, 10)
		}
		o.Fail(code, name, "got %s, want %s", Clip(s), want)
	}
}

// Float reads a number between least and most; above says that least itself is too
// small.
func (o *Object) Float(name string, least, most float64, above bool) (v float64, given bool) {
	raw := o.Raw(name)
	if raw == nil {
		return 0, false
	}
	s := string(bytes.TrimSpace(raw))
	v, err := strconv.ParseFloat(s, 64)
	if Kind(raw) != "a number" || err != nil && !errors.Is(err, strconv.ErrRange) {
		o.Fail("invalid_type", name, "got %s, want a number", Describe(raw))
		return 0, false
	}
	switch {
	case v < least:
		o.Fail("decimal_below_min_value", name, "got %s, want at least %v", Clip(s), least)
	case above && v <= least:
		o.Fail("decimal_below_min_value", name, "got %s, want more than %v", Clip(s), least)
	case v > most:
		o.Fail("decimal_above_max_value", name, "got %s, want at most %v", Clip(s), most)
	}
	return v, true
}

// Object reads an object; nil if it is absent.
func (o *Object) Object(name string) *Object {
	raw := o.Raw(name)
	if raw == nil {
		return nil
	}
	return o.child(raw, o.Path(name))
}

func (o *Object) child(raw json.RawMessage, path string) *Object {
	c := &Object{body: o.body, path: path, err: o.err}
	c.fill(raw)
	return c
}

// List reads a list; nil where it is absent. Its items are read by Item and Text.
func (o *Object) List(name string) *List {
	raw := o.Raw(name)
	if raw == nil {
		return nil
	}
	if Kind(raw) != "a list" {
		o.Fail("invalid_type", name, "got %s, want a list", Describe(raw))
		return nil
	}
	l := &List{o: o, path: o.Path(name)}
	s := o.body.scanner(raw)
	s.space()
	s.members(0, ']', func() bool {
		l.items = append(l.items, s.next())
		return true
	})
	return l
}

// List is a list of a body.
type List struct {
	o     *Object
	path  string
	items []json.RawMessage
}

// Len returns the number of items, 0 of a list that is absent.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return len(l.items)
}

// Path returns the path of an item.
func (l *List) Path(i int) string { return l.path + "[" + strconv.Itoa(i) + "]" }

// Raw returns an item as it was written.
func (l *List) Raw(i int) json.RawMessage { return l.items[i] }

// Object reads an item that is an object.
func (l *List) Object(i int) *Object { return l.o.child(l.items[i], l.Path(i)) }

// Text reads an item that is a string.
func (l *List) Text(i int) string { return string(l.Bytes(i)) }

// Bytes reads an item like Text. The bytes may be part of the body.
func (l *List) Bytes(i int) []byte {
	s, ok := l.o.body.bytes(l.items[i])
	if !ok {
		l.Fail("invalid_type", i, "got %s, want a string", Describe(l.items[i]))
	}
	return s
}

// Int reads an item that is a whole number between least and most.
func (l *List) Int(i int, least, most int64) int64 {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(l.items[i])), 10, 64)
	switch {
	case err != nil:
		l.Fail("invalid_type", i, "got %s, want an integer", Describe(l.items[i]))
	case n < least:
		l.Fail("integer_below_min_value", i, "got %d, want at least %d", n, least)
	case n > most:
		l.Fail("integer_above_max_value", i, "got %d, want at most %d", n, most)
	}
	return n
}

// Fail records an error about an item.
func (l *List) Fail(code string, i int, format string, args ...any) {
	l.o.fail(code, l.Path(i), format, args...)
}

// IsEmpty reports whether a value is one of null, false, {} and [].
func IsEmpty(raw json.RawMessage) bool {
	s := strings.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
			return -1
		}
		return r
	}, string(raw))
	return s == "" || s == "null" || s == "false" || s == "{}" || s == "[]"
}

// List reads an item that is a list.
func (l *List) List(i int) *List {
	c := &Object{body: l.o.body, path: l.Path(i), err: l.o.err, read: map[string]bool{},
		fields: map[string]json.RawMessage{"": l.items[i]}}
	return c.List("")
}
