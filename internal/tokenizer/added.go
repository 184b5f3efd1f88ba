package tokenizer

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxAddedLen is the most bytes of an added token: matching takes up to this many steps per byte.
// maxAddedBytes is the most bytes of all; published vocabularies have up to a megabyte.
const (
	maxAddedLen   = 4096
	maxAddedBytes = 16 << 20
)

// addedToken is one entry of added_tokens.
type addedToken struct {
	ID      int32  `json:"id"`
	Content string `json:"content"`
	// SingleWord: not next to a word character on either side.
	SingleWord bool `json:"single_word"`
	// LStrip, RStrip: the token includes the white space on that side.
	LStrip bool `json:"lstrip"`
	RStrip bool `json:"rstrip"`
	// Normalized: the token is matched against the normalised text, and is itself normalised.
	Normalized bool `json:"normalized"`
	// Special: omitted by decoding with skipSpecial; plain text with SpecialsAsText.
	Special bool `json:"special"`
}

// matcher finds added tokens. It is a byte trie; nodes are indices, 0 the root.
type matcher struct {
	nodes []matchNode
	first [256]bool // bytes that begin a token
}

type matchNode struct {
	b              byte        // that leads here
	child, sibling int32       // the last child; the sibling before this node; 0: none
	token          *addedToken // that ends here, or nil
}

func (m *matcher) empty() bool { return len(m.nodes) == 0 }

// step returns the node after b, 0 if there is none.
func (m *matcher) step(node int32, b byte) int32 {
	at := m.nodes[node].child
	for at != 0 && m.nodes[at].b != b {
		at = m.nodes[at].sibling
	}
	return at
}

func (m *matcher) add(content string, t *addedToken) {
	if content == "" {
		return
	}
	if m.empty() {
		m.nodes = append(m.nodes, matchNode{})
	}
	m.first[content[0]] = true
	node := int32(0)
	for i := range len(content) {
		child := m.step(node, content[i])
		if child == 0 {
			child = int32(len(m.nodes))
			m.nodes = append(m.nodes, matchNode{b: content[i], sibling: m.nodes[node].child})
			m.nodes[node].child = child
		}
		node = child
	}
	if m.nodes[node].token == nil {
		m.nodes[node].token = t
	}
}

// candidate is a token that occurs at some place in the text, with its end.
type candidate struct {
	token *addedToken
	end   int
}

// at appends the tokens that occur at s[i], shortest first.
func (m *matcher) at(s string, i int, dst []candidate) []candidate {
	node := int32(0)
	for ; i < len(s); i++ {
		if node = m.step(node, s[i]); node == 0 {
			break
		}
		if t := m.nodes[node].token; t != nil {
			dst = append(dst, candidate{t, i + 1})
		}
	}
	return dst
}

// guard decides which matches are accepted.
type guard struct {
	specialsAsText bool
	// user holds the parts of the original text that a user wrote: sorted, disjoint, not empty.
	user []span
}

type verdict uint8

const (
	take    verdict = iota // the match is accepted
	pass                   // it is plain text, and so is every token inside it
	shorten                // try a shorter token here, then continue at the next byte
)

// touches reports how much of s the user wrote: nothing (none), everything (all), or a part
// (neither).
func (g *guard) touches(s span) (none, all bool) {
	i := sort.Search(len(g.user), func(i int) bool { return g.user[i].end > s.start })
	if i == len(g.user) || g.user[i].start >= s.end {
		return true, false
	}
	return false, g.user[i].start <= s.start && s.end <= g.user[i].end
}

// judge decides on the match p.text[i:c.end]. A special token is accepted only outside the user's
// text. No token that is partly the user's may cover a control token of the template.
func (g *guard) judge(m *matcher, p *piece, i int, c candidate) verdict {
	if c.token.Special && g.specialsAsText {
		return pass
	}
	if len(g.user) == 0 {
		return take
	}
	none, all := g.touches(p.spanOf(i, c.end))
	switch {
	case none:
		return take
	case all && c.token.Special:
		return pass
	case all:
		return take
	case c.token.Special:
		return shorten
	}
	var inner []candidate
	for k := i + 1; k < c.end; k++ {
		if !m.first[p.text[k]] {
			continue
		}
		inner = m.at(p.text, k, inner[:0])
		for _, d := range inner {
			if none, _ := g.touches(p.spanOf(k, d.end)); none && d.token.Special {
				return shorten
			}
		}
	}
	return take
}

