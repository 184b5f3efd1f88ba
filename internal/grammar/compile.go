package grammar

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// kind is the kind of value that a node matches.
type kind uint8

const (
	kindAlternatives kind = iota
	kindLiteral           // one of several texts
	kindString
	kindNumber
	kindArray
	kindObject
)

// node describes the values that are allowed at one place.
type node struct {
	kind kind

	alts []*node // kindAlternatives

	texts *trie // kindLiteral: the texts; kindObject: the names as written, without quotes

	whole bool // kindNumber: no fraction and no exponent

	min, max int32 // kindString: code points, kindArray: items; max -1 means no limit

	items *node // kindArray

	props []nodeProperty // kindObject, in order
	// until holds, for each number of finished properties, the first required property that is not
	// finished, len(props) if there is none.
	until []int32
	extra *node // value of a property that is not in props; nil: none allowed

	finite bool // some value of finite length matches
}

type nodeProperty struct {
	of       *node
	required bool
	name     string
}

// compiler turns schemas into nodes. The demands of several schemas on one value make one node,
// found by the set of schemas.
type compiler struct {
	done map[string]*node
	alts int // alternatives so far
	any  *node
	all  []*node
	can  func(text []byte) bool // the vocabulary has tokens for a text
}

// maxNodes limits the size of a schema when alternatives are combined.
const maxNodes = 100_000

// compile returns the node of a whole schema. can reports whether the vocabulary can write a text.
func (s *Schema) compile(can func(text []byte) bool) (*node, error) {
	c := &compiler{done: map[string]*node{}, can: can}
	root, err := c.node([]*schema{s.root})
	if err != nil {
		return nil, err
	}
	c.prune()
	if !root.finite {
		return nil, &Error{Problem: "admits no value of finite length"}
	}
	return root, nil
}

func (c *compiler) add(n *node) *node {
	c.all = append(c.all, n)
	return n
}

// node returns the node of a value that meets every schema of conj.
func (c *compiler) node(conj []*schema) (*node, error) {
	base, anyOf := flatten(conj)
	return c.combined(base, anyOf)
}

// flatten follows references and lists the schemas of conj, sorted by id: those with their own
// demands, and those with alternatives.
func flatten(conj []*schema) (base, anyOf []*schema) {
	seen := map[*schema]bool{}
	var visit func(s *schema)
	visit = func(s *schema) {
		if seen[s] {
			return
		}
		seen[s] = true
		if s.demands() {
			base = append(base, s)
		}
		if s.anyOf != nil {
			anyOf = append(anyOf, s)
		}
		if s.ref != nil {
			visit(s.ref)
		}
	}
	for _, s := range conj {
		visit(s)
	}
	return byID(base), byID(anyOf)
}

// byID sorts s and removes duplicates.
func byID(s []*schema) []*schema {
	slices.SortFunc(s, func(a, b *schema) int { return a.id - b.id })
	return slices.Compact(s)
}

// demands reports whether the schema has keywords other than its reference and its alternatives.
func (s *schema) demands() bool {
	return s.never || s.types != 0 || s.hasEnum || s.implied() != 0
}

// combined returns the node of a value that meets every schema of base, and one
// alternative of each schema of anyOf.
func (c *compiler) combined(base, anyOf []*schema) (*node, error) {
	key := make([]byte, 0, 4*(len(base)+len(anyOf)+1))
	for _, s := range base {
		key = binary.LittleEndian.AppendUint32(key, uint32(s.id+1))
	}
	key = binary.LittleEndian.AppendUint32(key, 0)
	for _, s := range anyOf {
		key = binary.LittleEndian.AppendUint32(key, uint32(s.id+1))
	}
	if n, ok := c.done[string(key)]; ok {
		return n, nil
	}
	if len(c.all) > maxNodes {
		return nil, &Error{Problem: fmt.Sprintf("too complex: more than %d combinations", maxNodes)}
	}
	n := c.add(&node{kind: kindAlternatives})
	c.done[string(key)] = n
	if len(anyOf) == 0 {
		return n, c.alternatives(n, base)
	}
	for _, alt := range anyOf[0].anyOf {
		if c.alts++; c.alts > MaxAlternatives {
			return nil, tooManyAlternatives(anyOf[0].ptr + "/anyOf")
		}
		more, also := flatten([]*schema{alt})
		a, err := c.combined(byID(slices.Concat(base, more)), byID(slices.Concat(anyOf[1:], also)))
		if err != nil {
			return nil, err
		}
		n.alts = append(n.alts, a)
	}
	return n, nil
}

