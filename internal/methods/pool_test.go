package methods

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// Ensure that pooling over several grids puts every token in one cell of its own grid, in
// proportion, and that what is on no grid is refused.
func TestPoolGrids(t *testing.T) {
	grid := func(first, h, w int) reduce.Cut {
		g := reduce.Cut{H: h, W: w}
		for i := range h * w {
			g.Tokens = append(g.Tokens, int32(first+i))
		}
		return g
	}
	rng := rand.New(rand.NewPCG(8, 1))
	in := &reduce.Input{N: 16 + 3*7, C: 2, Grids: []reduce.Cut{grid(0, 4, 4), grid(16, 3, 7)}}
	for range in.N * in.C {
		in.X = append(in.X, rng.Float32())
	}
	for n := 1; n <= in.N; n++ {
		r := mustReduce(t, in, Options{Base: "pool", NVis: n, Restore: true})
		if len(r.Rows) != n {
			t.Fatalf("%d cells: got %d", n, len(r.Rows))
		}
		all, first := 0, 0
		for _, row := range r.Rows {
			all += row.Size
			if n > 1 && (row.Members[0] < 16) != (row.Members[len(row.Members)-1] < 16) {
				t.Errorf("%d cells: %v is in two grids", n, row.Members)
			}
			if row.Members[0] < 16 {
				first++
			}
		}
		if all != in.N {
			t.Errorf("%d cells: sizes add up to %d, want %d", n, all, in.N)
		}
		if share := float64(n) * 16 / 37; n > 1 &&
			!(float64(first) >= share-2 && float64(first) <= share+2) {
			t.Errorf("%d cells: %d in the first grid, want about %.1f", n, first, share)
		}
	}
	r := mustReduce(t, in, Options{Base: "pool", NVis: 2, Restore: true})
	if want := []int32{10, 16 + 10}; !slices.Equal(r.Anchors, want) {
		t.Errorf("one cell a grid: anchors %v, want the middles %v", r.Anchors, want)
	}
	// Three tiles of 2x2 in a row before the whole of 2x2: the tokens of the tiles' grid do not
	// ascend.
	tiles := &reduce.Input{N: 16, C: 2, X: in.X[:32], Grids: []reduce.Cut{
		{H: 2, W: 2, Tokens: []int32{12, 13, 14, 15}},
		{H: 2, W: 6, Tokens: []int32{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}},
	}}
	r = mustReduce(t, tiles, Options{Base: "pool", NVis: 4, Restore: true})
	var members [][]int32
	for _, row := range r.Rows {
		members = append(members, row.Members)
	}
	if want := [][]int32{
		{0, 1, 2, 3, 4, 6}, {5, 7, 8, 9, 10, 11}, {12, 14}, {13, 15}, // halves, left and right
	}; !reflect.DeepEqual(members, want) {
		t.Errorf("tiles in a row: cells %v, want %v", members, want)
	}
	o, err := resolve(Options{Base: "pool", NVis: 5, Restore: true}, in.N)
	if err != nil {
		t.Fatal(err)
	}
	for want, grids := range map[string][]reduce.Cut{
		"newlines: got 21 tokens on no grid, which pool cannot honour": {grid(0, 4, 4)},
		"grid 1: token 15, want tokens of 0..36 that are nowhere else": {grid(0, 4, 4), grid(15, 3, 7)},
		"grid 0: got 12 tokens, want 4x4":                              {{H: 4, W: 4, Tokens: grid(0, 3, 4).Tokens}},
	} {
		bad := *in
		bad.Grids = grids
		if _, err := Reduce(&bad, o, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	bad := *in
	bad.Grids = []reduce.Cut{grid(0, 4, 4)}
	for _, m := range []*method{poolMethod, vScanMethod, hiPruneMethod} { // one text for all
		if want := "which " + m.Name + " cannot honour: it reads the picture's grids"; !strings.
			Contains(fmt.Sprint(checkGrids(&bad, m)), want) {
			t.Errorf("got %v, want %q", checkGrids(&bad, m), want)
		}
	}
	bad.Grids = nil
	if _, err := Reduce(&bad, o, nil); err == nil ||
		!strings.Contains(err.Error(), "pool: grid: got none") {
		t.Errorf("no grid: got %v", err)
	}
}
