package methods

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// randomInput makes N tokens of a few clusters with everything that the methods read.
func randomInput(seed uint64, h, w int) *reduce.Input {
	rng := rand.New(rand.NewPCG(seed, 1))
	n, heads, c, cv, dk := h*w, 2, 12, 10, 6
	in := &reduce.Input{N: n, C: c, GridH: h, GridW: w, Heads: heads, Cv: cv, KeyDim: dk}
	fill := func(rows, width int) []float32 {
		centres := make([]float32, 5*width)
		for i := range centres {
			centres[i] = float32(rng.NormFloat64())
		}
		v := make([]float32, rows*width)
		for i := range rows {
			k := rng.IntN(5)
			for j := range width {
				v[i*width+j] = centres[k*width+j] + 0.3*float32(rng.NormFloat64())
			}
		}
		return v
	}
	in.X, in.Hidden, in.Keys = fill(n, c), fill(n+1, cv), fill(heads*(n+1), dk)
	in.LastQuery, in.LastKeys = fill(1, cv), fill(n+1, cv)
	for _, a := range []*[]float32{
		&in.ClsAttn, &in.ClsAttnShallow, &in.ReceivedMid, &in.ReceivedDeep,
	} {
		*a = make([]float32, heads*(n+1))
		for i := range *a {
			(*a)[i] = rng.Float32() / float32(n)
		}
	}
	in.Text = fill(4, c)
	return in
}

var bases = []string{
	"holov", "divprune", "vispruner", "visionzip", "prumerge", "prumerge-plus", "dart", "random", "grid", "pool", "downsample",
}

// settings are the options that every method is tried with.
var settings = []Options{
	{}, {Compat: "released"}, {Restore: true, Gamma: new(0.)}, {Restore: true}, {Restore: true, Gamma: new(0.75), Compat: "paper"},
	{Restore: true, Gamma: new(1.)}, {Restore: true, Compat: "released"}, {Restore: true, Positions: "sequential", MergePosition: "mean"},
	{Restore: true, Compat: "released", MergePosition: "last"}, {Restore: true, Anchors: "uniform", MergePosition: "anchor"},
	{Restore: true, MergePosition: "median-mean"}, {Restore: true, Gamma: new(1.), Join: "all"},
	{Restore: true, Gamma: new(1.), Join: "count"},
}

// TestMethods is the suite that every method of the table passes. Methods inside the decoder need
// one: engine tests them. Those inside the encoder have a suite of their own.
func TestMethods(t *testing.T) {
	for _, m := range Methods() {
		if m.Name == "none" || m.Site == reduce.InsideDecoder || m.Site == reduce.InsideEncoder ||
			slices.Contains(m.Needs, reduce.Pixels) { // which has a suite of its own
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			for _, grid := range [][2]int{{1, 1}, {1, 2}, {3, 5}, {4, 4}, {6, 10}} {
				in := randomInput(uint64(grid[0]), grid[0], grid[1])
				if m.Adaptive {
					checkMethod(t, in, Options{Base: m.Name})
					checkMethod(t, in, Options{Base: m.Name, Compat: "released"})
				}
				for n := 1; n <= in.N; n++ {
					for _, o := range settings {
						o.Base, o.NVis = m.Name, n
						checkMethod(t, in, o)
					}
				}
			}
		})
	}
}

func checkMethod(t *testing.T, in *reduce.Input, o Options) {
	t.Helper()
	res, err := resolve(o, in.N)
	if o.Base == "downsample" && err == nil {
		shrunk := *in
		if shrunk.ShrunkH, shrunk.ShrunkW, err = ShrunkGrid(in.GridH, in.GridW,
			o.NVis); err != nil {
			return // no grid of so many tokens
		}
		shrunk.Shrunk = in.X[:o.NVis*in.C]
		in = &shrunk
	}
	if err != nil {
		if (o.Base == "pool" || o.Base == "downsample") &&
			strings.Contains(err.Error(), "makes every row itself") {
			return
		}
		if o.Base != "vispruner" || o.Compat != "released" || o.NVis == in.N {
			t.Fatalf("%+v: %v", o, err)
		}
		return // an odd list
	}
	r, err := Reduce(in, res, nil)
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	if err := r.Check(); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	sum := 0
	for i := range r.Rows {
		sum += len(r.Rows[i].Members)
	}
	if res.Merge > 0 && sum != in.N {
		t.Errorf("%+v: sizes add up to %d, want %d", o, sum, in.N)
	}
	kept := slices.Clone(r.Kept)
	slices.Sort(kept)
	if len(slices.Compact(kept)) != len(r.Kept) {
		t.Errorf("%+v: kept %v repeats a token", o, r.Kept)
	}
	if o.NVis == in.N {
		if !r.Identity() || !sameInts(r.Group, iota32(in.N)) || !slices.Equal(r.Features, in.X) {
			t.Errorf("%+v: N tokens are not the identity", o)
		}
		for i := range r.Rows {
			if r.Rows[i].Size != 1 || r.Rows[i].Position != float64(i) {
				t.Errorf("%+v: row %d has size %d and position %v", o, i, r.Rows[i].Size,
					r.Rows[i].Position)
			}
		}
	}
	// the total is kept: sum of size*feature = sum of X
	if res.Merge > 0 && o.Base != "downsample" && res.Join != "count" {
		for c := range in.C {
			var want, got float64
			for i := range in.N {
				want += float64(in.X[i*in.C+c])
			}
			for i := range r.Rows {
				got += float64(r.Rows[i].Size) * float64(r.Features[i*in.C+c])
			}
			if !(math.Abs(got-want) <= featTol*float64(in.N)) {
				t.Errorf("%+v: channel %d adds up to %v, want %v", o, c, got, want)
			}
		}
	}
	pool := kernel.NewPool(2)
	defer pool.Close()
	again, err := Reduce(in, res, pool)
	if err != nil {
		t.Fatal(err)
	}
	if !sameInts(again.Group, r.Group) || !slices.Equal(again.Features, r.Features) {
		t.Errorf("%+v: two threads give another reduction", o)
	}
}

