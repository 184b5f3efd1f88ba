package tensor

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Ensure that the first NaN or infinity is found at any index, and nothing else.
func TestNotFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range []DType{F32, F16, BF16} {
		size := d.Size()
		for n := range 40 {
			b := make([]byte, n*size)
			want := -1
			v := make([]float32, 1)
			for i := range n {
				for k := range size {
					b[i*size+k] = byte(r.Uint32())
				}
				if r.IntN(n+1) > 0 { // mostly finite: the exponent's lowest bit cleared
					b[i*size+size-1] &^= 0x04
					b[i*size+size-2] &^= 0x80
				}
				if err := Widen(v, d, b, i); err != nil {
					t.Fatal(err)
				}
				if x := float64(v[0]); want < 0 && (math.IsNaN(x) || math.IsInf(x, 0)) {
					want = i
				}
			}
			if got := NotFinite(d, b); got != want {
				t.Errorf("%v, %d elements %x: got %d, want %d", d, n, b, got, want)
			}
		}
	}
	for bits := range 1 << 16 { // each half-precision value, among finite ones
		b := []byte{0xff, 0x7b, 0xff, 0xfb, byte(bits), byte(bits >> 8), 0, 0x80, 1, 0}
		want := -1
		if bits&0x7c00 == 0x7c00 {
			want = 2
		}
		if got := NotFinite(F16, b); got != want {
			t.Fatalf("%04x: got %d, want %d", bits, got, want)
		}
	}
	if NotFinite(I32, []byte{0xff, 0xff, 0xff, 0xff}) != -1 {
		t.Error("integers are not finite")
	}
}

func BenchmarkNotFinite(b *testing.B) {
	v := make([]byte, 1<<24)
	b.SetBytes(int64(len(v)))
	for b.Loop() {
		NotFinite(F16, v)
	}
}
