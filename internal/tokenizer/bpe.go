package tokenizer

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// bpe is the byte pair encoding model (Sennrich et al., https://arxiv.org/abs/1508.07909). A word
// starts as its characters. While any adjacent pair has a merge, the pair whose merge ranks first
// (the leftmost of equals) is merged.
type bpe struct {
	vocab  map[string]int32
	merges mergeTable
	ascii  [utf8.RuneSelf]int32 // vocab of the one-byte characters, noToken if absent
	byteID [256]int32           // <0x00> … <0xFF>, noToken if absent

	byteFallback bool // a character that is no token becomes its bytes' tokens, if they all exist
	fuseUnk      bool // adjacent unknown characters become one unknown token
	ignoreMerges bool // a word that is a token is not split
	unk          *string
	prefix       string // before every character of a word except the first
	suffix       string // after the last character of a word
}

// token is one token of a word with the bytes of the word that it covers.
type token struct {
	id     int32
	length int32
}

// mergeTable maps a pair of ids to its merge by open addressing.
type mergeTable struct {
	slots []merge
	shift uint
}

type merge struct {
	pair uint64 // pairOf(left, right)
	rank int32  // -1 marks a free slot
	id   int32  // the merged token
}

// newMergeTable returns a table of merges; of two with the same pair, the later one is used.
func newMergeTable(merges []merge) mergeTable {
	size := 1 << bits.Len(uint(2*len(merges)+1))
	t := mergeTable{slots: make([]merge, size), shift: uint(64 - bits.Len(uint(size-1)))}
	for i := range t.slots {
		t.slots[i].rank = -1
	}
	for _, m := range merges {
		*t.find(m.pair) = m
	}
	return t
}

func pairOf(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// find returns the slot of the pair, or the free slot where it would go.
func (t *mergeTable) find(pair uint64) *merge {
	// Fibonacci hashing: the high bits of the product depend on all bits of the pair.
	for i := pair * 0x9e3779b97f4a7c15 >> t.shift; ; i = (i + 1) & uint64(len(t.slots)-1) {
		if s := &t.slots[i]; s.pair == pair || s.rank < 0 {
			return s
		}
	}
}

// symbol is a token of a word under construction, in a doubly linked list by index, -1 at its ends.
type symbol struct {
	id, length int32 // length 0: merged into the symbol before it
	prev, next int32
}

// proposal is a possible merge of the symbol in the low half of key with the next one. The high
// half is its rank, so proposals are ordered by rank, then from left to right.
type proposal struct {
	key uint64
	id  int32
}

// workspace is the memory of encode, reused for each word.
type workspace struct {
	symbols   []symbol
	stretches []stretch
	queue     []proposal // a 4-ary heap, smallest key first
}

// encode appends the tokens of one word. Time is O(n log n) for n characters.
func (m *bpe) encode(w *workspace, word string, dst []token) ([]token, error) {
	if m.ignoreMerges {
		if id, ok := m.vocab[word]; ok {
			return append(dst, token{id, int32(len(word))}), nil
		}
	}
	w.symbols, w.queue = slices.Grow(w.symbols[:0], len(word)), w.queue[:0]
	if err := m.characters(w, word); err != nil {
		return nil, err
	}
	m.mergeAll(w)
	for _, s := range w.symbols {
		if s.length > 0 {
			dst = append(dst, token{s.id, s.length})
		}
	}
	return dst, nil
}

// characters fills w.symbols with the characters of word. A character that is not a token and has
// no byte tokens becomes the unknown token; without one it is dropped.
func (m *bpe) characters(w *workspace, word string) error {
	add := func(id int32, length int) {
		n := int32(len(w.symbols))
		w.symbols = append(w.symbols, symbol{id, int32(length), n - 1, n + 1})
	}
	affixes := m.prefix != "" || m.suffix != ""
	// bytes of unknown text not added yet; byte fallback does not flush it, as in the reference
	pending := 0
	var unk int32
	for i, size := 0, 0; i < len(word); i += size {
		id := int32(noToken)
		spelled := ""
		if c := word[i]; c < utf8.RuneSelf && !affixes {
			size = 1
			id = m.ascii[c]
			spelled = word[i : i+1]
		} else {
			_, size = utf8.DecodeRuneInString(word[i:])
			spelled = word[i : i+size]
			if i > 0 && m.prefix != "" {
				spelled = m.prefix + spelled
			}
			if i+size == len(word) && m.suffix != "" {
				spelled += m.suffix
			}
			if known, ok := m.vocab[spelled]; ok {
				id = known
			}
		}
		switch {
		case id != noToken:
			if pending > 0 {
				add(unk, pending)
				pending = 0
			}
			add(id, size)
		case m.byteFallback && m.hasBytes(spelled):
			for k := range len(spelled) {
				add(m.byteID[spelled[k]], 1)
			}
		case m.unk != nil:
			known, ok := m.vocab[*m.unk]
			if !ok {
				return fmt.Errorf("tokenizer: model: unk_token %q is not in the vocabulary", *m.unk)
			}
			if pending > 0 && !m.fuseUnk {
				add(unk, pending)
				pending = 0
			}
			unk = known
			pending += size
		}
	}
	if pending > 0 {
		add(unk, pending)
	}
	if n := len(w.symbols); n > 0 {
		w.symbols[n-1].next = -1
	}
	return nil
}

func (m *bpe) hasBytes(s string) bool {
	for i := range len(s) {
		if m.byteID[s[i]] == noToken {
			return false
		}
	}
	return true
}

// mergeAll merges until no adjacent symbols have a merge.
func (m *bpe) mergeAll(w *workspace) {
	syms := w.symbols
	for i := 0; i+1 < len(syms); i++ {
		if e := m.merges.find(pairOf(syms[i].id, syms[i+1].id)); e.rank >= 0 {
			w.queue = append(w.queue, proposal{uint64(e.rank)<<32 | uint64(i), e.id})
		}
	}
	w.heapify()
	propose := func(i int32) {
		if i < 0 || syms[i].next < 0 {
			return
		}
		if e := m.merges.find(pairOf(syms[i].id, syms[syms[i].next].id)); e.rank >= 0 {
			w.push(proposal{uint64(e.rank)<<32 | uint64(i), e.id})
		}
	}
	for len(w.queue) > 0 {
		top := w.pop()
		i := int32(uint32(top.key))
		left := &syms[i]
		if left.length == 0 || left.next < 0 {
			continue
		}
		right := &syms[left.next]
		// The proposal is out of date if its symbols have since merged with others.
		if e := m.merges.find(pairOf(left.id, right.id)); e.rank < 0 || e.id != top.id {
			continue
		}
		left.id = top.id
		left.length += right.length
		left.next = right.next
		right.length = 0
		if left.next >= 0 {
			syms[left.next].prev = i
		}
		propose(left.prev)
		propose(i)
	}
}

func (w *workspace) heapify() {
	for i := (len(w.queue) - 2) / 4; i >= 0; i-- {
		w.down(i)
	}
}

func (w *workspace) push(p proposal) {
	q := append(w.queue, p)
	i := len(q) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if q[parent].key <= p.key {
			break
		}
		q[i] = q[parent]
		i = parent
	}
	q[i] = p
	w.queue = q
}

