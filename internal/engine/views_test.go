package engine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// tolRows is ten times the float32 error of the released code in merged rows, which reach about 7.
const tolRows = 5e-6

// viewsCase is a picture of 3 or 5 views with the released code's results for it.
type viewsCase struct {
	ref, in map[string]*tensor.Tensor
	v       *model.Visual
	name    string
}

func readViews(t *testing.T, name string, tilesHigh, tilesWide int) *viewsCase {
	t.Helper()
	c := &viewsCase{name: name}
	in, runs := filepath.Join("testdata", "views", name+".ref"),
		filepath.Join("testdata", "views", "runs.ref")
	if root := os.Getenv("RESTORE_ORACLE"); root != "" {
		root = filepath.Join(root, "reduce-visual")
		in, runs = filepath.Join(root, "inputs", name+".safetensors"),
			filepath.Join(root, "next.safetensors")
	}
	c.in, c.ref = golden.Read(t, in), golden.Read(t, runs)
	x, hidden, keys := c.in["X"], c.in["hidden"], c.in["keys"]
	count, patches := x.Shape[0], x.Shape[1]
	v := &model.Visual{
		Shape: &model.Shape{
			C: x.Shape[2], T: patches + 1, Cv: hidden.Shape[2], Views: &model.Views{Count: count},
		},
		Heads: keys.Shape[1], KeyDim: keys.Shape[3], ViewsX: c.floats(t, "X"),
		ClsAttn: c.floats(t, "cls_attn"), Hidden: c.floats(t, "hidden"), Keys: c.floats(t, "keys"),
	}
	newline := c.floats(t, "image_newline")
	origin := c.ints(t, "sequence_origin_newlines")
	for i := 0; i < len(origin); i += 2 {
		s := int32(-1)
		if origin[i] >= 0 {
			s = origin[i]*int32(patches) + origin[i+1]
			v.X = append(v.X, v.ViewsX[int(s)*v.C:int(s+1)*v.C]...)
		} else {
			v.X = append(v.X, newline...)
		}
		v.Views.Source = append(v.Views.Source, s)
	}
	v.N = len(v.Views.Source)
	side := int(math.Sqrt(float64(patches)))
	for p := range patches {
		v.Views.All = append(v.Views.All, int32(p))
	}
	for y := range tilesHigh * side {
		for x := range tilesWide * side {
			v.Views.All = append(v.Views.All,
				int32((1+y/side*tilesWide+x/side)*patches+y%side*side+x%side))
		}
	}
	c.v = v
	return c
}

