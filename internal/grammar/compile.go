package grammar

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
)

// compiler turns schemas into nodes. The demands of several schemas on one value make one node,
// found by the set of schemas.
type compiler struct {
	*account
	done  map[string]*node
	todo  []task            // nodes that are not filled in yet, the next one last
	names map[string]*names // by the names with their lengths
	alts  int               // alternatives so far
	// languages of strings and numbers, by their demands; nil: no text
	languages map[string]*language
	any       *node
	all       []*node
	can       func(text []byte) bool // the vocabulary has tokens for a text
}

// task is a node to fill in: the value must meet every schema of base, and one alternative of each
// schema of anyOf.
type task struct {
	n           *node
	base, anyOf []*schema
}

// compile returns the node of a whole schema. can reports whether the vocabulary can write a text.
func (s *Schema) compile(
	ctx context.Context, can func(text []byte) bool,
) (root *node, c *compiler, err error) {
	c = &compiler{
		account:   &account{ctx: ctx, finders: map[pattern]*finder{}},
		can:       can,
		done:      map[string]*node{},
		names:     map[string]*names{},
		languages: map[string]*language{},
	}
	if root, err = c.node([]*schema{s.root}); err != nil {
		return nil, nil, err
	}
	// A list instead of a recursion: a schema may make chains of many thousand nodes.
	for len(c.todo) > 0 {
		t := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		if err := c.fill(t); err != nil {
			return nil, nil, err
		}
	}
	if err := c.prune(); err != nil {
		return nil, nil, err
	}
	if !root.finite {
		return nil, nil, &Error{Problem: "admits no value of finite length"}
	}
	return root, c, nil
}

// written returns the bytes that occur in texts and names.
func (c *compiler) written() (set [256]bool) {
	add := func(t *trie) {
		for i := range t.nodes[1:] {
			set[t.nodes[1+i].b] = true
		}
	}
	for _, n := range c.all {
		if n.kind == kindLiteral || n.kind == kindSet {
			add(n.texts)
		}
	}
	for _, n := range c.names {
		if n.texts != nil {
			add(n.texts)
		}
	}
	return set
}

// decoders returns the decoders of all languages.
func (c *compiler) decoders() (list []*decoder) {
	for _, n := range c.all {
		if n.kind == kindRegular && !slices.Contains(list, n.chars) {
			list = append(list, n.chars)
		}
	}
	return list
}

// add adds a node to the list of all nodes.
func (c *compiler) add(n *node) (*node, error) {
	n.number = int32(len(c.all))
	c.all = append(c.all, n)
	return n, c.take(nodeBytes)
}

// node returns the node of a value that meets every schema of conj.
func (c *compiler) node(conj []*schema) (*node, error) {
	base, anyOf, err := c.flatten(conj)
	if err != nil {
		return nil, err
	}
	return c.combined(base, anyOf)
}

// flatten follows references and allOf, and lists the schemas of conj, sorted by id: those with
// their own demands, and those with alternatives.
func (c *compiler) flatten(conj []*schema) (base, anyOf []*schema, err error) {
	seen := map[*schema]bool{}
	todo := slices.Clone(conj)
	slices.Reverse(todo)
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		if todo = todo[:len(todo)-1]; s == nil || seen[s] {
			continue
		}
		seen[s] = true
		if s.demands() {
			base = append(base, s)
		}
		if s.anyOf != nil {
			anyOf = append(anyOf, s)
		}
		todo = append(append(todo, s.allOf...), s.ref)
	}
	return byID(base), byID(anyOf), c.take(len(seen) * schemaBytes)
}

// byID sorts s and removes duplicates.
func byID(s []*schema) []*schema {
	slices.SortFunc(s, func(a, b *schema) int { return a.id - b.id })
	return slices.Compact(s)
}

// demands reports whether the schema has keywords other than references and alternatives.
func (s *schema) demands() bool {
	return s.never || s.types != 0 || s.inEnum != nil || s.implied() != 0
}

// combined returns the node of a value that meets every schema of base, and one alternative of each
// schema of anyOf. A new node is filled in later.
func (c *compiler) combined(base, anyOf []*schema) (*node, error) {
	if err := c.take((len(base) + len(anyOf)) * schemaBytes); err != nil {
		return nil, err
	}
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
	n, err := c.add(&node{kind: kindAlternatives})
	if err != nil {
		return nil, err
	}
	c.done[string(key)] = n
	c.todo = append(c.todo, task{n, base, anyOf})
	return n, nil
}

