package nn

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
)

// tolBias is the float32 rounding of a bias up to ln(size·3) plus the table's 1e-8.
const tolBias = 1e-6

// tolAttention is ten float32 roundings of attention's output.
const tolAttention = 5e-6

func mrope(t testing.TB) map[string]*tensor.Tensor {
	t.Helper()
	ref := golden.Read(t, "testdata/mrope.ref")
	return ref
}

func floats(t testing.TB, x *tensor.Tensor) []float32 {
	t.Helper()
	if x == nil {
		return nil
	}
	if v, err := x.Float32s(); err == nil {
		return v
	}
	ints, err := x.Int64s()
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, len(ints))
	for i, n := range ints {
		v[i] = float32(n)
	}
	return v
}

func positions(t testing.TB, x *tensor.Tensor) []Pos {
	v := floats(t, x)
	pos := make([]Pos, len(v)/3)
	for i := range pos {
		pos[i] = Pos{float64(v[3*i]), float64(v[3*i+1]), float64(v[3*i+2])}
	}
	return pos
}

var ropes = map[string]*RoPE{
	"mrope/qwen25":       NewRoPE(128, 1e6, []int{16, 24, 24}),
	"mrope/tiny":         NewRoPE(16, 1e6, []int{2, 3, 3}),
	"mrope/tiny_base1e4": NewRoPE(16, 1e4, []int{2, 3, 3}),
}

// cacheOf returns one layer that holds keys of the given number of heads of dim at pos.
func cacheOf(pos []Pos, size, k, v []float32, heads, dim int) *LayerKV {
	l := NewKVPool(heads, dim, false).NewCache(1).Layer(0)
	if k == nil {
		k, v = make([]float32, len(pos)*heads*dim), make([]float32, len(pos)*heads*dim)
	}
	l.Append(nil, k, v, pos, size)
	return l
}

// Ensure that the bias of three axes equals Appendix A.
func TestBiasOfThreeAxes(t *testing.T) {
	ref := mrope(t)
	for name, r := range ropes {
		pos, size := positions(t, ref[name+"/pos"]), floats(t, ref[name+"/size"])
		d := NewDistances(r, 4096)
		c := &Calibration{Size: true, Distance: true, Distances: d}
		got := c.Rows(cacheOf(pos, size, nil, nil, 1, 2), pos, false)
		n := len(pos)
		if err := golden.Compare(tensor.From([]int{n, n}, got), ref[name+"/bias_c2"],
			tolBias); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		spots := floats(t, ref[name+"/D_spot"])
		for i, p := range positions(t, ref[name+"/delta_spot"]) {
			if got := r.DecayMRoPE(p); !(math.Abs(got-float64(spots[i])) <= tolBias) {
				t.Errorf("%s: D%v: got %v, want %v", name, p, got, spots[i])
			}
		}
	}
}

// Ensure that interleaved axes give every pair its axis, and that D, its tables along each axis and
// the bias equal the reference's.
func TestInterleavedAxes(t *testing.T) {
	ref := golden.Read(t, "testdata/mrope-interleaved.ref")
	for name, r := range map[string]*RoPE{
		"qwen3vl":   NewInterleavedRoPE(128, 5e6, []int{24, 20, 20}),
		"tiny":      NewInterleavedRoPE(24, 5e6, []int{5, 4, 3}),
		"tied-tiny": NewInterleavedRoPE(16, 5e6, []int{4, 2, 2}),
	} {
		for j, axis := range floats(t, ref[name+".axis"]) {
			if r.axis[j] != uint8(axis) {
				t.Errorf("%s: pair %d: axis %d, want %v", name, j, r.axis[j], axis)
			}
		}
		want := wide(t, ref[name+".D"])
		for i, delta := range positions(t, ref[name+".delta"]) {
			if got := r.DecayMRoPE(delta); !(math.Abs(got-want[i]) <= 1e-12) {
				t.Errorf("%s: D%v: got %v, want %v", name, delta, got, want[i])
			}
		}
		for axis, key := range []string{"", "D_height", "D_width"} {
			for d, want := range floats(t, ref[name+"."+key]) {
				var delta Pos
				delta[axis] = float64(d)
				if got := r.DecayMRoPE(delta); !(math.Abs(got-float64(want)) <= 1e-6) {
					t.Errorf("%s: %s of %d: got %v, want %v", name, key, d, got, want)
				}
			}
		}
		pos, size := positions(t, ref[name+".pos"]), floats(t, ref[name+".size"])
		c := &Calibration{Size: true, Distance: true, Distances: NewDistances(r, 4096)}
		got, bias := c.Rows(cacheOf(pos, size, nil, nil, 1, 2), pos, false),
			wide(t, ref[name+".bias"])
		for i := range got {
			if i%len(pos) <= i/len(pos) && !(math.Abs(float64(got[i])-bias[i]) <= tolBias) {
				t.Errorf("%s: bias %d: got %v, want %v", name, i, got[i], bias[i])
			}
		}
	}
}

