package methods

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// classlessInput returns the tokens of one case of an encoder without a class token.
func classlessInput(t testing.TB, g reference, name string) *reduce.Input {
	t.Helper()
	embeds, ids := g.floats(t, name+"/inputs_embeds"), g.ints(t, name+"/input_ids")
	in := &reduce.Input{C: len(embeds) / len(ids), Heads: 1}
	in.Cv = in.C
	for i, id := range ids {
		if id == 99 { // a picture's place
			in.X = append(in.X, embeds[i*in.C:(i+1)*in.C]...)
			in.N++
		}
	}
	in.Hidden = append(make([]float32, in.C), in.X...)
	keys := g.floats(t, name+"/visionzip/dom0.65_ctx0.05/metric")
	in.KeyDim = len(keys) / in.N
	in.Keys = append(make([]float32, in.KeyDim), keys...)
	in.ClsAttn = append([]float32{0}, g.floats(t, name+"/visionzip/dom0.65_ctx0.05/score")...)
	return in
}

// Ensure that VisionZip and HoloV select and merge what their authors' code for an
// encoder without a class token does.
func TestClasslessGoldens(t *testing.T) {
	g, runs := readGolden(t, "testdata/classless.safetensors"), 0
	for key := range g {
		name, run, _ := strings.Cut(key, "/")
		in := classlessInput(t, g, name)
		switch {
		case strings.HasPrefix(run, "visionzip/") && strings.HasSuffix(run, "/dominant"):
			runs++
			prefix := strings.TrimSuffix(key, "dominant")
			dominant, anchors := g.ints(t, key), g.ints(t, prefix+"anchors")
			r := reduceWith(t, in, Options{Base: "visionzip", NVis: len(dominant) + len(anchors)})
			kept := slices.Clone(r.Kept)
			slices.Sort(kept)
			slices.Sort(dominant)
			if !sameInts(kept, dominant) || !sameInts(r.Anchors, anchors) {
				t.Errorf("%s: kept %v, anchors %v, want %v and %v", prefix, kept, r.Anchors,
					dominant, anchors)
				continue
			}
			// The reference's group is a rank: dominant ones first, then contextual ones; rows of
			// both are in raster order.
			rank := g.ints(t, prefix+"group")
			for i, row := range r.Group {
				for j, other := range r.Group {
					if (row == other) != (rank[i] == rank[j]) {
						t.Fatalf("%s: tokens %d and %d: rows %d and %d, want ranks %d and %d",
							prefix, i, j, row, other, rank[i], rank[j])
					}
				}
			}
			embeds, ids := g.floats(t, prefix+"embeds"), g.ints(t, name+"/input_ids")
			first := slices.Index(ids, 99) * in.C
			wantFloats(t, prefix+"embeds", r.Features, embeds[first:first+len(r.Rows)*in.C], 5e-6,
				false)
			if r.Space != reduce.Decoder {
				t.Errorf("%s: rows still to be projected", prefix)
			}
		case strings.HasPrefix(run, "holov/") && strings.HasSuffix(run, "/kept"):
			runs++
			want := g.ints(t, key)
			in.ClsAttn = append([]float32{0}, g.floats(t, name+"/holov_attention_raster")...)
			r := reduceWith(t, in, Options{
				Base: "holov", NVis: len(want), Own: map[string]any{"holov-overflow": "zero"},
			})
			if !sameInts(r.Kept, want) {
				t.Errorf("%s: got %v, want %v", key, r.Kept, want)
			}
		}
	}
	if runs != 14 {
		t.Errorf("%d runs, want 14", runs)
	}
}

