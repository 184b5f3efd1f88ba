package kernel

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/racetest"
)

const (
	// elemTol is relative to max(1, |want|): a few float32 roundings.
	elemTol = 5e-7
	// expTol bounds the relative error of e^x itself.
	expTol = 2e-7
)

// near reports whether got is within tol·max(1, |want|) of want, or equally infinite or NaN.
func near(got float32, want, tol float64) bool {
	if g := float64(got); want != want || math.IsInf(want, 0) {
		return g == want || g != g && want != want
	}
	return math.Abs(float64(got)-want) <= tol*math.Max(1, math.Abs(want))
}

func TestNearRejects(t *testing.T) {
	nan := math.NaN()
	if near(float32(nan), 1, 1) || near(1, nan, 1) || near(1, math.Inf(1), 1) ||
		near(1.1, 1, 0.01) {
		t.Error("near accepts a wrong value")
	}
}

// special are values for which vector code and scalar code tend to differ.
var special = []float32{0, float32(math.Copysign(0, -1)), 1e-45, -1e-40, 88.5, -88.5, 90, -90, 200,
	-200, 3e38, -3e38,
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}

// elementwise runs f with every implementation on slices of every length from 0 to 200 at odd
// offsets, with canaries on both sides. f changes x in place, with y as second operand; want is the
// float64 reference. An element's bits must not depend on where in a slice it lies.
func elementwise(t *testing.T, f func(x, y []float32), want func(x, y float64) float64) {
	t.Helper()
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(4))
		for n := 0; n <= 200; n++ {
			off := 1 + n%15
			x, y := make([]float32, n+off+17), make([]float32, n+3)
			for i := range x {
				x[i] = canary
			}
			in := x[off : off+n]
			for i := range in {
				in[i], y[i+3] = float32(4*r.NormFloat64()), float32(r.NormFloat64())
				if n > 100 && i%7 == 3 {
					in[i] = special[r.Intn(len(special))]
				}
			}
			before := append([]float32(nil), in...)
			f(in, y[3:])
			for i, v := range in {
				w := want(float64(before[i]), float64(y[i+3]))
				if math.Abs(w) > math.MaxFloat32 {
					w = math.Copysign(math.Inf(1), w)
				}
				if !near(v, w, elemTol) {
					t.Fatalf("n = %d, element %d: f(%g, %g) = %g, want %g", n, i, before[i], y[i+3],
						v, w)
				}
				alone := before[i : i+1]
				f(alone, y[i+3:i+4])
				if v == v && math.Float32bits(alone[0]) != math.Float32bits(v) {
					t.Fatalf("n = %d, element %d: %g, alone %g", n, i, v, alone[0])
				}
			}
			for i, v := range x {
				if (i < off || i >= off+n) && v != canary {
					t.Fatalf("n = %d: wrote outside at %d", n, i-off)
				}
			}
		}
	})
}

// sigmoid64 is x/(1+e^(-a·x)).
func sigmoid64(x, a float64) float64 { return x / (1 + math.Exp(-a*x)) }

func TestElementwise(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	t.Run("add", func(t *testing.T) {
		elementwise(t, func(x, y []float32) {
			Add(pool, x, y)
		}, func(x, y float64) float64 { return float64(float32(x) + float32(y)) })
	})
	t.Run("silu", func(t *testing.T) {
		elementwise(t, func(x, _ []float32) {
			SiLU(pool, x)
		}, func(x, _ float64) float64 { return sigmoid64(x, 1) })
	})
	t.Run("quickgelu", func(t *testing.T) {
		elementwise(t, func(x, _ []float32) { QuickGELU(pool, x) },
			func(x, _ float64) float64 { return sigmoid64(x, 1.702) })
	})
	t.Run("silumul", func(t *testing.T) {
		elementwise(t, func(x, y []float32) { SiLUMul(pool, x, x, y) },
			func(x, y float64) float64 { return sigmoid64(x, 1) * y })
	})
	t.Run("gelu", func(t *testing.T) {
		elementwise(t, func(x, _ []float32) {
			GELU(pool, x)
		}, func(x, _ float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) })
	})
	t.Run("gelumul", func(t *testing.T) {
		elementwise(t, func(x, y []float32) { GELUMul(pool, x, y) },
			func(x, y float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) * y })
	})
	tanh := func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	t.Run("gelutanh", func(t *testing.T) {
		elementwise(t, func(x, _ []float32) { GELUTanh(pool, x) },
			func(x, _ float64) float64 { return tanh(x) })
	})
	t.Run("gelutanhmul", func(t *testing.T) {
		elementwise(t, func(x, y []float32) { GELUTanhMul(pool, x, y) },
			func(x, y float64) float64 { return tanh(x) * y })
	})
}

