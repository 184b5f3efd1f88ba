package grammar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// Grammar is a schema compiled for a vocabulary. It is safe for concurrent use.
type Grammar struct {
	v    *Vocabulary
	root *node

	class   [256]uint8 // bytes that the grammar treats alike are one class
	classes int

	mu     sync.Mutex
	frames map[place]*frame
	states map[string]*state
	masks  int // number of masks in states
	start  *state
	number map[*frame]uint32 // numbers of frames, for keys of states
	writer uint64            // id of the newest writer
}

// state is the set of stacks that read the text so far. next and mask are computed on first use.
type state struct {
	stacks []*frame
	next   []*state // by class; nil: not computed, dead: not allowed
	mask   []uint64
}

// dead is the state of an invalid text.
var dead = new(state)

// Limits of a grammar's cache; when one is reached, the whole cache is emptied.
const (
	maxStates = 4096
	maxMasks  = 256
)

// Compile prepares a schema for a vocabulary. If it refuses the schema, the error is an *[Error].
func Compile(s *Schema, v *Vocabulary) (*Grammar, error) {
	root, err := s.compile(v.can)
	if err != nil {
		return nil, err
	}
	g := &Grammar{v: v, root: root}
	g.classify()
	g.forget()
	return g, nil
}

// forget empties the cache.
func (g *Grammar) forget() {
	g.frames, g.states, g.number, g.masks = map[place]*frame{}, map[string]*state{},
		map[*frame]uint32{}, 0
	w := g.newWriter()
	w.put(place{node: g.root})
	g.start = g.state(w.out)
}

func (g *Grammar) newWriter() *writer {
	g.writer++
	return &writer{id: g.writer, frames: g.frames}
}

// classify groups the bytes that the grammar treats alike.
func (g *Grammar) classify() {
	var alone [256]bool
	for _, c := range []byte("{}[],:\"\\-+.e0nt") {
		alone[c] = true
	}
	seen := map[*node]bool{}
	var visit func(n *node)
	visit = func(n *node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		if n.texts != nil {
			for i := range n.texts.nodes {
				for _, e := range n.texts.nodes[i].next {
					alone[e.b] = true
				}
			}
		}
		for _, a := range n.alts {
			visit(a)
		}
		for _, p := range n.props {
			visit(p.of)
		}
		visit(n.items)
		visit(n.extra)
	}
	visit(g.root)
	groups := map[[12]phase]uint8{}
	for c := range 256 {
		var k [12]phase
		if alone[c] {
			k[0], k[1] = phase(c), 1
		} else {
			if c >= '1' && c <= '9' {
				k[1] = 2
			}
			for p := inString; p <= afterEscape; p++ {
				k[1+p] = character(p, byte(c))
			}
		}
		id, ok := groups[k]
		if !ok {
			id = uint8(len(groups))
			groups[k] = id
		}
		g.class[c] = id
	}
	g.classes = len(groups)
}

// state returns the state with these stacks.
func (g *Grammar) state(stacks []*frame) *state {
	if len(stacks) == 0 {
		return dead
	}
	key := make([]byte, 0, 4*len(stacks))
	for _, f := range stacks {
		n, ok := g.number[f]
		if !ok {
			n = uint32(len(g.number))
			g.number[f] = n
		}
		key = binary.LittleEndian.AppendUint32(key, n)
	}
	s, ok := g.states[string(key)]
	if !ok {
		s = &state{stacks: stacks}
		g.states[string(key)] = s
	}
	return s
}

// step returns the state after one more byte.
func (g *Grammar) step(s *state, c byte) *state {
	class := g.class[c]
	if s.next == nil {
		if s == dead {
			return dead
		}
		s.next = make([]*state, g.classes)
	}
	if to := s.next[class]; to != nil {
		return to
	}
	w := g.newWriter()
	for _, f := range s.stacks {
		w.step(f.place, c)
	}
	to := g.state(w.out)
	s.next[class] = to
	return to
}

