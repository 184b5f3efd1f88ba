package grammar

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// keyword is a keyword of a schema with its value.
type keyword struct {
	p     *parser
	s     *schema
	key   string
	v     *value
	at    *pointer
	depth int // of schemas in the value
}

// read reads one keyword into its schema.
func (k *keyword) read() (err error) {
	s := k.s
	switch k.key {
	case "title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated",
		"readOnly", "writeOnly", "$defs", "definitions":
	case "type":
		err = k.types()
	case "enum":
		if err = k.list("value"); err == nil {
			s.merge(k.p, k.v.elems)
		}
	case "const":
		s.merge(k.p, []*value{k.v})
	case "properties":
		err = k.properties()
	case "required":
		err = k.required()
	case "additionalProperties":
		s.extra, err = k.p.schema(k.v, k.at, k.depth)
	case "items":
		if k.v.kind == typeArray {
			return k.bad("one schema")
		}
		s.items, err = k.p.schema(k.v, k.at, k.depth)
	case "minItems":
		err = k.count(&s.minItems)
	case "maxItems":
		err = k.count(&s.maxItems)
	case "minLength":
		err = k.count(&s.minLength)
	case "maxLength":
		err = k.count(&s.maxLength)
	case "prefixItems":
		s.prefix, err = k.schemas()
	case "uniqueItems":
		if s.unique = k.v.text == "true"; k.v.kind != typeBoolean {
			err = k.bad("true or false")
		}
	case "minimum", "exclusiveMinimum":
		err = k.bound(k.key == "exclusiveMinimum", s.numbers.least)
	case "maximum", "exclusiveMaximum":
		err = k.bound(k.key == "exclusiveMaximum", s.numbers.most)
	case "multipleOf":
		err = k.multiple()
	case "pattern":
		s.patterns, err = k.patterns()
	case "format":
		if s.format = k.v.text; k.v.kind != typeString {
			err = k.bad("a name")
		}
	case "anyOf":
		s.anyOf, err = k.schemas()
	case "allOf":
		var all []*schema
		all, err = k.schemas()
		s.allOf = append(s.allOf, all...)
	case "oneOf":
		s.oneOf, err = k.schemas()
	case "discriminator":
		err = k.discriminator()
	case "propertyNames":
		err = k.propertyNames()
	case "$ref":
		err = k.ref()
	default:
		err = &Error{Pointer: k.at.String(), Keyword: k.key,
			Problem: "is not supported, want " + keywords}
	}
	return err
}

// keywords is the list of keywords for an error.
const keywords = "type, enum, const, properties, required, additionalProperties, items, " +
	"minItems, maxItems, prefixItems, uniqueItems, minLength, maxLength, pattern, format, " +
	"minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, oneOf, allOf, " +
	"$ref or annotations"

// bad is the error of a value.
func (k *keyword) bad(want string) error {
	return &Error{Pointer: k.at.String(), Keyword: k.key,
		Problem: "got " + k.v.describe() + ", want " + want}
}

// count reads a number of items or code points.
func (k *keyword) count(to *int) error {
	f, err := strconv.ParseFloat(k.v.text, 64)
	if k.v.kind != typeNumber || err != nil || f < 0 || f != math.Trunc(f) || f > math.MaxInt32 {
		return k.bad(fmt.Sprintf("a whole number from 0 to %d", math.MaxInt32))
	}
	*to = int(f)
	return nil
}

// list checks a list of alternatives.
func (k *keyword) list(of string) error {
	switch {
	case k.v.kind != typeArray || len(k.v.elems) == 0:
		return k.bad("a list of at least one " + of)
	case len(k.v.elems) > MaxAlternatives:
		return tooManyAlternatives(k.at)
	}
	return nil
}

func (k *keyword) types() error {
	names := []*value{k.v}
	if k.v.kind == typeArray {
		names = k.v.elems
	}
	for _, n := range names {
		t, ok := typeNames[n.text]
		if n.kind != typeString || !ok {
			return k.bad("a name or a list of names of null, boolean, integer, number, string, " +
				"array, object")
		}
		k.s.types |= t
	}
	if k.s.types == 0 {
		return k.bad("at least one type")
	}
	return nil
}

