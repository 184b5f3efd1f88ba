package grammar

import (
	"slices"
	"unicode/utf8"
)

// check checks values of enum or const against schemas. An absent additionalProperties allows all
// names there.
type check struct {
	*account
	// known has results; a schema that refers to itself admits the values of its other
	// alternatives.
	known map[visit]bool
	err   error // the account's; results are meaningless then
}

// visit is a pair of a schema and a value to check.
type visit struct {
	s *schema
	v *value
}

// admits reports whether a value meets the schema.
func (c *check) admits(s *schema, v *value) bool {
	at := visit{s, v}
	if ok, asked := c.known[at]; asked {
		return ok
	}
	if c.err == nil {
		c.err = c.take(visitBytes + edgeBytes*(len(v.elems)+len(s.required)))
	}
	if c.err != nil {
		return false
	}
	c.known[at] = false
	c.known[at] = c.admitsItself(s, v) &&
		(s.ref == nil || c.admits(s.ref, v)) &&
		!slices.ContainsFunc(s.allOf, func(a *schema) bool { return !c.admits(a, v) }) &&
		(s.anyOf == nil ||
			slices.ContainsFunc(s.anyOf, func(a *schema) bool { return c.admits(a, v) }))
	return c.known[at]
}

// admitsItself is admits without the reference and the alternatives.
func (c *check) admitsItself(s *schema, v *value) bool {
	if s.never || s.inEnum != nil && !s.inEnum[v.id] ||
		s.types != 0 && s.types&v.kind == 0 &&
			!(s.types&typeInteger != 0 && v.kind == typeNumber && v.whole()) {
		return false
	}
	switch v.kind {
	case typeString:
		n := utf8.RuneCountInString(v.text)
		return n >= s.minLength && (s.maxLength < 0 || n <= s.maxLength) &&
			!slices.ContainsFunc(s.patterns, func(p pattern) bool { return !c.found(p, v.text) })
	case typeNumber:
		return s.numbers.admits(v.text)
	case typeArray:
		if n := len(v.elems); n < s.minItems || s.maxItems >= 0 && n > s.maxItems {
			return false
		}
		known := map[int32]bool{}
		for i, e := range v.elems {
			if s.unique && known[e.id] {
				return false
			}
			known[e.id] = true
			if sub := s.item(i); sub != nil && !c.admits(sub, e) {
				return false
			}
		}
	case typeObject:
		if slices.ContainsFunc(
			s.required,
			func(name string) bool { return v.member(name) == nil },
		) {
			return false
		}
		for i, name := range v.keys {
			if sub := s.property(name); sub != nil && !c.admits(sub, v.elems[i]) {
				return false
			}
		}
	}
	return true
}

// found reports whether a string meets a pattern.
func (c *check) found(p pattern, text string) bool {
	f, err := c.finder(p)
	ok := false
	if err == nil {
		ok, err = f.matches(text)
	}
	if c.err == nil {
		c.err = err
	}
	return ok
}
