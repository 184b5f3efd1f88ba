package grammar

import (
	"cmp"
	"slices"
)

// trie is a set of texts, byte by byte. Node 0 is the root.
type trie struct {
	nodes []trieNode
}

type trieNode struct {
	next []trieEdge
	text int32 // the text that ends here, -1 if none
	// below are the texts that end here or below, ascending.
	below []int32
}

type trieEdge struct {
	b  byte
	to int32
}

// newTrie makes the trie of texts; a text's number is its index in the list.
func newTrie(texts [][]byte) *trie {
	t := &trie{nodes: []trieNode{{text: -1}}}
	for i, text := range texts {
		at := int32(0)
		t.nodes[at].below = append(t.nodes[at].below, int32(i))
		for _, b := range text {
			to := t.step(at, b)
			if to < 0 {
				to = int32(len(t.nodes))
				t.nodes = append(t.nodes, trieNode{text: -1})
				t.nodes[at].next = append(t.nodes[at].next, trieEdge{b, to})
				slices.SortFunc(t.nodes[at].next,
					func(a, b trieEdge) int { return cmp.Compare(a.b, b.b) })
			}
			at = to
			t.nodes[at].below = append(t.nodes[at].below, int32(i))
		}
		t.nodes[at].text = int32(i)
	}
	return t
}

// step returns the node after b, -1 if there is none.
func (t *trie) step(at int32, b byte) int32 {
	next := t.nodes[at].next
	i, ok := slices.BinarySearchFunc(next, b,
		func(e trieEdge, b byte) int { return cmp.Compare(e.b, b) })
	if !ok {
		return -1
	}
	return next[i].to
}

// between reports whether a text with a number from lo to hi, inclusive, ends at the node or below
// it.
func (t *trie) between(at, lo, hi int32) bool {
	below := t.nodes[at].below
	i, _ := slices.BinarySearch(below, lo)
	return i < len(below) && below[i] <= hi
}
