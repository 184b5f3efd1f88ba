package methods

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// clustered makes n rows of so many clusters, as features of a picture lie.
func clustered(n, width, clusters int) []float32 {
	rng := rand.New(rand.NewPCG(3, 5))
	centres := make([]float32, clusters*width)
	for i := range centres {
		centres[i] = float32(rng.NormFloat64()) + 0.5
	}
	x := make([]float32, n*width)
	for i := range n {
		k := rng.IntN(clusters)
		for j := range width {
			x[i*width+j] = centres[k*width+j] + 0.8*float32(rng.NormFloat64())
		}
	}
	return x
}

// BenchmarkCovered chooses anchors, at a 7B model's sizes, and computes the cosines that this and
// the groups take: half of the budget is kept, or nothing. Each time the features come from
// memory. It reports how many columns of cosines were computed.
func BenchmarkCovered(b *testing.B) {
	pool := kernel.NewPool(2)
	defer pool.Close()
	for _, c := range []struct {
		name       string
		n, k, keep int
	}{{"576of64", 576, 64, 32}, {"2880of320", 2880, 320, 160}, {"2880of320/gamma0", 2880, 320, 0}} {
		x := clustered(c.n, 4096, c.k)
		b.Run(c.name, func(b *testing.B) {
			kept, loaded := gridTokens(c.n, max(c.keep, 1))[:c.keep], 0
			for b.Loop() {
				cols, err := newColumns(pool, x, c.n, 4096, c.k, "X")
				if err != nil {
					b.Fatal(err)
				}
				d := newDeterminant(cols, meanSharpness(cols), kept, c.k)
				picks, _ := d.pick(c.k - len(kept))
				cols.load(append(picks, kept...))
				loaded = len(cols.col)
			}
			b.ReportMetric(float64(loaded), "columns")
		})
	}
}

// float64s returns a float64 tensor's values.
func (g reference) float64s(t testing.TB, name string) []float64 {
	t.Helper()
	x, ok := g[name]
	if !ok || x.DType != tensor.F64 {
		t.Fatalf("%s: no float64 tensor", name)
	}
	v := make([]float64, x.Len())
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return v
}

// Tolerances of the references, which are float64 throughout.
const (
	gainTol           = 1e-9 // relative
	coveredFeatureTol = 1e-6 // relative to the largest
)

// Ensure that anchors, gains, groups, sizes, positions and features are the reference's, on one
// thread and on two, with products in float64 and in float32.
func TestGoldenCovered(t *testing.T) {
	dir := filepath.Join("testdata", "covered")
	if full := os.Getenv("RESTORE_ORACLE"); full != "" {
		dir = filepath.Join(full, "covered")
	}
	files, err := filepath.Glob(filepath.Join(dir, "case*.safetensors*"))
	if err != nil || len(files) < 7 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	pool := kernel.NewPool(2)
	defer pool.Close()
	for _, path := range files {
		g := readGolden(t, strings.TrimSuffix(path, ".gz"))
		x, kept := g["X"], g.ints(t, "kept")
		in := &reduce.Input{N: x.Shape[0], C: x.Shape[1], X: g.floats(t, "X")}
		merged := len(g.ints(t, "anchors_in_order"))
		for _, join := range []string{"rest", "all", "count"} {
			for _, p := range []*kernel.Pool{nil, pool} {
				checkCovered(t, fmt.Sprint(filepath.Base(path), " ", join), g, in, p, kept, merged,
					join)
			}
		}
		coarse, err := newColumns(pool, in.X, in.N, in.C, len(kept)+merged, "X")
		if err != nil {
			t.Fatal(err)
		}
		coarse.fine = false
		d := newDeterminant(coarse, meanSharpness(coarse), kept, len(kept)+merged)
		if picks, _ := d.pick(merged); !sameInts(picks, g.ints(t, "anchors_in_order")) {
			t.Errorf("%s: float32 products: picks %v, want %v", path, picks,
				g.ints(t, "anchors_in_order"))
		}
		c, err := newColumns(nil, in.X, in.N, in.C, 2, "X")
		if err != nil {
			t.Fatal(err)
		}
		want := g.float64s(t, "auto.gains")
		_, gains := newDeterminant(c, 2, nil, len(want)).pick(len(want))
		wantGains(t, path+" auto", gains, want)
	}
}

