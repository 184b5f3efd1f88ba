package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// pairsLeast is the largest effect of flushing to zero on a sum of k products: an operand or a
// result below the normal range counts as zero.
func pairsLeast(k int) float64 { return float64(k+1) * 0x1p-126 }

func TestRoundBF16(t *testing.T) {
	for _, c := range []struct{ in, want uint32 }{
		{0x3f800000, 0x3f80},
		{0x3f808000, 0x3f80}, // half way: to even
		{0x3f818000, 0x3f82},
		{0x3f808001, 0x3f81},
		{0x3f817fff, 0x3f81},
		{0xbf818000, 0xbf82},
		{0x7f7f8000, 0x7f80}, // beyond the range
		{0x7f7f7fff, 0x7f7f},
		{0x7f800000, 0x7f80},
		{0xff800000, 0xff80},
		{0x7f800001, 0x7fc0}, // a NaN whose payload is cut off
		{0x007fffff, 0},
		{0x807fffff, 0x8000},
		{0x00800000, 0x0080},
		{0, 0},
		{0x80000000, 0x8000},
	} {
		if got := roundBF16(math.Float32frombits(c.in)); uint32(got) != c.want {
			t.Errorf("%#x: %#x, want %#x", c.in, got, c.want)
		}
	}
	for i := range 1 << 16 {
		x := BFloat(uint16(i))
		if got := roundBF16(x); x == x && math.Abs(float64(x)) >= 0x1p-126 && got != uint16(i) {
			t.Fatalf("%#x: %#x", i, got)
		}
	}
}

// TestRoundActs: every implementation gives the reference's bytes.
func TestRoundActs(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	x := make([]float32, 4096)
	for i := range x {
		x[i] = math.Float32frombits(r.Uint32())
		switch i % 4 {
		case 1: // ties
			x[i] = math.Float32frombits(math.Float32bits(x[i])&^0xffff | 0x8000)
		case 2:
			x[i] = float32(r.NormFloat64())
		case 3: // small values
			x[i] = math.Float32frombits(r.Uint32() &^ 0x7f000000)
		}
	}
	forEachISA(t, func(t *testing.T) {
		_, unit := pairsBlock(computing(), 1)
		for n := range 200 {
			from := x[n*17%512:][:n]
			want, got := make([]byte, unit*n+24), make([]byte, unit*n+24)
			for i := range got {
				got[i] = 0xa5
			}
			roundActsGo(want[:unit*n+16], from, unit)
			roundActs(impl(), got[:unit*n+16], from, unit)
			if !bytes.Equal(got[:unit*n+16], want[:unit*n+16]) || got[unit*n+16] != 0xa5 {
				t.Fatalf("%d elements: %x, want %x", n, got, want)
			}
		}
		want, got := make([]byte, unit*len(x)), make([]byte, unit*len(x))
		roundActsGo(want, x, unit)
		roundActs(impl(), got, x, unit)
		if !bytes.Equal(got, want) {
			t.Fatal("bytes differ from the reference")
		}
	})
}

func TestBF16DotWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	p := NewPool(2)
	defer p.Close()
	for _, source := range formats {
		n, k := 67, 45 // neither is a multiple of a panel
		m, v := randomMatrix(r, n, k, source, true)
		w, err := Quantize(p, m, BF16Dot)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.Data) != w.Bytes() || w.Bytes() != 2*128*48 {
			t.Fatalf("%v: %d bytes", source, len(w.Data))
		}
		row := make([]float32, k)
		for o := range n {
			w.Row(row, o)
			for i := range row {
				if want := BFloat(roundBF16(v[o*k+i])); row[i] != want {
					t.Fatalf("%v: [%d %d] = %v, want %v", source, o, i, row[i], want)
				}
			}
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(-1), math.MaxFloat32} {
		v := make([]float32, 70*9)
		v[68*9+5] = float32(bad)
		_, err := Quantize(p, MatrixF32(70, 9, v), BF16Dot)
		if err == nil || !strings.Contains(err.Error(), "row 68, columns 4 to 5") {
			t.Errorf("%v: %v, want an error that names row 68, columns 4 to 5", bad, err)
		}
	}
}

