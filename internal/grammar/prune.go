package grammar

import "slices"

// prune marks the nodes with a finite value, and removes the others from alternatives, optional
// properties and items.
func (c *compiler) prune() error {
	if err := c.markFinite(); err != nil {
		return err
	}
	for _, n := range c.all {
		switch n.kind {
		case kindAlternatives:
			n.alts = slices.DeleteFunc(n.alts, func(a *node) bool { return !a.finite })
		case kindArray:
			if n.finite {
				n.shorten()
			}
		case kindObject:
			if !n.finite {
				continue
			}
			if n.extra != nil && !n.extra.finite {
				n.extra = nil
			}
			if err := c.keepPossible(n.properties); err != nil {
				return err
			}
			var err error
			if n.texts, err = c.trie(n.names); err != nil {
				return err
			}
			n.plan()
		}
	}
	return nil
}

// shorten limits an array to the items that have a value.
func (n *node) shorten() {
	first := slices.IndexFunc(n.prefix, func(i *node) bool { return !i.finite })
	if first < 0 && !n.items.finite {
		first = len(n.prefix)
	}
	if first >= 0 {
		n.narrow(0, first)
	}
}

// keepPossible removes the properties that have no value or cannot be written. Where other names
// are allowed, theirs stay at the end of the list, without a value: they are no names of extra.
func (c *compiler) keepPossible(p *properties) error {
	var kept, forbidden []string
	var values []*node
	var must []bool
	for i, name := range p.names.list {
		switch {
		case p.possible(i):
			kept, values, must = append(kept, name), append(values, p.values[i]),
				append(must, p.must[i])
		case p.extra != nil:
			forbidden = append(forbidden, name)
		}
	}
	if len(kept) == len(p.values) {
		return nil
	}
	p.values, p.must = values, must
	var err error
	p.names, err = c.intern(append(kept, forbidden...))
	return err
}

// possible reports whether a property can be written.
func (p *properties) possible(i int) bool { return p.values[i].finite && p.names.write[i] }

// markFinite marks the nodes with a finite value. Each node is looked at once for every node that
// it is part of: a value that waits for others is marked with the last of them.
func (c *compiler) markFinite() error {
	waits := make([]int32, len(c.all)) // how many parts of a node must still be finite
	users := make([][]int32, len(c.all))
	edges := 0
	uses := func(n, part *node) {
		waits[n.number]++
		users[part.number] = append(users[part.number], n.number)
		edges++
	}
	for _, n := range c.all {
		switch n.kind {
		case kindAlternatives:
			for _, a := range n.alts {
				uses(n, a)
			}
			waits[n.number] = 1 // the first is enough
		case kindLiteral:
			if len(n.texts.order) == 0 {
				waits[n.number] = 1 // for ever
			}
		case kindArray:
			for i := range min(int(n.min), len(n.prefix)) {
				uses(n, n.prefix[i])
			}
			if int(n.min) > len(n.prefix) {
				uses(n, n.items)
			}
		case kindObject:
			for i, must := range n.must {
				switch {
				case must && n.names.write[i]:
					uses(n, n.values[i])
				case must:
					waits[n.number]++ // for ever
				}
			}
		}
		if err := c.take(edges * edgeBytes); err != nil {
			return err
		}
		edges = 0
	}
	var ready []int32
	for i, n := range waits {
		if n == 0 {
			ready = append(ready, int32(i))
		}
	}
	for len(ready) > 0 {
		part := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		c.all[part].finite = true
		for _, n := range users[part] {
			if waits[n]--; waits[n] == 0 {
				ready = append(ready, n)
			}
		}
	}
	return nil
}
