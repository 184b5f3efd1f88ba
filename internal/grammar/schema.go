package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
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

// maxShown is how many characters of a pointer an error shows.
const maxShown = 200

// Error names keyword, pointer and problem.
func (e *Error) Error() string {
	where := e.Pointer
	if r := []rune(where); len(r) > maxShown {
		where = string(r[:maxShown]) + "..."
	}
	switch {
	case where == "":
		where = "the schema"
	case strings.ContainsFunc(where, func(r rune) bool { return !unicode.IsPrint(r) }):
		where = strconv.Quote(where)
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
	at    *pointer
	never bool // false: no value

	types  types // 0: absent
	enum   []*value
	inEnum map[int32]bool // by id, the values of enum; nil: absent
	props  []property
	byName map[string]*schema // of props
	// hasProps and hasRequired tell an empty list from an absent one.
	hasProps, hasRequired bool
	required              []string
	extra                 *schema   // additionalProperties; nil: absent
	items                 *schema   // nil: absent
	minItems, maxItems    int       // -1: absent
	unique                bool      // uniqueItems
	prefix                []*schema // prefixItems; nil: absent
	minLength, maxLength  int       // -1: absent
	format                string    // "": absent
	patterns              []pattern // of pattern and format
	numbers               numbers
	anyOf, allOf, oneOf   []*schema
	names                 *schema // propertyNames; nil: absent
	choice                string  // discriminator's property
	refName               string  // as written, "" if absent
	ref                   *schema
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

// item returns the schema for item i of an array, nil if there is none.
func (s *schema) item(i int) *schema {
	if i < len(s.prefix) {
		return s.prefix[i]
	}
	return s.items
}

// pointer is a JSON pointer, written only for errors: a long name would repeat in the pointers of
// all that is below it.
type pointer struct {
	up   *pointer // nil: the root
	name string
}

// to returns the pointer of a member.
func (p *pointer) to(name string) *pointer { return &pointer{p, name} }

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// String returns the pointer as JSON Pointer writes it, "" for the root.
func (p *pointer) String() string {
	if p == nil {
		return ""
	}
	return p.up.String() + "/" + escape.Replace(p.name)
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
	refs []*schema        // those with a refName
	ids  map[string]int32 // of the values of enum and const, by their content

	choices []*schema // those with a oneOf
	classes int       // \p in patterns so far
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
	p := &parser{s: &Schema{defs: map[string]*schema{}}, ids: map[string]int32{}}
	var root *pointer
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
				at := root.to(key).to(name)
				def, err := p.schema(defs.elems[i], at, 2)
				if err != nil {
					return nil, err
				}
				p.s.defs["#"+at.String()] = def
			}
		}
	}
	if p.s.root, err = p.schema(v, root, 1); err != nil {
		return nil, err
	}
	p.s.defs["#"] = p.s.root
	for _, s := range p.refs {
		if s.ref = p.s.defs[s.refName]; s.ref == nil {
			return nil, &Error{Pointer: s.at.to("$ref").String(), Keyword: "$ref",
				Problem: fmt.Sprintf(
					"%q is not there, want #, #/$defs/NAME or #/definitions/NAME of this schema",
					s.refName)}
		}
	}
	for _, s := range p.refs {
		for to, n := s.ref, 0; to != nil; to, n = to.ref, n+1 {
			if to == s || n > len(p.refs) {
				return nil, &Error{
					Pointer: s.at.to("$ref").String(),
					Keyword: "$ref",
					Problem: fmt.Sprintf("%q refers to itself", s.refName),
				}
			}
		}
	}
	return p.s, p.excluded()
}

// empty returns a schema without keywords.
func (p *parser) empty(at *pointer) *schema {
	p.s.n++
	return &schema{
		id: p.s.n - 1, at: at, minItems: -1, maxItems: -1, minLength: -1, maxLength: -1,
	}
}

func (p *parser) schema(v *value, at *pointer, depth int) (*schema, error) {
	if depth > MaxDepth {
		return nil, &Error{
			Pointer: at.String(),
			Problem: fmt.Sprintf(
				"depth: got more than %d schemas within each other, want at most %d",
				MaxDepth, MaxDepth),
		}
	}
	s := p.empty(at)
	switch {
	case v.kind == typeBoolean:
		s.never = v.text == "false"
		return s, nil
	case v.kind != typeObject:
		return nil, &Error{
			Pointer: at.String(),
			Problem: "got " + v.describe() + ", want a schema: an object, true or false",
		}
	}
	for i, key := range v.keys {
		k := keyword{p: p, s: s, key: key, v: v.elems[i], at: at.to(key), depth: depth + 1}
		if err := k.read(); err != nil {
			return nil, err
		}
	}
	return s, s.check(p)
}
