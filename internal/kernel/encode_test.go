package kernel

import (
	"bytes"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestEncode: rounding is to nearest, ties to even; widening is exact; parts that begin at
// multiples of 64 rows give the same bytes as the whole.
func TestEncode(t *testing.T) {
	v := []float32{1, 1 + 0x1p-8, 1 + 3*0x1p-8, 1 + 0x1p-8 + 0x1p-23, -0x1p-140, 0}
	// the fifth is below half of bfloat16's smallest step 2⁻¹³³
	want := []float32{1, 1, 1 + 0x1p-6, 1 + 0x1p-7, float32(math.Copysign(0, -1)), 0}
	out := &Matrix{Format: BF16, N: 1, K: len(v), Data: make([]byte, 2*len(v))}
	if err := Encode(nil, out, MatrixF32(1, len(v), v)); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, len(v))
	out.Row(got, 0)
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("bfloat16 of %g: got %g, want %g", v[i], got[i], want[i])
		}
	}

	r := rand.New(rand.NewPCG(1, 2))
	p := NewPool(3)
	defer p.Close()
	const n, k = 75, 70
	for _, source := range formats {
		w, _ := randomMatrix(r, n, k, source, false)
		for _, f := range []Format{F32, F16, BF16, Q8, Q4, BF16Dot, Q12} {
			whole, parts := &Matrix{Format: f, N: n, K: k}, new(bytes.Buffer)
			whole.Data = make([]byte, whole.Bytes())
			if err := Encode(p, whole, w); err != nil {
				t.Fatal(err)
			}
			if f == source && !bytes.Equal(whole.Data, w.Data[:len(whole.Data)]) {
				t.Errorf("%v to itself: changed", f)
			}
			for lo := 0; lo < n; lo += 64 {
				part := &Matrix{Format: f, N: min(64, n-lo), K: k}
				part.Data = make([]byte, part.Bytes())
				size := k * source.Size()
				if err := Encode(nil, part, &Matrix{
					Format: source, N: part.N, K: k, Data: w.Data[lo*size:],
				}); err != nil {
					t.Fatal(err)
				}
				parts.Write(part.Data)
			}
			if !bytes.Equal(whole.Data, parts.Bytes()) {
				t.Errorf("%v to %v: parts differ from the whole", source, f)
			}
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	for _, c := range []struct {
		v    float64
		f    Format
		want string // "" for none
	}{
		{math.NaN(), F32, "row 1, column 2: NaN"}, {math.Inf(1), F16, "row 1, column 2: +Inf"}, {65520, F16, "row 1, column 2: 65520 is not finite in F16"},
		{65519, F16, ""}, {math.MaxFloat32, BF16, "not finite in BF16"}, {3.38e38, BF16, ""}, {math.NaN(), BF16, "NaN"},
		{math.NaN(), Q8, "row 1, columns 0 to 31"}, {math.Inf(-1), Q4, "row 1, columns 0 to 31"},
	} {
		v := make([]float32, 8)
		v[4+2] = float32(c.v)
		out := &Matrix{Format: c.f, N: 2, K: 4}
		out.Data = make([]byte, out.Bytes())
		err := Encode(nil, out, MatrixF32(2, 4, v))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v to %v: %v, want %q", c.v, c.f, err, c.want)
		}
	}
	q, err := Quantize(nil, MatrixF32(1, 32, make([]float32, 32)), Q8)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Quantize(nil, q, Q4); err == nil {
		t.Error("Q8 to Q4: accepted")
	}
	if _, err := Quantize(nil, MatrixF32(1, 4, make([]float32, 4)), F16); err == nil {
		t.Error("quantised to F16")
	}
}

// TestMemory: blocks are zero, aligned and disjoint, and may be large; a nil Memory works too.
func TestMemory(t *testing.T) {
	m := new(Memory)
	a, b := m.Bytes(100), m.Bytes(3<<20)
	for _, x := range [][]byte{a, b} {
		for i := range x {
			if x[i] != 0 {
				t.Fatal("not zero")
			}
			x[i] = 0xff
		}
	}
	if c := m.Bytes(64); cap(a) != 100 || c[0] != 0 || len(c) != 64 {
		t.Error("blocks overlap")
	}
	if err := m.Free(); err != nil {
		t.Error(err)
	}
	var none *Memory
	if len(none.Bytes(10)) != 10 || none.Free() != nil {
		t.Error("nil memory")
	}
}

func TestWorkBytes(t *testing.T) {
	for _, c := range []struct {
		isa
		q8, q4, pairs int64 // pairs: of BF16Dot
	}{
		{isa{impl: implAVX2}, 3 * 516, 3 * 276, 3 * 40 * 4},
		{isa{impl: implAVX512}, 3 * 516, 3 * 276, 3 * 40 * 4},
		{isa{impl: implAVXVNNI}, 3 * 264, 3 * 264, 3 * 40 * 4},
		{isa{impl: implAVX512, vnni: true}, 3 * 264, 3 * 264, 3 * 40 * 4},
		{isa{impl: implAMX, vnni: true, bf16: true}, 34 * 160, 34 * 160, 2 * 34 * 64},
	} {
		if !here(c.isa) {
			continue
		}
		use(t, c.isa)
		for f, want := range map[Format]int64{
			F32: 3 * 33 * 4, BF16: 3 * 33 * 4, Q8: c.q8, Q4: c.q4, BF16Dot: c.pairs,
			Q12: 3 * 260,
		} {
			if got := WorkBytes(f, 3, 33); got != want {
				t.Errorf("%v, %v: %d bytes, want %d", c.isa, f, got, want)
			}
		}
	}
}

// TestLayout: the bytes of packed weights match the layout's name. Files hold them, so a change of
// the layout needs a new name and then a new checksum here.
func TestLayout(t *testing.T) {
	want := map[string]uint32{"panels of 32 and pairs of 64": 0x22f59665}[Layout()]
	r := rand.New(rand.NewPCG(3, 4))
	w, _ := randomMatrix(r, 75, 70, F32, false)
	h := crc32.NewIEEE()
	for _, f := range []Format{Q8, Q4, BF16Dot} {
		q, err := Quantize(nil, w, f)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(q.Data)
	}
	if got := h.Sum32(); got != want {
		t.Errorf("layout %q: sum %#x, want %#x", Layout(), got, want)
	}
}