// fill adds the alternatives of a task's node.
func (c *compiler) fill(t task) error {
	if len(t.anyOf) == 0 {
		return c.alternatives(t.n, t.base)
	}
	first, rest := t.anyOf[0], t.anyOf[1:]
	for _, alt := range first.anyOf {
		if c.alts++; c.alts > MaxAlternatives {
			return tooManyAlternatives(first.at.to("anyOf"))
		}
		more, also, err := c.flatten([]*schema{alt})
		if err != nil {
			return err
		}
		a, err := c.combined(byID(slices.Concat(t.base, more)), byID(slices.Concat(rest, also)))
		if err != nil {
			return err
		}
		if err := c.alternative(t.n, a); err != nil {
			return err
		}
	}
	return nil
}

// alternative adds an alternative to n.
func (c *compiler) alternative(n, a *node) error {
	n.alts = append(n.alts, a)
	return c.take(edgeBytes)
}

// alternatives adds to n the possible values of conj, type by type.
func (c *compiler) alternatives(n *node, conj []*schema) error {
	var listed *schema // the first one with enum or const
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
		if s.inEnum != nil && listed == nil {
			listed = s
		}
	}
	if len(conj) == 0 {
		a, err := c.anyValue()
		if err != nil {
			return err
		}
		return c.alternative(n, a)
	}
	if listed != nil {
		return c.enum(n, conj, listed.enum)
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
	return &Error{Pointer: conj[0].at.to(keyword).String(), Keyword: keyword, Problem: problem}
}

// implied returns the types that the keywords of a schema without type are about.
func (s *schema) implied() (t types) {
	if s.hasProps || s.hasRequired || s.extra != nil {
		t |= typeObject
	}
	if s.items != nil || s.prefix != nil || s.minItems >= 0 || s.maxItems >= 0 || s.unique {
		t |= typeArray
	}
	if s.minLength >= 0 || s.maxLength >= 0 || s.patterns != nil {
		t |= typeString
	}
	if s.numbers.any() {
		t |= typeNumber
	}
	return t
}

// enum adds the values of a list that meet conj to n.
func (c *compiler) enum(n *node, conj []*schema, enum []*value) error {
	texts, err := c.listed(enum, conj)
	if err != nil {
		return err
	}
	if c.alts += len(texts); c.alts > MaxAlternatives {
		return tooManyAlternatives(conj[0].at)
	}
	if len(texts) == 0 {
		return contradiction(conj, "enum", "none of the values meets the rest of the schema")
	}
	return c.literal(n, texts...)
}

// listed returns the values of a list that meet conj.
func (c *compiler) listed(enum []*value, conj []*schema) (texts [][]byte, err error) {
	for _, v := range enum {
		meets, err := c.meets(v, conj)
		if err != nil {
			return nil, err
		}
		if meets {
			texts = append(texts, v.append(nil))
		}
	}
	return texts, nil
}

// meets reports whether a value meets every schema of conj.
func (c *compiler) meets(v *value, conj []*schema) (bool, error) {
	for _, s := range conj {
		x := &check{account: c.account, known: map[visit]bool{}}
		if ok := x.admits(s, v); !ok || x.err != nil {
			return false, x.err
		}
	}
	return true, nil
}

// literal adds to n those texts that the vocabulary can write.
func (c *compiler) literal(n *node, texts ...[]byte) error {
	texts = slices.DeleteFunc(texts, func(t []byte) bool { return !c.can(t) })
	trie, err := newTrie(texts, c.account)
	if err != nil {
		return err
	}
	return c.leaf(n, &node{kind: kindLiteral, texts: trie})
}

