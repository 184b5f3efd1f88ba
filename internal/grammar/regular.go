package grammar

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// unwritten are the characters that no string with a pattern contains: what generated text never
// has, and white space that libraries of regular expressions disagree about.
var unwritten = []rune{
	0, 8, 0xb, 0x1f, 0x7f, 0xa0, 0x1680, 0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x202f,
	0x205f, 0x205f, 0x3000, 0x3000, 0xd800, 0xdfff, 0xfeff, 0xfeff,
}

// text adds to n the strings that meet all patterns, of least to most characters (-1: no limit). It
// reports whether there are any.
func (c *compiler) text(n *node, patterns []pattern, least, most int32) (bool, error) {
	var key strings.Builder
	for _, p := range patterns {
		fmt.Fprintf(&key, "%t%q", p.not, p.text)
	}
	fmt.Fprint(&key, least)
	l, ok := c.languages[key.String()]
	if !ok {
		var err error
		if l, err = c.strings(patterns, least); err != nil {
			return false, err
		}
		c.languages[key.String()] = l
	}
	if l == nil || most >= 0 && l.short[0] > most {
		return false, nil
	}
	return true, c.leaf(n, &node{kind: kindRegular, language: l, max: most})
}

// strings returns the language of text without its greatest length; nil: no string.
func (c *compiler) strings(patterns []pattern, least int32) (*language, error) {
	var machines []machine
	var sets [][]rune
	for _, p := range patterns {
		f, err := c.finder(p)
		if err != nil {
			return nil, err
		}
		machines, sets = append(machines, f), append(sets, f.sets()...)
	}
	if least > 0 {
		machines = append(machines, atLeast(least))
	}
	spans, first, err := c.classify(append(sets, c.unwritten()))
	if err != nil {
		return nil, err
	}
	chars, err := c.newDecoder(spans, true)
	if err != nil {
		return nil, err
	}
	l, err := c.account.language(machines, chars, first)
	if l != nil {
		l.quoted = true
	}
	return l, err
}

// unwritten returns the characters that the vocabulary cannot write, or that are not wanted, as
// pairs of bounds.
func (c *compiler) unwritten() []rune {
	set := append([]rune(nil), unwritten...)
	for b := range rune(0x7f) {
		written := appendString(nil, string(b))
		if !c.can(written[1 : len(written)-1]) {
			set = append(set, b, b)
		}
	}
	for b := range 0xf5 - 0x80 {
		if b += 0x80; b != 0xc0 && b != 0xc1 && !c.can([]byte{byte(b)}) {
			return append(set, 0x80, utf8.MaxRune) // some character cannot be completed
		}
	}
	return set
}

// number adds the numbers that meet the demands to n. It reports whether there are any.
func (c *compiler) number(n *node, demands *numbers, whole bool) (bool, error) {
	var key strings.Builder
	fmt.Fprint(&key, whole, demands.of)
	for _, l := range []*limit{demands.lo, demands.hi} {
		if fmt.Fprint(&key, l != nil); l != nil {
			fmt.Fprint(&key, *l)
		}
	}
	l, ok := c.languages[key.String()]
	if !ok {
		var spans []span
		var first []rune
		for _, r := range numeralChars {
			if c.can([]byte{byte(r)}) {
				spans = append(spans, span{r, r, int32(len(first))})
				first = append(first, r)
			}
		}
		chars, err := c.newDecoder(spans, false)
		if err != nil {
			return false, err
		}
		l, err = c.account.language([]machine{newNumeral(*demands, whole)}, chars, first)
		if err != nil {
			return false, err
		}
		c.languages[key.String()] = l
	}
	if l == nil {
		return false, nil
	}
	return true, c.leaf(n, &node{kind: kindRegular, language: l, max: -1})
}

// finder returns the finder of a pattern.
func (a *account) finder(p pattern) (*finder, error) {
	if f := a.finders[p]; f != nil {
		return f, nil
	}
	f, err := a.newFinder(p)
	if err == nil {
		a.finders[p] = f
	}
	return f, err
}