func TestExp(t *testing.T) {
	for x := float32(-87.3); x < 88.7; x += 0.0137 {
		want := math.Exp(float64(x))
		if got := float64(expGo(x)); !(math.Abs(got-want) <= expTol*want) {
			t.Fatalf("expGo(%g) = %g, want %g", x, got, want)
		}
	}
	for _, c := range []struct{ x, want float64 }{
		{math.Inf(-1), 0}, {-200, 0}, {-88, 0}, {100, math.Inf(1)}, {math.Inf(1), math.Inf(1)}, {math.NaN(), math.NaN()}, {0, 1},
	} {
		if got := expGo(float32(c.x)); !near(got, c.want, 0) {
			t.Errorf("expGo(%g) = %g, want %g", c.x, got, c.want)
		}
	}
}

// Ensure that Exp is e^x to within expTol, 0 below the normal range, at every length.
func TestExps(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(5))
		for n := 0; n <= 200; n++ {
			buf := normal(r, n+9)
			x := buf[8 : 8+n]
			buf[7], buf[8+n] = canary, canary
			for i := range x {
				x[i] = min(88, x[i]*float32(1+30*(n%3)))
				if i%17 == 9 {
					x[i] = float32(math.Inf(-1))
				}
			}
			before := slices.Clone(x)
			Exp(x)
			for i, v := range x {
				want := math.Exp(float64(before[i]))
				if before[i] < expMin {
					want = 0
				}
				if !(math.Abs(float64(v)-want) <= expTol*want) {
					t.Fatalf("n = %d: Exp(%g) = %g, want %g", n, before[i], v, want)
				}
			}
			if buf[7] != canary || buf[8+n] != canary {
				t.Fatalf("n = %d: wrote outside", n)
			}
		}
	})
}

func TestNorms(t *testing.T) {
	const eps = 1e-5
	pool := NewPool(2)
	defer pool.Close()
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(8))
		for i := 1; i <= 203; i++ {
			n := i
			if i > 200 {
				n = 1000 * (i - 200)
			}
			rows := 1 + n%11
			x, w, b := normal(r, rows*n), normal(r, n), normal(r, n)
			for i := range x {
				x[i] += 10 // a mean that hides the variance in a one-pass formula
			}
			rms, layer := make([]float32, rows*n+1), make([]float32, rows*n+1)
			rms[rows*n], layer[rows*n] = canary, canary
			RMSNorm(pool, rms, x, rows, w, eps)
			LayerNorm(pool, layer, x, rows, w, b, eps)
			for t0 := range rows {
				sum, sq, dev := 0.0, 0.0, 0.0
				for _, v := range x[t0*n:][:n] {
					sum += float64(v)
					sq += float64(v) * float64(v)
				}
				mean := sum / float64(n)
				for _, v := range x[t0*n:][:n] {
					dev += (float64(v) - mean) * (float64(v) - mean)
				}
				for i, v := range x[t0*n:][:n] {
					if want := float64(v) / math.Sqrt(sq/float64(n)+eps) * float64(w[i]); !near(
						rms[t0*n+i], want, elemTol) {
						t.Fatalf("rms, n = %d, element %d: %g, want %g", n, i, rms[t0*n+i], want)
					}
					// The mean is rounded to float32 before it is subtracted: 5e-7 at 10.
					want := (float64(v)-mean)/math.Sqrt(dev/float64(n)+eps)*float64(w[i]) +
						float64(b[i])
					tol := 2e-6 * (1 + 1/math.Sqrt(dev/float64(n)+eps))
					if !near(layer[t0*n+i], want, tol) {
						t.Fatalf("layer, n = %d, element %d: %g, want %g", n, i, layer[t0*n+i],
							want)
					}
				}
			}
			if rms[rows*n] != canary || layer[rows*n] != canary {
				t.Fatalf("n = %d: wrote outside", n)
			}
		}
	})
}

func TestRoPE(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(8))
		for _, dim := range []int{2, 10, 16, 20, 34, 64, 80, 128} {
			const rows, heads, pad = 11, 3, 5
			half, stride := dim/2, heads*dim+pad
			x, angle := normal(r, rows*stride), normal(r, rows*half)
			cos, sin := make([]float32, len(angle)), make([]float32, len(angle))
			for i, a := range angle {
				cos[i], sin[i] = float32(math.Cos(float64(a))), float32(math.Sin(float64(a)))
			}
			want := make([]float64, len(x))
			for i, v := range x {
				want[i] = float64(v)
				if i%stride >= heads*dim {
					continue
				}
				j := i % stride % dim
				c, s := float64(cos[i/stride*half+j%half]), float64(sin[i/stride*half+j%half])
				if j < half {
					want[i] = float64(v)*c - float64(x[i+half])*s
				} else {
					want[i] = float64(v)*c + float64(x[i-half])*s
				}
			}
			RoPE(nil, x, rows, heads, dim, stride, cos, sin)
			checkWorst(t, fmt.Sprintf("head dim %d", dim), x, want, elemTol*4)
		}
	})
}

