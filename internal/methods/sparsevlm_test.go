package methods

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sparseTol is a share of the largest value: seven times what the released code in float32 differs
// from float64 in densities, distances and sums of small probabilities.
const sparseTol = 3e-5

// eachInModel runs f on a file of function-level reference data: the excerpt here and, where
// RESTORE_ORACLE is set, the full file.
func eachInModel(t *testing.T, name string, f func(t *testing.T, g reference)) {
	t.Run("testdata", func(t *testing.T) { f(t, readGolden(t, filepath.Join("testdata", name))) })
	t.Run("full", func(t *testing.T) {
		dir := os.Getenv("RESTORE_ORACLE")
		if dir == "" {
			t.Skip("RESTORE_ORACLE is not set")
		}
		f(t, readGolden(t, filepath.Join(dir, "reduce-inmodel", "func", name)))
	})
}

func TestGoldenRaters(t *testing.T) {
	eachInModel(t, "sparsevlm.safetensors", func(t *testing.T, g reference) {
		for _, p := range g.prefixes("visual") {
			score, chosen := raters(nil, g.floats(t, p+"/visual"), g.floats(t, p+"/text"),
				g[p+"/text"].Shape[1])
			wantFloats(t, p+"/score", score, g.floats(t, p+"/score"), sparseTol, true)
			want := g.ints(t, p+"/raters")
			if len(want) == 0 { // no row is above the mean: then all are
				want = iota32(len(score))
			}
			if !slices.Equal(chosen, want) {
				t.Errorf("%s: got raters %v, want %v", p, chosen, want)
			}
		}
	})
}

func TestGoldenDensityPeaks(t *testing.T) {
	eachInModel(t, "sparsevlm.safetensors", func(t *testing.T, g reference) {
		for _, p := range g.prefixes("merged") {
			x, width := g.floats(t, p+"/x"), g[p+"/x"].Shape[1]
			n, clusters := len(x)/width, g[p+"/merged"].Shape[0]
			if q, c := recycling(0); q != 1 || c != 1 {
				t.Fatalf("recycling(0) is %d, %d", q, c)
			}
			if !strings.Contains(p, "duplicates") && n/sparseCluster+1 != clusters {
				t.Errorf("%s: %d rows make %d clusters, want %d", p, n, n/sparseCluster+1, clusters)
			}
			c := densityPeaks(nil, x, iota32(n), width, clusters)
			wantFloats(t, p+"/density", float32s(c.density), g.floats(t, p+"/density"), sparseTol,
				true)
			wantFloats(t, p+"/distance", float32s(c.separation), g.floats(t, p+"/distance"),
				sparseTol, true)
			if want := g.ints(t, p+"/centre"); !slices.Equal(c.centre, want) {
				t.Errorf("%s: got centres %v, want %v", p, c.centre, want)
			}
			if want := g.ints(t, p+"/assign"); !slices.Equal(c.assign, want) {
				t.Errorf("%s: got clusters %v, want %v", p, c.assign, want)
			}
			merged := make([]float32, clusters*width)
			for k, rows := range c.groups(iota32(n)) {
				if rows[0] != c.centre[k] {
					t.Errorf("%s: cluster %d begins with %d, want its centre %d", p, k, rows[0],
						c.centre[k])
				}
				mean(merged[k*width:][:width], x, width, rows)
			}
			wantFloats(t, p+"/merged", merged, g.floats(t, p+"/merged"), sparseTol, true)
		}
	})
}

// TestRecycling: 276 rows not kept recycle floor(82.8)+1 = 83 and make 9 clusters.
func TestRecycling(t *testing.T) {
	for _, c := range [][3]int{
		{276, 83, 9}, {109, 33, 4}, {94, 29, 3}, {510, 154, 16}, {15, 5, 1}, {1, 1, 1}, {30, 10, 2},
	} {
		if q, k := recycling(c[0]); q != c[1] || k != c[2] {
			t.Errorf("recycling(%d): got %d, %d, want %d, %d", c[0], q, k, c[1], c[2])
		}
	}
}