func wantGains(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d gains, want %d", what, len(got), len(want))
		return
	}
	for i, v := range want {
		if !(math.Abs(got[i]-v) <= gainTol*math.Abs(v)) {
			t.Errorf("%s: gain %d: got %v, want %v", what, i, got[i], v)
		}
		if i > 0 && got[i] > got[i-1] {
			t.Errorf("%s: gain %d rises", what, i)
		}
	}
}

func checkCovered(
	t *testing.T, what string, g reference, in *reduce.Input, p *kernel.Pool, kept []int32,
	merged int, join string,
) {
	t.Helper()
	o := mustResolve(
		t, Options{
			Base: "grid", NVis: len(kept) + merged, Restore: true, Anchors: "covered", Join: join,
		}, Facts{Tokens: in.N})
	o.Keep, o.Merge = len(kept), merged
	r, err := (&work{in: in, o: o, pool: p}).finish(&selection{kept: kept}, time.Now())
	if err != nil {
		t.Fatal(what, err)
	}
	if err := r.Check(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if want := g.ints(t, "anchors_in_order"); r.Gains != nil && !sameInts(r.Anchors, want) {
		t.Errorf("%s: anchors %v, want %v", what, r.Anchors, want)
	}
	if r.Gains != nil {
		wantGains(t, what, r.Gains, g.float64s(t, "gains"))
	}
	anchor := make([]int32, len(r.Rows))
	for i := range r.Rows {
		anchor[i] = r.Rows[i].Anchor
	}
	group := make([]int32, in.N)
	for i, row := range r.Group {
		group[i] = -1
		if row >= 0 {
			group[i] = anchor[row]
		}
	}
	for leaf, got := range map[string][]int32{
		"group": group, "row": anchor, "size": sizesOf(r), "position": positionsOf(r),
	} {
		if want := g.ints(t, join+"."+leaf); !sameInts(got, want) {
			t.Errorf("%s: %s %v, want %v", what, leaf, got, want)
		}
	}
	wantFloats(t, what, r.Features, g.floats(t, join+".features"), coveredFeatureTol, true)
}

// byDefinition chooses as the definition says, in float64, one token after another. It returns the
// picks, their gains, and the least distance between a gain and the next token's below it.
func byDefinition(x []float32, n, width, count int, kept []int32) (
	picks []int32, gains []float64, gap float64,
) {
	unit, mean := make([]float64, n*width), make([]float64, width)
	for i := range n {
		size := 0.0
		for _, v := range x[i*width:][:width] {
			size += float64(v) * float64(v)
		}
		for k, v := range x[i*width:][:width] {
			unit[i*width+k] = float64(v) / math.Sqrt(size)
			mean[k] += unit[i*width+k] / float64(n)
		}
	}
	all := 0.0
	for _, v := range mean {
		all += v * v
	}
	v, used, e, gap := slices.Repeat([]float64{1.001}, n), make([]bool, n), [][]float64{}, 1.
	for len(picks) < count {
		p := int32(-1)
		if k := len(e); k < len(kept) {
			p = kept[k]
		} else {
			for i := range v {
				if !used[i] && (p < 0 || v[i] > v[p]) {
					p = int32(i)
				}
			}
			for i := range v {
				if d := v[p] - v[i]; !used[i] && d > 0 {
					gap = min(gap, d)
				}
			}
			picks, gains = append(picks, p), append(gains, v[p])
		}
		col, scale := make([]float64, n), math.Sqrt(max(v[p], 1e-9))
		for i := range col {
			l, c := 1., 0.
			if i != int(p) {
				for k := range width {
					c += unit[i*width+k] * unit[int(p)*width+k]
				}
				l = math.Exp(-(1 - c) / (1 - all))
			}
			for _, before := range e {
				l -= before[i] * before[p]
			}
			col[i] = l / scale
		}
		for i := range v {
			v[i] = max(0, v[i]-col[i]*col[i])
		}
		e, used[p] = append(e, col), true
	}
	return picks, gains, gap
}

// Ensure that choosing in blocks, with products in float32, is the definition, and the same bits on
// one thread and on two.
func TestCoveredBlocks(t *testing.T) {
	pool := kernel.NewPool(2)
	defer pool.Close()
	for _, c := range []struct{ n, width, kept, count int }{
		{601, 96, 0, 140}, {601, 96, 75, 120}, {203, 33, 90, 60}, {90, 64, 3, 20},
	} {
		x := clustered(c.n, c.width, 50)
		kept := gridTokens(c.n, max(c.kept, 1))[:c.kept]
		want, wantGains, gap := byDefinition(x, c.n, c.width, c.count, kept)
		if gap < 2e-6 {
			t.Fatalf("%+v: a gap of %v, which rounding decides", c, gap)
		}
		var first []float64
		for _, p := range []*kernel.Pool{nil, pool} {
			cols, err := newColumns(p, x, c.n, c.width, c.kept+c.count, "X")
			if err != nil {
				t.Fatal(err)
			}
			cols.fine = false
			d := newDeterminant(cols, meanSharpness(cols), kept, c.kept+c.count)
			picks, gains := d.pick(c.count)
			if !sameInts(picks, want) {
				t.Errorf("%+v: picks %v, want %v", c, picks, want)
			}
			for i, g := range gains {
				if math.Abs(g-wantGains[i]) > 2e-6 {
					t.Errorf("%+v: gain %d: got %v, want %v", c, i, g, wantGains[i])
				}
			}
			if first == nil {
				first = gains
			}
			if !slices.Equal(gains, first) {
				t.Errorf("%+v: gains differ between one thread and two", c)
			}
		}
	}
}

// Ensure that copies of a token are chosen in their order, with products in float32.
func TestCoveredCopies(t *testing.T) {
	const n, width, distinct = 187, 40, 31
	base, x := clustered(distinct, width, distinct), make([]float32, n*width)
	for i := range n {
		copy(x[i*width:][:width], base[i*i%distinct*width:])
	}
	for _, kept := range [][]int32{nil, {0, 5, 186}} {
		cols, err := newColumns(nil, x, n, width, n, "X")
		if err != nil {
			t.Fatal(err)
		}
		cols.fine = false
		d := newDeterminant(cols, meanSharpness(cols), kept, n)
		picks, _ := d.pick(n - len(kept))
		last := map[int]int32{}
		for _, p := range picks {
			if k := int(p) * int(p) % distinct; last[k] > p {
				t.Errorf("kept %v: token %d is chosen after its copy %d", kept, p, last[k])
			} else {
				last[k] = p
			}
		}
	}
}

// Ensure, over every base after the encoder, with every way to join, that a budget of all
// tokens is no reduction, sizes sum to the tokens, and two threads give what one does.
func TestCoveredProperties(t *testing.T) {
	for _, m := range methods() {
		if m.Site != reduce.AfterEncoder || m.whole || m == noneMethod {
			continue
		}
		in := randomInput(9, 6, 10)
		for _, join := range []string{"", "rest", "all", "count"} {
			for _, n := range []int{1, 2, 5, 6, 20, in.N} {
				for _, gamma := range []float64{0, 0.5, 1} {
					o := Options{Base: m.Name, NVis: n, Restore: true, Gamma: &gamma, Join: join}
					if gamma < 1 {
						o.Anchors = "covered"
					} else if join == "rest" {
						continue // nothing would be merged
					}
					if gamma == 0 && join != "" {
						continue // there are no kept tokens
					}
					checkMethod(t, in, o)
				}
			}
		}
	}
}

// Ensure that auto is what it says: by the budget, unless the user chooses.
func TestAnchorsAuto(t *testing.T) {
	for _, c := range []struct {
		o             Options
		anchors, join string
	}{
		{Options{NVis: 64}, "released", "rest"},
		{Options{NVis: 63}, "covered", "all"},
		{Options{NVis: 63, Anchors: "auto", Join: "auto"}, "covered", "all"},
		{Options{NVis: 63, Anchors: "released"}, "released", "rest"},
		{Options{NVis: 63, Anchors: "released", Join: "all"}, "released", "all"},
		{Options{NVis: 63, AnchorPool: "all"}, "released", "rest"},
		{Options{NVis: 63, Join: "rest"}, "covered", "rest"},
		{Options{NVis: 63, Join: "count"}, "covered", "count"},
		{Options{NVis: 192, Anchors: "covered"}, "covered", "all"},
		{Options{NVis: 192, Join: "count"}, "released", "count"},
		{Options{NVis: 32, Compat: "paper"}, "paper", "rest"},
		{Options{NVis: 32, Compat: "released"}, "released", "rest"},
		{Options{NVis: 32, Compat: "released", Anchors: "auto"}, "covered", "rest"},
		{Options{NVis: 32, Gamma: new(1.)}, "covered", "rest"},
		{Options{NVis: 32, Gamma: new(1.), Join: "all"}, "covered", "all"},
	} {
		c.o.Base, c.o.Restore = "holov", true
		p := mustResolve(t, c.o, Facts{Tokens: 576})
		if p.Anchors != c.anchors || p.Join != c.join {
			t.Errorf("%+v: got %s and %s, want %s and %s", c.o, p.Anchors, p.Join, c.anchors,
				c.join)
		}
	}
	for want, o := range map[string]Options{
		"anchor-pool: got all, which has no effect with anchors covered": {Base: "holov", NVis: 8, Restore: true, Anchors: "covered", AnchorPool: "all"},
		"join: got all, want another one (fastv acts inside the decoder": {Base: "fastv", Schedule: "2:8", Restore: true, Join: "all"},
		"anchors: got covered, want another one":                         {Base: "fastv", Schedule: "2:8", Restore: true, Anchors: "covered"},
		"join: got rest, which has no effect with gamma 1":               {Base: "holov", NVis: 8, Restore: true, Gamma: new(1.), Join: "rest"},
		"join: got all, which has no effect with restore=false":          {Base: "holov", NVis: 8, Join: "all"},
		"join: got all, which has no effect with base pool":              {Base: "pool", NVis: 8, Restore: true, Join: "all"},
		"join: got count, which has no effect with base tome":            {Base: "tome", NVis: 8, Restore: true, Join: "count"},
	} {
		if _, err := Resolve(o, Facts{Tokens: 64, EncoderBlocks: 4, EncoderDepth: 4}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", o, err, want)
		}
	}
}

// Ensure that tokens that are all one, copies and rows of zeros choose as the definition says.
func TestCoveredDegenerate(t *testing.T) {
	same := &reduce.Input{N: 5, C: 2, X: []float32{1, 2, 1, 2, 1, 2, 1, 2, 1, 2}}
	r := mustReduce(t, same, Options{
		Base: "grid", NVis: 3, Restore: true, Gamma: new(0.), Anchors: "covered",
	})
	if !sameInts(r.Anchors, []int32{0, 1, 2}) || !sameInts(sizesOf(r), []int32{1, 1, 3}) {
		t.Errorf("copies: anchors %v of sizes %v, want 0, 1, 2 and the first joined by the rest",
			r.Anchors, sizesOf(r))
	}
	zero := &reduce.Input{N: 4, C: 2, X: []float32{1, 0, 0, 0, 0, 1, 1, 0}}
	r = mustReduce(t, zero, Options{
		Base: "grid", NVis: 3, Restore: true, Gamma: new(0.), Anchors: "covered",
	})
	if !sameInts(r.Anchors, []int32{0, 1, 2}) || !sameInts(r.Group, []int32{0, 1, 2, 0}) {
		t.Errorf("a row of zeros: anchors %v, group %v", r.Anchors, r.Group)
	}
}

// Ensure that tokens of a large picture that are equal, or nearly, choose as the definition says:
// float32 cannot tell their cosines from 1.
func TestCoveredNearlyEqual(t *testing.T) {
	const n, width, most = 577, 700, 64
	rng := rand.New(rand.NewPCG(1, 2))
	for _, noise := range []float64{0, 1e-3, 1e-2} {
		x := make([]float32, n*width)
		for i := range x {
			x[i] = float32(1 + float64(i%width%7) + noise*rng.NormFloat64())
		}
		r := mustReduce(t, &reduce.Input{N: n, C: width, X: x}, Options{
			Base: "random", NVis: most, Restore: true, Gamma: new(0.), Anchors: "covered",
		})
		want, gains, gap := iota32(most), r.Gains, 1.
		if noise > 0 {
			want, gains, gap = byDefinition(x, n, width, most, nil)
		}
		if gap < 1e-6 {
			t.Fatalf("noise %v: a gap of %v, which rounding decides", noise, gap)
		}
		if !sameInts(r.Anchors, want) {
			t.Errorf("noise %v: anchors %v, want %v", noise, r.Anchors, want)
		}
		for i, g := range r.Gains {
			if !(math.Abs(g-gains[i]) <= 1e-6) {
				t.Fatalf("noise %v: gain %d is %v, want %v", noise, i, g, gains[i])
			}
		}
	}
}
