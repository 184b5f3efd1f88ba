package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of a schema.
const (
	MaxBytes        = 64 << 10
	MaxDepth        = 32
	MaxAlternatives = 1000
)

// Error is returned when a schema is refused.
type Error struct {
	Pointer string // JSON pointer to the keyword or the schema, "" for the root
	Keyword string // the keyword at fault; may be empty
	Problem string
}

// Error names keyword, pointer and problem.
func (e *Error) Error() string {
	where := e.Pointer
	if where == "" {
		where = "the schema"
	}
	if e.Keyword == "" {
		return fmt.Sprintf("%s: %s", where, e.Problem)
	}
	return fmt.Sprintf("keyword %q at %s: %s", e.Keyword, where, e.Problem)
}

// types is a set of JSON types.
type types uint8

const (
	typeNull types = 1 << iota
	typeBoolean
	typeInteger
	typeNumber // includes typeInteger's values
	typeString
	typeArray
	typeObject

	allTypes = typeNull | typeBoolean | typeNumber | typeString | typeArray | typeObject
)

var typeNames = map[string]types{"null": typeNull, "boolean": typeBoolean, "integer": typeInteger,
	"number": typeNumber, "string": typeString, "array": typeArray, "object": typeObject}

// intersect returns the types in both sets; every integer is a number.
func (t types) intersect(u types) types {
	both := t & u
	if (t|u)&typeInteger != 0 && t&(typeInteger|typeNumber) != 0 &&
		u&(typeInteger|typeNumber) != 0 &&
		both&typeNumber == 0 {
		both |= typeInteger
	}
	return both
}

// schema is one schema of the supported subset.
type schema struct {
	id    int
	ptr   string
	never bool // false: no value

	types  types // 0: absent
	enum   []*value
	props  []property
	byName map[string]*schema // of props
	// hasProps and its siblings tell an empty list from an absent one.
	hasProps, hasRequired, hasEnum bool
	required                       []string
	extra                          *schema // additionalProperties; nil: absent
	items                          *schema // nil: absent
	minItems, maxItems             int     // -1: absent
	minLength, maxLength           int     // -1: absent
	anyOf                          []*schema
	refName                        string // as written, "" if absent
	ref                            *schema
}

type property struct {
	name string
	of   *schema
}

// property returns the schema for a property: its own, or additionalProperties; nil if there is
// neither.
func (s *schema) property(name string) *schema {
	if of := s.byName[name]; of != nil {
		return of
	}
	return s.extra
}

// Schema is a parsed and checked schema.
type Schema struct {
	root *schema
	defs map[string]*schema // by reference
	n    int                // number of schemas
}

// AnyObject is the schema of one JSON object with any content.
func AnyObject() *Schema {
	extra := &schema{id: 1, minItems: -1, maxItems: -1, minLength: -1, maxLength: -1}
	return &Schema{n: 2, root: &schema{types: typeObject, extra: extra,
		minItems: -1, maxItems: -1, minLength: -1, maxLength: -1}}
}

// parser reads schemas from a value.
type parser struct {
	s    *Schema
	refs []*schema // those with a refName
}

// Parse reads a schema. If it refuses the schema, the error is an *[Error].
func Parse(data []byte) (*Schema, error) {
	if len(data) > MaxBytes {
		return nil, &Error{
			Problem: fmt.Sprintf("got %d bytes, want at most %d", len(data), MaxBytes),
		}
	}
	v, err := parseValue(data)
	if err != nil {
		return nil, &Error{Problem: "invalid JSON: " + err.Error()}
	}
	p := &parser{s: &Schema{defs: map[string]*schema{}}}
	if v.kind == typeObject {
		for _, key := range []string{"$defs", "definitions"} {
			defs := v.member(key)
			if defs == nil {
				continue
			}
			if defs.kind != typeObject {
				return nil, &Error{
					Pointer: "/" + key,
					Keyword: key,
					Problem: "got " + defs.describe() + ", want an object",
				}
			}
			for i, name := range defs.keys {
				ptr := "/" + key + "/" + escape(name)
				def, err := p.schema(defs.elems[i], ptr, 2)
				if err != nil {
					return nil, err
				}
				p.s.defs["#"+ptr] = def
			}
		}
	}
	if p.s.root, err = p.schema(v, "", 1); err != nil {
		return nil, err
	}
	for _, s := range p.refs {
		if s.ref = p.s.defs[s.refName]; s.ref == nil {
			return nil, &Error{Pointer: s.ptr + "/$ref", Keyword: "$ref",
				Problem: fmt.Sprintf(
					"%q is not there, want #/$defs/NAME or #/definitions/NAME of this schema",
					s.refName,
				)}
		}
	}
	for _, s := range p.refs {
		for to, n := s.ref, 0; to != nil; to, n = to.ref, n+1 {
			if to == s || n > len(p.refs) {
				return nil, &Error{
					Pointer: s.ptr + "/$ref",
					Keyword: "$ref",
					Problem: fmt.Sprintf("%q refers to itself", s.refName),
				}
			}
		}
	}
	return p.s, nil
}

