package grammar

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
)

// language is a set of texts of one value: a deterministic automaton over classes of characters.
// Every state has a text that completes it.
type language struct {
	quoted  bool // the texts are within quotes
	classes int
	next    []int32 // by state and class; -1: not allowed
	ends    []bool  // by state: the text may end
	short   []int32 // by state: the fewest characters that complete the text
	chars   *decoder
}

// machine is an automaton over characters whose states are computed when they are needed. Its first
// state is 0.
type machine interface {
	// step returns the next state, -1 if there is none.
	step(state int32, c rune) (int32, error)
	// accepts reports whether the text may end.
	accepts(state int32) bool
}

// atLeast counts the characters of a text up to a minimum.
type atLeast int32

func (n atLeast) step(state int32, _ rune) (int32, error) { return min(state+1, int32(n)), nil }

func (n atLeast) accepts(state int32) bool { return state == int32(n) }

// languageBytes is what a state of a language takes while it is computed, without its next states.
const languageBytes = 96

// language returns the texts that all machines accept, nil if there are none. The characters of a
// class are alike to all machines; first has one of each class.
func (a *account) language(machines []machine, chars *decoder, first []rune) (*language, error) {
	l := &language{classes: len(first), chars: chars}
	b := &product{machines: machines, ids: map[string]int32{}}
	b.state(make([]int32, len(machines)))
	to := make([]int32, len(machines))
	for at := 0; at < len(b.states); at++ {
		from := b.states[at]
		if err := a.take(languageBytes + 8*len(first) + 12*len(machines)); err != nil {
			return nil, err
		}
		ends := true
		for i, m := range machines {
			ends = ends && m.accepts(from[i])
		}
		l.ends = append(l.ends, ends)
		for _, c := range first {
			next, err := b.step(from, to, c)
			if err != nil {
				return nil, err
			}
			l.next = append(l.next, next)
		}
	}
	if !l.trim() {
		return nil, nil
	}
	return l, nil
}

// product numbers the states of several machines that read the same text.
type product struct {
	machines []machine
	ids      map[string]int32
	states   [][]int32
}

func (b *product) state(of []int32) int32 {
	key := make([]byte, 0, 4*len(of))
	for _, s := range of {
		key = binary.LittleEndian.AppendUint32(key, uint32(s))
	}
	id, ok := b.ids[string(key)]
	if !ok {
		id = int32(len(b.states))
		b.ids[string(key)] = id
		b.states = append(b.states, slices.Clone(of))
	}
	return id
}

// step returns the state after c; to is scratch memory.
func (b *product) step(from, to []int32, c rune) (int32, error) {
	for i, m := range b.machines {
		var err error
		if to[i], err = m.step(from[i], c); err != nil || to[i] < 0 {
			return -1, err
		}
	}
	return b.state(to), nil
}

// trim measures how far each state is from the end of a text, and removes the ways to states
// without one. It reports whether the first state has a text.
func (l *language) trim() bool {
	count := make([]int32, len(l.ends)+1) // of the ways to each state, then where they begin
	for _, to := range l.next {
		if to >= 0 {
			count[to+1]++
		}
	}
	for i := range l.ends {
		count[i+1] += count[i]
	}
	from := make([]int32, count[len(l.ends)])
	fill := slices.Clone(count)
	for i, to := range l.next {
		if to >= 0 {
			from[fill[to]] = int32(i / l.classes)
			fill[to]++
		}
	}
	l.short = make([]int32, len(l.ends))
	todo := make([]int32, 0, len(l.ends)) // the nearest first
	for s, ends := range l.ends {
		if l.short[s] = -1; ends {
			l.short[s] = 0
			todo = append(todo, int32(s))
		}
	}
	for i := 0; i < len(todo); i++ {
		s := todo[i]
		for _, f := range from[count[s]:count[s+1]] {
			if l.short[f] < 0 {
				l.short[f] = l.short[s] + 1
				todo = append(todo, f)
			}
		}
	}
	for i, to := range l.next {
		if to >= 0 && l.short[to] < 0 {
			l.next[i] = -1
		}
	}
	return l.short[0] >= 0
}

