package methods

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// Tolerances of the reference: features as they are, and as means of float32 rows.
const (
	tolNewerPlain   = 5e-6
	tolNewerRestore = 2e-6
)

// newerCase is one run of the reference for methods that the paper does not compare.
type newerCase struct {
	Key, Input string
	Flags      []string
}

// options are the parameters in the flags, and the grid.
func (c *newerCase) options(t *testing.T) (o Options, h, w int) {
	t.Helper()
	given := Given{}
	for i := 0; i < len(c.Flags); i++ {
		name, value, joined := strings.Cut(strings.TrimPrefix(c.Flags[i], "--"), "=")
		if !joined {
			i++
			value = c.Flags[i]
		}
		if name == "grid" {
			if _, err := fmt.Sscanf(value, "%dx%d", &h, &w); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := given.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	o, err := given.Options()
	if err != nil {
		t.Fatal(err)
	}
	return o, h, w
}

// Ensure that the methods of 2024 to 2026 choose what their authors' code chooses, alone and under
// RESTORE: with and without a class token, in views, with copies, zeros and equal rows.
func TestNewerGoldens(t *testing.T) {
	g := readGolden(t, "testdata/newer.safetensors")
	var cases []newerCase
	golden.JSON(t, "testdata/newer.json", &cases)
	if len(cases) < 500 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Key, func(t *testing.T) {
			o, h, w := c.options(t)
			tensors := map[string]*tensor.Tensor{}
			for name, x := range g {
				if rest, ok := strings.CutPrefix(name, "in/"+c.Input+"/"); ok {
					tensors[rest] = x
				}
			}
			in, err := FromTensors(tensors, h, w)
			if err != nil {
				t.Fatal(err)
			}
			f := Facts{
				Tokens: in.N, GridH: in.GridH, GridW: in.GridW, NoClass: in.NoClass,
			}
			if len(in.Views) > 0 {
				f.Views = in.ViewSizes()
			}
			p, err := Resolve(o, f)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Reduce(in, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
			checkNewer(t, g, c.Key, len(in.Views) > 0, r)
		})
	}
}

// newerParts are the values of the reference's runs: their names in a reduction, "" for the same;
// how they are compared; and the tolerance of numbers, 0 for that of features.
var newerParts = map[string]struct {
	name string
	as   string // "set", "list" or "numbers"
	tol  float64
}{
	"kept": {as: "set"}, "retained": {as: "set"}, "anchors": {as: "set"},
	"order": {name: "kept", as: "list"}, "group": {as: "list"}, "size": {as: "list"},
	"merged": {as: "list"}, "median": {name: "position", as: "list"},
	"basis": {as: "list"}, "anchor": {as: "list"}, "buffer": {as: "set"}, "register": {as: "set"},
	"local": {as: "set"}, "feat": {as: "numbers"}, "gain": {as: "numbers", tol: 1e-5},
	"error": {as: "numbers", tol: 1e-5}, "value": {as: "numbers", tol: 1e-5},
	"relevance": {as: "numbers", tol: 1e-5},
}

func checkNewer(t *testing.T, g reference, key string, views bool, r *reduce.Reduction) {
	t.Helper()
	got, compared := reference(Tensors(r)), 0
	for name, part := range newerParts {
		want := g[key+"/"+name]
		if want == nil {
			continue
		}
		have := got[cmp.Or(part.name, name)]
		switch {
		case views && (name == "gain" || name == "value" || name == "order"):
			continue // a picture's scores are its tokens', and views may be in any order
		case have == nil && want.Len() == 0:
			continue
		case have == nil:
			t.Errorf("%s: missing", name)
			continue
		case part.as == "numbers":
			tol := part.tol
			switch {
			case tol == 0 && r.Options.Restore:
				tol = tolNewerRestore
			case tol == 0:
				tol = tolNewerPlain
			}
			if err := golden.Compare(have, want, tol); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case want.Len() == 0:
			if have.Len() > 0 {
				t.Errorf("%s: got %d, want none", name, have.Len())
			}
		default:
			a, b := slices.Clone(got.ints(t, cmp.Or(part.name, name))), g.ints(t, key+"/"+name)
			if b = slices.Clone(b); part.as == "set" {
				slices.Sort(a)
				slices.Sort(b)
			}
			if !sameInts(a, b) {
				t.Errorf("%s: got %v, want %v", name, a, b)
			}
		}
		compared++
	}
	if compared == 0 {
		t.Error("nothing to compare")
	}
}
