package grammar

import "encoding/binary"

// maxCache limits the states that a grammar keeps, in bytes.
const maxCache = 8 << 20

// cache holds the states of a grammar that were computed since it was last emptied, and counts
// their bytes. Matchers keep their stacks, which stay valid.
type cache struct {
	frames map[place]*frame
	states map[string]*state
	next   *uint64 // number of the next frame, in all caches of the grammar
	bytes  int
}

// What a cache takes, in bytes, with the share of its maps.
const (
	frameBytes = 160
	stateBytes = 200
	stackBytes = 16 // a stack of a state: the pointer, and its part of the key
)

// state is the set of stacks that read the text so far. next and mask are computed on first use.
type state struct {
	stacks []*frame
	next   []*state // by class; nil: not computed, dead: not allowed
	mask   []uint64
}

// dead is the state of an invalid text.
var dead = new(state)

func newCache(next *uint64) *cache {
	return &cache{frames: map[place]*frame{}, states: map[string]*state{}, next: next}
}

// intern returns the frame of a place.
func (c *cache) intern(p place) *frame {
	f, ok := c.frames[p]
	if !ok {
		*c.next++
		f = &frame{place: p, number: *c.next}
		c.frames[p] = f
		c.bytes += frameBytes
	}
	return f
}

// state returns the state with these stacks.
func (c *cache) state(stacks []*frame) *state {
	if len(stacks) == 0 {
		return dead
	}
	key := make([]byte, 0, 4*len(stacks))
	for _, f := range stacks {
		key = binary.AppendUvarint(key, f.number)
	}
	s, ok := c.states[string(key)]
	if !ok {
		s = &state{stacks: stacks}
		c.states[string(key)] = s
		c.bytes += stateBytes + stackBytes*len(stacks)
	}
	return s
}

// complete reports whether the text may end.
func (s *state) complete() bool { return complete(s.stacks) }

func complete(stacks []*frame) bool {
	for _, f := range stacks {
		if f.node == nil {
			return true
		}
	}
	return false
}