// alternatives adds to n the possible values of conj, type by type.
func (c *compiler) alternatives(n *node, conj []*schema) error {
	var enum []*value
	hasEnum := false
	allowed, implied := allTypes, types(0)
	for _, s := range conj {
		if s.never {
			return nil
		}
		if s.types != 0 {
			allowed = allowed.intersect(s.types)
		} else {
			implied |= s.implied()
		}
		if s.hasEnum && !hasEnum {
			enum, hasEnum = s.enum, true
		}
	}
	if len(conj) == 0 {
		n.alts = append(n.alts, c.anyValue())
		return nil
	}
	if hasEnum {
		return c.enum(n, conj, enum)
	}
	if implied != 0 && allowed == allTypes {
		allowed = implied
	}
	if allowed == 0 {
		return contradiction(conj, "type", "no type is left")
	}
	return c.byType(n, conj, allowed)
}

// contradiction is an error if a single schema has no value. It is nil for a combination of several
// schemas: other alternatives may still have values.
func contradiction(conj []*schema, keyword, problem string) error {
	if len(conj) > 1 {
		return nil
	}
	return &Error{Pointer: conj[0].ptr + "/" + keyword, Keyword: keyword, Problem: problem}
}

// implied returns the types that the keywords of a schema without type are about.
func (s *schema) implied() (t types) {
	if s.hasProps || s.hasRequired || s.extra != nil {
		t |= typeObject
	}
	if s.items != nil || s.minItems >= 0 || s.maxItems >= 0 {
		t |= typeArray
	}
	if s.minLength >= 0 || s.maxLength >= 0 {
		t |= typeString
	}
	return t
}

// enum adds the values of a list that meet conj to n.
func (c *compiler) enum(n *node, conj []*schema, enum []*value) error {
	var texts [][]byte
	for _, v := range enum {
		if !slices.ContainsFunc(
			conj,
			func(s *schema) bool { return !s.admits(v, map[visit]bool{}) },
		) {
			texts = append(texts, v.append(nil))
		}
	}
	if c.alts += len(texts); c.alts > MaxAlternatives {
		return tooManyAlternatives(conj[0].ptr)
	}
	if len(texts) == 0 {
		for _, s := range conj {
			if s.hasEnum {
				return contradiction(conj, "enum",
					"none of the values meets the rest of the schema")
			}
		}
		return nil
	}
	n.alts = append(n.alts, c.literal(texts...))
	return nil
}

// literal returns the node of those texts that the vocabulary can write.
func (c *compiler) literal(texts ...[]byte) *node {
	texts = slices.DeleteFunc(texts, func(t []byte) bool { return !c.can(t) })
	return c.add(&node{kind: kindLiteral, texts: newTrie(texts)})
}