// TestInvariances: scaling all rows and permuting channels change no index; the same input gives
// the same output.
func TestInvariances(t *testing.T) {
	in := randomInput(7, 8, 8)
	scaled, permuted := *in, *in
	scaled.X, scaled.Hidden, scaled.Keys = scale(in.X, 4), scale(in.Hidden, 4), scale(in.Keys, 4)
	permuted.LastQuery, permuted.LastKeys = reverse(in.LastQuery, in.Cv),
		reverse(in.LastKeys, in.Cv)
	permuted.X, permuted.Hidden, permuted.Keys = reverse(in.X, in.C), reverse(in.Hidden, in.Cv),
		reverse(in.Keys, in.KeyDim)
	for _, base := range bases {
		for _, o := range []Options{
			{Base: base, NVis: 16}, {Base: base, NVis: 16, Restore: true}, {Base: base, NVis: 16, Restore: true, Compat: "paper"},
		} {
			want := mustReduce(t, in, o)
			in.ShrunkH, in.ShrunkW, in.Shrunk = 4, 4, in.X[:16*in.C]
			for _, x := range []*reduce.Input{&scaled, &permuted} {
				x.ShrunkH, x.ShrunkW, x.Shrunk = 4, 4, in.Shrunk
			}
			for name, x := range map[string]*reduce.Input{
				"scaled": &scaled, "permuted": &permuted, "again": in,
			} {
				if base == "vispruner" && name == "permuted" {
					continue // its choices hang on the last bit
				}
				got := mustReduce(t, x, o)
				if !sameInts(got.Group, want.Group) || !sameInts(got.Kept, want.Kept) ||
					!sameInts(got.Anchors, want.Anchors) {
					t.Errorf("%s %s: got kept %v, want %v", base, name, got.Kept, want.Kept)
				}
			}
		}
	}
}

func scale(v []float32, by float32) []float32 {
	out := slices.Clone(v)
	for i := range out {
		out[i] *= by
	}
	return out
}

func reverse(v []float32, width int) []float32 {
	out := slices.Clone(v)
	for i := 0; i < len(out); i += width {
		slices.Reverse(out[i : i+width])
	}
	return out
}

// TestWorkedExample: six tokens, three wanted, gamma 0.5; the base keeps the token of highest
// attention.
func TestWorkedExample(t *testing.T) {
	in := &reduce.Input{
		N: 6, C: 2, X: []float32{-3, 4, -4, 3, 4.8, 1.4, 5, 0, 8, 6, 1.4, 4.8},
		Heads: 1, ClsAttn: []float32{.41, .05, .10, .08, .04, .30, .02},
	}
	g := readGolden(t, "testdata/worked_example.safetensors")
	for _, c := range []struct {
		name           string
		o              Options
		anchors, group []int32
	}{
		// R = 1.608 .912 1.5456 .84 2.7696: x5 has no superior, score +inf; x2 scores
		// 1.5456*(1-.5376) = .7147.
		{"paper", Options{Compat: "paper", AnchorPool: "rest"}, []int32{2, 5}, []int32{0, 0, 1, 1, 2, 0}},
		// x1: only x3 is less dense, .912*(1+.8) = 1.6416; x5: 2.7696*(1-.6) = 1.1078.
		{"code", Options{Compat: "released"}, []int32{1, 5}, []int32{0, 0, 1, 1, 2, 1}},
		// Over all six, x4 counts as a superior: .6432 .0253 .1588 .0656 +inf.
		{"paper_all", Options{Compat: "paper"}, []int32{0, 5}, []int32{0, 0, 1, 1, 2, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// One run of six keeps the one token of highest attention.
			c.o.Base, c.o.NVis, c.o.Restore, c.o.Own = "holov", 3, true,
				map[string]any{"holov-patches": 1}
			r := mustReduce(t, in, c.o)
			anchors := slices.Clone(r.Anchors)
			slices.Sort(anchors)
			if !sameInts(r.Kept, []int32{4}) || !sameInts(anchors, c.anchors) {
				t.Errorf("got kept %v and anchors %v, want [4] and %v", r.Kept, r.Anchors,
					c.anchors)
			}
			g.wantInts(t, "", c.name+"/", "group", r.Group, false)
			g.wantInts(t, "", c.name+"/", "size", sizesOf(r), false)
			g.wantInts(t, "", c.name+"/", "median", positionsOf(r), false)
			wantFloats(t, "feat", r.Features, g.floats(t, c.name+"/feat"), featTol, false)
		})
	}
}

func unitVectors(degrees ...float64) []float32 {
	var x []float32
	for _, d := range degrees {
		x = append(x, float32(math.Cos(d*math.Pi/180)), float32(math.Sin(d*math.Pi/180)))
	}
	return x
}

// TestWorkedAnchors: unit vectors at 0, 10, 20, 30, 60, 100 degrees, two anchors.
// R = 4.1169 4.5521 4.8490 4.9986 4.5409 2.1081.
func TestWorkedAnchors(t *testing.T) {
	in := &reduce.Input{N: 6, C: 2, X: unitVectors(0, 10, 20, 30, 60, 100)}
	for _, c := range []struct {
		rule           string
		anchors, group []int32
		score          []float32
	}{
		{"released", []int32{0, 5}, []int32{0, 0, 0, 0, 1, 1}, []float32{4.8318, 0.0692, 0.0737, 0.0759, 1.0624, 2.1081}},
		{"paper", []int32{3, 4}, []int32{0, 0, 0, 0, 1, 1}, []float32{0.0625, 0.0692, 0.0737, float32(math.Inf(1)), 0.6084, 0.4932}},
	} {
		r := mustReduce(t, in, Options{
			Base: "divprune", NVis: 2, Restore: true, Anchors: c.rule, Gamma: new(0.),
		})
		if !sameInts(r.Anchors, c.anchors) || !sameInts(r.Group, c.group) {
			t.Errorf("%s: got anchors %v and group %v, want %v and %v", c.rule, r.Anchors, r.Group,
				c.anchors, c.group)
		}
		wantFloats(t, c.rule, r.Score, c.score, 1e-4, false) // the printed digits
	}
	// DivPrune on the same vectors: nearest-neighbour distances .0152 .0152 .0152 .0152 .1340 .2340
	// give 5, then 0, then 4.
	if r := mustReduce(t, in, Options{Base: "divprune", NVis: 3}); !sameInts(r.Kept, []int32{
		5, 0, 4,
	}) {
		t.Errorf("divprune: got %v, want [5 0 4]", r.Kept)
	}
}