// escape writes a name as a part of a JSON pointer.
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func (p *parser) schema(v *value, ptr string, depth int) (*schema, error) {
	if depth > MaxDepth {
		return nil, &Error{
			Pointer: ptr,
			Problem: fmt.Sprintf(
				"depth: got more than %d schemas within each other, want at most %d",
				MaxDepth,
				MaxDepth,
			),
		}
	}
	s := &schema{id: p.s.n, ptr: ptr, minItems: -1, maxItems: -1, minLength: -1, maxLength: -1}
	p.s.n++
	switch {
	case v.kind == typeBoolean:
		s.never = v.text == "false"
		return s, nil
	case v.kind != typeObject:
		return nil, &Error{
			Pointer: ptr,
			Problem: "got " + v.describe() + ", want a schema: an object, true or false",
		}
	}
	for i, key := range v.keys {
		if err := p.keyword(s, key, v.elems[i], depth); err != nil {
			return nil, err
		}
	}
	return s, s.check()
}

// keyword reads one keyword.
func (p *parser) keyword(s *schema, key string, v *value, depth int) (err error) {
	ptr := s.ptr + "/" + escape(key)
	bad := func(want string) error {
		return &Error{Pointer: ptr, Keyword: key, Problem: "got " + v.describe() + ", want " + want}
	}
	count := func(to *int) error {
		f, err := strconv.ParseFloat(v.text, 64)
		if v.kind != typeNumber || err != nil || f < 0 || f != math.Trunc(f) || f > math.MaxInt32 {
			return bad(fmt.Sprintf("a whole number from 0 to %d", math.MaxInt32))
		}
		*to = int(f)
		return nil
	}
	switch key {
	case "title",
		"description",
		"default",
		"examples",
		"$schema",
		"$id",
		"$comment",
		"deprecated",
		"$defs",
		"definitions":
		return nil
	case "type":
		names := []*value{v}
		if v.kind == typeArray {
			names = v.elems
		}
		for _, n := range names {
			t, ok := typeNames[n.str]
			if n.kind != typeString || !ok {
				return bad(
					"a name or a list of names of null, boolean, integer, number, string, " +
						"array, object",
				)
			}
			s.types |= t
		}
		if s.types == 0 {
			return bad("at least one type")
		}
	case "enum":
		if v.kind != typeArray || len(v.elems) == 0 {
			return bad("a list of at least one value")
		}
		if len(v.elems) > MaxAlternatives {
			return tooManyAlternatives(ptr)
		}
		s.merge(v.elems)
	case "const":
		s.merge([]*value{v})
	case "properties":
		if v.kind != typeObject {
			return bad("an object of schemas")
		}
		s.hasProps, s.byName = true, map[string]*schema{}
		for i, name := range v.keys {
			of, err := p.schema(v.elems[i], ptr+"/"+escape(name), depth+1)
			if err != nil {
				return err
			}
			s.props = append(s.props, property{name, of})
			s.byName[name] = of
		}
	case "required":
		if v.kind != typeArray {
			return bad("a list of names")
		}
		s.hasRequired = true
		for _, n := range v.elems {
			if n.kind != typeString {
				return bad("a list of names")
			}
			if !slices.Contains(s.required, n.str) {
				s.required = append(s.required, n.str)
			}
		}
	case "additionalProperties":
		s.extra, err = p.schema(v, ptr, depth+1)
	case "items":
		if v.kind == typeArray {
			return bad("one schema")
		}
		s.items, err = p.schema(v, ptr, depth+1)
	case "minItems":
		err = count(&s.minItems)
	case "maxItems":
		err = count(&s.maxItems)
	case "minLength":
		err = count(&s.minLength)
	case "maxLength":
		err = count(&s.maxLength)
	case "anyOf":
		if v.kind != typeArray || len(v.elems) == 0 {
			return bad("a list of at least one schema")
		}
		if len(v.elems) > MaxAlternatives {
			return tooManyAlternatives(ptr)
		}
		for i, e := range v.elems {
			of, err := p.schema(e, ptr+"/"+strconv.Itoa(i), depth+1)
			if err != nil {
				return err
			}
			s.anyOf = append(s.anyOf, of)
		}
	case "$ref":
		if v.kind != typeString ||
			!strings.HasPrefix(v.str, "#/$defs/") && !strings.HasPrefix(v.str, "#/definitions/") {
			return bad("#/$defs/NAME or #/definitions/NAME")
		}
		s.refName = v.str
		p.refs = append(p.refs, s)
	default:
		return &Error{Pointer: ptr, Keyword: key, Problem: "is not supported, want " + keywords}
	}
	return err
}

// keywords is the list of keywords for an error.
const keywords = "type, enum, const, properties, required, additionalProperties, items, " +
	"minItems, maxItems, " +
	"minLength, maxLength, anyOf, $ref or annotations"

