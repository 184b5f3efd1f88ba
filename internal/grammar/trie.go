package grammar

import (
	"bytes"
	"cmp"
	"slices"
)

// trie is a set of texts, byte by byte. Node 0 is the root.
type trie struct {
	nodes []trieNode
	// order has the numbers of the texts that end at a node or below it, ascending, node after
	// node.
	order []int32
}

type trieNode struct {
	b           byte  // that leads here
	text        int32 // the text that ends here, -1 if none
	child       int32 // the first child; the others follow, by their bytes
	children    int32
	below, size int32 // the node's part of order: beginning and length
}

// newTrie makes the trie of texts; a text's number is its index in the list. It charges a for every
// node.
func newTrie(texts [][]byte, a *account) (*trie, error) {
	sorted := make([]int32, len(texts))
	for i := range sorted {
		sorted[i] = int32(i)
	}
	slices.SortFunc(sorted, func(i, j int32) int {
		return cmp.Or(bytes.Compare(texts[i], texts[j]), cmp.Compare(i, j))
	})
	t := &trie{nodes: []trieNode{{text: -1, size: int32(len(texts))}}}
	from := []int32{0} // of each node, where its texts begin in sorted
	level := 1         // number of nodes when the level began
	for i, depth := 0, 0; i < len(t.nodes); i++ {
		if i == level {
			depth, level = depth+1, len(t.nodes)
		}
		n := &t.nodes[i]
		below := sorted[from[i] : from[i]+n.size]
		if err := a.take(trieNodeBytes + 4*len(below)); err != nil {
			return nil, err
		}
		n.below = int32(len(t.order))
		t.order = append(t.order, below...)
		slices.Sort(t.order[n.below:])
		t.grow(int32(i), below, texts, depth, &from)
	}
	return t, nil
}

// grow adds the children of node at, which stand for the next byte of the texts below it.
func (t *trie) grow(at int32, below []int32, texts [][]byte, depth int, from *[]int32) {
	begin := (*from)[at]
	t.nodes[at].child = int32(len(t.nodes))
	for i, number := range below {
		text := texts[number]
		if len(text) == depth {
			t.nodes[at].text = number
			continue
		}
		last := len(t.nodes) - 1
		if t.nodes[at].children == 0 || t.nodes[last].b != text[depth] {
			t.nodes = append(t.nodes, trieNode{b: text[depth], text: -1})
			*from = append(*from, begin+int32(i))
			t.nodes[at].children++
			last++
		}
		t.nodes[last].size++
	}
}

// step returns the node after b, -1 if there is none.
func (t *trie) step(at int32, b byte) int32 {
	n := &t.nodes[at]
	children := t.nodes[n.child : n.child+n.children]
	i, ok := slices.BinarySearchFunc(children, b,
		func(e trieNode, b byte) int { return cmp.Compare(e.b, b) })
	if !ok {
		return -1
	}
	return n.child + int32(i)
}

// between reports whether a text with a number from lo to hi, inclusive, ends at the node or below
// it.
func (t *trie) between(at, lo, hi int32) bool {
	n := &t.nodes[at]
	below := t.order[n.below : n.below+n.size]
	i, _ := slices.BinarySearch(below, lo)
	return i < len(below) && below[i] <= hi
}

// other reports whether a text that is not in set, which has a bit for each number, ends at the
// node or below it.
func (t *trie) other(at, set int32) bool {
	n := &t.nodes[at]
	return slices.ContainsFunc(t.order[n.below:n.below+n.size],
		func(text int32) bool { return set&(1<<text) == 0 })
}
