package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/restore-vlm/restore/internal/racetest"
)

// sumTol bounds the error of a float32 sum of k products against float64, as a share of Σ|x·w|:
// each of at most k+2 roundings has a relative error of 2⁻²⁴.
func sumTol(k int) float64 { return float64(k+2) * 0x1p-24 }

// encode stores v in format f, at an odd address if odd is set; values must be exact in bf16 and
// f16.
func encode(v []float32, f Format, odd bool) []byte {
	b := make([]byte, len(v)*f.Size()+1)
	if odd {
		b = b[1:]
	}
	for i, x := range v {
		switch f {
		case F32:
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
		case BF16:
			binary.LittleEndian.PutUint16(b[2*i:], uint16(math.Float32bits(x)>>16))
		case F16:
			binary.LittleEndian.PutUint16(b[2*i:], halfBits(x))
		}
	}
	return b[: len(v)*f.Size() : len(v)*f.Size()]
}

// halfBits returns the binary16 value next to x towards zero; x must be in range.
func halfBits(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	exp := int(b>>23&0xff) - 127
	switch {
	case exp == 128 && b&0x7fffff != 0:
		return sign | 0x7e00
	case exp > 15:
		return sign | 0x7c00
	case exp < -25:
		return sign
	case exp < -14:
		return sign | uint16((b&0x7fffff|0x800000)>>(-exp-1))
	}
	return sign | uint16(exp+15)<<10 | uint16(b>>13&0x3ff)
}

var formats = []Format{F32, F16, BF16}

// randomMatrix returns random values that every format holds exactly.
func randomMatrix(r *rand.Rand, n, k int, f Format, odd bool) (*Matrix, []float32) {
	v := make([]float32, n*k)
	for i := range v {
		v[i] = Half(halfBits(float32(r.NormFloat64())))
		v[i] = math.Float32frombits(math.Float32bits(v[i]) &^ 0xffff) // 7 bits of fraction
	}
	return &Matrix{Format: f, N: n, K: k, Data: encode(v, f, odd)}, v
}

func randomVector(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// multiplied is the result of MatMul, which must not write outside of it.
func multiplied(t *testing.T, p *Pool, x []float32, m int, w *Matrix, bias []float32) []float32 {
	t.Helper()
	const canary, pad = 1234.5, 33
	buf := make([]float32, m*w.N+2*pad)
	for i := range buf {
		buf[i] = canary
	}
	dst := buf[pad : pad+m*w.N]
	MatMul(p, dst, x, m, w, bias)
	for i := range pad {
		if buf[i] != canary || buf[pad+len(dst)+i] != canary {
			t.Fatalf("m %d n %d k %d %v: wrote outside dst", m, w.N, w.K, w.Format)
		}
	}
	return dst
}

// checkProduct compares a product with float64.
func checkProduct(
	t *testing.T, p *Pool, r *rand.Rand, m, n, k int, f Format, odd, withBias bool,
) {
	t.Helper()
	w, v := randomMatrix(r, n, k, f, odd)
	x := randomVector(r, m*k)
	var bias []float32
	if withBias {
		bias = randomVector(r, n)
	}
	dst := multiplied(t, p, x, m, w, bias)
	for i := range m {
		for o := range n {
			var want, scale float64
			for j := range k {
				q := float64(x[i*k+j]) * float64(v[o*k+j])
				want += q
				scale += math.Abs(q)
			}
			if bias != nil {
				want += float64(bias[o])
				scale += math.Abs(float64(bias[o]))
			}
			got := float64(dst[i*n+o])
			if !(math.Abs(got-want) <= sumTol(k)*scale) {
				t.Fatalf("m %d n %d k %d %v odd %v: dst[%d %d] = %v, want %v", m, n, k, f, odd, i,
					o, got, want)
			}
		}
	}
}

func TestMatMulSizes(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, f := range formats {
			for k := range 201 { // every depth, few and many rows
				checkProduct(t, p, r, 1+k%19, 1+k*7%23, k, f, k%2 == 1, k%3 == 0)
				checkProduct(t, nil, r, 13+k%17, 1+k*11%90, k, f, k%2 == 0, k%3 == 1)
			}
			for n := range 201 { // every width
				checkProduct(t, p, r, 1+n%19, n, 1+n*5%40, f, n%2 == 1, n%3 == 0)
				checkProduct(t, p, r, 13+n%11, n, 1+n*3%50, f, n%2 == 0, n%3 == 1)
			}
			for m := range 60 { // every number of rows
				checkProduct(t, p, r, m, 70, 37, f, false, true)
			}
			// several blocks of k, several panels, odd addresses
			checkProduct(t, p, r, 3, 130, 1100, f, true, true)
			checkProduct(t, p, r, 31, 131, 1101, f, true, true)
		}
	})
}