func (w *workspace) pop() proposal {
	q := w.queue
	top := q[0]
	n := len(q) - 1
	q[0] = q[n]
	w.queue = q[:n]
	if n > 1 {
		w.down(0)
	}
	return top
}

// down moves the entry at i down to its place.
func (w *workspace) down(i int) {
	q := w.queue
	if i >= len(q) {
		return
	}
	p := q[i]
	for {
		child := 4*i + 1
		if child >= len(q) {
			break
		}
		for k := child + 1; k < min(4*i+5, len(q)); k++ {
			if q[k].key < q[child].key {
				child = k
			}
		}
		if p.key <= q[child].key {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = p
}

// index fills the tables derived from the vocabulary.
func (m *bpe) index() {
	for c := range m.ascii {
		m.ascii[c] = m.lookup(string(rune(c)))
	}
	for b := range m.byteID {
		m.byteID[b] = m.lookup(fmt.Sprintf("<0x%02X>", b))
	}
}

func (m *bpe) lookup(s string) int32 {
	if id, ok := m.vocab[s]; ok {
		return id
	}
	return noToken
}

// resolve looks up the merge of left and right. buf is scratch memory.
func (m *bpe) resolve(left, right []byte, rank int, buf *[]byte) (merge, error) {
	l, ok := m.vocab[string(left)]
	if !ok {
		return merge{}, fmt.Errorf("merge %d: %.80q is not in the vocabulary", rank, left)
	}
	r, ok := m.vocab[string(right)]
	if !ok {
		return merge{}, fmt.Errorf("merge %d: %.80q is not in the vocabulary", rank, right)
	}
	if !strings.HasPrefix(string(right), m.prefix) {
		return merge{}, fmt.Errorf("merge %d: %.80q lacks the continuing_subword_prefix %q", rank,
			right, m.prefix)
	}
	*buf = append(append((*buf)[:0], left...), right[len(m.prefix):]...)
	id, ok := m.vocab[string(*buf)]
	if !ok {
		return merge{}, fmt.Errorf("merge %d: its result %.80q is not in the vocabulary", rank,
			*buf)
	}
	return merge{pairOf(l, r), int32(rank), id}, nil
}
