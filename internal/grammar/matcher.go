package grammar

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Grammar is a schema compiled for a vocabulary. It is safe for concurrent use.
type Grammar struct {
	v     *Vocabulary
	root  *node
	bytes int // of the nodes

	class   [256]uint8 // bytes that the grammar treats alike are one class
	classes int

	held atomic.Int64 // bytes of the nodes and of the cache

	mu     sync.Mutex
	cached *cache
	frames uint64 // number of the newest frame
	writer uint64 // id of the newest writer
}

// Compile prepares a schema for a vocabulary. If it refuses the schema, the error is an *[Error];
// if ctx ends before, it is the cause of ctx. The result takes at most [MaxCompiled] bytes.
func Compile(ctx context.Context, s *Schema, v *Vocabulary) (*Grammar, error) {
	root, c, err := s.compile(ctx, v.can)
	if err != nil {
		return nil, err
	}
	g := &Grammar{v: v, root: root, bytes: c.used}
	g.classify(c.written(), c.decoders())
	g.forget()
	return g, nil
}

// Bytes returns the memory that the grammar holds at the moment. The states that matchers compute
// count too; they are limited.
func (g *Grammar) Bytes() int64 { return g.held.Load() }

// forget empties the cache.
func (g *Grammar) forget() {
	g.cached = newCache(&g.frames)
	g.count()
}

// count updates the memory of the grammar after a change of the cache.
func (g *Grammar) count() { g.held.Store(int64(g.bytes + g.cached.bytes)) }

// start returns the state before the first byte.
func (g *Grammar) start() *state {
	w := g.newWriter()
	w.put(place{node: g.root})
	return g.cached.state(w.out)
}

func (g *Grammar) newWriter() *writer {
	g.writer++
	return &writer{id: g.writer, cache: g.cached}
}

// classify groups the bytes that the grammar treats alike. written are the bytes of its texts,
// decoders those of its languages.
func (g *Grammar) classify(written [256]bool, decoders []*decoder) {
	alone := written
	for _, c := range []byte("{}[],:\"\\-+.e0nt") {
		alone[c] = true
	}
	type key struct {
		phases [12]phase
		chars  uint8 // where the byte leads in the decoders
	}
	groups := map[key]uint8{}
	chars := byteClasses(decoders)
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
		id, ok := groups[key{k, chars[c]}]
		if !ok {
			id = uint8(len(groups))
			groups[key{k, chars[c]}] = id
		}
		g.class[c] = id
	}
	g.classes = len(groups)
}

// step returns the state after one more byte.
func (g *Grammar) step(s *state, c byte) *state {
	class := g.class[c]
	if s.next == nil {
		if s == dead {
			return dead
		}
		s.next = make([]*state, g.classes)
		g.cached.bytes += 8 * g.classes
	}
	if to := s.next[class]; to != nil {
		return to
	}
	w := g.newWriter()
	for _, f := range s.stacks {
		w.step(f.place, c)
	}
	to := g.cached.state(w.out)
	s.next[class] = to
	return to
}

// read returns the state after text.
func (g *Grammar) read(s *state, text []byte) *state {
	for _, c := range text {
		if s = g.step(s, c); s == dead {
			break
		}
		g.trim(s)
	}
	return s
}

// trim empties a cache that has become too large. The states that are still in use lose the states
// that follow them, which hold the old cache.
func (g *Grammar) trim(used ...*state) {
	if g.cached.bytes <= maxCache {
		return
	}
	g.forget()
	for _, s := range used {
		s.next = nil
	}
}

// allowed returns the mask of tokens that may come next. If ctx ends before, the mask is
// incomplete.
func (g *Grammar) allowed(ctx context.Context, s *state) []uint64 {
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
		g.walk(ctx, s, &g.v.odd, mask)
		if len(rest) > 0 {
			g.walk(ctx, g.cached.state(rest), &g.v.all, mask)
		}
	} else {
		g.walk(ctx, s, &g.v.all, mask)
	}
	if s.complete() {
		for _, id := range g.v.end {
			set(mask, id)
		}
	}
	if ctx.Err() == nil {
		s.mask = mask
		g.cached.bytes += 8 * len(mask)
	}
	return mask
}

// lookSteps is how many bytes of tokens are read between two looks at the context.
const lookSteps = 64

// walk adds the tokens of a trie that s admits to mask. It ends early with ctx.
func (g *Grammar) walk(ctx context.Context, s *state, t *tokenTrie, mask []uint64) {
	at := make([]*state, 1, 64)
	at[0] = s
	for i, steps := 0, 0; i < len(t.steps); steps++ {
		if steps%lookSteps == 0 && ctx.Err() != nil {
			return
		}
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
		g.trim(at...)
	}
}

// Matcher follows one text, token by token.
type Matcher struct {
	g      *Grammar
	ctx    context.Context
	stacks []*frame
	begun  bool
	first  []uint64 // mask at the beginning
}

// NewMatcher starts a text. When ctx ends, masks are no longer complete.
func (g *Grammar) NewMatcher(ctx context.Context) *Matcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.count()
	return &Matcher{g: g, ctx: ctx, stacks: g.start().stacks}
}

// Mask returns the tokens that may come next, one bit each: token i is bit i%64 of word i/64. It is
// read-only and stays valid.
func (m *Matcher) Mask() []uint64 {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.count()
	g.trim()
	s := g.cached.state(m.stacks)
	mask := g.allowed(m.ctx, s)
	if m.begun || len(g.v.first) == 0 {
		return mask
	}
	if m.first == nil {
		m.first = slices.Clone(mask)
		for _, t := range g.v.first {
			unset(m.first, t.id)
			if len(t.text) > 0 && g.read(s, t.text) != dead {
				set(m.first, t.id)
			}
		}
	}
	return m.first
}

// Accept appends the next token, which Mask must have allowed. An end token changes nothing.
func (m *Matcher) Accept(id int32) error {
	g := m.g
	if slices.Contains(g.v.end, id) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.count()
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
	to := g.read(g.cached.state(m.stacks), text)
	if len(text) == 0 || to == dead {
		return fmt.Errorf("grammar: token %d (%q) may not come next", id, bytes.Clone(text))
	}
	m.stacks, m.begun, m.first = to.stacks, true, nil
	return nil
}

// Complete reports whether the text is a whole value. After a number, more digits may still follow.
func (m *Matcher) Complete() bool { return complete(m.stacks) }

// Done reports whether the text is a whole value and nothing may follow.
func (m *Matcher) Done() bool {
	for _, f := range m.stacks {
		if f.node != nil {
			return false
		}
	}
	return true
}
