package grammar

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Vocabulary is a tokenizer's tokens, prepared for matching. It is immutable.
type Vocabulary struct {
	tokens [][]byte // by id; nil for control tokens
	words  int      // words in a mask
	end    []int32
	single [256]bool // bytes that are tokens
	all    tokenTrie
	odd    tokenTrie // the tokens that are not plain
	plain  []plainToken
	// upTo holds, as masks, the plain tokens of at most i characters; the last mask has all of
	// them.
	upTo [][]uint64
	// first are the tokens whose bytes differ at the beginning of a text.
	first []firstToken
}

// plainToken is a token of whole characters that any string may contain.
type plainToken struct {
	id    int32
	runes int
}

type firstToken struct {
	id   int32
	text []byte
}

// tokenTrie is a trie of tokens in preorder.
type tokenTrie struct {
	steps []trieStep
	list  []int32 // token ids in the order of steps
}

// trieStep is a node: the byte that leads to it, its depth, the end of its subtree, and the index
// of its first token in the list.
type trieStep struct {
	skip  int32
	list  int32
	depth uint16
	b     byte
}

// ids returns the tokens that end at node i.
func (t *tokenTrie) ids(i int) []int32 {
	end := len(t.list)
	if i+1 < len(t.steps) {
		end = int(t.steps[i+1].list)
	}
	return t.list[t.steps[i].list:end]
}

// maxToken limits the bytes of a token.
const maxToken = 1 << 12

// NewVocabulary prepares n tokens. piece returns the bytes that a token adds to a text, at its
// beginning or later; none for control tokens. end are the tokens that end a text. It is an error
// if a byte that every value needs (braces, quotes, digits) is not a token of its own. Text that
// the tokens cannot write is never generated.
func NewVocabulary(
	n int,
	piece func(id int32, first bool) []byte,
	end []int32,
) (*Vocabulary, error) {
	v := &Vocabulary{tokens: make([][]byte, n), words: (n + 63) / 64, end: end}
	for id := range int32(n) {
		text := piece(id, false)
		if start := piece(id, true); !bytes.Equal(start, text) {
			v.first = append(v.first, firstToken{id, start})
		}
		if len(text) == 0 || len(text) > maxToken || slices.Contains(end, id) {
			continue
		}
		v.tokens[id] = text
		if len(text) == 1 {
			v.single[text[0]] = true
		}
	}
	if always := []byte("{}[]:,\"0123456789"); !v.can(always) {
		return nil, fmt.Errorf("grammar: vocabulary: want a token for each of %s alone", always)
	}
	characters := true // characters of more than one byte can be written byte by byte
	for b := 0x80; b < 0xc0; b++ {
		characters = characters && v.single[b]
	}
	var all, odd []int32
	most := 0
	for id, text := range v.tokens {
		if text == nil || !characters && !utf8.Valid(text) {
			continue
		}
		all = append(all, int32(id))
		if runes := plainRunes(text); runes > 0 {
			v.plain = append(v.plain, plainToken{int32(id), runes})
			most = max(most, runes)
		} else {
			odd = append(odd, int32(id))
		}
	}
	v.all, v.odd = v.newTokenTrie(all), v.newTokenTrie(odd)
	slices.SortFunc(v.plain, func(a, b plainToken) int { return cmp.Compare(a.runes, b.runes) })
	v.upTo = make([][]uint64, most+1)
	mask := make([]uint64, v.words)
	i := 0
	for runes := range v.upTo {
		for ; i < len(v.plain) && v.plain[i].runes == runes; i++ {
			set(mask, v.plain[i].id)
		}
		v.upTo[runes] = slices.Clone(mask)
	}
	return v, nil
}

// can reports whether a text can be written byte by byte.
func (v *Vocabulary) can(text []byte) bool {
	return !slices.ContainsFunc(text, func(b byte) bool { return !v.single[b] })
}

// plainRunes counts the characters of a token that any string may contain, 0 for other tokens.
func plainRunes(text []byte) int {
	p := inString
	for _, c := range text {
		if p = character(p, c); p == begin || p == afterEscape {
			return 0
		}
	}
	if p != inString {
		return 0
	}
	return utf8.RuneCount(text)
}

// newTokenTrie makes the trie of tokens.
func (v *Vocabulary) newTokenTrie(ids []int32) tokenTrie {
	slices.SortStableFunc(ids,
		func(a, b int32) int { return bytes.Compare(v.tokens[a], v.tokens[b]) })
	t := tokenTrie{list: ids}
	var open []int32 // nodes along the last token's bytes
	var last []byte
	for i, id := range ids {
		text := v.tokens[id]
		same := 0
		for same < len(text) && same < len(last) && text[same] == last[same] {
			same++
		}
		for len(open) > same {
			t.steps[open[len(open)-1]].skip = int32(len(t.steps))
			open = open[:len(open)-1]
		}
		for d := same; d < len(text); d++ {
			open = append(open, int32(len(t.steps)))
			t.steps = append(t.steps, trieStep{b: text[d], depth: uint16(d), list: int32(i)})
		}
		last = text
	}
	for _, i := range open {
		t.steps[i].skip = int32(len(t.steps))
	}
	return t
}

func set(mask []uint64, id int32)   { mask[id>>6] |= 1 << (id & 63) }
func unset(mask []uint64, id int32) { mask[id>>6] &^= 1 << (id & 63) }