// byType adds a node for each type to n.
func (c *compiler) byType(n *node, conj []*schema, allowed types) error {
	if allowed&(typeNull|typeBoolean) != 0 {
		var texts [][]byte
		if allowed&typeNull != 0 {
			texts = append(texts, []byte("null"))
		}
		if allowed&typeBoolean != 0 {
			texts = append(texts, []byte("true"), []byte("false"))
		}
		n.alts = append(n.alts, c.literal(texts...))
	}
	if allowed&(typeNumber|typeInteger) != 0 {
		n.alts = append(n.alts, c.add(&node{kind: kindNumber, whole: allowed&typeNumber == 0}))
	}
	if allowed&typeString != 0 {
		s := c.add(&node{kind: kindString, min: 0, max: -1})
		for _, d := range conj {
			s.narrow(d.minLength, d.maxLength)
		}
		if s.max < 0 || s.min <= s.max {
			n.alts = append(n.alts, s)
		}
	}
	if allowed&typeArray != 0 {
		if err := c.array(n, conj); err != nil {
			return err
		}
	}
	if allowed&typeObject != 0 {
		return c.object(n, conj)
	}
	return nil
}

// narrow applies further limits; -1 means no limit.
func (n *node) narrow(least, most int) {
	n.min = max(n.min, int32(least))
	if most >= 0 && (n.max < 0 || int32(most) < n.max) {
		n.max = int32(most)
	}
}

func (c *compiler) array(n *node, conj []*schema) error {
	a := c.add(&node{kind: kindArray, max: -1})
	var items []*schema
	for _, s := range conj {
		a.narrow(s.minItems, s.maxItems)
		if s.items != nil {
			items = append(items, s.items)
		}
	}
	if a.max >= 0 && a.min > a.max {
		return nil
	}
	var err error
	if a.items, err = c.meet(items); err != nil {
		return err
	}
	n.alts = append(n.alts, a)
	return nil
}

// meet returns the node of a value that meets every schema of conj; with no schema any value.
func (c *compiler) meet(conj []*schema) (*node, error) {
	if len(conj) == 0 {
		return c.anyValue(), nil
	}
	return c.node(conj)
}

// object adds the node of an object. With several schemas, the value of each name must meet all of
// them: the name's own schema in each, or that schema's additionalProperties if it has them. A
// schema without additionalProperties lets the others add names.
func (c *compiler) object(n *node, conj []*schema) error {
	o := c.add(&node{kind: kindObject})
	var names []string
	known, required := map[string]bool{}, map[string]bool{}
	var extra []*schema
	open := true // names that no schema lists are allowed
	for _, s := range conj {
		for _, p := range s.props {
			if !known[p.name] {
				known[p.name] = true
				names = append(names, p.name)
			}
		}
		switch {
		case s.extra != nil:
			open = open && !s.extra.never
			extra = append(extra, s.extra)
		case s.hasProps:
			open = false
		}
	}
	open = open && extra != nil
	for _, s := range conj {
		for _, name := range s.required {
			required[name] = true
			if known[name] {
				continue
			}
			if !open {
				return contradiction(conj, "required",
					fmt.Sprintf("got %q, which is no property", name))
			}
			known[name] = true
			names = append(names, name)
		}
	}
	var err error
	for _, name := range names {
		p := nodeProperty{required: required[name], name: name}
		var of []*schema
		for _, s := range conj {
			if sub := s.property(name); sub != nil {
				of = append(of, sub)
			}
		}
		if p.of, err = c.meet(of); err != nil {
			return err
		}
		o.props = append(o.props, p)
	}
	if open {
		if o.extra, err = c.meet(extra); err != nil {
			return err
		}
	}
	n.alts = append(n.alts, o)
	return nil
}

// plan computes texts and until from props.
func (n *node) plan() {
	written := make([][]byte, len(n.props))
	for i, p := range n.props {
		text := appendString(nil, p.name)
		written[i] = text[1 : len(text)-1]
	}
	n.texts = newTrie(written)
	n.until = make([]int32, len(n.props)+1)
	next := int32(len(n.props))
	for i := len(n.props); i >= 0; i-- {
		if i < len(n.props) && n.props[i].required {
			next = int32(i)
		}
		n.until[i] = next
	}
}