// TestWorkedHoloV: three runs of four, seven tokens. floor(7w) = 0, 5, 0; the remainder goes to
// runs 1 and 0: 1, 6, 0. The second run has only four: redistribution gives 2, 4, 1; zero vectors
// fill up otherwise.
func TestWorkedHoloV(t *testing.T) {
	in := &reduce.Input{
		N: 12, C: 2, X: unitVectors(0, 5, 20, 40, 0, 30, 60, 90, 10, 15, 25, 45),
		Heads: 1, ClsAttn: []float32{
			0, .002, .010, .004, .001, .060, .020, .050, .030, .003, .001, .002, .004,
		},
	}
	o := Options{Base: "holov", NVis: 7, Own: map[string]any{"holov-patches": 3}}
	r := mustReduce(t, in, o)
	kept := slices.Clone(r.Kept)
	slices.Sort(kept)
	if !sameInts(kept, []int32{1, 2, 4, 5, 6, 7, 11}) ||
		!sameInts(r.Indices["alloc"], []int32{2, 4, 1}) {
		t.Errorf("redistribute: got %v from %v", kept, r.Indices["alloc"])
	}
	// the printed digits
	wantFloats(t, "w", r.Scores["w"], []float32{0.090909, 0.855615, 0.053476}, 1e-6, false)
	o.Own["holov-overflow"] = "zero"
	r = mustReduce(t, in, o)
	if !sameInts(r.Kept, []int32{1, 4, 5, 6, 7, -1, -1}) || !r.Rows[6].IsZero ||
		!r.Rows[5].IsZero || r.Features[13] != 0 {
		t.Errorf("zero: got %v", r.Kept)
	}
	if kept, merged := r.Counts(); kept != 7 || merged != 0 {
		t.Errorf("counts: got %d and %d", kept, merged)
	}
}