// read returns the state after text.
func (g *Grammar) read(s *state, text []byte) *state {
	for _, c := range text {
		if s = g.step(s, c); s == dead {
			break
		}
	}
	return s
}

// complete reports whether the text may end.
func (s *state) complete() bool {
	for _, f := range s.stacks {
		if f.node == nil {
			return true
		}
	}
	return false
}

// allowed returns the mask of tokens that may come next.
func (g *Grammar) allowed(s *state) []uint64 {
	if s.mask != nil {
		return s.mask
	}
	mask := make([]uint64, g.v.words)
	room := 0
	var rest []*frame // stacks that are not within a string
	for _, f := range s.stacks {
		if r := f.room(); r > 0 {
			room = max(room, r)
		} else {
			rest = append(rest, f)
		}
	}
	if room > 0 {
		copy(mask, g.v.upTo[min(room, len(g.v.upTo)-1)])
		g.walk(s, &g.v.odd, mask)
		if len(rest) > 0 {
			g.walk(g.state(rest), &g.v.all, mask)
		}
	} else {
		g.walk(s, &g.v.all, mask)
	}
	if s.complete() {
		for _, id := range g.v.end {
			set(mask, id)
		}
	}
	s.mask = mask
	g.masks++
	return mask
}

// walk adds the tokens of a trie that s admits to mask.
func (g *Grammar) walk(s *state, t *tokenTrie, mask []uint64) {
	at := make([]*state, 1, 64)
	at[0] = s
	for i := 0; i < len(t.steps); {
		n := &t.steps[i]
		to := g.step(at[n.depth], n.b)
		if to == dead {
			i = int(n.skip)
			continue
		}
		at = append(at[:n.depth+1], to)
		for _, id := range t.ids(i) {
			set(mask, id)
		}
		i++
	}
}

// Matcher follows one text, token by token.
type Matcher struct {
	g     *Grammar
	s     *state
	begun bool
	first []uint64 // mask at the beginning
}

// NewMatcher starts a text.
func (g *Grammar) NewMatcher() *Matcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &Matcher{g: g, s: g.start}
}

// Mask returns the tokens that may come next, one bit each: token i is bit i%64 of word i/64. It is
// read-only and stays valid.
func (m *Matcher) Mask() []uint64 {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.states) > maxStates || g.masks > maxMasks {
		g.forget()
		m.s = &state{stacks: m.s.stacks}
	}
	mask := g.allowed(m.s)
	if m.begun || len(g.v.first) == 0 {
		return mask
	}
	if m.first == nil {
		m.first = slices.Clone(mask)
		for _, t := range g.v.first {
			unset(m.first, t.id)
			if len(t.text) > 0 && g.read(m.s, t.text) != dead {
				set(m.first, t.id)
			}
		}
	}
	return m.first
}

// Accept appends the next token, which Mask must have allowed. An end token changes nothing.
func (m *Matcher) Accept(id int32) error {
	g := m.g
	for _, end := range g.v.end {
		if id == end {
			return nil
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var text []byte
	if id >= 0 && int(id) < len(g.v.tokens) {
		text = g.v.tokens[id]
	}
	if !m.begun {
		for _, t := range g.v.first {
			if t.id == id {
				text = t.text
			}
		}
	}
	to := g.read(m.s, text)
	if len(text) == 0 || to == dead {
		return fmt.Errorf("grammar: token %d (%q) may not come next", id, bytes.Clone(text))
	}
	m.s, m.begun, m.first = to, true, nil
	return nil
}

// Complete reports whether the text is a whole value. After a number, more digits may still follow.
func (m *Matcher) Complete() bool { return m.s.complete() }

// Done reports whether the text is a whole value and nothing may follow.
func (m *Matcher) Done() bool {
	for _, f := range m.s.stacks {
		if f.node != nil {
			return false
		}
	}
	return true
}