// anyValue returns the node of any JSON value.
func (c *compiler) anyValue() *node {
	if c.any == nil {
		c.any = c.add(&node{kind: kindAlternatives})
		object := c.add(&node{kind: kindObject, extra: c.any})
		c.any.alts = []*node{
			c.literal([]byte("null"), []byte("true"), []byte("false")),
			c.add(&node{kind: kindNumber}),
			c.add(&node{kind: kindString, max: -1}),
			c.add(&node{kind: kindArray, max: -1, items: c.any}),
			object,
		}
	}
	return c.any
}

// prune marks the nodes with a finite value, and removes the others from alternatives, optional
// properties and items.
func (c *compiler) prune() {
	for changed := true; changed; {
		changed = false
		for _, n := range c.all {
			if !n.finite && c.canEnd(n) {
				n.finite, changed = true, true
			}
		}
	}
	for _, n := range c.all {
		switch n.kind {
		case kindAlternatives:
			n.alts = slices.DeleteFunc(n.alts, func(a *node) bool { return !a.finite })
		case kindArray:
			if !n.items.finite {
				n.max = 0
			}
		case kindObject:
			if !n.finite {
				continue
			}
			if n.extra != nil && !n.extra.finite {
				n.extra = nil
			}
			n.props = slices.DeleteFunc(n.props,
				func(p nodeProperty) bool { return !c.possible(&p) })
			n.plan()
		}
	}
}

// canEnd reports whether a finite value matches, as far as known so far.
func (c *compiler) canEnd(n *node) bool {
	switch n.kind {
	case kindAlternatives:
		return slices.ContainsFunc(n.alts, func(a *node) bool { return a.finite })
	case kindLiteral:
		return len(n.texts.nodes[0].below) > 0
	case kindArray:
		return n.min <= 0 || n.items.finite
	case kindObject:
		return !slices.ContainsFunc(n.props,
			func(p nodeProperty) bool { return p.required && !c.possible(&p) })
	}
	return true
}

// possible reports whether the vocabulary can write a property.
func (c *compiler) possible(p *nodeProperty) bool {
	return p.of.finite && c.can(appendString(nil, p.name))
}

// visit is a pair of a schema and a value to check.
type visit struct {
	s *schema
	v *value
}

// admits reports whether a value of enum or const meets the schema; an absent additionalProperties
// allows all names there. known caches results; a schema that refers to itself admits the values of
// its other alternatives.
func (s *schema) admits(v *value, known map[visit]bool) bool {
	at := visit{s, v}
	if ok, asked := known[at]; asked {
		return ok
	}
	known[at] = false
	known[at] = s.admitsItself(v, known) &&
		(s.ref == nil || s.ref.admits(v, known)) &&
		(s.anyOf == nil ||
			slices.ContainsFunc(s.anyOf, func(a *schema) bool { return a.admits(v, known) }))
	return known[at]
}

// admitsItself is admits without the reference and the alternatives.
func (s *schema) admitsItself(v *value, known map[visit]bool) bool {
	if s.never || s.hasEnum && !slices.ContainsFunc(s.enum, v.equal) ||
		s.types != 0 && s.types&v.kind == 0 &&
			!(s.types&typeInteger != 0 && v.kind == typeNumber && v.whole()) {
		return false
	}
	switch v.kind {
	case typeString:
		n := utf8.RuneCountInString(v.str)
		return n >= s.minLength && (s.maxLength < 0 || n <= s.maxLength)
	case typeArray:
		if n := len(v.elems); n < s.minItems || s.maxItems >= 0 && n > s.maxItems {
			return false
		}
		return s.items == nil ||
			!slices.ContainsFunc(v.elems, func(e *value) bool { return !s.items.admits(e, known) })
	case typeObject:
		if slices.ContainsFunc(
			s.required,
			func(name string) bool { return v.member(name) == nil },
		) {
			return false
		}
		for i, name := range v.keys {
			if sub := s.property(name); sub != nil && !sub.admits(v.elems[i], known) {
				return false
			}
		}
	}
	return true
}