// TestPositions: group {3, 10, 11, 40} of 576 tokens.
func TestPositions(t *testing.T) {
	row := &reduce.Row{Members: []int32{3, 10, 11, 40}, Anchor: 11, Merged: true}
	for name, want := range map[string]float64{
		"median": 10, "median-mean": 10.5, "mean": 16, "first": 3, "last": 40, "anchor": 11,
	} {
		if got := groupPosition(&Plan{Resolved: reduce.Resolved{MergePosition: name}}, 576,
			row); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	r, p := &reduce.Reduction{Rows: []reduce.Row{*row, {Members: []int32{7}, Anchor: 7}}}, new(Plan)
	column := func(t int32) float64 { return float64(t % 24) } // 3, 10, 11, 16
	for name, want := range map[string]float64{"axes-median": 10, "axes-mean": 10} {
		p.MergePosition = name
		if got, ok := p.Along(&r.Rows[0], column); !ok || got != want {
			t.Errorf("%s: got %v, %v, want %v", name, got, ok, want)
		}
		if _, ok := p.Along(&r.Rows[1], column); ok {
			t.Errorf("%s: a kept token has a position of its own", name)
		}
	}
	p.MergePosition = "axes-median"
	// -5, -4, -3, -3
	if got, _ := p.Along(&r.Rows[0], func(t int32) float64 { return float64(-t % 7) }); got != -4 {
		t.Errorf("axes-median: got %v, want the lower of the middle coordinates, -4", got)
	}
	p.MergePosition = "median"
	if _, ok := p.Along(&r.Rows[0], column); ok {
		t.Error("median: a position by axis")
	}
	// 575-40
	if got := groupPosition(&Plan{Resolved: reduce.Resolved{MergePosition: "last",
		MirrorLast: true}}, 576, row); got != 535 {
		t.Errorf("mirrored last: got %v, want 535", got)
	}
}

func TestGrid(t *testing.T) {
	var want []int32
	for i := 4; i < 576; i += 9 {
		want = append(want, int32(i))
	}
	if got := gridTokens(576, 64); !sameInts(got, want) {
		t.Errorf("64 of 576: got %v, want every ninth token", got)
	}
	for _, n := range []int{1, 7, 15, 100} {
		for k := 1; k <= n; k++ {
			got := gridTokens(n, k)
			if len(slices.Compact(slices.Sorted(slices.Values(got)))) != k || len(got) != k {
				t.Fatalf("%d of %d: got %v", k, n, got)
			}
		}
	}
}

// TestPool: where the side is a multiple, cells are those of adaptive pooling; every other budget
// has its number of cells, evenly.
func TestPool(t *testing.T) {
	in := randomInput(2, 24, 24)
	r := mustReduce(t, in, Options{Base: "pool", NVis: 64, Restore: true})
	for i := range r.Rows {
		top, left := i/8*3, i%8*3
		if want := float64((top+1)*24 + left + 1); r.Rows[i].Size != 9 ||
			r.Rows[i].Position != want {
			t.Errorf("row %d: size %d at %v, want 9 at %v", i, r.Rows[i].Size, r.Rows[i].Position,
				want)
		}
		sum := 0.0
		for k := range 9 {
			sum += float64(in.X[((top+k/3)*24+left+k%3)*in.C+5])
		}
		if got := r.Features[i*in.C+5]; !(math.Abs(float64(got)-sum/9) <= featTol) {
			t.Errorf("row %d: got %v, want %v", i, got, sum/9)
		}
	}
	// a cell of 4x4: the later middle
	if r := mustReduce(t, in, Options{Base: "pool", NVis: 36}); r.Rows[7].Position != 6*24+6 {
		t.Errorf("36 cells: the eighth is at %v, want %d", r.Rows[7].Position, 6*24+6)
	}
	for n := 1; n <= 24*24; n++ {
		smallest, largest := math.MaxInt, 0
		rows := poolCells(24, 24, n)
		for _, row := range rows {
			smallest, largest = min(smallest, row.Size), max(largest, row.Size)
		}
		if len(rows) != n || smallest < 1 || float64(largest) > 8*max(1, 576/float64(n)) {
			t.Fatalf("%d cells: got %d of %d to %d tokens", n, len(rows), smallest, largest)
		}
	}
	wantError(t, &reduce.Input{N: 6, C: 1, X: make([]float32, 6)}, Options{Base: "pool", NVis: 2},
		"pool", "grid", "got none")
}

func TestDownsample(t *testing.T) {
	for n, want := range map[int][2]int{
		192: {12, 16}, 128: {8, 16}, 64: {8, 8}, 32: {4, 8}, 1: {1, 1}, 576: {24, 24},
	} {
		if rows, cols, err := ShrunkGrid(24, 24, n); err != nil || rows != want[0] ||
			cols != want[1] {
			t.Errorf("%d tokens: got %dx%d, %v, want %v", n, rows, cols, err, want)
		}
	}
	if rows, cols, err := ShrunkGrid(6, 10, 15); err != nil || rows != 3 || cols != 5 {
		t.Errorf("15 of 6x10: got %dx%d, %v", rows, cols, err)
	}
	in := randomInput(4, 6, 8)
	in.ShrunkH, in.ShrunkW, in.Shrunk = 3, 4, in.X[:12*in.C]
	r := mustReduce(t, in, Options{Base: "downsample", NVis: 12, Restore: true})
	for i := range r.Rows {
		if want := float64((i/4*2+1)*8 + i%4*2 + 1); r.Rows[i].Size != 4 ||
			r.Rows[i].Position != want {
			t.Errorf("row %d: size %d at %v, want 4 at %v", i, r.Rows[i].Size, r.Rows[i].Position,
				want)
		}
	}
	if !slices.Equal(r.Features, in.Shrunk) || r.LayerSizes(false)[0] != 4 {
		t.Error("the shrunk picture's features were changed, or its tokens do not count as four")
	}
	wantError(t, in, Options{Base: "downsample", NVis: 13}, "n-vis", "13", "no grid of tokens",
		"want 12 or 15")
	wantError(t, in, Options{Base: "downsample", NVis: 6}, "shrunk", "3x4", "want 2x3")
	in.Shrunk = nil
	wantError(t, in, Options{Base: "downsample", NVis: 12}, "needs shrunk")
}

func TestRandomIsSeeded(t *testing.T) {
	in := randomInput(1, 8, 8)
	o := Options{Base: "random", NVis: 20, Seed: new(int64(5))}
	a, b := mustReduce(t, in, o), mustReduce(t, in, o)
	o.Seed = new(int64(6))
	c := mustReduce(t, in, o)
	if !sameInts(a.Kept, b.Kept) || sameInts(a.Kept, c.Kept) {
		t.Errorf("seed 5: %v and %v; seed 6: %v", a.Kept, b.Kept, c.Kept)
	}
}

// TestDegenerate: inputs on which the authors' code breaks, and what should come out.
func TestDegenerate(t *testing.T) {
	c := inputs{dir: "testdata"}
	t16, flat := c.load(t, "t16"), c.load(t, "flat16")
	with := func(in *reduce.Input, change func(*reduce.Input)) *reduce.Input {
		x := *in
		x.X, x.Hidden, x.Keys, x.ClsAttn = slices.Clone(in.X), slices.Clone(in.Hidden),
			slices.Clone(in.Keys), slices.Clone(in.ClsAttn)
		change(&x)
		return &x
	}
	zeroRow := with(t16, func(in *reduce.Input) {
		clear(in.X[15*in.C:])
		clear(in.Hidden[16*in.Cv:])
	})
	noAttention := with(t16, func(in *reduce.Input) { clear(in.ClsAttn) })

	if r := mustReduce(t, noAttention, Options{
		Base: "holov", NVis: 5, Own: map[string]any{"holov-patches": 4},
	}); !sameInts(r.Indices["alloc"], []int32{2, 1, 1, 1}) ||
		!sameInts(r.Kept, []int32{0, 1, 4, 8, 12}) {
		t.Errorf("holov without attention: got %v from %v, want equal shares, lower first", r.Kept,
			r.Indices["alloc"])
	}
	if r := mustReduce(t, flat, Options{Base: "divprune", NVis: 5}); !sameInts(r.Kept, []int32{
		0, 1, 2, 3, 4,
	}) {
		t.Errorf("divprune, equal rows: got %v, want 0..4", r.Kept)
	}
	if r := mustReduce(t, zeroRow, Options{Base: "divprune", NVis: 5}); len(r.Kept) != 5 {
		t.Errorf("divprune, a row of zeros: got %v", r.Kept)
	}
	if r := mustReduce(t, &reduce.Input{N: 1, C: 1, X: []float32{2}}, Options{
		Base: "divprune", NVis: 1,
	}); !sameInts(r.Kept, []int32{0}) {
		t.Errorf("divprune, one token: got %v", r.Kept)
	}
	for _, base := range []string{"holov", "divprune", "vispruner"} {
		for _, in := range []*reduce.Input{zeroRow, flat} {
			r := mustReduce(t, in, Options{Base: base, NVis: 10, Restore: true})
			for i, v := range r.Score {
				if math.IsNaN(float64(v)) {
					t.Errorf("%s: score %d is NaN", base, i)
				}
			}
		}
	}
	// All rows equal: the first tokens become anchors and the others join the first of them.
	r := mustReduce(t, flat, Options{Base: "divprune", NVis: 4, Restore: true, Gamma: new(0.)})
	if !sameInts(r.Anchors, []int32{0, 1, 2, 3}) {
		t.Errorf("equal rows: got anchors %v, want 0..3", r.Anchors)
	}
	// VisionZip: C = 1 of two rows leaves the class token and one contextual row.
	r = mustReduce(t, t16, Options{Base: "visionzip", NVis: 2})
	if !r.Rows[0].IsClass || r.Rows[1].Size != 16 || r.Space != reduce.Encoder {
		t.Errorf("visionzip: got %+v", r.Rows)
	}

	bad := with(t16, func(in *reduce.Input) { in.ClsAttn[5] = float32(math.NaN()) })
	wantError(t, bad, Options{Base: "holov", NVis: 5}, "cls_attn", "value 5", "NaN")
	for _, v := range []float32{-1, 3e38} {
		bad = with(t16, func(in *reduce.Input) { in.ClsAttn[5] = v })
		wantError(t, bad, Options{
			Base: "holov", NVis: 5, Own: map[string]any{"holov-patches": 4},
		}, "cls_attn", "run 1 of 4")
	}
	bad = with(t16, func(in *reduce.Input) { in.X[3*in.C+1] = float32(math.Inf(1)) })
	wantError(t, bad, Options{Base: "divprune", NVis: 5}, "X",
		fmt.Sprintf("value %d is +Inf", 3*t16.C+1))
	clip := with(t16, func(in *reduce.Input) {
		in.ClipDim, in.ClipImage, in.ClipText = 1, make([]float32, in.N), []float32{1}
		in.Text = make([]float32, in.C)
	})
	wantError(t, clip, Options{Base: "cdpruner", NVis: 5, Own: map[string]any{
		"cdpruner-form": "paper", "cdpruner-sign": "positive",
	}}, "cdpruner-sign", "positive", "clip_image")
	wantError(t, &reduce.Input{N: 4, C: 1, X: make([]float32, 4)},
		Options{Base: "vispruner", NVis: 4, Compat: "released"}, "needs cls_attn")
	if _, err := Reduce(t16, &Plan{Resolved: reduce.Resolved{Base: "holov", N: 16, NVis: 4}},
		nil); err == nil || !strings.Contains(err.Error(), "Resolve") {
		t.Errorf("options of another hand: got error %v", err)
	}
}

// Ensure that every method refuses NaN and infinities in what it reads, by the tensor's name, even
// in tokens that it would leave out.
func TestNotFinite(t *testing.T) {
	for _, m := range Methods() {
		if m.Name == "none" || m.Site == reduce.BeforeEncoder || m.Site == reduce.InsideEncoder ||
			m.Site == reduce.InsideDecoder {
			continue
		}
		for _, o := range []Options{{}, {Restore: true}, {Restore: true, Anchors: "covered"}} {
			names := []string{"X"}
			for _, need := range m.Require(o.Restore) {
				if d, ok := needed(randomInput(7, 6, 6), need); ok {
					names = append(names, d.name)
				}
			}
			if o.Base, o.NVis = m.Name, 12; !Covers(m.Name) {
				o.Anchors = ""
			}
			for _, name := range names {
				for _, v := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
					in := randomInput(7, 6, 6)
					at := map[string][]float32{
						"X": in.X, "cls_attn": in.ClsAttn, "hidden": in.Hidden, "keys": in.Keys,
						"pm_k": in.LastKeys, "text": in.Text, "received_mid": in.ReceivedMid,
						"received_deep": in.ReceivedDeep, "cls_attn_shallow": in.ClsAttnShallow,
					}[name]
					at[len(at)-2] = v
					wantError(t, in, o, name, fmt.Sprint(v))
				}
			}
		}
	}
}

