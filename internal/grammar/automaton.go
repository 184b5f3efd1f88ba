package grammar

import (
	"math"
	"math/bits"
)

// frame is one unfinished value: its place in the grammar and the value that contains it. A stack
// of frames is one way to read the text so far; there may be several, as with anyOf. Frames are
// unique in their cache, so stacks are compared by pointer.
type frame struct {
	place
	seen   uint64 // the last writer that added it
	below  uint64 // the last writer with it in a stack
	number uint64 // unique in its grammar
}

// place is the content of a frame.
type place struct {
	up    *frame // nil: the whole text
	node  *node  // nil: the text is complete
	phase phase
	a, b  int32
	read  int32 // kindRegular: characters so far, if their number is limited
}

// phase is the position within a value. Its meaning depends on the kind of the node.
type phase uint8

const begin phase = 0 // before the first byte; for kindLiteral b is the node in its trie

// Phases of kindString, and of names in kindObject from inName on: between two characters or within
// one. a counts the characters of a string.
const (
	inString    phase = 1 + iota // between characters
	needOne                      // one more byte of the character
	needTwo                      // two
	needThree                    // three
	afterC2                      // one, 0xa0 or above: no control characters
	afterE0                      // two, the first 0xa0 or above: not shorter than needed
	afterED                      // two, the first 0x9f or below: no surrogates
	afterF0                      // three, the first 0x90 or above
	afterF4                      // three, the first 0x8f or below
	afterEscape                  // after a backslash
)

// Phases of kindNumber; a counts digits.
const (
	afterMinus phase = 1 + iota
	afterZero
	inWhole
	afterPoint
	inFraction
	afterE
	afterESign
	inExponent1 // one digit of the exponent
	inExponent2 // two, the maximum
)

// Phases of kindArray; a counts the items, including the unfinished one.
const (
	afterBracket phase = 1 + iota
	afterItem
)

// Phases of kindSet; a has a bit for each finished item, by the number of its text. In an item b is
// its node in the trie.
const (
	beforeItem phase = afterBracket + iota // after the bracket, or a comma
	inItem
)

// Phases of kindObject; a is the number of finished properties. In a name b is its node in the trie
// of names, -1 once it matches none of them. At the colon b is the property, -1 for one of extra.
const (
	afterBrace phase = 1 + iota
	afterValue
	afterComma
	beforeColon
	inName = beforeColon + 1 - inString // + a phase of kindString
)

// maxDigits limits the digits of a number.
const maxDigits = 17

// Limits of the ways to read a text: their number, and the frames in all of them. Beyond them the
// first ones in the schema's order are kept, so the generated text is still valid.
const (
	maxStacks = 2*MaxAlternatives + 48 // a number may end, or go on
	maxFrames = 1 << 14
)

// writer collects the frames after the next byte.
type writer struct {
	id     uint64 // unique among the writers of a grammar
	cache  *cache
	out    []*frame
	frames int // in the stacks of out, which may share them
}

// full reports whether no further stack is kept.
func (w *writer) full() bool { return len(w.out) >= maxStacks || w.frames >= maxFrames }

// put adds p, and every place that is reached from it without another byte.
func (w *writer) put(p place) {
	if !w.full() {
		w.add(p)
	}
}

// add is put even if the writer is full.
func (w *writer) add(p place) {
	f := w.cache.intern(p)
	if f.seen == w.id {
		return
	}
	f.seen = w.id
	if p.node != nil && p.node.kind == kindAlternatives {
		for _, a := range p.node.alts {
			if w.full() {
				break
			}
			w.add(place{up: p.up, node: a})
		}
		return
	}
	if p.over() {
		w.add(p.after())
		return
	}
	w.out = append(w.out, f)
	for ; f != nil && f.below != w.id; f = f.up {
		f.below = w.id
		w.frames++
	}
	if p.ends() { // also if the writer is full: a number may have no other way to go on
		w.add(p.after())
	}
}

// after returns the place after a complete value.
func (p *place) after() place {
	if p.up == nil {
		return place{}
	}
	return p.up.place
}

// over reports whether a value ends here, and no more of it may follow.
func (p *place) over() bool {
	switch {
	case p.node == nil || !p.ends():
		return false
	case p.node.kind == kindRegular:
		return p.node.over(p.a)
	}
	return p.node.kind == kindLiteral && p.node.texts.nodes[p.b].children == 0
}

// ends reports whether a value may end here although more of it may follow.
func (p *place) ends() bool {
	switch {
	case p.node == nil:
	case p.node.kind == kindLiteral:
		return p.node.texts.nodes[p.b].text >= 0
	case p.node.kind == kindRegular:
		return !p.node.quoted && p.b == 0 && p.node.language.ends[p.a]
	case p.node.kind == kindNumber:
		switch p.phase {
		case afterZero, inWhole, inFraction, inExponent1, inExponent2:
			return true
		}
	}
	return false
}