func TestMatMulManyRows(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		checkProduct(t, p, r, 1931, 17, 19, F32, true, true)
	})
}

// TestMatMulThreads: the same bits for any number of threads, and for a row alone as among other
// rows, of few or of many.
func TestMatMulThreads(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, f := range formats {
			for _, m := range []int{1, 5, 8, 9, 16, 17, 18, 19, 70, 200} {
				n, k := 203, 1061
				if racetest.Enabled {
					n, k = 83, 531
				}
				w, _ := randomMatrix(r, n, k, f, true)
				x := randomVector(r, m*k)
				want := make([]float32, m*n)
				MatMul(nil, want, x, m, w, nil)
				for _, threads := range []int{2, 3, 8} {
					p := NewPool(threads)
					got := make([]float32, m*n)
					MatMul(p, got, x, m, w, nil)
					p.Close()
					for i := range got {
						if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
							t.Fatalf("%v m %d: element %d = %v with %d threads, %v with one", f, m,
								i, got[i], threads, want[i])
						}
					}
				}
				less := m - 1
				if m == 1 || m == FewRows(f)+1 {
					continue
				}
				got := make([]float32, less*n)
				MatMul(nil, got, x[k:], less, w, nil)
				for i := range got {
					if got[i] != want[n+i] {
						t.Fatalf("%v m %d: element %d = %v without the first row, %v with it", f, m,
							i, got[i], want[n+i])
					}
				}
			}
		}
	})
}

// TestMatMulFewRows: up to FewRows rows have the bits that each has alone, for weights whose rows
// are shorter than a vector, or lie in one block or in several.
func TestMatMulFewRows(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(15, 16))
		for _, f := range formats {
			for _, k := range []int{7, 40, 531, 1600, 2061, 4096} {
				n, most := 39, min(FewRows(f), 20)
				w, _ := randomMatrix(r, n, k, f, true)
				x, bias := randomVector(r, most*k), randomVector(r, n)
				want := make([]float32, most*n)
				for i := range most {
					MatMul(nil, want[i*n:(i+1)*n], x[i*k:(i+1)*k], 1, w, bias)
				}
				for m := 2; m <= most; m++ {
					got := make([]float32, m*n)
					MatMul(nil, got, x, m, w, bias)
					for i := range got {
						if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
							t.Fatalf("%v k %d: element %d of %d rows = %v, alone %v", f, k, i, m,
								got[i], want[i])
						}
					}
				}
			}
		}
	})
}

func TestMatMulSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	forEachImpl(t, func(t *testing.T) {
		for _, f := range formats {
			for _, m := range []int{1, 2, 9} {
				for _, k := range []int{3, 16, 33} {
					v := make([]float32, 5*k)
					x := make([]float32, m*k)
					for i := range x {
						x[i] = 1
					}
					v[k-1] = nan             // output 0
					v[2*k-1] = inf           // 1
					v[2*k] = -inf            // 2: the infinities cancel to NaN
					v[3*k-1] = inf           //
					tiny := float32(0x1p-24) // a denormal in binary16, exact in all formats
					v[4*k-1] = tiny          // 3
					dst := make([]float32, m*5)
					MatMul(nil, dst, x, m, &Matrix{Format: f, N: 5, K: k, Data: encode(v, f, true)},
						nil)
					for i := range m {
						d := dst[i*5:]
						if d[0] == d[0] || d[1] != inf || d[2] == d[2] || d[3] != tiny ||
							d[4] != 0 {
							t.Fatalf("%v m %d k %d: row %d = %v, want [NaN +Inf NaN 2⁻²⁴ 0]", f, m,
								k, i, d[:5])
						}
					}
					// float32 denormals: in the weight if the format holds them, and in x
					small := math.Float32frombits(1 << 20)
					for i := range v {
						v[i] = 0
					}
					v[k-1] = 1
					x[k-1] = small
					MatMul(nil, dst[:5*1], x[:k], 1,
						&Matrix{Format: f, N: 5, K: k, Data: encode(v, f, false)}, nil)
					if dst[0] != small {
						t.Fatalf("%v k %d: denormal came out as %v, want %v", f, k, dst[0], small)
					}
				}
			}
		}
	})
}

