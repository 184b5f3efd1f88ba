package methods

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/nn"
)

// followed is one picture led through a decoder that has no weights: rows stay what they were but
// for the stages.
type followed struct {
	inside *Inside
	x      []float32
	width  int
}

// follow leads n rows of random features through layers, with text rows of random attention after
// them, or of equal attention.
func follow(t *testing.T, o Options, n, layers, text int, equal bool) *followed {
	t.Helper()
	r, err := inLayers(o, n, layers)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewInside(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(uint64(n), uint64(layers)))
	f := &followed{inside: s, width: 8}
	fill := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	f.x = fill(n * f.width)
	if s.Begins() {
		if err := s.Begin(nil, f.x, fill(text*f.width), f.width); err != nil {
			t.Fatal(err)
		}
	}
	read := func(layer int, ahead bool) {
		if !s.Reads(layer, ahead) {
			return
		}
		const first = 3 // rows of text before the picture, and as many keys of another turn
		rows := len(s.Rows())
		v := &Sight{
			First: first, Key: 2 * first, Keys: 2*first + rows + text,
			Last: int32(first + rows + text - 1),
		}
		for i := range text {
			v.Text = append(v.Text, int32(first+rows+i))
		}
		list, _ := s.AttentionRows(v)
		look := make([]float32, len(list)*v.Keys)
		for i := range look {
			if look[i] = 1 / float32(v.Keys); !equal {
				look[i] = rng.Float32() / float32(v.Keys)
			}
		}
		if err := s.Read(v, look); err != nil {
			t.Fatal(err)
		}
	}
	shrink := func(layer int, within bool) {
		if !s.Shrinks(layer, within) {
			return
		}
		rows := len(s.Rows())
		mixes, err := s.Shrink(nil, f.x, f.width)
		if err != nil {
			t.Fatal(err)
		}
		nn.Replace(nil, f.x, rows, f.width, 0, rows, mixes)
		f.x = f.x[:len(mixes)*f.width]
	}
	for l := range layers {
		read(l, true)
		shrink(l, false)
		s.Enter()
		read(l, false)
		shrink(l, true)
	}
	return f
}

// Ensure, for every method inside the decoder, plain and under RESTORE: stages leave the rows that
// they say, and keep the first of equal ones (FitPrune alone, which drops rows, drops the first);
// no patch is in two rows and under RESTORE none is lost; a row under RESTORE is the plain mean of
// its patches however often they were merged, and sits at their lower median; rows stand in order.
func TestInsideProperties(t *testing.T) {
	const layers = 12
	for _, m := range methods() {
		if m.inside == nil || m.inside.states { // rows and keys need a decoder
			continue
		}
		for _, n := range []int{1, 2, 7, 36, 61} {
			for _, schedule := range []string{
				"1:1", "2:0.5", "1:0.9,3:0.5,7:0.2", "3:0.34,4:0.33,5:1",
			} {
				for _, o := range []Options{
					{}, {Compat: "released"}, {Restore: true}, {Restore: true, Gamma: new(0.75), Compat: "paper"}, {Restore: true, Gamma: new(0.)}, {Restore: true, Gamma: new(1.)},
				} {
					o.Base, o.Schedule = m.Name, schedule
					// a share of so few rows is none, or more than are left
					if _, err := inLayers(o, n, layers); err != nil {
						continue
					}
					for _, equal := range []bool{false, true} {
						name := fmt.Sprintf("%s, %d rows, %s, restore %v gamma %v, equal %v",
							m.Name, n, schedule, o.Restore, o.gamma(), equal)
						checkFollowed(t, name, follow(t, o, n, layers, 5, equal), n, equal)
					}
				}
			}
		}
	}
}

func checkFollowed(t *testing.T, name string, f *followed, n int, equal bool) {
	t.Helper()
	s := f.inside
	o := s.Plan
	if len(s.Results) != len(o.Stages) {
		t.Fatalf("%s: %d stages done of %v", name, len(s.Results), o.Stages)
	}
	before := n
	for i, r := range s.Results {
		if r.Before != before || len(r.Rows) != r.Stage.Rows() || len(r.Kept) != r.Stage.Kept {
			t.Fatalf("%s: stage %d: %d rows become %d with %d kept, want %d, %d and %d", name, i,
				r.Before, len(r.Rows), len(r.Kept), before, r.Stage.Rows(), r.Stage.Kept)
		}
		want := iota32(r.Before)[:r.Stage.Kept]
		if o.Base == "fitprune" && !o.Restore {
			want = iota32(r.Before)[r.Before-r.Stage.Kept:]
		}
		if equal && !slices.Equal(r.Kept, want) {
			t.Fatalf("%s: stage %d: kept %v of equal rows, want %v", name, i, r.Kept, want)
		}
		before = len(r.Rows)
	}
	red := s.Reduction()
	if _, err := json.Marshal(red); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if len(s.Results) > 0 && len(red.Rows) != o.NVis {
		t.Fatalf("%s: %d rows, want %d", name, len(red.Rows), o.NVis)
	}
	total, seen, last := 0, make([]bool, n), -1.0
	for i, row := range red.Rows {
		total += row.Size
		for _, p := range row.Members {
			if seen[p] {
				t.Fatalf("%s: patch %d is in two rows", name, p)
			}
			seen[p] = true
		}
		if !(row.Position > last) || row.Size != len(row.Members) {
			t.Fatalf("%s: row %d: position %v after %v, size %d of %d patches", name, i,
				row.Position, last, row.Size, len(row.Members))
		}
		last = row.Position
	}
	if o.Restore && o.Gamma < 1 && total != n {
		t.Fatalf("%s: sizes add up to %d, want %d", name, total, n)
	}
}

// tolMean is a few float32 roundings of sums of numbers near 1.
const tolMean = 1e-5

// Ensure that merging over stages loses no weight: a row is the mean of all patches that it stands
// for, at their lower median.
func TestInsideMeans(t *testing.T) {
	const n, layers = 61, 12
	for _, m := range methods() {
		if m.inside == nil || m.inside.states { // rows and keys need a decoder
			continue
		}
		o := Options{Base: m.Name, Schedule: "1:0.9,3:0.5,7:0.2", Restore: true}
		f := follow(t, o, n, layers, 5, false)
		// the same features, nothing taken away
		start := follow(t, Options{Base: m.Name, Schedule: "1:1.0", Restore: true}, n, layers, 5,
			false).x
		for i, row := range f.inside.Rows() {
			if want := float64(row.Members[(row.Size-1)/2]); row.Position != want {
				t.Errorf("%s: row %d of %v sits at %v, want %v", m.Name, i, row.Members,
					row.Position, want)
			}
			for j := range f.width {
				want := 0.0
				for _, p := range row.Members {
					want += float64(start[int(p)*f.width+j]) / float64(row.Size)
				}
				if got := float64(f.x[i*f.width+j]); !(math.Abs(got-want) <= tolMean) {
					t.Fatalf("%s: row %d of %v: feature %d is %v, want %v", m.Name, i, row.Members,
						j, got, want)
				}
			}
		}
	}
}