// step adds the places after f when the next byte is c; none if c is not allowed.
func (w *writer) step(f place, c byte) {
	if f.node == nil {
		return
	}
	switch f.node.kind {
	case kindLiteral:
		if to := f.node.texts.step(f.b, c); to >= 0 {
			w.put(place{up: f.up, node: f.node, phase: begin, b: to})
		}
	case kindString:
		w.stepString(f, c)
	case kindNumber:
		w.stepNumber(f, c)
	case kindArray:
		w.stepArray(f, c)
	case kindSet:
		w.stepSet(f, c)
	case kindObject:
		w.stepObject(f, c)
	case kindRegular:
		w.stepRegular(f, c)
	}
}

func (w *writer) stepString(f place, c byte) {
	n := f.node
	switch {
	case f.phase == begin:
		if c == '"' {
			w.put(place{up: f.up, node: n, phase: inString})
		}
		return
	case f.phase == inString && c == '"':
		if f.a >= n.min {
			w.put(f.after())
		}
		return
	case f.phase == inString && n.max >= 0 && f.a >= n.max:
		return
	}
	to := character(f.phase, c)
	if to == begin {
		return
	}
	g := f
	g.phase = to
	if to == inString && (n.max >= 0 || g.a < n.min) {
		g.a++ // without a maximum, counting stops at the minimum
	}
	w.put(g)
}

// character returns the phase of a string after one more byte that does not end it, or begin if the
// byte is not allowed there.
func character(p phase, c byte) phase {
	within := func(lo, hi byte, to phase) phase {
		if c < lo || c > hi {
			return begin
		}
		return to
	}
	switch p {
	case inString:
		switch {
		case c == '\\':
			return afterEscape
		case c < 0x20 || c == '"' || c == 0x7f:
			return begin
		case c < 0x80:
			return inString
		case c == 0xc2:
			return afterC2
		case c == 0xe0:
			return afterE0
		case c == 0xed:
			return afterED
		case c == 0xf0:
			return afterF0
		case c == 0xf4:
			return afterF4
		case c >= 0xc3 && c <= 0xdf:
			return needOne
		case c >= 0xe1 && c <= 0xef:
			return needTwo
		case c >= 0xf1 && c <= 0xf3:
			return needThree
		}
		return begin
	case afterEscape:
		if c == '"' || c == '\\' || c == 'n' || c == 't' {
			return inString
		}
		return begin
	case needOne:
		return within(0x80, 0xbf, inString)
	case needTwo:
		return within(0x80, 0xbf, needOne)
	case needThree:
		return within(0x80, 0xbf, needTwo)
	case afterC2:
		return within(0xa0, 0xbf, inString)
	case afterE0:
		return within(0xa0, 0xbf, needOne)
	case afterED:
		return within(0x80, 0x9f, needOne)
	case afterF0:
		return within(0x90, 0xbf, needTwo)
	case afterF4:
		return within(0x80, 0x8f, needTwo)
	}
	return begin
}

func (w *writer) stepNumber(f place, c byte) {
	digit := c >= '0' && c <= '9'
	if digit {
		if f.a++; f.a > maxDigits {
			return
		}
	}
	room := f.a < maxDigits
	to := begin
	switch f.phase {
	case begin, afterMinus:
		switch {
		case c == '-' && f.phase == begin:
			to = afterMinus
		case c == '0':
			to = afterZero
		case digit:
			to = inWhole
		}
	case inWhole, afterZero, inFraction:
		switch {
		case digit && f.phase != afterZero:
			to = f.phase
		case c == '.' && f.phase != inFraction && !f.node.whole && room:
			to = afterPoint
		case c == 'e' && !f.node.whole && room:
			to = afterE
		}
	case afterPoint:
		if digit {
			to = inFraction
		}
	case afterE, afterESign:
		switch {
		case digit:
			to = inExponent1
		case f.phase == afterE && (c == '-' || c == '+'):
			to = afterESign
		}
	case inExponent1:
		if digit {
			to = inExponent2
		}
	}
	if to != begin {
		f.phase = to
		w.put(f)
	}
}

func (w *writer) stepArray(f place, c byte) {
	n := f.node
	switch {
	case c == '[' && f.phase == begin:
		f.phase = afterBracket
		if n.min <= 0 {
			w.put(f)
		}
		if n.max != 0 {
			w.item(f)
		}
	case c == ']' && (f.phase == afterBracket || f.phase == afterItem) && f.a >= n.min:
		w.put(f.after())
	case c == ',' && f.phase == afterItem && (n.max < 0 || f.a < n.max):
		w.item(f)
	}
}

