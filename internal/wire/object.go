package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
)

// Object is a JSON object of a body. Its readers return the zero value for absent fields and record
// the first error; Err returns it.
type Object struct {
	body   *document
	path   string // "" for the body
	keys   []string
	fields map[string]*field
	err    **Error // first error of the whole body
}

// field is a field of an object.
type field struct {
	raw  json.RawMessage // nil: null
	read bool
}

// Limits of a body, so that it takes little more memory than it has bytes: a small one may hold
// very many values, and each value that is read takes more than its bytes.
const (
	maxValues = 1 << 20 // in the whole body
	maxFields = 1 << 10 // in an object that is read
)

// Parse reads a body: one JSON object in UTF-8. A byte-order mark may come before it, as RFC 8259
// allows.
func Parse(data []byte) (*Object, error) {
	mark := len(data)
	data = bytes.TrimPrefix(data, files.ByteOrderMark)
	mark -= len(data)
	if i := files.ValidUTF8(data); i < len(data) {
		return nil, Bad("invalid_json", "", "invalid JSON at byte %d: not UTF-8", mark+i+1)
	}
	b := &document{data: data, mark: mark, long: map[int]longString{}}
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

// check finds the first byte that is not valid JSON, and the long strings. It counts the values.
func (b *document) check() *Error {
	data := b.data
	s := scanner{data: data, body: b}
	if s.value(0) && s.space() != 0 {
		s.fail("data after the first value")
	}
	if s.err != "" || s.at < len(data) {
		if b.values > maxValues {
			return Bad("invalid_value", "", "the body has more than %d values, want at most that",
				maxValues)
		}
		return Bad("invalid_json", "", "invalid JSON at byte %d: %s", b.mark+min(s.at+1, len(data)),
			s.err)
	}
	return nil
}

// fill reads the members of an object. Of several fields with one name the last one counts.
func (o *Object) fill(data json.RawMessage) {
	o.fields = map[string]*field{}
	if Kind(data) != "an object" {
		o.fail("invalid_type", o.path, "got %s, want an object", Describe(data))
		return
	}
	s := o.body.scanner(data)
	s.space()
	members := 0
	s.members('}', func() bool {
		if members++; members > maxFields {
			o.fail("invalid_value", o.path, "got more than %d fields, want at most that", maxFields)
			return false
		}
		s.space()
		start := s.at
		s.text()
		name, _ := o.body.bytes(data[start:s.at])
		key := string(name)
		s.space()
		s.at++
		f := o.fields[key]
		if f == nil {
			f = new(field)
			o.keys, o.fields[key] = append(o.keys, key), f
		}
		if f.raw = s.next(); Kind(f.raw) == "null" {
			f.raw = nil
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
	data = bytes.TrimSpace(data)
	return Clip(string(data[:min(len(data), clipBytes)]))
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
func (o *Object) Has(name string) bool { return o.peek(name) != nil }

// peek is Raw without marking the field as read.
func (o *Object) peek(name string) json.RawMessage {
	if f := o.fields[name]; f != nil {
		return f.raw
	}
	return nil
}

// Raw returns a field as written, nil if it is absent.
func (o *Object) Raw(name string) json.RawMessage {
	o.Ignore(name)
	return o.peek(name)
}

// Ignore marks fields as known.
func (o *Object) Ignore(names ...string) {
	for _, name := range names {
		if f := o.fields[name]; f != nil {
			f.read = true
		}
	}
}

// Unread lists the fields that were never read, in their order.
func (o *Object) Unread() []string {
	return slices.DeleteFunc(o.Names(), func(name string) bool { return o.fields[name].read })
}

// Names returns the fields that are present and not null, in their order.
func (o *Object) Names() []string {
	return slices.DeleteFunc(slices.Clone(o.keys), func(name string) bool { return !o.Has(name) })
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
	return unescape(raw[1 : len(raw)-1]), true
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

// Int reads a whole number between least and most. ok reports whether there is one.
func (o *Object) Int(name string, least, most int64) (n int64, ok bool) {
	raw := o.Raw(name)
	if raw == nil {
		return 0, false
	}
	return integer(raw, least, most, o.at(name))
}

// Exact records an error if a whole number does not fit into int64.
func (o *Object) Exact(name string) {
	s, _ := whole(o.peek(name))
	if _, err := strconv.ParseInt(s, 10, 64); errors.Is(err, strconv.ErrRange) {
		code, want := "integer_above_max_value", "at most "+strconv.FormatInt(math.MaxInt64, 10)
		if s[0] == '-' {
			code, want = "integer_below_min_value", "at least "+strconv.FormatInt(math.MinInt64, 10)
		}
		o.Fail(code, name, "got %s, want %s", Clip(s), want)
	}
}

// Float reads a number between least and most; above says that least itself is too
// small. ok reports whether there is one.
func (o *Object) Float(name string, least, most float64, above bool) (v float64, ok bool) {
	raw := o.Raw(name)
	if raw == nil {
		return 0, false
	}
	return float(raw, least, most, above, o.at(name))
}

// at is Fail for one field.
func (o *Object) at(name string) failer {
	return func(code, format string, args ...any) { o.Fail(code, name, format, args...) }
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

// Refuse records an error about each of these fields that is not empty: what it requests is not
// supported. why continues the text.
func (o *Object) Refuse(why string, names ...string) {
	for _, name := range names {
		if raw := o.Raw(name); !IsEmpty(raw) {
			o.Fail("unsupported_parameter", name, "got %s, want nothing: it is not supported%s",
				Describe(raw), why)
		}
	}
}

// Only records an error about a field that has another value than these, in JSON, which change
// nothing.
func (o *Object) Only(name string, values ...string) {
	raw := o.Raw(name)
	if raw != nil && !slices.ContainsFunc(values, func(v string) bool { return equal(raw, v) }) {
		o.Fail("unsupported_parameter", name, "got %s, want %s or nothing", Describe(raw),
			strings.Join(values, ", "))
	}
}

// longEqual is the longest value that is compared, in bytes.
const longEqual = 64

// equal reports whether a value is the same as another one in JSON, whatever their notations.
func equal(raw json.RawMessage, value string) bool {
	var a, b any
	return len(raw) <= longEqual && json.Unmarshal(raw, &a) == nil &&
		json.Unmarshal([]byte(value), &b) == nil && reflect.DeepEqual(a, b)
}

// IsEmpty reports whether a value is one of null, false, {}, [] and "".
func IsEmpty(raw json.RawMessage) bool {
	text := make([]byte, 0, len("false"))
	for _, c := range raw {
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		case len(text) == cap(text):
			return false
		default:
			text = append(text, c)
		}
	}
	switch string(text) {
	case "", "null", "false", "{}", "[]", `""`:
		return true
	}
	return false
}