// wide returns a float64 tensor's values.
func wide(t testing.TB, x *tensor.Tensor) []float64 {
	t.Helper()
	if x.DType != tensor.F64 {
		t.Fatalf("%v, want float64", x.DType)
	}
	v := make([]float64, x.Len())
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return v
}

// Ensure that attention with that bias equals the reference, including grouped heads.
func TestAttentionOfThreeAxes(t *testing.T) {
	ref := mrope(t)
	at := func(name string) *tensor.Tensor { return ref["attn/mrope_gqa/"+name] }
	pos, size := positions(t, at("pos")), floats(t, at("size"))
	n, heads, kv, dim := len(pos), 4, 2, 16
	rows := func(name string, heads int) []float32 { // [heads, n, dim] → [n, heads·dim]
		x, out := floats(t, at(name)), make([]float32, n*heads*dim)
		for h := range heads {
			CopyRows(out, heads*dim, h*dim, x[h*n*dim:], dim, 0, n, dim)
		}
		return out
	}
	r := NewRoPE(dim, 1e6, []int{2, 3, 3})
	cos, sin := make([]float32, n*dim/2), make([]float32, n*dim/2)
	r.Tables(cos, sin, pos)
	q, k := rows("q", heads), rows("k", kv)
	r.Apply(nil, q, n, heads, cos, sin)
	r.Apply(nil, k, n, kv, cos, sin)
	a := Attention{Heads: heads, KVHeads: kv, HeadDim: dim}
	l := cacheOf(pos, size, k, rows("v", kv), kv, dim)
	c := &Calibration{Size: true, Distance: true, Distances: NewDistances(r, 512)}
	for name, c := range map[string]*Calibration{"out": c, "out_without_bias": nil} {
		out := make([]float32, n*heads*dim)
		a.Causal(nil, Call{Out: out, Q: q, Pos: pos, Cache: l, Calib: c})
		want := tensor.From([]int{n, heads * dim}, rows(name, heads))
		if err := golden.Compare(tensor.From([]int{n, heads * dim}, out), want,
			tolAttention); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ensure that tables, interpolated logarithm and formula agree for every pair of
// axes, at both ends of the range, for fractions and beyond the tables.
func TestDistances(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, r := range map[string]*RoPE{
		"one axis": NewRoPE(128, 1e4, nil), "three": NewRoPE(128, 1e6, []int{16, 24, 24}), "slow": NewRoPE(12, 1e4, []int{1, 2, 3}),
	} {
		const n = 3000
		d := NewDistances(r, n)
		for i, v := range d.Line() {
			if want := d.Exact(At(float64(i)), Pos{}); !(math.Abs(float64(v-want)) <= tolBias) {
				t.Fatalf("%s: distance %d: got %v, want %v", name, i, v, want)
			}
		}
		keys := []Pos{
			{}, At(n - 1), At(n), At(n + 1), {n, 0, 0}, {0.5, 0, 0}, {0, 1, 2.25}, {-3, 4, -5},
		}
		for range 500 {
			keys = append(keys, Pos{
				float64(rng.IntN(n)), float64(rng.IntN(n)), float64(rng.IntN(40)),
			})
		}
		row := make([]float32, len(keys))
		for _, q := range []Pos{{}, {100, 2, 2900}} {
			d.Row(row, q, keys, false)
			for i, k := range keys {
				if want := d.Exact(q, k); !(math.Abs(float64(row[i]-want)) <= tolBias) {
					t.Errorf("%s: %v to %v: got %v, want %v", name, q, k, row[i], want)
				}
			}
			if row[0] < 0 || q == (Pos{}) && row[0] != 0 {
				t.Errorf("%s: at distance 0: %v", name, row[0])
			}
		}
		d.Row(row[:1], At(0), []Pos{{2.75, 1.5, 3}}, true)
		if want := d.Exact(Pos{2, 1, 3}, Pos{}); !(math.Abs(float64(row[0]-want)) <= tolBias) {
			t.Errorf("%s: truncated distances: got %v, want %v", name, row[0], want)
		}
	}
}

// Ensure that the rotation of a plane gives rows and columns the same frequencies.
func TestAxialRoPE(t *testing.T) {
	r := NewAxialRoPE(16, 1e4)
	got := r.Angles([]Pos{{9, 2, 3}})
	want := []float64{2, 0.2, 0.02, 0.002, 3, 0.3, 0.03, 0.003}
	for i, v := range want {
		if !(math.Abs(float64(got[i])-v) <= 1e-6) {
			t.Errorf("pair %d: got %v, want %v", i, got[i], v)
		}
	}
	if r.Axes() != 3 || NewRoPE(16, 1e4, nil).Axes() != 1 {
		t.Errorf("axes: got %d and %d", r.Axes(), NewRoPE(16, 1e4, nil).Axes())
	}
}

// Ensure that attention in segments equals attention of each segment alone, and that the received
// probability sums to 1 in each.
func TestSegmented(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	a := Attention{Heads: 3, KVHeads: 3, HeadDim: 12}
	bounds := []int32{0, 5, 6, 26, 41}
	n, w := 41, 36
	qkv := make([]float32, n*3*w)
	for i := range qkv {
		qkv[i] = float32(rng.NormFloat64())
	}
	out, heads := make([]float32, n*w), make([]float32, 3*n)
	a.Segmented(nil, out, qkv, bounds, nil, heads)
	received := MeanRows(heads, 3)
	probs := a.SegmentedProbs(nil, qkv, bounds, nil)
	for s := 1; s < len(bounds); s++ {
		lo, hi := int(bounds[s-1]), int(bounds[s])
		alone, own := make([]float32, (hi-lo)*w), make([]float32, 3*(hi-lo))
		a.Bidirectional(nil, alone, Columns(qkv[lo*3*w:], hi-lo, 3*w, 0, w),
			Columns(qkv[lo*3*w:], hi-lo, 3*w, w, w), Columns(qkv[lo*3*w:], hi-lo, 3*w, 2*w, w), 1,
			hi-lo, nil, own)
		if err := golden.Compare(tensor.From([]int{hi - lo, w}, out[lo*w:hi*w]),
			tensor.From([]int{hi - lo, w}, alone), tolAttention); err != nil {
			t.Errorf("segment %d: %v", s, err)
		}
		sum := 0.0
		for i := lo; i < hi; i++ {
			sum += float64(received[i])
			column := 0.0
			for h := range a.Heads {
				got, want := own[h*(hi-lo)+i-lo], heads[h*n+i]
				if !(math.Abs(float64(got-want)) <= tolAttention) {
					t.Errorf("alone, head %d: row %d receives %v, want %v", h, i, got, want)
				}
				one := 0.0
				for q := lo; q < hi; q++ {
					one += float64(probs[(h*n+q)*n+i])
				}
				if got := float64(heads[h*n+i]) *
					float64(hi-lo); !(math.Abs(got-one) <= tolAttention) {
					t.Errorf("head %d: row %d receives %v, want %v", h, i, got, one)
				}
				column += one
			}
			if want := column /
				float64(a.Heads*(hi-lo)); !(math.Abs(float64(received[i])-want) <= tolAttention) {
				t.Errorf("row %d receives %v, want %v", i, received[i], want)
			}
		}
		if !(math.Abs(sum-1) <= tolAttention) {
			t.Errorf("segment %d receives %v, want 1", s, sum)
		}
	}
}

// BenchmarkDistances reports the time for one pair's bias in each way.
func BenchmarkDistances(b *testing.B) {
	d := NewDistances(NewRoPE(128, 1e6, []int{16, 24, 24}), 8192)
	keys, row := make([]Pos, 4096), make([]float32, 4096)
	for i := range keys {
		keys[i] = Pos{10, float64(10 + i/64), float64(10 + i%64)}
	}
	for _, frac := range []float64{0, 0.5} {
		b.Run(fmt.Sprintf("fraction %v", frac), func(b *testing.B) {
			for range b.N {
				d.Row(row, At(5000+frac), keys, false)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(row)), "ns/pair")
		})
	}
}

// Ensure that the bias of two rows is the same to the last bit whether a row at a fraction, or at
// another place on each axis, is read with them or not: a prefix in memory may be from a prompt
// without one.
func TestBiasAlone(t *testing.T) {
	for name, r := range map[string]*RoPE{
		"one axis": NewRoPE(128, 1e4, nil), "three": NewRoPE(128, 1e6, []int{16, 24, 24}),
	} {
		c := &Calibration{Size: true, Distance: true, Distances: NewDistances(r, 600)}
		var pos []Pos
		var size []float32
		for i := range 500 {
			pos, size = append(pos, At(float64(i))), append(size, float32(1+i%7))
		}
		n := len(pos)
		want := c.Rows(cacheOf(pos, size, nil, nil, 1, 2), pos, false)
		for _, other := range []Pos{At(500.5), {500, 501, 502}} {
			all, sizes := append(pos, other), append(size, 1)
			got := c.Rows(cacheOf(all, sizes, nil, nil, 1, 2), all, false)
			for i := range want {
				if v := got[i/n*(n+1)+i%n]; v != want[i] {
					t.Fatalf("%s: with %v: row %d, key %d: got %v, want %v", name, other, i/n, i%n,
						v, want[i])
				}
			}
		}
	}
}