// step returns the place in the language after a byte: a state, and where in a character. The text
// is completed by at most room characters more, -1: any number.
func (l *language) step(state, within, room int32, c byte) (int32, int32, bool) {
	to, ok := l.chars.step(within, c)
	if !ok {
		return 0, 0, false
	}
	row := l.next[int(state)*l.classes:][:l.classes]
	if to < 0 {
		return row[^to], 0, l.may(row[^to], room)
	}
	return state, to, slices.ContainsFunc(l.chars.nodes[to].below,
		func(class int32) bool { return l.may(row[class], room) })
}

// may reports whether a character may lead to a state.
func (l *language) may(to, room int32) bool {
	return to >= 0 && (room < 0 || l.short[to] < room)
}

// over reports whether nothing may follow in a state.
func (l *language) over(state int32) bool {
	return !slices.ContainsFunc(l.next[int(state)*l.classes:][:l.classes],
		func(to int32) bool { return to >= 0 })
}

// decoder reads bytes as characters of JSON texts, and tells their classes. Node 0 is between two
// characters.
type decoder struct{ nodes []decoderNode }

type decoderNode struct {
	edges []decoderEdge // by their bytes
	below []int32       // the classes of the characters that may come of it
}

// decoderEdge leads from bytes lo to hi to a node, or to ^to, a class.
type decoderEdge struct {
	lo, hi byte
	to     int32
}

const decoderBytes = 64 // an edge, with its node

// step returns the node after a byte, or ^ the class of the character that it completes.
func (d *decoder) step(at int32, c byte) (int32, bool) {
	edges := d.nodes[at].edges
	i, ok := slices.BinarySearchFunc(edges, c, func(e decoderEdge, c byte) int {
		switch {
		case e.hi < c:
			return -1
		case e.lo > c:
			return 1
		}
		return 0
	})
	if !ok {
		return 0, false
	}
	return edges[i].to, true
}

// span is a range of characters of one class.
type span struct {
	lo, hi rune
	class  int32
}

// newDecoder makes the decoder of spans, which are sorted. In quoted texts some characters are
// escaped.
func (a *account) newDecoder(spans []span, quoted bool) (*decoder, error) {
	d := &decoder{nodes: make([]decoderNode, 1)}
	escaped := map[byte]int32{}
	for _, s := range spans {
		for c := s.lo; quoted && c <= min(s.hi, '\\'); c++ {
			switch c {
			case '"', '\\':
				escaped[byte(c)] = s.class
			case '\n':
				escaped['n'] = s.class
			case '\t':
				escaped['t'] = s.class
			}
		}
		for _, part := range plainSpans(s, quoted) {
			if err := d.add(a, part.lo, part.hi, s.class); err != nil {
				return nil, err
			}
		}
	}
	if len(escaped) > 0 {
		at := int32(len(d.nodes))
		d.nodes = append(d.nodes, decoderNode{})
		for c, class := range escaped {
			d.nodes[at].edges = append(d.nodes[at].edges, decoderEdge{c, c, ^class})
			d.nodes[at].below = append(d.nodes[at].below, class)
		}
		d.nodes[0].edges = append(d.nodes[0].edges, decoderEdge{'\\', '\\', at})
	}
	for i := range d.nodes {
		n := &d.nodes[i]
		slices.SortFunc(n.edges, func(x, y decoderEdge) int { return cmp.Compare(x.lo, y.lo) })
		slices.Sort(n.below)
		n.below = slices.Compact(n.below)
	}
	return d, a.take(len(escaped) * decoderBytes)
}

// plainSpans are the parts of a span that are written as they are.
func plainSpans(s span, quoted bool) (out []span) {
	if !quoted {
		return []span{s}
	}
	for _, p := range []span{
		{' ', '!', 0}, {'#', '[', 0}, {']', '~', 0}, {0xa0, 0xd7ff, 0}, {0xe000, utf8.MaxRune, 0},
	} {
		if p.lo, p.hi = max(p.lo, s.lo), min(p.hi, s.hi); p.lo <= p.hi {
			out = append(out, p)
		}
	}
	return out
}

