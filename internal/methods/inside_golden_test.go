package methods

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// insideTol is a share of the largest value: seven times what float32 sums of small probabilities
// differ by from float64.
const insideTol = 3e-5

// fastVCases are calls of the authors' function: rows of system text, visual rows, share removed.
var fastVCases = map[string]struct {
	system, visual int
	removed        float64
}{
	"half": {7, 36, 0.5}, "three_quarters": {7, 36, 0.75}, "round_half_even_9": {7, 37, 0.75}, "round_half_even_down": {7, 25, 0.9},
	"round_half_even_up": {7, 7, 0.5}, "round_half_even_2": {7, 5, 0.5}, "k3": {5, 20, 0.4}, "ties": {4, 20, 0.6},
}

// Ensure that FastV keeps the rows that the authors' function keeps of the same attention, shares
// rounded as theirs; of equal rows, whose order theirs does not specify, the first.
func TestGoldenFastV(t *testing.T) {
	g := readGolden(t, filepath.Join("testdata", "inside.safetensors"))
	for name, c := range fastVCases {
		p := "fastv." + name + "/"
		attn := g.floats(t, p+"attention_last_row")
		heads := g[p+"attention_last_row"].Shape[0]
		keys := len(attn) / heads
		o := Options{Base: "fastv", Schedule: "2:" + strconv.FormatFloat(1-c.removed, 'g', -1, 64)}
		r, err := inLayers(o, c.visual, 8)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewInside(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		v := &Sight{First: c.system, Key: c.system, Keys: keys, Last: int32(keys - 1)}
		if rows, largest := s.AttentionRows(v); largest || !slices.Equal(rows, []int32{v.Last}) ||
			!s.Reads(1, false) {
			t.Fatalf("%s: looks at %v, largest %v", name, rows, largest)
		}
		look := make([]float32, keys)
		for i, a := range attn {
			look[i%keys] += a / float32(heads)
		}
		if err := s.Read(v, look); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Shrink(nil, make([]float32, c.visual), 1); err != nil {
			t.Fatal(err)
		}
		got, want := s.Results[0], g.ints(t, p+"keep")
		wantFloats(t, p+"score", got.Score, g.floats(t, p+"score"), insideTol, true)
		if name != "ties" {
			if !slices.Equal(got.Kept, want) {
				t.Errorf("%s: kept %v, want %v", name, got.Kept, want)
			}
			continue
		}
		if len(got.Kept) != len(want) {
			t.Fatalf("ties: kept %d, want %d", len(got.Kept), len(want))
		}
		for i, x := range got.Score {
			for _, k := range got.Kept {
				if !slices.Contains(got.Kept, int32(i)) &&
					(got.Score[k] < x || got.Score[k] == x && k > int32(i)) {
					t.Errorf("ties: kept row %d of score %v, not %d of %v", k, got.Score[k], i, x)
				}
			}
		}
	}
}

// Ensure that one stage of RESTORE, over rows that stand for several patches already, is the
// reference's: pool, anchors, groups, means, sizes, positions, order.
func TestGoldenStages(t *testing.T) {
	g := readGolden(t, filepath.Join("testdata", "inside.safetensors"))
	for name, c := range map[string]struct {
		n     int
		gamma float64
	}{
		"stage_n36_12_g50": {12, 0.5}, "stage_n36_13_g75_sizes": {13, 0.75}, "stage_n20_1": {1, 0.5}, "stage_g0": {5, 0},
	} {
		p := "restore." + name + "/"
		x, members, offsets := g.floats(t, p+"x"), g.ints(t, p+"group_members"),
			g.ints(t, p+"group_offsets")
		patches, before, width := len(members), len(offsets)-1, g[p+"x"].Shape[1]
		o := Options{
			Base: "fastv", Schedule: fmt.Sprintf("2:%d", c.n), Restore: true, Compat: "paper",
			Gamma: new(c.gamma),
		}
		r, err := inLayers(o, patches, 8)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewInside(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.rows = make([]reduce.Row, before)
		for i := range s.rows {
			m := slices.Sorted(slices.Values(members[offsets[i]:offsets[i+1]]))
			s.rows[i] = reduce.Row{
				Members: m, Anchor: m[0], Merged: len(m) > 1, Size: len(m),
				Position: float64(m[(len(m)-1)/2]),
			}
		}
		s.score = slices.Clone(g.floats(t, p+"score"))
		mixes, err := s.Shrink(nil, x, width)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Results[0]
		for leaf, list := range map[string][]int32{
			"kept": got.Kept, "pool": got.Pool, "anchors": got.Anchors, "assign": got.Assign,
		} {
			if want := g.ints(t, p+leaf); !slices.Equal(list, want) {
				t.Errorf("%s: %s %v, want %v", name, leaf, list, want)
			}
		}
		// The reference lists kept rows, then anchors; order sorts them by position.
		out := make([]float32, len(mixes)*width)
		nn.Blend(nil, out, x, mixes, width)
		rows, sizes, at := g.floats(t, p+"rows"), g.floats(t, p+"size_out"), g.ints(t, p+"position")
		groups, bounds := g.ints(t, p+"group_members_out"), g.ints(t, p+"group_offsets_out")
		for i, j := range g.ints(t, p+"order") {
			row := got.Rows[i]
			want := slices.Sorted(slices.Values(groups[bounds[j]:bounds[j+1]]))
			if !slices.Equal(row.Members, want) || float32(row.Size) != sizes[j] ||
				row.Position != float64(at[j]) {
				t.Errorf("%s: row %d is %v of size %d at %v, want %v of %v at %d", name, i,
					row.Members, row.Size, row.Position, want, sizes[j], at[j])
			}
			wantFloats(t, fmt.Sprintf("%s row %d", name, i), out[i*width:(i+1)*width],
				rows[int(j)*width:][:width], insideTol, true)
		}
	}
}