// Ensure that a row that adds features is finite or refused: an anchor and the mean of three
// others, or a centre and the sum of three others weighted by 1/5, are at most twice as large.
func TestSumsTooLarge(t *testing.T) {
	for _, base := range []string{"visionzip", "prumerge"} {
		in := &reduce.Input{
			N: 4, C: 1, X: make([]float32, 4), Cv: 1, Heads: 1, ClsAttn: make([]float32, 5),
			KeyDim: 1, Keys: make([]float32, 5), LastQuery: []float32{1},
			LastKeys: make([]float32, 5), Hidden: slices.Repeat([]float32{1.7e38}, 5),
		}
		o := Options{Base: base, NVis: 2}
		for _, v := range mustReduce(t, in, o).Features {
			if v-v != 0 {
				t.Errorf("%s: got %v, want finite numbers", base, v)
			}
		}
		in.Hidden = slices.Repeat([]float32{3e38}, 5)
		wantError(t, in, o, base, "becomes +Inf, want finite numbers")
	}
}

func wantError(t *testing.T, in *reduce.Input, o Options, parts ...string) {
	t.Helper()
	res, err := resolve(o, in.N)
	if err == nil {
		_, err = Reduce(in, res, nil)
	}
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%+v: got error %v, want one with %q", o, err, p)
		}
	}
}