// add adds the characters from lo to hi, which come after all that were added before. A range of
// characters is split until it is a sequence of ranges of bytes.
func (d *decoder) add(a *account, lo, hi rune, class int32) error {
	for _, last := range []rune{0x7f, 0x7ff, 0xffff} {
		if lo <= last && last < hi {
			return d.split(a, lo, last, hi, class)
		}
	}
	if hi > 0x7f {
		for n := 6; n <= 18; n += 6 {
			mask := rune(1)<<n - 1
			if lo&^mask == hi&^mask {
				break
			}
			if lo&mask != 0 {
				return d.split(a, lo, lo|mask, hi, class)
			}
			if hi&mask != mask {
				return d.split(a, lo, hi&^mask-1, hi, class)
			}
		}
	}
	from, to := utf8.AppendRune(nil, lo), utf8.AppendRune(nil, hi)
	at := int32(0)
	for i := range from {
		n := &d.nodes[at]
		if !slices.Contains(n.below, class) {
			n.below = append(n.below, class)
		}
		if e := len(n.edges); e > 0 && n.edges[e-1].lo == from[i] && n.edges[e-1].hi == to[i] {
			at = n.edges[e-1].to
			continue
		}
		if err := a.take(decoderBytes); err != nil {
			return err
		}
		next := ^class
		if i < len(from)-1 {
			next = int32(len(d.nodes))
		}
		n.edges = append(n.edges, decoderEdge{from[i], to[i], next})
		if next >= 0 {
			d.nodes = append(d.nodes, decoderNode{})
		}
		at = next
	}
	return nil
}

func (d *decoder) split(a *account, lo, mid, hi rune, class int32) error {
	if err := d.add(a, lo, mid, class); err != nil {
		return err
	}
	return d.add(a, mid+1, hi, class)
}

// classify splits the characters into classes that no set tells apart: spans in order, and the
// first character of each class. Sets are pairs of bounds. Characters of the last set belong to no
// class.
func (a *account) classify(sets [][]rune) (spans []span, first []rune, err error) {
	slices.SortFunc(sets[:len(sets)-1], slices.Compare[[]rune])
	sets = slices.CompactFunc(sets, slices.Equal[[]rune])
	cuts := []rune{0}
	for _, s := range sets {
		for i := 0; i < len(s); i += 2 {
			cuts = append(cuts, s[i], s[i+1]+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	if err := a.take(len(cuts) * (len(sets)/8 + 64)); err != nil {
		return nil, nil, err
	}
	within := make([][]byte, len(cuts)) // by cut, which sets have it
	for i := range within {
		within[i] = make([]byte, (len(sets)+7)/8)
	}
	for n, s := range sets {
		for i := 0; i < len(s); i += 2 {
			at, _ := slices.BinarySearch(cuts, s[i])
			for ; at < len(cuts) && cuts[at] <= s[i+1]; at++ {
				within[at][n/8] |= 1 << (n % 8)
			}
		}
	}
	ids := map[string]int32{}
	last := len(sets) - 1
	for i, lo := range cuts {
		hi := rune(utf8.MaxRune)
		if i+1 < len(cuts) {
			hi = cuts[i+1] - 1
		}
		if lo > hi || within[i][last/8]>>(last%8)&1 == 1 {
			continue
		}
		id, ok := ids[string(within[i])]
		if !ok {
			id = int32(len(ids))
			ids[string(within[i])] = id
			first = append(first, lo)
		}
		spans = append(spans, span{lo, hi, id})
	}
	return spans, first, nil
}

// byteClasses tells bytes apart: those with equal numbers lead to the same nodes in all decoders.
func byteClasses(decoders []*decoder) (number [256]uint8) {
	type key struct {
		before uint8
		to     int32
	}
	ids := map[key]uint8{}
	for _, d := range decoders {
		for at := range d.nodes {
			clear(ids)
			for c := range number {
				to, ok := d.step(int32(at), byte(c))
				if !ok {
					to = math.MinInt32
				}
				k := key{number[c], to}
				id, ok := ids[k]
				if !ok {
					id = uint8(len(ids))
					ids[k] = id
				}
				number[c] = id
			}
		}
	}
	return number
}