func (c *viewsCase) floats(t *testing.T, name string) []float32 {
	t.Helper()
	v, err := c.in[name].Float32s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ints returns a reference list, nil if the run has none.
func (c *viewsCase) ints(t *testing.T, name string) []int32 {
	t.Helper()
	x := c.ref[c.name+"/"+name]
	if x == nil {
		return nil
	}
	wide, err := x.Int64s()
	if err != nil {
		t.Fatal(name, err)
	}
	out := make([]int32, len(wide))
	for i, n := range wide {
		out[i] = int32(n)
	}
	return out
}

func (c *viewsCase) reduce(t *testing.T, o methods.Options) (*reduce.Reduction, *list) {
	t.Helper()
	m, err := methods.Lookup(o.Base)
	if err != nil {
		t.Fatal(err)
	}
	l := listOf(c.v.Shape, &o, &m)
	r, err := methods.Resolve(o, methods.Facts{
		Tokens: len(l.source), Views: l.sizes(), Newlines: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &picture{image: &image{shape: c.v.Shape}, planned: planned{list: l, plan: r}}
	out, err := methods.Reduce(p.input(c.v), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Check(); err != nil {
		t.Error(err)
	}
	return out, l
}

// Ensure that the tokens kept and merged of pictures in views equal the released code's,
// with and without newlines: a picture in three views and, if RESTORE_ORACLE names the folder of
// the full set, one in five.
func TestViewsAgainstReleasedCode(t *testing.T) {
	for name, tiles := range map[string][2]int{"next3": {2, 1}, "next5": {2, 2}} {
		if name == "next5" && os.Getenv("RESTORE_ORACLE") == "" {
			continue
		}
		c := readViews(t, name, tiles[0], tiles[1])
		runs := map[string]bool{}
		for key := range c.ref {
			if run, ok := strings.CutPrefix(key, name+"/"); ok && strings.Contains(run, "/") {
				runs[run[:strings.LastIndex(run, "/")]] = true
			}
		}
		for run := range runs {
			t.Run(name+"/"+run, func(t *testing.T) { c.check(t, run) })
		}
		if len(runs) < 9 {
			t.Errorf("%s: %d runs", name, len(runs))
		}
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *viewsCase) check(t *testing.T, run string) {
	part := strings.Split(run, "/")
	same := func(field string, got []int32, or ...string) {
		t.Helper()
		want := c.ints(t, run+"/"+field)
		if want == nil {
			t.Fatalf("no %s", field)
		}
		for _, f := range or {
			if alt := c.ints(t, run+"/"+f); alt != nil && reflect.DeepEqual(got, alt) {
				return
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", field, got, want)
		}
	}
	views := c.v.Views.Count
	switch part[0] {
	case "holov":
		o := methods.Options{Base: "holov", NVis: number(t, part[1][1:]), Compat: "released"}
		r, _ := c.reduce(t, o)
		same("rs_kept", r.Kept)
		o.Own = map[string]any{"holov-overflow": "zero"}
		r, _ = c.reduce(t, o)
		same("kept", r.Kept)
	case "holov_official":
		r, _ := c.reduce(t, methods.Options{
			Base: "holov", NVis: number(t, part[1][1:]), Compat: "released",
			Own: map[string]any{"holov-overflow": "zero"},
		})
		same("kept", r.Kept)
	case "divprune":
		r, _ := c.reduce(t, methods.Options{
			Base: "divprune", NVis: number(t, part[1][1:]), Compat: "released",
		})
		same("kept", r.Kept, "float64_kept")
	case "divprune_official":
		ratio, err := strconv.ParseFloat(part[1][1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		r, l := c.reduce(t, methods.Options{Base: "divprune", KeepRatio: ratio, Newlines: "keep"})
		same("greedy", r.Kept)
		var rows []int32
		for _, row := range r.Rows {
			rows = append(rows, row.Members...)
		}
		same("kept_sorted", rows)
		if len(l.source) != c.v.N {
			t.Errorf("%d candidates, want all %d tokens", len(l.source), c.v.N)
		}
	case "restore_holov", "restore_divprune":
		o := methods.Options{
			Base: strings.TrimPrefix(part[0], "restore_"), NVis: number(t, part[1][1:]),
			Restore: true, Compat: "released",
		}
		if part[3] == "paper" {
			o.Anchors = "paper"
		}
		r, _ := c.reduce(t, o)
		var size, median, merged []int32
		for _, row := range r.Rows {
			size, median = append(size, int32(row.Size)), append(median, int32(row.Position))
			m := int32(0)
			if row.Merged {
				m = 1
			}
			merged = append(merged, m)
		}
		same("anchors", r.Anchors)
		same("group", r.Group)
		same("size", size)
		same("median", median)
		if part[3] == "code" {
			same("merged", merged)
			same("pool", r.Rest)
			same("retained", r.Kept)
			if feat := c.ref[c.name+"/"+run+"/feat"]; feat != nil {
				if err := golden.Compare(tensor.From([]int{len(r.Rows), r.Width},
					r.Features), feat, tolRows); err != nil {
					t.Error(err)
				}
			}
		}
	case "vispruner":
		r, l := c.reduce(t, methods.Options{
			Base: "vispruner", NVis: views * number(t, part[1][1:]), Compat: "released",
		})
		kept := make([][]int32, views)
		patches := int32(c.v.T - 1)
		for _, t := range r.Kept {
			s := l.source[t]
			kept[s/patches] = append(kept[s/patches], s%patches)
		}
		var flat []int32
		for _, k := range kept {
			flat = append(flat, k...)
		}
		same("kept_per_view", flat, "float64_kept_per_view")
	case "visionzip":
		d, x := number(t, part[1][1:]), number(t, part[2][1:])
		r, l := c.reduce(t, methods.Options{
			Base: "visionzip", NVis: views * (d + x), Compat: "released",
			Own: map[string]any{"visionzip-contextual": views * x},
		})
		patches := int32(c.v.T - 1)
		var origin []int32
		class, contextual := int32(0), map[int32]int32{}
		for _, row := range r.Rows {
			if row.IsClass {
				origin = append(origin, class, 0)
				class++
				continue
			}
			view, patch := l.source[row.Anchor]/patches, l.source[row.Anchor]%patches
			if row.Merged {
				contextual[view]++
				origin = append(origin, view, -contextual[view])
				continue
			}
			origin = append(origin, view, patch+1)
		}
		same("row_origin", origin)
		w := c.floats(t, "vz_projector")
		got := make([]float32, len(r.Rows)*c.v.C)
		for i := range r.Rows {
			for j := range c.v.C {
				var sum float64
				for k := range c.v.Cv {
					sum += float64(r.Features[i*c.v.Cv+k]) * float64(w[k*c.v.C+j])
				}
				got[i*c.v.C+j] = float32(sum)
			}
		}
		if err := golden.Compare(tensor.From([]int{len(r.Rows), c.v.C}, got),
			c.ref[c.name+"/"+run+"/rows"], tolRows); err != nil {
			t.Error(err)
		}
	default:
		t.Error(fmt.Errorf("unknown run %s", run))
	}
}

// Ensure that methods are told of an encoder without a class token, and that a class token that is
// also a visual token is both the class row and one of the tokens.
func TestInputOfClassToken(t *testing.T) {
	input := func(s *model.Shape, hidden []float32) *reduce.Input {
		v := &model.Visual{Shape: s, Hidden: hidden}
		plan, err := methods.Resolve(methods.Options{Base: "random", NVis: 1},
			methods.Facts{Tokens: s.N})
		if err != nil {
			t.Fatal(err)
		}
		return (&picture{image: &image{shape: s}, planned: planned{plan: plan}}).input(v)
	}
	without := input(&model.Shape{N: 2, T: 3, Cv: 1, NoClass: true}, []float32{0, 5, 6})
	if !without.NoClass || !slices.Equal(without.Hidden, []float32{0, 5, 6}) {
		t.Errorf("no class token: %+v", without)
	}
	full := input(&model.Shape{N: 3, T: 3, Cv: 1}, []float32{4, 5, 6})
	if full.NoClass || !slices.Equal(full.Hidden, []float32{4, 4, 5, 6}) || full.Keys != nil {
		t.Errorf("all tokens: %+v", full)
	}
}