func TestDot(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(8))
		for n := 0; n <= 200; n++ {
			a, b := normal(r, n+1)[1:], normal(r, n+3)[3:]
			want, size, sq := 0.0, 0.0, 0.0
			for i, v := range a {
				want += float64(v) * float64(b[i])
				size += math.Abs(float64(v) * float64(b[i]))
				sq += float64(v) * float64(v)
			}
			if got := Dot(a, b); !(math.Abs(float64(got)-want) <= 1e-6*size) {
				t.Errorf("n = %d: dot %g, want %g", n, got, want)
			}
			sum, f := make([]float32, n), []float32{0.5, -2, 0.25}
			WeightedSum(sum, f, slices.Concat(a, b, a))
			for i, got := range sum {
				want := 0.75*float64(a[i]) - 2*float64(b[i])
				if !near(got, want, 1e-6) {
					t.Fatalf("%d of %d: weighted sum %v, want %v", i, n, got, want)
				}
			}
			if got := SumSquares(a); !near(float32(got), sq, 1e-6) {
				t.Errorf("n = %d: sum of squares %g, want %g", n, got, sq)
			}
		}
	})
}

func TestArgMax(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		x    []float32
		want int
	}{
		{nil, -1}, {[]float32{3}, 0}, {[]float32{1, 2, 2}, 1}, {[]float32{nan, 1, 2}, 2}, {[]float32{nan, nan}, 0}, {[]float32{2, nan}, 0}, {[]float32{float32(math.Inf(-1)), -5}, 1},
	} {
		if got := ArgMax(c.x); got != c.want {
			t.Errorf("ArgMax(%v) = %d, want %d", c.x, got, c.want)
		}
	}
}

// TestElemThreads: long slices give the same bits with one and two threads.
func TestElemThreads(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	x := normal(rand.New(rand.NewSource(1)), 3*elemsPerTask+5)
	one, two := append([]float32(nil), x...), append([]float32(nil), x...)
	for _, f := range []func(*Pool, []float32){SiLU, QuickGELU, GELU} {
		f(nil, one)
		f(pool, two)
		for i := range one {
			if one[i] != two[i] {
				t.Fatalf("element %d: %g and %g", i, one[i], two[i])
			}
		}
	}
}

func TestElemDecodeDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	pool := NewPool(2)
	defer pool.Close()
	x, w := make([]float32, 4096), make([]float32, 4096)
	cos := make([]float32, 64)
	forEachImpl(t, func(t *testing.T) {
		if n := testing.AllocsPerRun(20, func() {
			RMSNorm(pool, x, x, 1, w, 1)
			LayerNorm(pool, x, x, 1, w, w, 1)
			RoPE(pool, x, 1, 32, 128, 0, cos, cos)
			SiLUMul(pool, x, x, w)
			Add(pool, x, w)
		}); n != 0 {
			t.Errorf("%g allocations, want 0", n)
		}
	})
}

func BenchmarkElem(b *testing.B) {
	const rows, hidden, inner = 636, 4096, 11008
	x, w := make([]float32, rows*inner), make([]float32, hidden)
	y := normal(rand.New(rand.NewSource(1)), rows*inner)
	cos := make([]float32, rows*64)
	for _, bc := range []struct {
		name string
		n    int
		f    func()
	}{
		{"rmsnorm", rows * hidden, func() { RMSNorm(nil, x, y, rows, w, 1e-5) }},
		{"layernorm", rows * hidden, func() { LayerNorm(nil, x, y, rows, w, w, 1e-5) }},
		{"silumul", rows * inner, func() { SiLUMul(nil, x, y, y) }},
		{"quickgelu", 577 * 4096, func() { copy(x, y[:577*4096]); QuickGELU(nil, x[:577*4096]) }},
		{"gelu", 577 * 4096, func() { copy(x, y[:577*4096]); GELU(nil, x[:577*4096]) }},
		{"rope", rows * hidden, func() { RoPE(nil, x, rows, 32, 128, 0, cos, cos) }},
		{"add", rows * hidden, func() { Add(nil, x[:rows*hidden], y[:rows*hidden]) }},
		{"argmax32k", 32000, func() { ArgMax(y[:32000]) }},
	} {
		b.Run(bc.name, func(b *testing.B) {
			for b.Loop() {
				bc.f()
			}
			b.ReportMetric(float64(bc.n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
		})
	}
}