// checkBF16Dot compares with float64 on the rounded values.
func checkBF16Dot(t *testing.T, p *Pool, r *rand.Rand, m, n, k int, withBias bool) {
	t.Helper()
	v, x := randomVector(r, n*k), randomVector(r, m*k)
	for i := range v {
		if i%11 == 0 { // all magnitudes, including denormals
			v[i] = float32(math.Ldexp(float64(v[i]), r.IntN(140)-139))
		}
	}
	w, err := Quantize(p, MatrixF32(n, k, v), BF16Dot)
	if err != nil {
		t.Fatal(err)
	}
	var bias []float32
	if withBias {
		bias = randomVector(r, n)
	}
	dst := multiplied(t, p, x, m, w, bias)
	row, rounded := make([]float32, k), make([]float64, len(x))
	for i, v := range x {
		rounded[i] = float64(BFloat(roundBF16(v)))
	}
	for o := range n {
		w.Row(row, o)
		for i := range m {
			var want, scale float64
			if withBias {
				want = float64(bias[o])
				scale = math.Abs(want)
			}
			for j, v := range row {
				q := rounded[i*k+j] * float64(v)
				want += q
				scale += math.Abs(q)
			}
			if got := float64(dst[i*n+o]); !(math.Abs(got-want) <= sumTol(k)*scale+pairsLeast(k)) {
				t.Fatalf("m %d n %d k %d: dst[%d %d] = %v, want %v", m, n, k, i, o, got, want)
			}
		}
	}
}

func TestBF16Dot(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(35, 36))
		for size := range 201 {
			checkBF16Dot(t, p, r, 1+size%13, 1+size*7%150, size, size%2 == 0)
			checkBF16Dot(t, p, r, size%5, size, 1+size*5%90, size%2 == 1)
		}
		checkBF16Dot(t, p, r, 40, 300, 1061, true)
		checkBF16Dot(t, p, r, 2, 64, 4096, true)
		checkBF16Dot(t, p, r, pairsRowBlock+7, 65, 24, true)
	})
}

// TestBF16DotBits: see checkBits.
func TestBF16DotBits(t *testing.T) {
	forEachISA(t, func(t *testing.T) { checkBits(t, BF16Dot) })
}

// BenchmarkBF16Dot reports the rate of whole products in GFLOP/s and as a share of the peak; for
// one row, the rate of reading the weight.
func BenchmarkBF16Dot(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := NewPool(threads)
		defer p.Close()
		for _, shape := range [][2]int{{4096, 4096}, {1024, 1024}, {4096, 1024}, {4096, 11008}} {
			n, k := shape[0], shape[1]
			w := &Matrix{Format: BF16Dot, N: n, K: k}
			w.Data = largeBytes(w.Bytes())
			for i := 0; i < len(w.Data); i += 2 {
				binary.LittleEndian.PutUint16(w.Data[i:], 0x3c00+uint16(i%97))
			}
			for _, m := range []int{1, 4, 8, 16, 32, 124, 577} {
				b.Run(fmt.Sprintf("%dx%d/m%d/t%d", n, k, m, threads), func(b *testing.B) {
					x, dst := randomVector(rand.New(rand.NewPCG(1, 1)), m*k), make([]float32, m*n)
					for b.Loop() {
						MatMul(p, dst, x, m, w, nil)
					}
					seconds := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(0, "ns/op")
					rate := 2 * float64(m) * float64(n) * float64(k) / seconds / 1e9
					b.ReportMetric(rate, "GFLOP/s")
					if m == 1 {
						b.ReportMetric(float64(len(w.Data))/seconds/1e9, "GB/s")
					}
				})
			}
		}
	}
}
