package methods

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// viewsInput makes a picture of three views, one of them without a token, and some tokens in no
// view.
func viewsInput(rng *rand.Rand, sizes []int, newlines int) *reduce.Input {
	n := newlines
	for _, s := range sizes {
		n += s
	}
	floats := func(k int) []float32 {
		v := make([]float32, k)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	in := &reduce.Input{
		N: n, C: 6, X: floats(n * 6), Heads: 2, Cv: 5, Hidden: floats((n + 1) * 5), KeyDim: 3,
		Keys: floats(2 * (n + 1) * 3), LastQuery: floats(4), LastKeys: floats((n + 1) * 4),
	}
	for _, a := range []*[]float32{
		&in.ClsAttn, &in.ClsAttnShallow, &in.ReceivedMid, &in.ReceivedDeep,
	} {
		*a = floats(2 * (n + 1))
		for i, v := range *a {
			(*a)[i] = v * v
		}
	}
	in.Text = floats(4 * 6)
	order := rng.Perm(n)
	for _, s := range sizes {
		v := reduce.View{Class: floats(5), LastQuery: floats(4), LastClass: floats(4)}
		for _, t := range order[:s] {
			v.Tokens = append(v.Tokens, int32(t))
		}
		order = order[s:]
		slices.Sort(v.Tokens)
		if v.H, v.W = s, 1; s%4 == 0 {
			v.H, v.W = s/4, 4
		}
		in.Views = append(in.Views, v)
	}
	return in
}

// Ensure a budget is shared out whole, no view gets more than it has, and views of equal size get
// equal shares.
func TestShares(t *testing.T) {
	for _, sizes := range [][]int{{576, 576, 576, 576, 576}, {16, 0, 12, 3}, {1}, {576, 552, 24}} {
		total := 0
		for _, s := range sizes {
			total += s
		}
		for _, unit := range []int{1, 4} {
			for k := 0; k <= total; k++ {
				sum := 0
				for i, s := range shares(k, sizes, unit) {
					if s < 0 || s > sizes[i] {
						t.Fatalf("%d of %v: share %d of view %d", k, sizes, s, i)
					}
					sum += s
				}
				if sum != k {
					t.Fatalf("%d of %v: shares sum to %d", k, sizes, sum)
				}
			}
		}
	}
	if got := shares(160, []int{576, 576, 576, 576, 576}, 4); !slices.Equal(got, []int{
		32, 32, 32, 32, 32,
	}) {
		t.Errorf("160 over 5 views: %v", got)
	}
}

// Ensure every method keeps its invariants on pictures in views, alone and under RESTORE, and a
// budget of all tokens is no reduction.
func TestViewsInvariants(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for _, sizes := range [][]int{{64, 64, 48}, {64, 0, 8}} {
		for _, newlines := range []int{0, 8} {
			in := viewsInput(rng, sizes, newlines)
			for _, m := range methods() {
				if m.Name == "none" || m.Site != reduce.AfterEncoder ||
					slices.Contains(m.Needs, reduce.Grid) && !m.PerView {
					continue
				}
				for _, compat := range []string{"", "released"} {
					for _, on := range []bool{true, false} {
						for _, n := range []int{40, 96, in.N} {
							if n > in.N {
								continue
							}
							name := fmt.Sprint(m.Name, " views ", sizes, " newlines ", newlines,
								" n ", n, " restore ", on, " ", compat)
							o, err := Resolve(Options{Base: m.Name, NVis: n, Restore: on,
								Compat: compat}, Facts{Tokens: in.N, Views: sizes})
							if m.PerView && newlines > 0 && n < in.N {
								// a file has them anyway; of a model, newlines keep would keep them
								for newlines, want := range map[string]string{
									"": "view: 8 of", "keep": "newlines: got keep, want drop",
								} {
									_, err := Resolve(Options{Base: m.Name, NVis: n, Restore: on,
										Compat: compat, Newlines: newlines}, Facts{
										Tokens: in.N, Views: sizes, Newlines: true,
									})
									if err == nil || !strings.Contains(err.Error(), want) {
										t.Errorf("%s: got %v, want %q", name, err, want)
									}
								}
								continue
							}
							if m.Name == "vispruner" && compat == "released" && err != nil &&
								strings.Contains(err.Error(), "odd length") {
								continue
							}
							if err != nil {
								t.Errorf("%s: %v", name, err)
								continue
							}
							r, err := Reduce(in, o, nil)
							if err == nil {
								err = r.Check()
							}
							if err != nil {
								t.Errorf("%s: %v", name, err)
							}
							if n == in.N && !slices.Equal(r.Features, in.X) {
								t.Errorf("%s: not the tokens as they were", name)
							}
						}
					}
				}
			}
		}
	}
}

// Ensure methods that select in each view take every budget of views of any size.
func TestViewsBudgets(t *testing.T) {
	rng := rand.New(rand.NewSource(4))
	sizes := []int{15, 9, 4, 1}
	in := viewsInput(rng, sizes, 0)
	for _, m := range methods() {
		if !m.PerView {
			continue
		}
		for n := 1; n <= in.N; n++ {
			for _, on := range []bool{true, false} {
				o, err := Resolve(Options{Base: m.Name, NVis: n, Restore: on}, Facts{
					Tokens: in.N, Views: sizes,
				})
				var r *reduce.Reduction
				if err == nil {
					r, err = Reduce(in, o, nil)
				}
				if err == nil {
					err = r.Check()
				}
				if err != nil {
					t.Errorf("%s, %d of %d, restore %v: %v", m.Name, n, in.N, on, err)
				}
			}
		}
	}
}

// Ensure that a budget of all tokens is no reduction even if a view cannot keep its share: of the
// 13 that vispruner keeps, 9 are the first view's and 4 the second's; 2 of these by attention leave
// a list of 7.
func TestViewsWithoutShares(t *testing.T) {
	in := viewsInput(rand.New(rand.NewSource(6)), []int{9, 9}, 0)
	o, err := Resolve(Options{
		Base: "vispruner", NVis: in.N, Restore: true, Compat: "released", Gamma: new(0.75),
	}, Facts{Tokens: in.N, Views: in.ViewSizes()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Reduce(in, o, nil)
	if err == nil {
		err = r.Check()
	}
	if err != nil || !slices.Equal(r.Features, in.X) {
		t.Errorf("got %v, %v, want the tokens as they were", r, err)
	}
}

// Ensure views that are no parts of the picture are refused.
func TestViewsRefused(t *testing.T) {
	rng := rand.New(rand.NewSource(2))
	for name, spoil := range map[string]func(in *reduce.Input){
		"outside": func(in *reduce.Input) { in.Views[0].Tokens[0] = -1 },
		"twice":   func(in *reduce.Input) { in.Views[0].Tokens[0] = in.Views[1].Tokens[0] },
		"falling": func(in *reduce.Input) { slices.Reverse(in.Views[0].Tokens) },
		"class":   func(in *reduce.Input) { in.Views[1].Class = nil },
		"key":     func(in *reduce.Input) { in.Views[1].LastClass = nil },
	} {
		in := viewsInput(rng, []int{16, 16}, 0)
		o, err := Resolve(Options{Base: "holov", NVis: 8}, Facts{Tokens: 32, Views: []int{16, 16}})
		if err != nil {
			t.Fatal(err)
		}
		spoil(in)
		if _, err := Reduce(in, o, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Ensure that a file of a picture in views is read as such.
func TestViewsFile(t *testing.T) {
	in := viewsInput(rand.New(rand.NewSource(5)), []int{24, 16, 9}, 0)
	in.LastQuery, in.LastKeys = nil, nil
	var class []float32
	of := make([]int64, in.N)
	for i := range in.Views {
		v := &in.Views[i]
		v.LastQuery, v.LastClass = nil, nil
		class = append(class, v.Class...)
		for _, token := range v.Tokens {
			of[token] = int64(i)
		}
	}
	f := tensor.From[float32]
	got, err := FromTensors(map[string]*tensor.Tensor{
		"X": f([]int{in.N, in.C}, in.X), "cls_attn": f([]int{in.Heads, in.N + 1}, in.ClsAttn), "hidden": f([]int{in.N + 1, in.Cv}, in.Hidden),
		"keys": f([]int{in.Heads, in.N + 1, in.KeyDim}, in.Keys), "view": tensor.From([]int{in.N}, of), "view_class": f([]int{3, in.Cv}, class),
	}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"holov", "vispruner", "visionzip", "dart"} {
		for _, on := range []bool{true, false} {
			o, err := Resolve(Options{Base: base, NVis: 20, Restore: on}, Facts{
				Tokens: in.N, Views: got.ViewSizes(),
			})
			if err != nil {
				t.Fatal(err)
			}
			want, err := Reduce(in, o, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := Reduce(got, o, nil); err != nil || !sameInts(r.Group, want.Group) ||
				!slices.Equal(r.Features, want.Features) {
				t.Errorf("%s: got %v, %v, want %v", base, r, err, want.Group)
			}
		}
	}
}