func TestResolveErrors(t *testing.T) {
	for _, c := range []struct {
		n     int
		o     Options
		parts []string
	}{
		{16, Options{Base: "holo", NVis: 4}, []string{"base", `"holo"`, "holov"}},
		{16, Options{Base: "holov", NVis: 17}, []string{"n-vis", "17", "at most 16"}},
		{16, Options{Base: "holov"}, []string{"n-vis", "missing", "a budget"}},
		{16, Options{Base: "holov", NVis: -3}, []string{"n-vis", "-3"}},
		{16, Options{Base: "holov", NVis: 4, KeepRatio: 0.5}, []string{"n-vis: got 4", "one budget", "keep-ratio 0.5"}},
		{16, Options{Base: "holov", KeepRatio: 1.5}, []string{"keep-ratio", "1.5", "at most 1"}},
		{16, Options{Base: "holov", KeepRatio: math.NaN()}, []string{"keep-ratio", "NaN"}},
		{16, Options{Base: "holov", KeepRatio: 0.01}, []string{"keep-ratio", "0.01", "no token of 16"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Gamma: new(1.1)}, []string{"gamma", "1.1", "0 to 1"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Gamma: new(math.NaN())}, []string{"gamma", "NaN"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Anchors: "best"}, []string{"anchors", `"best"`, "paper, released, uniform"}},
		{16, Options{Base: "holov", NVis: 4, Compat: "code"}, []string{"compat", `"code"`}},
		{16, Options{NVis: 4}, []string{"n-vis", "no effect", "without a base"}},
		{16, Options{Positions: "original"}, []string{"positions", "without a base"}},
		{16, Options{Base: "holov", NVis: 4, Anchors: "paper"}, []string{"anchors", "restore=false"}},
		{16, Options{Base: "holov", NVis: 4, Gamma: new(0.5)}, []string{"gamma", "restore=false"}},
		{16, Options{Base: "holov", NVis: 4, Calibrate: "full"}, []string{"calibrate", "restore=false"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, MergePosition: "mean", Gamma: new(1.)}, []string{"merge-position", "gamma 1"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, MergePosition: "mean", Gamma: new(1.), Join: "count"}, []string{"merge-position", "gamma 1"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Gamma: new(0.), Join: "all"}, []string{"join", "gamma 0"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Gamma: new(0.), AnchorPool: "rest"}, []string{"anchor-pool", "gamma 0"}},
		{16, Options{Base: "random", NVis: 4, Restore: true, Gamma: new(0.), Seed: new(int64(1))}, []string{"seed", "gamma 0"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Anchors: "uniform", AnchorPool: "all"}, []string{"anchor-pool", "uniform"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Calibrate: "off", FirstLayerSize: "group"}, []string{"first-layer-size", "calibrate off"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Calibrate: "size", DecodeDistance: new(true)}, []string{"decode-distance", "calibrate size"}},
		{16, Options{Base: "holov", NVis: 4, Restore: true, Calibrate: "distance", FirstLayerSize: "group"}, []string{"first-layer-size", "distance"}},
		{16, Options{Base: "divprune", NVis: 4, Own: map[string]any{"holov-overflow": "zero"}}, []string{"holov-overflow", "base divprune"}},
		{16, Options{Base: "holov", NVis: 4, Own: map[string]any{"vispruner-step": 4}}, []string{"vispruner-step", "base holov"}},
		{16, Options{Base: "holov", NVis: 4, Own: map[string]any{"holov-patches": -1}}, []string{"holov-patches", "-1"}},
		{16, Options{Base: "vispruner", NVis: 6, Compat: "released"}, []string{"vispruner", "6 of 16", "odd"}},
		{15, Options{Base: "vispruner", NVis: 4, Compat: "released"}, []string{"vispruner", "odd length"}},
		{16, Options{Base: "vispruner", NVis: 4, Own: map[string]any{"vispruner-step": 1}}, []string{"vispruner-step", "odd length"}},
		{576, Options{Base: "vispruner", NVis: 58, Compat: "released"}, []string{"vispruner", "58 of 576", "29 by attention", "odd length 547"}},
		{16, Options{Base: "vispruner", NVis: 4, Own: map[string]any{"vispruner-ratio": 2}}, []string{"vispruner-ratio", "2"}},
		{16, Options{Base: "visionzip", NVis: 1, Own: map[string]any{"visionzip-contextual": 1}}, []string{"visionzip-contextual", "at most 0", "class token"}},
		{16, Options{Base: "visionzip", NVis: 8, Own: map[string]any{"visionzip-contextual": 8}}, []string{"visionzip-contextual", "at most 7"}},
		{16, Options{Base: "visionzip", NVis: 8, Restore: true, Own: map[string]any{"visionzip-contextual": 2}}, []string{"visionzip-contextual", "restore"}},
		{16, Options{Base: "holov", NVis: 4, Own: map[string]any{"dart-pivots": 4}}, []string{"dart-pivots", "base holov", "belongs to dart"}},
		{16, Options{Base: "dart", NVis: 4, Own: map[string]any{"dart-pivots": -1}}, []string{"dart-pivots", "-1", "at least 1"}},
		{16, Options{Base: "dart", NVis: 4, Restore: true, Gamma: new(0.), Own: map[string]any{"dart-pivots": 4}}, []string{"dart-pivots", "gamma 0"}},
		{16, Options{Base: "pool", NVis: 4, Restore: true, Gamma: new(0.5)}, []string{"gamma", "0.5", "base pool", "only calibrates"}},
		{16, Options{Base: "downsample", NVis: 4, Restore: true, Gamma: new(0.5)}, []string{"gamma", "base downsample", "only calibrates"}},
		{16, Options{Base: "pool", NVis: 4, Restore: true, Anchors: "paper"}, []string{"anchors", "base pool"}},
		{16, Options{Base: "pool", NVis: 4, Restore: true, Calibrate: "size", DecodeDistance: new(true)}, []string{"decode-distance", "calibrate size"}},
		{0, Options{Base: "holov", NVis: 1}, []string{"tokens", "got 0"}},
	} {
		_, err := resolve(c.o, c.n)
		for _, p := range c.parts {
			if err == nil || !strings.Contains(err.Error(), p) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: got error %v, want one line with %q", c.o, err, p)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		o    Options
		want reduce.Resolved
	}{
		{"none", 576, Options{}, reduce.Resolved{Base: "none", N: 576, NVis: 576, Keep: 576, Gamma: 1, Positions: "original", Calibrate: "off"}},
		{
			"measured", 576, Options{Base: "divprune", NVis: 65, Restore: true},
			reduce.Resolved{Base: "divprune", N: 576, NVis: 65, Keep: 32, Merge: 33, Gamma: 0.5,
				Restore: true, Positions: "original", Calibrate: "full",
				MergePosition: "median", Anchors: "released", AnchorPool: "rest", Join: "rest",
				FirstLayerSize: "group", DecodeDistance: true},
		},
		{
			"paper", 576, Options{Base: "divprune", KeepRatio: 0.111, Restore: true, Compat: "paper", Gamma: new(0.)},
			reduce.Resolved{
				Base: "divprune", N: 576, NVis: 64, Merge: 64, Restore: true, Compat: "paper",
				Positions: "original", Calibrate: "full",
				MergePosition: "median", Anchors: "paper", AnchorPool: "all", Join: "rest",
				FirstLayerSize: "group", DecodeDistance: true},
		},
		{
			"released, one switch given", 576, Options{Base: "divprune", NVis: 64, Restore: true, Compat: "released", FirstLayerSize: "group"},
			reduce.Resolved{Base: "divprune", N: 576, NVis: 64, Keep: 32, Merge: 32, Gamma: 0.5,
				Restore: true, Compat: "released", Positions: "original", Calibrate: "full",
				MergePosition: "median", Anchors: "released", AnchorPool: "rest", Join: "rest",
				FirstLayerSize: "group", TruncateDistances: true},
		},
		{
			"released baseline", 576, Options{Base: "holov", NVis: 64, Compat: "released"},
			reduce.Resolved{Base: "holov", N: 576, NVis: 64, Keep: 64, Gamma: 1, Compat: "released",
				Positions: "sequential", Calibrate: "off",
				ReleasedOrder: true, Own: []reduce.Value{
					{Name: "holov-patches", Value: 16, Default: true}, {Name: "holov-overflow", Value: "redistribute", Default: true},
				}},
		},
		{
			"plain, calibration off said twice", 576, Options{Base: "visionzip", NVis: 128, Calibrate: "off"},
			reduce.Resolved{
				Base: "visionzip", N: 576, NVis: 128, Keep: 128, Gamma: 1, Positions: "original",
				Calibrate: "off", Own: []reduce.Value{
					{Name: "visionzip-contextual", Value: 20, Default: true},
				},
			},
		},
		{
			"a budget of N asks nothing of the base", 15, Options{Base: "vispruner", NVis: 15},
			reduce.Resolved{
				Base: "vispruner", N: 15, NVis: 15, Keep: 15, Gamma: 1, Positions: "original",
				Calibrate: "off", Own: []reduce.Value{
					{Name: "vispruner-ratio", Value: 0.5, Default: true}, {Name: "vispruner-step", Value: 8, Default: true},
				},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := resolve(c.o, c.n)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got.Resolved); d != "" {
				t.Error(d)
			}
		})
	}
	// A budget that nobody asked for is the most.
	for n, want := range map[int]int{20: 20, 63: 63, 64: 64, 576: 64} {
		if r, err := resolve(Options{Base: "holov", NVis: 64, UpTo: true, Restore: true},
			n); err != nil || r.NVis != want {
			t.Errorf("up to 64 of %d: got %d, %v, want %d", n, r.NVis, err, want)
		}
	}
	// VisionZip's published splits, and DivPrune's rounding of a ratio.
	for n, want := range map[int]int{192: 30, 128: 20, 64: 10, 32: 5, 2: 1} {
		if got := visionZipSplit(&Plan{}, 0, n); got != want {
			t.Errorf("visionzip: %d contextual of %d, want %d", got, n, want)
		}
	}
	for n, want := range map[int]int{16: 2, 576: 56, 2352: 230, 2928: 287} {
		if r, err := resolve(Options{Base: "divprune", KeepRatio: 0.098}, n); err != nil ||
			r.NVis != want {
			t.Errorf("keep-ratio 0.098 of %d: got %d, %v, want %d", n, r.NVis, err, want)
		}
	}
}