func (k *keyword) properties() error {
	if k.v.kind != typeObject {
		return k.bad("an object of schemas")
	}
	k.s.hasProps, k.s.byName = true, make(map[string]*schema, len(k.v.keys))
	for i, name := range k.v.keys {
		of, err := k.p.schema(k.v.elems[i], k.at.to(name), k.depth)
		if err != nil {
			return err
		}
		k.s.props = append(k.s.props, property{name, of})
		k.s.byName[name] = of
	}
	return nil
}

func (k *keyword) required() error {
	if k.v.kind != typeArray {
		return k.bad("a list of names")
	}
	k.s.hasRequired = true
	known := map[string]bool{}
	for _, n := range k.v.elems {
		if n.kind != typeString {
			return k.bad("a list of names")
		}
		if !known[n.text] {
			known[n.text] = true
			k.s.required = append(k.s.required, n.text)
		}
	}
	return nil
}

// schemas reads a list of schemas.
func (k *keyword) schemas() ([]*schema, error) {
	if err := k.list("schema"); err != nil {
		return nil, err
	}
	var list []*schema
	for i, e := range k.v.elems {
		of, err := k.p.schema(e, k.at.to(strconv.Itoa(i)), k.depth)
		if err != nil {
			return nil, err
		}
		list = append(list, of)
	}
	return list, nil
}

// discriminator reads OpenAPI's keyword, which names the property that all alternatives must have.
func (k *keyword) discriminator() error {
	if k.v.kind != typeObject || k.v.member("propertyName") == nil ||
		k.v.member("propertyName").kind != typeString {
		return k.bad("an object with propertyName")
	}
	k.s.choice = k.v.member("propertyName").text
	return nil
}

// propertyNames reads {"type": "string"}, perhaps with an enum or a const.
func (k *keyword) propertyNames() error {
	const want = `{"type": "string"} with or without enum or const`
	if k.v.kind != typeObject {
		return k.bad(want)
	}
	k.s.names = k.p.empty(k.at)
	for i, name := range k.v.keys {
		e := k.v.elems[i]
		switch {
		case name == "type" && e.kind == typeString && e.text == "string":
		case name == "enum" && e.kind == typeArray:
			k.s.names.merge(k.p, e.elems)
		case name == "const":
			k.s.names.merge(k.p, []*value{e})
		default:
			return k.bad(want)
		}
	}
	for _, e := range k.s.names.enum {
		if e.kind != typeString {
			return k.bad(want)
		}
	}
	return nil
}

func (k *keyword) ref() error {
	if k.v.kind != typeString || k.v.text != "#" && !strings.HasPrefix(k.v.text, "#/$defs/") &&
		!strings.HasPrefix(k.v.text, "#/definitions/") {
		return k.bad("#, #/$defs/NAME or #/definitions/NAME")
	}
	k.s.refName = k.v.text
	k.p.refs = append(k.p.refs, k.s)
	return nil
}

func tooManyAlternatives(at *pointer) *Error {
	return &Error{
		Pointer: at.String(),
		Problem: fmt.Sprintf("alternatives: got more than %d in all, want at most %d",
			MaxAlternatives, MaxAlternatives),
	}
}

// merge intersects the allowed values with vals, the values of enum or const.
func (s *schema) merge(p *parser, vals []*value) {
	for _, v := range vals {
		p.identify(v)
	}
	before := s.inEnum
	s.enum, s.inEnum = nil, map[int32]bool{}
	for _, v := range vals {
		if !s.inEnum[v.id] && (before == nil || before[v.id]) {
			s.enum = append(s.enum, v)
			s.inEnum[v.id] = true
		}
	}
}

// check finds contradictions within one schema, and reads the keywords that depend on others.
func (s *schema) check(p *parser) error {
	if err := s.combine(p); err != nil {
		return err
	}
	if lo, hi := s.numbers.lo, s.numbers.hi; lo != nil && hi != nil {
		if c := lo.compare(hi.decimal); c > 0 || c == 0 && (lo.open || hi.open) {
			return &Error{Pointer: s.at.to("minimum").String(), Keyword: "minimum",
				Problem: "got more than maximum"}
		}
	}
	for _, c := range []struct {
		min, max         int
		minName, maxName string
	}{
		{s.minItems, s.maxItems, "minItems", "maxItems"},
		{s.minLength, s.maxLength, "minLength", "maxLength"},
	} {
		if c.max >= 0 && c.min > c.max {
			return &Error{Pointer: s.at.to(c.minName).String(), Keyword: c.minName,
				Problem: fmt.Sprintf("got %d, want at most %s, which is %d", c.min, c.maxName,
					c.max)}
		}
	}
	return nil
}
