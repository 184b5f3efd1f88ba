package engine

import (
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/nn"
)

// Ensure that no chunk of a prompt cuts a block of rows, however long, and that each chunk has its
// blocks.
func TestChunks(t *testing.T) {
	const c = prefillChunk
	for _, test := range []struct {
		rows   int
		blocks []nn.Block
		ends   []int
	}{
		{2*c + 1, nil, []int{c, 2 * c, 2*c + 1}},
		{c + 9, []nn.Block{{First: 4, End: c - 2}, {First: c - 2, End: c + 3}}, []int{c - 2, c + 9}},
		{3 * c, []nn.Block{{First: c, End: c + 5}, {First: c + 9, End: 2*c + 10}},
			[]int{c, c + 9, 2*c + 10, 3 * c}},
		{2*c + 7, []nn.Block{{First: 0, End: 2 * c}}, []int{2 * c, 2*c + 7}},
		{c, []nn.Block{{First: 3, End: c}}, []int{c}},
	} {
		in, lo := &Rows{Pos: make([]nn.Pos, test.rows), Blocks: test.blocks}, 0
		var ends []int
		var blocks []nn.Block
		for lo < test.rows {
			hi := in.chunk(lo)
			for _, b := range in.blocks(lo, hi) {
				blocks = append(blocks, nn.Block{First: b.First + lo, End: b.End + lo})
			}
			ends, lo = append(ends, hi), hi
		}
		if !slices.Equal(ends, test.ends) || !slices.Equal(blocks, test.blocks) {
			t.Errorf("%v: chunks end at %v with %v, want %v", test.blocks, ends, blocks, test.ends)
		}
	}
}
