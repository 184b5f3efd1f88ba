package methods

import (
	"encoding/json"
	"fmt"
	"os"
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

// Ensure that FasterVLM, ApET and SCOPE choose what their authors' code chooses, alone and under
// RESTORE: with and without a class token, in views, with copies, zeros and equal rows.
func TestNewerGoldens(t *testing.T) {
	g := readGolden(t, "testdata/newer.safetensors")
	data, err := os.ReadFile("testdata/newer.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []newerCase
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 100 {
		t.Fatalf("%d cases, %v", len(cases), err)
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
			checkNewer(t, g, c.Key, r)
		})
	}
}

func checkNewer(t *testing.T, g reference, key string, r *reduce.Reduction) {
	t.Helper()
	got, tol := Tensors(r), tolNewerPlain
	if r.Options.Restore {
		tol = tolNewerRestore
	}
	compared := 0
	for _, name := range []string{
		"kept", "retained", "anchors", "group", "size", "merged", "median", "feat", "gain", "error",
	} {
		want := g[key+"/"+name]
		if want == nil {
			continue
		}
		have := got[map[string]string{"median": "position"}[name]]
		if have == nil {
			have = got[name]
		}
		switch {
		case have == nil && (name == "gain" || name == "error"): // in views
			continue
		case have == nil:
			t.Errorf("%s: missing", name)
		case name == "kept" || name == "retained" || name == "anchors":
			a, b := slices.Clone(reference(got).ints(t, name)), g.ints(t, key+"/"+name)
			slices.Sort(a)
			b = slices.Sorted(slices.Values(b))
			if !sameInts(a, b) {
				t.Errorf("%s: got %v, want %v", name, a, b)
			}
		case name == "feat" || name == "gain" || name == "error":
			if err := golden.Compare(have, want, map[string]float64{
				"feat": tol, "gain": 1e-5, "error": 1e-5}[name]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		default:
			if err := golden.Compare(have, want, 0); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		compared++
	}
	if compared == 0 {
		t.Error("nothing to compare")
	}
}