// reduceWith resolves o and reduces in, checking the invariants.
func reduceWith(t testing.TB, in *reduce.Input, o Options) *reduce.Reduction {
	t.Helper()
	res, err := Resolve(o, Facts{Tokens: in.N, NoClass: true})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Reduce(in, res, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return r
}

// Ensure that compat released gives the decoder rows in the order and at the positions of the
// authors' code: HoloV's in the order of its runs, DivPrune's as picked, the others' in raster
// order (VisionZip's only without a class token, PruMerge's never), at original positions without a
// class token and by DART.
func TestReleasedRows(t *testing.T) {
	classless := classlessInput(t, readGolden(t, "testdata/classless.safetensors"), "q140")
	classless.NoClass, classless.CellDim, classless.Cells = true, classless.C, classless.X
	classless.ClsAttnShallow, classless.ReceivedMid = classless.ClsAttn, classless.ClsAttn
	classless.ReceivedDeep, classless.Text = classless.ClsAttn, classless.X[:classless.C]
	classless.GridH, classless.GridW = 10, 14
	for _, in := range []*reduce.Input{randomInput(3, 10, 14), classless} {
		for _, c := range []struct {
			base   string
			raster bool // with a class token
		}{
			{"holov", false}, {"divprune", false}, {"vispruner", true}, {"visionzip", false},
			{"fastervlm", true}, {"apet", true}, {"scope", true}, {"hiprune", true},
			{"vscan", true}, {"cdpruner", true}, {"mmtok", true}, {"prumerge", false},
			{"dart", true},
		} {
			if in.NoClass && c.base == "prumerge" {
				continue
			}
			o := Options{Base: c.base, NVis: 33, Compat: "released"}
			r, err := Reduce(in, mustResolve(t, o, Facts{
				Tokens: in.N, GridH: in.GridH, GridW: in.GridW, NoClass: in.NoClass,
			}), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Check(); err != nil {
				t.Fatalf("%s: %v", c.base, err)
			}
			var anchors, positions []float64
			for _, row := range r.Rows {
				anchors = append(anchors, float64(row.Anchor))
				positions = append(positions, row.Position)
			}
			if raster := c.raster || in.NoClass && c.base == "visionzip"; slices.IsSorted(
				anchors) != raster {
				t.Errorf("%s: rows of %v, want raster order %v", c.base, anchors, raster)
			}
			original := in.NoClass || c.base == "dart"
			if slices.Equal(positions, anchors) != original || !original && positions[32] != 32 {
				t.Errorf("%s: rows of %v at %v, want original positions %v", c.base, anchors,
					positions, original)
			}
		}
	}
	if r, err := Resolve(Options{Base: "holov", NVis: 31, Compat: "released",
		Positions: "sequential"}, Facts{Tokens: 140, NoClass: true}); err != nil ||
		r.Positions != "sequential" {
		t.Errorf("positions asked for: got %q, %v", r.Positions, err)
	}
}

// Ensure that VisPruner, VisionZip and HoloV take every budget of a picture of
// any number of tokens where there is no class token.
func TestClasslessBudgets(t *testing.T) {
	g := readGolden(t, "testdata/classless.safetensors")
	whole := classlessInput(t, g, "q24")
	for n := 1; n <= 24; n++ {
		in := *whole
		in.N, in.X, in.Hidden = n, whole.X[:n*in.C], whole.Hidden[:(n+1)*in.C]
		in.Keys, in.ClsAttn = whole.Keys[:(n+1)*in.KeyDim], whole.ClsAttn[:n+1]
		for budget := 1; budget <= n; budget++ {
			for _, base := range []string{"vispruner", "visionzip", "holov"} {
				for _, restore := range []bool{false, true} {
					o := Options{Base: base, NVis: budget, Restore: restore}
					t.Run(fmt.Sprintf("%s/%d of %d", base, budget, n),
						func(t *testing.T) { reduceWith(t, &in, o) })
				}
			}
		}
	}
}

// Ensure that a file of an encoder without a class token is read as such.
func TestClasslessFile(t *testing.T) {
	in := classlessInput(t, readGolden(t, "testdata/classless.safetensors"), "q140")
	f := tensor.From[float32]
	for _, heads := range []int{1, 2} { // with two equal heads scores are the same
		received, keys := in.ClsAttn[1:], in.Keys[in.KeyDim:]
		shape := []int{in.N}
		if heads == 2 {
			received, keys, shape = append(slices.Clone(received), received...),
				append(slices.Clone(keys), keys...), []int{2, in.N}
		}
		got, err := FromTensors(
			map[string]*tensor.Tensor{
				"X": f([]int{in.N, in.C}, in.X), "received": f(shape, received), "keys": f([]int{heads, in.N, in.KeyDim}, keys),
			}, 10, 14)
		if err != nil {
			t.Fatal(err)
		}
		if !got.NoClass || got.Heads != heads || len(got.ClsAttn) != heads*(in.N+1) ||
			len(got.Keys) != heads*(in.N+1)*in.KeyDim {
			t.Fatalf("%d heads: got %d of %d values and %d keys", heads, got.Heads,
				len(got.ClsAttn), len(got.Keys))
		}
		for _, base := range []string{"holov", "vispruner", "visionzip", "dart", "divprune"} {
			o := Options{Base: base, NVis: 39, Restore: true}
			if a, b := reduceWith(t, got, o), reduceWith(t, in, o); !sameInts(a.Kept, b.Kept) ||
				!sameInts(a.Group, b.Group) {
				t.Errorf("%s, %d heads: kept %v, want %v", base, heads, a.Kept, b.Kept)
			}
		}
	}
}