// split cuts p at its added tokens: leftmost first, the longest at each place. White space stripped
// by lstrip and rstrip belongs to the token's piece.
func (m *matcher) split(p piece, g *guard, dst []piece) []piece {
	if m.empty() || p.text == "" {
		if p.text != "" {
			dst = append(dst, p)
		}
		return dst
	}
	s := p.text
	done := 0   // everything before it is in dst
	blanks := 0 // end of the last white space after a token
	var found []candidate
	for i := 0; i < len(s); {
		if !m.first[s[i]] {
			i++
			continue
		}
		found = m.at(s, i, found[:0])
		resume := i + 1
	judging:
		for n := len(found) - 1; n >= 0; n-- {
			c := found[n]
			switch g.judge(m, &p, i, c) {
			case shorten:
				continue
			case pass:
				resume = c.end
				break judging
			}
			resume = c.end
			start, end := i, c.end
			if c.token.SingleWord {
				before, _ := utf8.DecodeLastRuneInString(s[:start])
				after, _ := utf8.DecodeRuneInString(s[end:])
				if start > 0 && isWord(before) || end < len(s) && isWord(after) {
					break judging
				}
			}
			if c.token.LStrip {
				start = done + len(strings.TrimRightFunc(s[done:max(start, done)], unicode.IsSpace))
			}
			if c.token.RStrip {
				if end > blanks { // else it lies in white space that was measured before
					blanks = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
				}
				end = blanks
			}
			if start >= end { // it is white space that belongs to the token before it
				break judging
			}
			if done < start {
				dst = append(dst, p.slice(done, start))
			}
			q := p.slice(start, end)
			q.id = c.token.ID
			dst = append(dst, q)
			done = end
			break judging
		}
		i = resume
	}
	if done < len(s) {
		dst = append(dst, p.slice(done, len(s)))
	}
	return dst
}

// readAdded reads the entries of added_tokens one by one, without those that match no text.
func readAdded(raw json.RawMessage) ([]addedToken, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var list []addedToken
	size := 0
	s := scanner{data: raw}
	err := s.array(func(int) error {
		raw, err := s.raw()
		var a addedToken
		if err == nil {
			err = json.Unmarshal(raw, &a)
		}
		if err != nil || a.Content == "" {
			return err
		}
		if len(a.Content) > maxAddedLen {
			return fmt.Errorf("%.40q…: %d bytes long, limit is %d", a.Content, len(a.Content),
				maxAddedLen)
		}
		if size += len(a.Content); size > maxAddedBytes || len(list) > maxID {
			return fmt.Errorf("more than %d tokens or %d bytes", maxID+1, maxAddedBytes)
		}
		list = append(list, a)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	return list, err
}

// addTokens reads the added_tokens section into t, which already has its model and normalizer, and
// adds what the section lacks of more.
func (t *Tokenizer) addTokens(raw json.RawMessage, more []addedToken) error {
	list, err := readAdded(raw)
	if err != nil {
		return fmt.Errorf("tokenizer: added_tokens: %w", err)
	}
	has := map[string]bool{"": true}
	for _, a := range list {
		has[a.Content] = true
	}
	for _, a := range more {
		if has[a.Content] {
			continue
		}
		if id, ok := t.TokenID(a.Content); ok { // as in the reference, whatever the settings say
			a.ID = id
		}
		list = append(list, a)
	}
	byContent := map[string]int{}
	kept := list[:0]
	for _, a := range list {
		switch known, ok := t.TokenID(a.Content); {
		case a.ID < 0 || a.ID > maxID:
			return fmt.Errorf("tokenizer: added token %q: id %d out of range, limit is %d",
				a.Content, a.ID, maxID)
		case ok && known != a.ID:
			return fmt.Errorf("tokenizer: added token %q: id %d, but the vocabulary says %d",
				a.Content, a.ID, known)
		case !ok && t.has(a.ID):
			return fmt.Errorf("tokenizer: added token %q: id %d is taken by %q", a.Content, a.ID,
				t.tokens[a.ID].text)
		case !ok:
			t.setToken(a.ID, a.Content)
			t.addedIDs[a.Content] = a.ID
		}
		if i, ok := byContent[a.Content]; ok {
			kept[i] = a // a repeated entry changes the flags
			continue
		}
		byContent[a.Content] = len(kept)
		kept = append(kept, a)
	}
	for i := range kept {
		a := &kept[i]
		t.tokens[a.ID].special = a.Special
		t.tokens[a.ID].leans = a.LStrip || a.RStrip || a.SingleWord
		if !a.Normalized {
			t.rawAdded.add(a.Content, a)
			continue
		}
		p := piece{text: a.Content, id: noToken}
		if err := t.normalize(&p); err != nil {
			return fmt.Errorf("tokenizer: added token %q: %w", a.Content, err)
		}
		if p.text != a.Content {
			t.display[a.ID] = p.text
		}
		t.normalAdded.add(p.text, a)
	}
	return nil
}
