package tokenizer

import (
	"math"
	"strings"
	"unicode/utf8"
)

// blank is SentencePiece's character for a space.
const blank = "▁"

// pieces is SentencePiece's byte pair encoding. A text starts as its characters and its
// user-defined pieces. While any adjacent symbols together form a piece, the pair whose piece has
// the highest score (the leftmost of equals) is merged.
type pieces struct {
	SentencePiece
	ids     map[string]int32 // of normal, user-defined and unused pieces
	unknown int32
	bytes   [256]int32
	user    matcher // user-defined pieces
}

func newPieces(s *SentencePiece) *pieces {
	m := &pieces{SentencePiece: *s, ids: make(map[string]int32, len(s.Pieces))}
	for i, p := range s.Pieces {
		id := int32(i)
		switch p.Kind {
		case UnknownPiece:
			m.unknown = id
		case BytePiece:
			b, _ := byteToken(p.Text)
			m.bytes[b] = id
		case UserPiece:
			m.user.add(p.Text, &addedToken{ID: id, Content: p.Text})
			m.ids[p.Text] = id
		case NormalPiece, UnusedPiece:
			m.ids[p.Text] = id
		}
	}
	return m
}

// stretch is a symbol of a text under construction: text[start:end], in a doubly linked list by
// index, with -1 at its ends. end == start means that it was merged into the one before it.
type stretch struct {
	start, end, prev, next int32
	whole                  bool // a user-defined piece, which does not merge
}

// encode appends the tokens of text, in which ▁ stands for spaces. Time is O(n log n).
func (m *pieces) encode(w *workspace, text string, dst []token) []token {
	w.stretches, w.queue = m.start(w.stretches[:0], text), w.queue[:0]
	syms := w.stretches
	var apart map[string]int32 // unused pieces that were formed, and the length of their left half
	propose := func(i int32) {
		if i < 0 || syms[i].next < 0 || syms[i].whole || syms[syms[i].next].whole {
			return
		}
		whole := text[syms[i].start:syms[syms[i].next].end]
		id, ok := m.ids[whole]
		if !ok {
			return
		}
		w.push(proposal{descending(m.Pieces[id].Score)<<32 | uint64(uint32(i)), int32(len(whole))})
		if m.Pieces[id].Kind == UnusedPiece {
			if apart == nil {
				apart = map[string]int32{}
			}
			apart[whole] = syms[i].end - syms[i].start
		}
	}
	for i := range syms {
		propose(int32(i))
	}
	for len(w.queue) > 0 {
		top := w.pop()
		i := int32(uint32(top.key))
		left := &syms[i]
		if left.start == left.end || left.next < 0 {
			continue
		}
		right := &syms[left.next]
		if right.end-left.start != top.id { // out of date: one of them has merged since
			continue
		}
		left.end = right.end
		right.start = right.end
		if left.next = right.next; left.next >= 0 {
			syms[left.next].prev = i
		}
		propose(left.prev)
		propose(i)
	}
	out := piecesOut{pieces: m, tokens: dst, apart: apart}
	for i := range syms {
		if s := &syms[i]; s.start < s.end {
			out.add(text[s.start:s.end])
		}
	}
	return out.tokens
}

// piecesOut appends the tokens of texts that are pieces, or parts of none.
type piecesOut struct {
	*pieces
	tokens  []token
	apart   map[string]int32 // see encode
	unknown bool             // the last token is the unknown token, which a further one joins
}

func (o *piecesOut) add(s string) {
	id, ok := o.ids[s]
	if half := o.apart[s]; ok && half > 0 && o.Pieces[id].Kind == UnusedPiece {
		o.add(s[:half])
		o.add(s[half:])
		return
	}
	switch {
	case ok:
		o.tokens = append(o.tokens, token{id, int32(len(s))})
	case o.ByteFallback:
		for i := range len(s) {
			o.tokens = append(o.tokens, token{o.bytes[s[i]], 1})
		}
	case o.unknown:
		o.tokens[len(o.tokens)-1].length += int32(len(s))
	default:
		o.tokens = append(o.tokens, token{o.pieces.unknown, int32(len(s))})
	}
	o.unknown = !ok && !o.ByteFallback
}

// start splits text into its characters and user-defined pieces.
func (m *pieces) start(dst []stretch, text string) []stretch {
	var found []candidate
	for i := 0; i < len(text); {
		_, size := utf8.DecodeRuneInString(text[i:])
		whole := false
		if m.user.first[text[i]] {
			if found = m.user.at(text, i, found[:0]); len(found) > 0 { // shortest first
				size, whole = found[len(found)-1].end-i, true
			}
		}
		n := int32(len(dst))
		dst = append(dst, stretch{int32(i), int32(i + size), n - 1, n + 1, whole})
		i += size
	}
	if n := len(dst); n > 0 {
		dst[n-1].next = -1
	}
	return dst
}

// descending maps scores to numbers in the opposite order.
func descending(score float32) uint64 {
	b := math.Float32bits(score + 0) // -0 is 0
	if b>>31 == 0 {
		b |= 1 << 31
	} else {
		b = ^b
	}
	return uint64(^b)
}

// normalize replaces the spaces of p by ▁, and adds one before the text if prefix is set. If the
// vocabulary says so, it first trims spaces: at the end, and at the beginning too with front;
// otherwise one space remains there.
func (m *pieces) normalize(p *piece, prefix, front bool) error {
	if m.TrimSpaces {
		text := strings.TrimRight(p.text, " ")
		if front {
			text = strings.TrimLeft(text, " ")
		}
		if text == "" {
			*p = p.slice(0, 0)
			return nil
		}
		start := strings.Index(p.text, text)
		*p = p.slice(start, start+len(text))
		var runs [][2]int
		for i := 0; i < len(p.text); i++ {
			if end := i + 1; p.text[i] == ' ' {
				for p.text[end] == ' ' {
					end++
				}
				if end > i+1 {
					runs = append(runs, [2]int{i, end})
				}
				i = end - 1
			}
		}
		if err := p.replace(runs, " "); err != nil {
			return err
		}
	}
	var spaces [][2]int
	for i := range len(p.text) {
		if p.text[i] == ' ' {
			spaces = append(spaces, [2]int{i, i + 1})
		}
	}
	if err := p.replace(spaces, blank); err != nil {
		return err
	}
	if prefix {
		if err := p.prepend(blank); err != nil {
			return err
		}
	}
	if m.TrimSpaces {
		*p = p.slice(0, len(p.text)-trailing(p.text))
	}
	return nil
}

// trailing returns the bytes of the spaces at the end of s, which are ▁.
func trailing(s string) int {
	n := 0
	for strings.HasSuffix(s[:len(s)-n], blank) {
		n += len(blank)
	}
	return n
}