// item begins another item of an array.
func (w *writer) item(f place) {
	n, item := f.node, f.node.items
	if int(f.a) < len(n.prefix) {
		item = n.prefix[f.a]
	}
	f.phase = afterItem
	if n.max >= 0 || f.a < n.min || int(f.a) < len(n.prefix) {
		f.a++
	}
	w.put(place{up: w.cache.intern(f), node: item})
}

// stepSet continues an array of different texts.
func (w *writer) stepSet(f place, c byte) {
	n := f.node
	count := int32(bits.OnesCount32(uint32(f.a)))
	switch f.phase {
	case begin:
		if c == '[' {
			f.phase = beforeItem
			w.put(f)
		}
		return
	case beforeItem:
		if c == ']' && f.a == 0 && n.min <= 0 {
			w.put(f.after())
		}
		if n.max == 0 {
			return
		}
	default:
		text := n.texts.nodes[f.b].text
		if count++; text < 0 || f.a&(1<<text) != 0 {
			break
		}
		switch {
		case c == ']' && count >= n.min:
			w.put(f.after())
		case c == ',' && count < n.max:
			w.put(place{up: f.up, node: n, phase: beforeItem, a: f.a | 1<<text})
		}
	}
	if f.b = n.texts.step(f.b, c); f.b >= 0 && n.texts.other(f.b, f.a) {
		f.phase = inItem
		w.put(f)
	}
}

// stepRegular continues a text of a language: a is the state, b the node of the decoder.
func (w *writer) stepRegular(f place, c byte) {
	l := f.node.language
	switch {
	case l.quoted && f.phase == begin:
		if c == '"' {
			f.phase = inString
			w.put(f)
		}
		return
	case l.quoted && f.b == 0 && c == '"':
		if l.ends[f.a] {
			w.put(f.after())
		}
		return
	}
	room := int32(-1)
	if f.node.max >= 0 {
		room = f.node.max - f.read
	}
	var ok bool
	if f.a, f.b, ok = l.step(f.a, f.b, room, c); ok {
		if f.b == 0 && f.node.max >= 0 {
			f.read++
		}
		w.put(f)
	}
}

func (w *writer) stepObject(f place, c byte) {
	n := f.node
	switch f.phase {
	case begin:
		if c == '{' {
			f.phase = afterBrace
			w.put(f)
		}
	case afterBrace, afterComma:
		switch {
		case c == '"' && n.more(f.a):
			f.phase, f.b = inName+inString, 0
			w.put(f)
		case c == '}' && f.phase == afterBrace && n.mayEnd(f.a):
			w.put(f.after())
		}
	case afterValue:
		switch {
		case c == ',' && n.more(f.a):
			f.phase, f.b = afterComma, 0
			w.put(f)
		case c == '}' && n.mayEnd(f.a):
			w.put(f.after())
		}
	case beforeColon:
		if c == ':' {
			value := n.extra
			f.a = int32(len(n.values))
			if f.b >= 0 {
				value, f.a = n.values[f.b], f.b+1
			}
			f.phase, f.b = afterValue, 0
			w.put(place{up: w.cache.intern(f), node: value})
		}
	default:
		w.stepName(f, c)
	}
}

// stepName continues a property's name. Names of extra have no escapes, so that none spells a
// property's name differently: after a backslash, or after a control character in a property's
// name, the phase stays afterEscape.
func (w *writer) stepName(f place, c byte) {
	n := f.node
	to := int32(-1)
	text := int32(-1)
	if f.b >= 0 {
		to, text = n.texts.step(f.b, c), n.texts.nodes[f.b].text
	}
	if c == '"' && to < 0 {
		isProperty := text >= f.a && text <= n.last(f.a)
		isExtra := text < 0 && n.freeName(&f)
		if isProperty || isExtra {
			f.phase, f.b = beforeColon, text
			w.put(f)
		}
		return
	}
	next := begin
	if p := f.phase - inName; p != afterEscape && c != '\\' {
		next = character(p, c)
	}
	mayBeProperty := to >= 0 && n.texts.between(to, f.a, n.last(f.a))
	mayBeExtra := next != begin && n.extra != nil && n.mayEnd(f.a)
	if !mayBeProperty && !mayBeExtra {
		return
	}
	if next == begin {
		next = afterEscape
	}
	f.phase, f.b = inName+next, to
	w.put(f)
}

// freeName reports whether any character may follow in a name of extra.
func (n *node) freeName(f *place) bool {
	return f.phase == inName+inString && n.extra != nil && n.mayEnd(f.a)
}

// room returns how many characters of any kind may follow in a string, 0 if f is not in a string.
func (f *place) room() int {
	switch {
	case f.node == nil:
	case f.node.kind == kindString && f.phase == inString && f.node.max >= 0:
		return int(f.node.max - f.a)
	case f.node.kind == kindString && f.phase == inString,
		f.node.kind == kindObject && f.node.freeName(f):
		return math.MaxInt
	}
	return 0
}