func TestConvert(t *testing.T) {
	all := make([]byte, 2*65536+1)
	for _, odd := range []int{0, 1} {
		data := all[odd : odd+2*65536]
		for i := range 65536 {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(i))
		}
		forEachImpl(t, func(t *testing.T) {
			for _, f := range []Format{F16, BF16} {
				got, want := make([]float32, 65536), make([]float32, 65536)
				Convert(got, data, f)
				convertGo(want, data, f)
				for i := range got {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%v %#04x: %08x, want %08x", f, i, math.Float32bits(got[i]),
							math.Float32bits(want[i]))
					}
				}
				for n := range 70 {
					buf := make([]float32, n+1)
					buf[n] = 7
					Convert(buf[:n], data[2*16384:], f)
					for i := range n {
						if math.Float32bits(buf[i]) != math.Float32bits(want[16384+i]) {
							t.Fatalf("%v length %d: element %d", f, n, i)
						}
					}
					if buf[n] != 7 {
						t.Fatalf("%v length %d: wrote past the end", f, n)
					}
				}
			}
		})
	}
	// 0x3555 = 2⁻²·(1+0x155/0x400), 0x0001 = 2⁻²⁴, 0xfc00 = −∞
	for _, c := range []struct {
		bits uint16
		want float32
	}{
		{0x3c00, 1}, {0x3555, 0.25 * (1 + 341./1024)}, {1, 0x1p-24}, {0x83ff, -1023 * 0x1p-24}, {0xfc00, float32(math.Inf(-1))},
	} {
		if got := Half(c.bits); got != c.want {
			t.Errorf("Half(%#x) = %v, want %v", c.bits, got, c.want)
		}
	}
}

func TestMatrixRow(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, f := range formats {
		w, v := randomMatrix(r, 5, 7, f, true)
		got := make([]float32, 7)
		w.Row(got, 3)
		for i := range got {
			if got[i] != v[21+i] {
				t.Fatalf("%v: %v, want %v", f, got, v[21:28])
			}
		}
	}
}