// leaf adds an alternative without values of its own to n.
func (c *compiler) leaf(n, leaf *node) error {
	if _, err := c.add(leaf); err != nil {
		return err
	}
	return c.alternative(n, leaf)
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
		if err := c.literal(n, texts...); err != nil {
			return err
		}
	}
	if allowed&(typeNumber|typeInteger) != 0 {
		if err := c.numbers(n, conj, allowed&typeNumber == 0); err != nil {
			return err
		}
	}
	if allowed&typeString != 0 {
		if err := c.string(n, conj); err != nil {
			return err
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

// numbers adds the numbers of conj to n, or the whole ones.
func (c *compiler) numbers(n *node, conj []*schema, whole bool) error {
	var all numbers
	for _, s := range conj {
		if !all.narrow(&s.numbers) {
			return &Error{Pointer: s.at.String(), Keyword: "multipleOf", Problem: fmt.Sprintf(
				"got %d together with other schemas, want at most %d", all.of, maxMultiple)}
		}
	}
	if !all.any() {
		return c.leaf(n, &node{kind: kindNumber, whole: whole})
	}
	any, err := c.number(n, &all, whole)
	if err == nil && !any {
		err = contradiction(conj, "minimum", fmt.Sprintf(
			"no number of at most %d digits meets the schema", maxDigits))
	}
	return err
}

// string adds the strings of conj to n.
func (c *compiler) string(n *node, conj []*schema) error {
	s := &node{kind: kindString, min: 0, max: -1}
	var patterns []pattern
	for _, d := range conj {
		s.narrow(d.minLength, d.maxLength)
		patterns = append(patterns, d.patterns...)
	}
	switch {
	case s.max >= 0 && s.min > s.max:
		return nil
	case patterns == nil:
		return c.leaf(n, s)
	}
	any, err := c.text(n, patterns, s.min, s.max)
	if err == nil && !any {
		keyword := "pattern"
		if conj[0].format != "" {
			keyword = "format"
		}
		err = contradiction(conj, keyword, "no string meets it and the rest of the schema")
	}
	return err
}

// narrow applies further limits; -1 means no limit.
func (n *node) narrow(least, most int) {
	n.min = max(n.min, int32(least))
	if most >= 0 && (n.max < 0 || int32(most) < n.max) {
		n.max = int32(most)
	}
}

func (c *compiler) array(n *node, conj []*schema) error {
	a := &node{kind: kindArray, max: -1}
	longest := 0
	for _, s := range conj {
		a.narrow(s.minItems, s.maxItems)
		if longest = max(longest, len(s.prefix)); s.prefix != nil && s.items == nil {
			a.narrow(0, len(s.prefix))
		}
	}
	if a.max >= 0 && a.min > a.max {
		return nil
	}
	i := slices.IndexFunc(conj, func(s *schema) bool { return s.unique })
	if i >= 0 && (a.max < 0 || a.max > 1) {
		return c.set(n, conj, conj[i], a)
	}
	if a.max >= 0 {
		longest = min(longest, int(a.max))
	}
	if err := c.take(longest * (len(conj)*schemaBytes + edgeBytes)); err != nil {
		return err
	}
	for i := range longest + 1 { // the last is for all further items
		var of []*schema
		for _, s := range conj {
			if sub := s.item(i); sub != nil {
				of = append(of, sub)
			}
		}
		item, err := c.meet(of)
		if err != nil {
			return err
		}
		if i == longest {
			a.items = item
		} else {
			a.prefix = append(a.prefix, item)
		}
	}
	return c.leaf(n, a)
}

// maxSet is the most values of the items of an array with uniqueItems.
const maxSet = 31

// set adds to n the arrays of conj whose items are different values of a list; s has uniqueItems,
// and a the limits of their number.
func (c *compiler) set(n *node, conj []*schema, s *schema, a *node) error {
	refused := func(problem string) error {
		return &Error{Pointer: s.at.to("uniqueItems").String(), Keyword: "uniqueItems",
			Problem: problem}
	}
	var items []*schema
	for _, s := range conj {
		if s.prefix != nil {
			return refused("got true together with prefixItems, want one of them")
		}
		if s.items != nil {
			items = append(items, s.items)
		}
	}
	base, _, err := c.flatten(items)
	if err != nil {
		return err
	}
	listed := slices.IndexFunc(base, func(s *schema) bool { return s.inEnum != nil })
	if listed < 0 {
		return refused("got true, want false, or items with enum or const")
	}
	texts, err := c.listed(base[listed].enum, items)
	if err != nil {
		return err
	}
	texts = slices.DeleteFunc(texts, func(t []byte) bool { return !c.can(t) })
	if len(texts) > maxSet {
		return refused(fmt.Sprintf("got true and items of %d values, want at most %d", len(texts),
			maxSet))
	}
	if a.narrow(0, len(texts)); a.min > a.max {
		return contradiction(conj, "uniqueItems", fmt.Sprintf("minItems is %d, but the items "+
			"have %d values", a.min, len(texts)))
	}
	a.kind = kindSet
	if a.texts, err = newTrie(texts, c.account); err != nil {
		return err
	}
	return c.leaf(n, a)
}

// meet returns the node of a value that meets every schema of conj; with no schema any value.
func (c *compiler) meet(conj []*schema) (*node, error) {
	if len(conj) == 0 {
		return c.anyValue()
	}
	return c.node(conj)
}

// anyValue returns the node of any JSON value.
func (c *compiler) anyValue() (*node, error) {
	if c.any != nil {
		return c.any, nil
	}
	none, err := c.intern(nil)
	if err != nil {
		return nil, err
	}
	if c.any, err = c.add(&node{kind: kindAlternatives}); err != nil {
		return nil, err
	}
	err = c.literal(c.any, []byte("null"), []byte("true"), []byte("false"))
	for _, n := range []*node{
		{kind: kindNumber}, {kind: kindString, max: -1}, {kind: kindArray, max: -1, items: c.any},
		{kind: kindObject, properties: &properties{names: none, extra: c.any}},
	} {
		if err == nil {
			err = c.leaf(c.any, n)
		}
	}
	return c.any, err
}

// object adds the node of an object. With several schemas, the value of each name must meet all of
// them: the name's own schema in each, or that schema's additionalProperties if it has them. A
// schema without additionalProperties lets the others add names.
func (c *compiler) object(n *node, conj []*schema) error {
	listed := 0
	for _, s := range conj {
		listed += len(s.props) + len(s.required)
	}
	if err := c.take(listed * propertyBytes); err != nil {
		return err
	}
	list, required, extra, err := members(conj)
	if err != nil || list == nil {
		return err
	}
	o := &properties{values: make([]*node, len(list)), must: make([]bool, len(list))}
	if o.names, err = c.intern(list); err != nil {
		return err
	}
	var of []*schema
	for i, name := range list {
		if err := c.take(len(conj) * schemaBytes); err != nil {
			return err
		}
		of = of[:0]
		for _, s := range conj {
			if sub := s.property(name); sub != nil {
				of = append(of, sub)
			}
		}
		o.must[i] = required[name]
		if o.values[i], err = c.meet(of); err != nil {
			return err
		}
	}
	if extra != nil {
		if o.extra, err = c.meet(extra); err != nil {
			return err
		}
	}
	return c.leaf(n, &node{kind: kindObject, properties: o})
}

// members returns the names of an object's properties in order, which of them are required, and the
// schemas of all other names; nil: there are no others. The list is nil if no object is possible.
func members(conj []*schema) (list []string, required map[string]bool, extra []*schema, err error) {
	list, required = []string{}, map[string]bool{}
	known := map[string]bool{}
	open := true // names that no schema lists are allowed
	for _, s := range conj {
		for _, p := range s.props {
			if !known[p.name] {
				known[p.name] = true
				list = append(list, p.name)
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
	if !open {
		extra = nil
	}
	for _, s := range conj {
		for _, name := range s.required {
			required[name] = true
			if known[name] {
				continue
			}
			if extra == nil {
				return nil, nil, nil, contradiction(conj, "required",
					fmt.Sprintf("got %q, which is no property", name))
			}
			known[name] = true
			list = append(list, name)
		}
	}
	return list, required, extra, nil
}

// intern returns the shared list of these names.
func (c *compiler) intern(list []string) (*names, error) {
	var key []byte
	for _, name := range list {
		key = append(binary.AppendUvarint(key, uint64(len(name))), name...)
	}
	if err := c.take(len(key)); err != nil {
		return nil, err
	}
	if n, ok := c.names[string(key)]; ok {
		return n, nil
	}
	n := &names{list: list, write: make([]bool, len(list))}
	for i, name := range list {
		n.write[i] = c.can(appendString(nil, name))
	}
	c.names[string(key)] = n
	return n, c.take(len(list) * nameBytes)
}

// trie returns the trie of the names as they are written, without quotes.
func (c *compiler) trie(n *names) (*trie, error) {
	if n.texts != nil {
		return n.texts, nil
	}
	written := make([][]byte, len(n.list))
	for i, name := range n.list {
		text := appendString(nil, name)
		written[i] = text[1 : len(text)-1]
	}
	var err error
	n.texts, err = newTrie(written, c.account)
	return n.texts, err
}
