package methods

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// wideAttentionTol is absolute: the reference's float32 softmax is 6.4e-8 from float64.
const wideAttentionTol = 1e-6

func TestGoldenPruMerge(t *testing.T) {
	eachGolden(t, func(t *testing.T, dir string) {
		g, cases, runs := readGolden(t, filepath.Join(dir, "prumerge.safetensors")),
			inputs{dir: dir}, 0
		for _, p := range g.prefixes("S") {
			part := strings.Split(p, "/")
			in, tie, plus, count := cases.load(t, part[0]), tied[part[0]], part[1] == "plus",
				part[2]
			runs++
			p += "/"
			a := wideAttention(in, nil)
			wantFloats(t, p+"attn", float32s(a), g.floats(t, part[0]+"/attn"), wideAttentionTol,
				false)

			o := Options{Base: "prumerge", Compat: "released"}
			s, rest := g.ints(t, p+"S"), g.ints(t, p+"U")
			if repeats := plus && count != "adaptive"; !repeats {
				if plus {
					o.Base = "prumerge-plus"
				}
				if count != "adaptive" {
					// the name has six digits
					o.NVis = 1 + int(number(t, count, "ratio")*float64(in.N)+1e-3)
				}
				r := mustReduce(t, in, o)
				g.wantInts(t, "", p, "S", r.Kept, tie)
				s, rest = r.Kept, r.Rows[len(r.Rows)-1].Members
				g.wantInts(t, "", p, "U", rest, tie)
				if !tie {
					wantFloats(t, p+"feat", r.Features, g.floats(t, p+"feat"), featTol, false)
				}
			}
			rows, neighbours, err := pruMergeRows(in, nil, a, s, rest)
			if err != nil {
				t.Fatal(err)
			}
			if !tie {
				wantFloats(t, p+"feat", rows, g.floats(t, p+"feat"), featTol, false)
			}
			var flat []int32
			for _, list := range neighbours {
				flat = append(flat, list...)
			}
			if len(s) > 0 {
				g.wantInts(t, "", p, "nbr", flat, tie)
			}
		}
		t.Logf("%d runs", runs)
	})
}

// TestPruMergeAdaptive: eight patches of which one stands out; Q1 = Q3 = 1, so the fence is 1.
func TestPruMergeAdaptive(t *testing.T) {
	a := []float64{1, 1, 1, 5, 1, 1, 1, 1}
	if got := outliers(a); got != 1 {
		t.Errorf("outliers: got %d, want 1", got)
	}
	// w = 8, g = int(8/3) = 2: grid 0 2 4 6.
	if got := pruMergeAdaptive(a); !sameInts(got, []int32{3, 0, 2, 4, 6}) {
		t.Errorf("adaptive: got %v, want [3 0 2 4 6]", got)
	}
	// Five of eight: (5+2)/4 = 1 by attention, then four of the seven others at equal steps.
	if got := pruMergePlus(a, 5); !sameInts(got, []int32{3, 0, 2, 5, 7}) {
		t.Errorf("five: got %v, want [3 0 2 5 7]", got)
	}
	// Two of eight: w = 4, g = 1, all but the last, which stands out: no patch is left for the
	// extra row.
	all := randomInput(3, 2, 4)
	all.LastQuery, all.LastKeys = []float32{1}, []float32{0, 0, 0, 0, 2, 0, 0, 0, 2}
	if r := mustReduce(t, all, Options{Base: "prumerge-plus"}); len(r.Rows) != 8 || r.Identity() {
		t.Errorf("every patch a centre: got %d rows", len(r.Rows))
	}
	in := randomInput(3, 4, 4)
	clear(in.LastQuery) // all attention equal: no outlier
	for _, base := range []string{"prumerge", "prumerge-plus"} {
		r := mustReduce(t, in, Options{Base: base})
		if len(r.Rows) != 1 || r.Rows[0].Size != 16 || r.Options.NVis != 1 ||
			r.Space != reduce.Encoder {
			t.Errorf("%s without outliers: got %+v", base, r.Rows)
		}
	}
	wantError(t, in, Options{Base: "prumerge", Restore: true}, "n-vis", "missing", "a budget")
	in.LastKeys = in.LastKeys[1:]
	wantError(t, in, Options{Base: "prumerge", NVis: 3}, "prumerge", "pm_k", "tokens+1")
	in.LastKeys = nil
	wantError(t, in, Options{Base: "prumerge-plus", NVis: 3}, "prumerge-plus", "needs pm_k")
}
