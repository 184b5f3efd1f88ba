package grammar

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// numberFormats are values of format that programs write for numbers: their bounds. An
// empty bound is the type's own.
var numberFormats = map[string][2]string{
	"int32": {"-2147483648", "2147483647"}, "uint32": {"0", "4294967295"},
	"int64": {}, "uint64": {"0", ""}, "float": {}, "double": {},
}

// anyText are values of format that pydantic writes for types that take any string.
var anyText = []string{"password", "binary", "path"}

// combine reads the keywords of a schema that depend on others.
func (s *schema) combine(p *parser) error {
	if err := s.readFormat(); err != nil {
		return err
	}
	if s.prefix != nil && s.minItems < 0 {
		if s.minItems = len(s.prefix); s.maxItems >= 0 { // absent means all, as with properties
			s.minItems = min(s.minItems, s.maxItems)
		}
	}
	if s.names != nil && s.names.inEnum != nil {
		s.listNames(p)
	}
	if s.oneOf != nil {
		p.choices = append(p.choices, s)
		one := p.empty(s.at.to("oneOf"))
		one.anyOf = s.oneOf
		s.allOf = append(s.allOf, one)
	}
	if s.choice != "" {
		has := p.empty(s.at.to("discriminator"))
		has.hasRequired, has.required = true, []string{s.choice}
		s.allOf = append(s.allOf, has)
	}
	return nil
}

// readFormat turns the format into a pattern, or into bounds.
func (s *schema) readFormat() error {
	text, ok := formats[s.format]
	bounds, ofNumber := numberFormats[s.format]
	switch {
	case s.format == "", slices.Contains(anyText, s.format):
	case ofNumber && s.types != 0 && s.types&(typeString|typeArray|typeObject) == 0:
		if bounds[0] != "" {
			s.numbers.least(&limit{decimal: parseDecimal(bounds[0])})
		}
		if bounds[1] != "" {
			s.numbers.most(&limit{decimal: parseDecimal(bounds[1])})
		}
	case !ok && (s.patterns != nil || slices.ContainsFunc(s.allOf,
		func(of *schema) bool { return of.patterns != nil })): // Zod's names of patterns
	case !ok:
		k := keyword{key: "format", v: &value{kind: typeString, text: s.format},
			at: s.at.to("format")}
		return k.bad("one of " + strings.Join(formatNames(), ", "))
	case s.format == "time" && s.patterns != nil:
		s.patterns = append(s.patterns, pattern{text: bareTime})
	default:
		s.patterns = append(s.patterns, lookaheads(text)...)
	}
	return nil
}

// listNames makes properties of the names that propertyNames lists.
func (s *schema) listNames(p *parser) {
	of := s.extra
	if of == nil {
		of = p.empty(s.at.to("additionalProperties"))
	}
	if s.byName == nil {
		s.byName = map[string]*schema{}
	}
	listed := map[string]bool{}
	for _, v := range s.names.enum {
		if listed[v.text] = true; s.byName[v.text] == nil {
			s.byName[v.text] = of
			s.props = append(s.props, property{v.text, of})
		}
	}
	s.props = slices.DeleteFunc(s.props, func(p property) bool { return !listed[p.name] })
	maps.DeleteFunc(s.byName, func(name string, _ *schema) bool { return !listed[name] })
	s.hasProps = true
	s.extra = p.empty(s.at.to("propertyNames"))
	s.extra.never = true
}

// excluded refuses a oneOf whose alternatives may both hold.
func (p *parser) excluded() error {
	for _, s := range p.choices {
		if len(s.oneOf) > maxChoices {
			return &Error{Pointer: s.at.to("oneOf").String(), Keyword: "oneOf",
				Problem: fmt.Sprintf("got %d alternatives, want at most %d, or anyOf",
					len(s.oneOf), maxChoices)}
		}
		for i, a := range s.oneOf {
			for j, b := range s.oneOf[:i] {
				if !exclude(a, b, s.choice, 0) {
					return &Error{Pointer: s.at.to("oneOf").String(), Keyword: "oneOf",
						Problem: fmt.Sprintf("alternatives %d and %d may both hold, want ones "+
							"that exclude each other by type, or by const or enum of a required "+
							"property; or anyOf", j, i)}
				}
			}
		}
	}
	return nil
}

// maxChoices limits the alternatives of a oneOf: each pair is compared.
const maxChoices = 200

// maxExclude limits the depth of properties that tell two alternatives apart, and how many parts
// one alternative may have.
const maxExclude = 4

// exclude reports whether no value meets both schemas, as far as type, enum, const and properties
// tell that both require; choice is required too.
func exclude(a, b *schema, choice string, depth int) bool {
	if depth > maxExclude {
		return false
	}
	as, bs := parts(a), parts(b)
	for _, a := range as {
		for _, b := range bs {
			if a.admitted().intersect(b.admitted()) == 0 || a.inEnum != nil && b.inEnum != nil &&
				!slices.ContainsFunc(a.enum, func(v *value) bool { return b.inEnum[v.id] }) {
				return true
			}
			for _, p := range a.props {
				other := b.byName[p.name]
				if other != nil && (p.name == choice || requires(as, p.name) &&
					requires(bs, p.name)) && exclude(p.of, other, "", depth+1) {
					return onlyObjects(as) && onlyObjects(bs)
				}
			}
		}
	}
	return false
}

// parts returns the schemas that a value of s must meet all.
func parts(s *schema) (list []*schema) {
	todo := []*schema{s}
	for len(todo) > 0 && len(list) < 4*maxExclude {
		s := todo[0]
		if todo = todo[1:]; s == nil || slices.Contains(list, s) {
			continue
		}
		list = append(list, s)
		todo = append(append(todo, s.ref), s.allOf...)
	}
	return list
}

// admitted returns the types that type and enum leave.
func (s *schema) admitted() types {
	t := types(allTypes)
	if s.types != 0 {
		t = s.types
	}
	if s.inEnum != nil {
		of := types(0)
		for _, v := range s.enum {
			of |= v.kind
		}
		t = t.intersect(of)
	}
	return t
}

func onlyObjects(list []*schema) bool {
	return slices.ContainsFunc(list, func(s *schema) bool { return s.admitted() == typeObject })
}

func requires(list []*schema, name string) bool {
	return slices.ContainsFunc(list, func(s *schema) bool {
		return slices.Contains(s.required, name)
	})
}