func TestMatMulPanicsOnShortSlices(t *testing.T) {
	for name, f := range map[string]func(){
		"x": func() {
			MatMul(nil, make([]float32, 6), make([]float32, 7), 2,
				MatrixF32(3, 4, make([]float32, 12)), nil)
		},
		"dst": func() {
			MatMul(nil, make([]float32, 5), make([]float32, 8), 2,
				MatrixF32(3, 4, make([]float32, 12)), nil)
		},
		"weight": func() {
			MatMul(nil, make([]float32, 6), make([]float32, 8), 2,
				&Matrix{Format: F32, N: 3, K: 4, Data: make([]byte, 47)}, nil)
		},
		"order": func() {
			w := *MatrixF32(3, 4, make([]float32, 12))
			w.Order = []int32{3, 2, 1, 0}
			MatMul(nil, make([]float32, 6), make([]float32, 8), 2, &w, nil)
		},
		"bias": func() {
			MatMul(nil, make([]float32, 6), make([]float32, 8), 2,
				MatrixF32(3, 4, make([]float32, 12)), make([]float32, 2))
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("short %s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// BenchmarkMatMul reports the rate of whole products and its share of this machine's peak:
// multiply-adds on registers, or memory reads for one row.
func BenchmarkMatMul(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := NewPool(threads)
		defer p.Close()
		for _, f := range formats {
			for _, shape := range [][2]int{{4096, 4096}, {11008, 4096}, {4096, 11008}} {
				n, k := shape[0], shape[1]
				w := &Matrix{Format: f, N: n, K: k, Data: make([]byte, n*k*f.Size())}
				for i := range w.Data {
					w.Data[i] = byte(i%3) + 0x2f
				}
				for _, m := range []int{1, 4, 8, 16, 32, 124, 252, 636} {
					b.Run(fmt.Sprintf("%v/%dx%d/m%d/t%d", f, n, k, m, threads), func(b *testing.B) {
						x := randomVector(rand.New(rand.NewPCG(1, 1)), m*k)
						dst := make([]float32, m*n)
						MatMul(p, dst, x, m, w, nil)
						for b.Loop() {
							MatMul(p, dst, x, m, w, nil)
						}
						seconds := b.Elapsed().Seconds() / float64(b.N)
						b.ReportMetric(0, "ns/op")
						gflops := 2 * float64(m) * float64(n) * float64(k) / seconds / 1e9
						b.ReportMetric(gflops, "GFLOP/s")
						if m <= 32 {
							b.ReportMetric(float64(len(w.Data))/seconds/1e9, "GB/s")
						}
					})
				}
			}
		}
	}
}

// TestMatMulManyBytes: a product whose rows take so much memory that tasks get more columns has the
// same bits as its two halves, whose tasks do not.
func TestMatMulManyBytes(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		if impl() == implGo {
			t.Skip("computes a row at a time")
		}
		r := rand.New(rand.NewPCG(7, 8))
		const m, n, k = 152, 150, 7001
		for _, f := range []Format{F32, F16} {
			w, _ := randomMatrix(r, n, k, f, true)
			x, bias := randomVector(r, m*k), randomVector(r, n)
			want, got := make([]float32, m*n), make([]float32, m*n)
			MatMul(nil, want, x[:m/2*k], m/2, w, bias)
			MatMul(nil, want[m/2*n:], x[m/2*k:], m/2, w, bias)
			p := NewPool(2)
			MatMul(p, got, x, m, w, bias)
			p.Close()
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%v: element %d = %v, in halves %v", f, i, got[i], want[i])
				}
			}
		}
	})
}

// checkBits checks that with weights in f a row's bits depend neither on threads nor, up to FewRows
// and from there on, on how many rows there are, and that values that are not finite stay in their
// row.
func checkBits(t *testing.T, f Format) {
	t.Helper()
	r := rand.New(rand.NewPCG(37, 38))
	m, n, k := 45, 203, 1500
	w, err := Quantize(nil, MatrixF32(n, k, randomVector(r, n*k)), f)
	if err != nil {
		t.Fatal(err)
	}
	x, bias := randomVector(r, m*k), randomVector(r, n)
	want, got := make([]float32, m*n), make([]float32, m*n)
	MatMul(nil, want, x, m, w, bias)
	for _, threads := range []int{2, 5} {
		p := NewPool(threads)
		MatMul(p, got, x, m, w, bias)
		p.Close()
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("element %d = %v with %d threads, %v with one", i, got[i], threads,
					want[i])
			}
		}
	}
	for _, rows := range []int{1, 2, 5, 17} {
		if rows <= FewRows(f) != (m <= FewRows(f)) {
			continue
		}
		MatMul(nil, got, x[3*k:], rows, w, bias)
		for i, v := range got[:rows*n] {
			if v != want[3*n+i] {
				t.Fatalf("%d rows: element %d = %v, %v with %d", rows, i, v, want[3*n+i], m)
			}
		}
	}
	x[3], x[2*k+9], x[4*k+k-1] = float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))
	MatMul(nil, got, x, m, w, bias)
	for o := range n {
		if got[o] == got[o] || got[n+o] != want[n+o] || !math.IsInf(float64(got[2*n+o]), 0) ||
			got[3*n+o] != want[3*n+o] || !math.IsInf(float64(got[4*n+o]), 0) {
			t.Fatalf("a NaN in row 0, infinities in rows 2 and 4: %v", got[:5*n])
		}
	}
}
