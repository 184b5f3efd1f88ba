package tensor

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
)

// f16Value is the definition: (-1)^s · 2^(e-15) · (1 + m/1024), or m·2^-24 when e is 0.
func f16Value(h uint16) float64 {
	e, m := int(h>>10&31), float64(h&1023)
	v := math.Ldexp(1024+m, e-25)
	switch {
	case e == 0:
		v = math.Ldexp(m, -24)
	case e == 31 && m == 0:
		v = math.Inf(1)
	case e == 31:
		v = math.NaN()
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return v
}

func TestF16AllValues(t *testing.T) {
	// One byte of padding in front makes every element unaligned.
	buf := make([]byte, 1+2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(buf[1+2*i:], uint16(i))
	}
	got, err := (&Tensor{DType: F16, Shape: []int{1 << 16}, Data: buf[1:]}).Float32s()
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range got {
		want := f16Value(uint16(i))
		if math.IsNaN(want) {
			bits := math.Float32bits(g)
			if g == g || bits>>31 != uint32(i)>>15 || bits>>13&1023 != uint32(i)&1023 {
				t.Fatalf("%#04x: got bits %#08x, want a NaN with the same sign and payload", i,
					bits)
			}
			continue
		}
		if float64(g) != want || math.Signbit(float64(g)) != math.Signbit(want) {
			t.Fatalf("%#04x: got %g, want %g", i, g, want)
		}
		if back := F32ToF16(g); back != uint16(i) {
			t.Fatalf("%#04x: rounded back to %#04x", i, back)
		}
	}
}

func TestF32ToF16Rounds(t *testing.T) {
	// Between every pair of neighbours: the midpoint rounds to the even one, a value slightly off
	// the midpoint to the nearer one.
	for h := uint16(0); h < 0x7c00; h++ {
		lo, hi := f16Value(h), f16Value(h+1)
		if h == 0x7bff {
			hi = 65536 // overflow rounds as if the range continued
		}
		mid := float32((lo + hi) / 2)
		even := h + h&1
		for _, c := range []struct {
			x    float32
			want uint16
		}{
			{mid, even}, {math.Nextafter32(mid, 0), h}, {math.Nextafter32(mid, math.MaxFloat32), h + 1},
		} {
			if got := F32ToF16(c.x); got != c.want {
				t.Fatalf("F32ToF16(%g) = %#04x, want %#04x", c.x, got, c.want)
			}
			if got := F32ToF16(-c.x); got != c.want|0x8000 {
				t.Fatalf("F32ToF16(%g) = %#04x, want %#04x", -c.x, got, c.want|0x8000)
			}
		}
	}
	if got := F32ToF16(float32(math.NaN())); got&0x7c00 != 0x7c00 || got&0x3ff == 0 {
		t.Errorf("NaN became %#04x", got)
	}
	if got := F32ToF16(float32(math.Inf(-1))); got != 0xfc00 {
		t.Errorf("-Inf became %#04x", got)
	}
}

func TestBF16(t *testing.T) {
	buf := make([]byte, 1+2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(buf[1+2*i:], uint16(i))
	}
	got, err := (&Tensor{DType: BF16, Shape: []int{256, 256}, Data: buf[1:]}).Float32s()
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range got {
		if math.Float32bits(g) != uint32(i)<<16 {
			t.Fatalf("%#04x: got bits %#08x", i, math.Float32bits(g))
		}
		if g == g && F32ToBF16(g) != uint16(i) {
			t.Fatalf("%#04x: rounded back to %#04x", i, F32ToBF16(g))
		}
	}
	for _, c := range []struct{ bits, want uint32 }{
		{0x3f808000, 0x3f80}, // 1 + 2^-8, a tie: down to even
		{0x3f818000, 0x3f82}, // a tie: up to even
		{0x3f808001, 0x3f81}, // above the tie
		{0x7f7fffff, 0x7f80}, // the largest float32 overflows
	} {
		if got := F32ToBF16(math.Float32frombits(c.bits)); uint32(got) != c.want {
			t.Errorf("F32ToBF16(%#08x) = %#04x, want %#04x", c.bits, got, c.want)
		}
	}
	if got := F32ToBF16(math.Float32frombits(0x7f800001)); got != 0x7fc0 {
		t.Errorf("a NaN whose payload is all in the lost bits became %#04x, want 0x7fc0", got)
	}
}

func TestRoundTripAndTypes(t *testing.T) {
	f := []float32{1.5, float32(math.Inf(-1)), math.SmallestNonzeroFloat32, -0, 5, 6}
	ft := From([]int{2, 3}, f)
	got, err := ft.Float32s()
	if err != nil || ft.Len() != 6 || ft.String() != "F32 [2 3]" {
		t.Fatalf("%v %v %v", got, err, ft)
	}
	for i := range f {
		if got[i] != f[i] {
			t.Errorf("element %d: got %g, want %g", i, got[i], f[i])
		}
	}
	for _, it := range []*Tensor{
		From([]int{3}, []int64{-1, 0, 7}),
		From([]int{3}, []int32{-1, 0, 7}),
		{DType: I16, Shape: []int{3}, Data: []byte{255, 255, 0, 0, 7, 0}},
		{DType: I8, Shape: []int{3}, Data: []byte{255, 0, 7}},
	} {
		v, err := it.Int64s()
		if err != nil || len(v) != 3 || v[0] != -1 || v[1] != 0 || v[2] != 7 {
			t.Errorf("%v: got %v, %v", it, v, err)
		}
	}
	f64 := binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.Pi))
	if v, err := (&Tensor{DType: F64, Data: f64}).Float32s(); err != nil || v[0] != math.Pi {
		t.Errorf("F64 scalar: got %v, %v", v, err)
	}
}

func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"float of int", second(From(nil, []int32{1}).Float32s()), "I32"},
		{"int of float", second(From(nil, []float32{1}).Int64s()), "F32"},
		{"short data", second((&Tensor{DType: F32, Shape: []int{2}, Data: make([]byte, 7)}).Float32s()), "7 bytes"},
		{"overflow", second((&Tensor{DType: F32, Shape: []int{math.MaxInt, 2}}).Float32s()), "bytes"},
		{"negative", second((&Tensor{DType: I8, Shape: []int{-1}}).Int64s()), "bytes"},
		{"f8", second((&Tensor{DType: F8, Shape: []int{1}, Data: []byte{0}}).Float32s()), "F8_E4M3"},
		{"large u64", second((&Tensor{DType: U64, Shape: []int{1}, Data: []byte{0, 0, 0, 0, 0, 0, 0, 255}}).Int64s()), "element 0"},
		{"unknown type", second((&Tensor{DType: 200, Shape: []int{0}}).Float32s()), "DType(200)"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, c.err, c.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestDTypeNames(t *testing.T) {
	for d := range numDTypes {
		// in no file and without a fixed width
		packed := d == Q8 || d == Q4 || d == Q4M || d == IQ4 || d == BF16Dot || d == Q12
		got, ok := ParseDType(d.String())
		if ok == packed || ok && got != d || (d.Bits() == 0) != packed {
			t.Errorf("%d %s: parsed as %v %v, %d bits", d, d, got, ok, d.Bits())
		}
	}
	if _, ok := ParseDType("f32"); ok {
		t.Error("lower case accepted")
	}
}

func BenchmarkWidenF16(b *testing.B) {
	src, dst := make([]byte, 1<<17), make([]float32, 1<<16)
	for i := range src {
		src[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		WidenF16(dst, src)
	}
}