// TestTensors: what is written has the names and types that the file promises.
func TestTensors(t *testing.T) {
	in := randomInput(3, 4, 4)
	r := mustReduce(t, in, Options{Base: "holov", NVis: 6, Restore: true})
	out := Tensors(r)
	for name, shape := range map[string][]int{
		"retained": {3}, "anchors": {3}, "group": {16}, "size": {6}, "merged": {6}, "position": {6}, "feat": {6, 12}, "pool": {13},
		"R": {13}, "m": {13}, "score": {13}, "Q": {16}, "w": {16}, "alloc": {16}, "attention": {16},
	} {
		if x := out[name]; x == nil || !slices.Equal(x.Shape, shape) {
			t.Errorf("%s: got %v, want shape %v", name, x, shape)
		}
	}
	if out["kept"] != nil || out["position"].DType != tensor.I32 {
		t.Errorf("kept %v, position %v", out["kept"], out["position"])
	}
	r = mustReduce(t, in, Options{Base: "grid", NVis: 3, Restore: true, MergePosition: "mean"})
	if got := Tensors(r)["position"].DType; got != tensor.F32 {
		t.Errorf("mean positions: got %v, want F32", got)
	}
	if r = mustReduce(t, in, Options{Base: "grid", NVis: 3}); Tensors(r)["kept"] == nil ||
		Tensors(r)["retained"] != nil {
		t.Error("plain base: want kept and no retained")
	}
	r = mustReduce(t, in, Options{Base: "scope", NVis: 6, Restore: true, Anchors: "covered"})
	if gain := Tensors(r)["gain"]; gain.DType != tensor.F64 || gain.Len() != len(r.Gains) {
		t.Errorf("covered anchors over a base with gains: got %v, want the anchors'", gain)
	}
}