func tooManyAlternatives(ptr string) *Error {
	return &Error{
		Pointer: ptr,
		Problem: fmt.Sprintf("alternatives: got more than %d in all, want at most %d",
			MaxAlternatives, MaxAlternatives),
	}
}

// merge intersects the allowed values with vals, the values of enum or const.
func (s *schema) merge(vals []*value) {
	if s.hasEnum {
		vals = slices.DeleteFunc(slices.Clone(vals),
			func(v *value) bool { return !slices.ContainsFunc(s.enum, v.equal) })
	}
	s.enum, s.hasEnum = nil, true
	for _, v := range vals {
		if !slices.ContainsFunc(s.enum, v.equal) {
			s.enum = append(s.enum, v)
		}
	}
}

// check finds contradictions within one schema.
func (s *schema) check() error {
	for _, c := range []struct {
		min, max         int
		minName, maxName string
	}{
		{s.minItems, s.maxItems, "minItems", "maxItems"},
		{s.minLength, s.maxLength, "minLength", "maxLength"},
	} {
		if c.max >= 0 && c.min > c.max {
			return &Error{Pointer: s.ptr + "/" + c.minName, Keyword: c.minName,
				Problem: fmt.Sprintf("got %d, want at most %s, which is %d", c.min, c.maxName,
					c.max)}
		}
	}
	return nil
}

// value is a JSON value that keeps the order of its members.
type value struct {
	kind  types // one of the types but typeInteger
	text  string
	str   string   // of a string
	keys  []string // of an object
	elems []*value // of an object or array
}

// member returns the member of an object, nil if there is none.
func (v *value) member(key string) *value {
	if i := slices.Index(v.keys, key); i >= 0 {
		return v.elems[i]
	}
	return nil
}

// describe describes the value for an error.
func (v *value) describe() string {
	switch v.kind {
	case typeArray:
		if len(v.elems) == 0 {
			return "an empty list"
		}
		return "a list"
	case typeObject:
		return "an object"
	}
	if r := []rune(v.text); len(r) > 40 {
		return string(r[:37]) + "..."
	}
	return v.text
}

// equal compares as JSON Schema does: numbers by value, objects in any order.
func (v *value) equal(w *value) bool {
	if v.kind != w.kind || len(v.elems) != len(w.elems) {
		return false
	}
	switch v.kind {
	case typeNumber:
		return sameNumber(v.text, w.text)
	case typeString:
		return v.str == w.str
	case typeArray:
		return slices.EqualFunc(v.elems, w.elems, (*value).equal)
	case typeObject:
		for i, key := range v.keys {
			if o := w.member(key); o == nil || !v.elems[i].equal(o) {
				return false
			}
		}
		return true
	}
	return v.text == w.text
}

// sameNumber compares two JSON numbers by value.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y && math.Abs(x) < 1<<53
}

// whole reports whether a number is an integer as JSON Schema defines it.
func (v *value) whole() bool {
	f, err := strconv.ParseFloat(v.text, 64)
	return err == nil && f == math.Trunc(f)
}

// append appends the value as generated text writes it.
func (v *value) append(b []byte) []byte {
	switch v.kind {
	case typeString:
		return appendString(b, v.str)
	case typeArray:
		b = append(b, '[')
		for i, e := range v.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.append(b)
		}
		return append(b, ']')
	case typeObject:
		b = append(b, '{')
		for i, e := range v.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, v.keys[i]), ':')
			b = e.append(b)
		}
		return append(b, '}')
	}
	return append(b, v.text...)
}

// appendString writes s as a JSON string with the shortest escapes.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			if c < 0x20 {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}

// valueDepth limits the nesting of JSON in a schema: each schema takes at most two levels.
const valueDepth = 4 * MaxDepth

// parseValue reads one JSON value.
func parseValue(data []byte) (*value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

func readValue(d *json.Decoder, depth int) (*value, error) {
	if depth > valueDepth {
		return nil, fmt.Errorf("nested more than %d deep", valueDepth)
	}
	tok, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case nil:
		return &value{kind: typeNull, text: "null"}, nil
	case bool:
		return &value{kind: typeBoolean, text: strconv.FormatBool(t)}, nil
	case json.Number:
		return &value{kind: typeNumber, text: t.String()}, nil
	case string:
		return &value{kind: typeString, str: t, text: string(appendString(nil, t))}, nil
	}
	v := &value{kind: typeArray}
	if tok == json.Delim('{') {
		v.kind = typeObject
	}
	names := map[string]bool{}
	for d.More() {
		if v.kind == typeObject {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name := key.(string) // the decoder returns nothing else here
			if names[name] {
				return nil, fmt.Errorf("name %q appears twice in one object", name)
			}
			names[name] = true
			v.keys = append(v.keys, name)
		}
		e, err := readValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		v.elems = append(v.elems, e)
	}
	_, err = d.Token()
	return v, err
}
