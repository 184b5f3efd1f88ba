package methods

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/reduce"
)

// dartPlaces is where the picture lies in each of the recorded sequences: first row and rows.
var dartPlaces = map[string][2]int{
	"dup": {4, 54}, "llava": {35, 576}, "next": {35, 2080}, "small": {3, 48},
}

func TestGoldenDART(t *testing.T) {
	eachGolden(t, func(t *testing.T, dir string) {
		g, runs := readGolden(t, filepath.Join(dir, "dart.safetensors")), 0
		for _, p := range g.prefixes("kept") {
			name := strings.Split(p, "/")[0]
			hidden, keys, place := g[name+"/hidden_normed"], g[name+"/keys"], dartPlaces[name]
			rows, heads, dim := keys.Shape[1], keys.Shape[0], keys.Shape[2]
			s := &dartSequence{
				start: place[0], images: place[1], width: hidden.Shape[1],
				hidden:   g.floats(t, name+"/hidden_normed"),
				keyWidth: heads * dim, keys: make([]float32, rows*heads*dim),
			}
			for i, v := range g.floats(t, name+"/keys") {
				h, r, k := i/(rows*dim), i/dim%rows, i%dim
				s.keys[r*s.keyWidth+h*dim+k] = v
			}
			for r := place[0] + place[1]; r < rows; r++ {
				s.text = append(s.text, int32(r))
			}
			runs++
			p += "/"
			c := s.choose(g[p+"kept"].Len())
			kept := slices.Concat(append(c.picks, c.imagePivots)...)
			slices.Sort(kept)
			// exact copies: only the kept ones are recorded under the stable rule
			tie := name == "dup"
			g.wantInts(t, "", p, "kept", kept, tie)
			if tie {
				continue
			}
			g.wantInts(t, "", p, "pivots_image", c.imagePivots, false)
			g.wantInts(t, "", p, "pivots_text", c.textPivots, false)
			g.wantInts(t, "", p, "visit_order", c.visited, false)
			if _, ok := g[p+"picks"]; ok {
				g.wantInts(t, "", p, "picks", slices.Concat(c.picks...), false)
			}
		}
		t.Logf("%d runs", runs)
	})
}

// TestSetOrder: five inserts in 8 slots, then a table of 32.
func TestSetOrder(t *testing.T) {
	for _, c := range [][2][]int32{
		{{100, 200, 300, 400, 620, 630, 640, 650}, {640, 100, 200, 650, 620, 300, 400, 630}},
		{{70, 43, 91, 74, 6, 48, 78, 2}, {2, 70, 6, 74, 43, 78, 48, 91}},
		{{4637, 4691, 1513, 3556, 2462, 1435, 4647, 3383}, {3556, 4647, 1513, 4691, 3383, 1435, 4637, 2462}},
		{{7, 0}, {0, 7}},
		{nil, nil},
	} {
		if got := setOrder(c[0]); !sameInts(got, c[1]) {
			t.Errorf("%v: got %v, want %v", c[0], got, c[1])
		}
	}
	dir := os.Getenv("RESTORE_ORACLE")
	if dir == "" {
		return
	}
	var examples struct {
		Sets []struct{ Inserted, Iterated []int32 } `json:"set_order_examples"`
	}
	golden.JSON(t, filepath.Join(dir, "reduce-visual", "dart.json"), &examples)
	if len(examples.Sets) == 0 {
		t.Fatalf("%d examples", len(examples.Sets))
	}
	for _, e := range examples.Sets {
		if got := setOrder(e.Inserted); !sameInts(got, e.Iterated) {
			t.Errorf("%v: got %v, want %v", e.Inserted, got, e.Iterated)
		}
	}
}

// TestDART: two pivots of six unit vectors at 0, 10, 20, 30, 60, 100 degrees, with keys of lengths
// 6, 1, 1, 5, 1, 1.
func TestDART(t *testing.T) {
	in := &reduce.Input{
		N: 6, C: 2, X: unitVectors(0, 10, 20, 30, 60, 100),
		Heads: 1, KeyDim: 2, Keys: []float32{9, 9, 3, -3, 1, 0, 0, 1, -5, 0, 1, 0, 0, -1},
	}
	// 0 keeps what is farthest from it, 100 and then, with its odd token more, 60; 30 keeps 10 of
	// 10 and 20.
	o := Options{Base: "dart", NVis: 5, Own: map[string]any{"dart-pivots": 2}}
	r := mustReduce(t, in, o)
	if !sameInts(r.Kept, []int32{0, 3, 5, 4, 1}) || !sameInts(r.Indices["pivots"], []int32{0, 3}) {
		t.Errorf("got %v with pivots %v, want [0 3 5 4 1] with [0 3]", r.Kept, r.Indices["pivots"])
	}
	o.NVis, o.Own = 4, nil
	if r = mustReduce(t, in, o); !sameInts(r.Kept, []int32{0, 3, 1, 2}) {
		t.Errorf("fewer tokens than pivots: got %v, want the four largest keys", r.Kept)
	}
	wantError(t, &reduce.Input{N: 2, C: 1, X: []float32{1, 2}}, Options{Base: "dart", NVis: 1},
		"dart", "needs keys")
	in.X = []float32{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if r = mustReduce(t, in, Options{
		Base: "dart", NVis: 5, Own: map[string]any{"dart-pivots": 1},
	}); !sameInts(r.Kept, []int32{0, 1, 2, 3, 4}) {
		t.Errorf("rows of zeros: got %v, want the first", r.Kept)
	}
}

// Ensure that lengths below 1e-8 count as 1e-8: the cosines to row 0 are 2/√5, -1/√10 and -1e-2.
func TestDARTFloor(t *testing.T) {
	r := mustReduce(t, &reduce.Input{
		N: 4, C: 2, X: []float32{1, 0, 1, 0.5, -1, 3, -1e-10, 0},
		Heads: 1, KeyDim: 1, Keys: []float32{0, 4, 3, 2, 1},
	}, Options{Base: "dart", NVis: 2, Own: map[string]any{"dart-pivots": 1}})
	if !sameInts(r.Kept, []int32{0, 2}) {
		t.Errorf("got %v, want [0 2]", r.Kept)
	}
}