// FuzzFromTensors: shapes that do not fit, values that are not finite and any grid are errors or
// good inputs, never panics.
func FuzzFromTensors(f *testing.F) {
	f.Add([]byte{4, 2, 1, 5, 5, 2, 2, 0, 0}, uint8(0), 3)
	f.Add([]byte{9, 3, 2, 10, 10, 4, 2, 10, 3, 4, 10, 4}, uint8(1), 4)
	f.Fuzz(func(t *testing.T, dims []byte, base uint8, n int) {
		next := func() int {
			if len(dims) == 0 {
				return 0
			}
			d := int(int8(dims[0]))
			dims = dims[1:]
			return d
		}
		make1 := func(shape ...int) *tensor.Tensor {
			size := 4
			for _, d := range shape {
				size *= max(d, 0)
			}
			data := make([]byte, min(size, 1<<20))
			for i := range data {
				data[i] = byte(i * 37 % 63)
			}
			return &tensor.Tensor{DType: tensor.F32, Shape: shape, Data: data}
		}
		ts := map[string]*tensor.Tensor{
			"X": make1(next(), next()), "cls_attn": make1(next(), next()), "hidden": make1(next(), next()), "keys": make1(next(), next(), next()),
			"pm_q_cls": make1(next()), "pm_k": make1(next(), next()),
		}
		switch base / 64 {
		case 1:
			ts["view"] = &tensor.Tensor{
				DType: tensor.I32, Shape: []int{ts["X"].Shape[0]}, Data: ts["keys"].Data,
			}
			ts["view_class"] = make1(next(), next())
			delete(ts, "pm_q_cls")
			delete(ts, "pm_k")
		case 2:
			ts = map[string]*tensor.Tensor{
				"X": ts["X"], "received": ts["cls_attn"], "keys": ts["keys"],
			}
		}
		in, err := FromTensors(ts, next(), next())
		if err != nil {
			return
		}
		o := Options{Base: bases[int(base)%len(bases)], NVis: n, Restore: base&64 != 0}
		res, err := Resolve(o, Facts{Tokens: in.N, Views: in.ViewSizes(), NoClass: in.NoClass})
		if err != nil {
			return
		}
		r, err := Reduce(in, res, nil)
		if err != nil {
			return
		}
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFromTensorsErrors(t *testing.T) {
	f := func(shape ...int) *tensor.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return tensor.From(shape, make([]float32, n))
	}
	ints := func(v ...int64) *tensor.Tensor { return tensor.From([]int{len(v)}, v) }
	nan := tensor.From([]int{4, 2}, []float32{0, 0, 0, float32(math.NaN()), 0, 0, 0, 0})
	for _, c := range []struct {
		ts    map[string]*tensor.Tensor
		h, w  int
		parts []string
	}{
		{map[string]*tensor.Tensor{}, 0, 0, []string{"X", "missing"}},
		{map[string]*tensor.Tensor{"X": f(4)}, 0, 0, []string{"X", "[4]"}},
		{map[string]*tensor.Tensor{"X": f(0, 2)}, 0, 0, []string{"X", "[0 2]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "received": f(0, 4)}, 0, 0, []string{"received", "[0 4]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "keys": f(2, 5, 0)}, 0, 0, []string{"keys", "[2 5 0]"}},
		{map[string]*tensor.Tensor{"X": nan}, 0, 0, []string{"X", "value 3", "NaN"}},
		{map[string]*tensor.Tensor{"X": f(4, 2)}, 3, 2, []string{"grid", "3x2", "4 tokens"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "cls_attn": f(2, 4)}, 0, 0, []string{"cls_attn", "[2 4]", "5"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "hidden": f(4, 3)}, 0, 0, []string{"hidden", "[4 3]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "cls_attn": f(2, 5), "keys": f(3, 5, 2)}, 0, 0, []string{"keys", "3 heads"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "pm_k": f(5, 2)}, 0, 0, []string{"pm_q_cls", "[]", "pm_k"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "pm_q_cls": f(3), "pm_k": f(5, 2)}, 0, 0, []string{"pm_k", "[5 2]", "[5 3]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "received": f(5)}, 0, 0, []string{"received", "[5]", "[4]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "received": f(2, 4), "cls_attn": f(2, 5)}, 0, 0, []string{"received", "cls_attn"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "received": f(2, 4), "keys": f(2, 5, 3)}, 0, 0, []string{"keys", "[2 5 3]", "[2 4 width]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "hidden": f(5, 3), "view": ints(0, 0, 1, -1)}, 0, 0, []string{"view_class", "[]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "hidden": f(5, 3), "view_class": f(2, 3)}, 0, 0, []string{"view", "[]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "hidden": f(5, 3), "view_class": f(2, 3), "view": ints(0, 0, 2, 1)}, 0, 0, []string{"view", "token 2", "got 2"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "hidden": f(5, 3), "view_class": f(2, 3), "view": ints(0, 0, -2, 1)}, 0, 0, []string{"view", "token 2", "got -2"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "view_class": f(2, 3), "view": ints(0, 0, 1, 1)}, 0, 0, []string{"view_class", "[2 3]"}},
		{map[string]*tensor.Tensor{"X": f(4, 2), "hidden": f(5, 3), "view_class": f(2, 3), "view": ints(0, 0, 1, 1), "pm_q_cls": f(2), "pm_k": f(5, 2)}, 0, 0, []string{"view", "pm_k"}},
	} {
		_, err := FromTensors(c.ts, c.h, c.w)
		for _, p := range c.parts {
			if err == nil || !strings.Contains(err.Error(), p) {
				t.Errorf("got error %v, want one with %q", err, p)
			}
		}
	}
}

// BenchmarkReduce measures selection and merging at the sizes of LLaVA-1.5-7B (576 tokens of width
// 4096, 64 wanted) and LLaVA-NeXT (2880, 160 and 320 wanted).
func BenchmarkReduce(b *testing.B) {
	pool := kernel.NewPool(2)
	defer pool.Close()
	all := []string{"holov", "divprune", "vispruner", "prumerge", "dart", "pool"}
	for _, c := range []struct {
		n, h, w, budget int
		bases           []string
	}{{576, 24, 24, 64, all}, {2880, 48, 60, 160, all[:1]}, {2880, 48, 60, 320, all[:1]}} {
		in := benchInput(c.n, c.h, c.w)
		for _, base := range c.bases {
			for _, restore := range []bool{false, true} {
				res, err := resolve(Options{Base: base, NVis: c.budget, Restore: restore}, in.N)
				if err != nil {
					b.Fatal(err)
				}
				name := fmt.Sprintf("%dof%d/%s", c.budget, c.n, base)
				if restore {
					name += "+restore"
				}
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						if _, err := Reduce(in, res, pool); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// benchInput makes an input of random values, width 4096 after the projector and 1024 before.
func benchInput(n, h, w int) *reduce.Input {
	rng := rand.New(rand.NewPCG(1, 2))
	in := &reduce.Input{N: n, C: 4096, GridH: h, GridW: w, Heads: 16, Cv: 1024}
	in.X, in.Hidden, in.ClsAttn = make([]float32, in.N*in.C), make([]float32, (in.N+1)*in.Cv),
		make([]float32, in.Heads*(in.N+1))
	in.KeyDim, in.Keys = 64, make([]float32, in.Heads*(in.N+1)*64)
	in.LastQuery, in.LastKeys = make([]float32, in.Cv), make([]float32, (in.N+1)*in.Cv)
	for _, v := range [][]float32{in.X, in.Hidden, in.Keys, in.LastQuery, in.LastKeys} {
		for i := range v {
			v[i] = float32(rng.NormFloat64()) + 0.5
		}
	}
	for i := range in.ClsAttn {
		in.ClsAttn[i] = rng.Float32()
	}
	return in
}
