package kernel

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// randomIQ4 returns an [n, k] weight of random values with scales from scale.
func randomIQ4(t testing.TB, r *rand.Rand, n, k int, scale func() float32) *Matrix {
	t.Helper()
	w := &Matrix{Format: IQ4, N: n, K: k}
	w.Data = make([]byte, w.Bytes())
	err := PackBlocks(nil, w, func(scales, _ []float32, q []uint8, _ int) error {
		for i := range scales {
			scales[i] = scale()
		}
		for i := range q {
			q[i] = uint8(r.UintN(16))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestIQ4Exact: with scales of 1, products of whole numbers are exact.
func TestIQ4Exact(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEachRole(t, p, func(t *testing.T, p *Pool) {
		r := rand.New(rand.NewPCG(51, 52))
		for size := range 60 {
			m, n, k := 1+size%20, 1+size*7%75, 32*(1+size%5)
			w := randomIQ4(t, r, n, k, func() float32 { return 1 })
			x := make([]float32, m*k)
			for i := range x {
				x[i] = float32(r.IntN(255) - 127)
				if i%quantBlock == 0 || size%4 == 0 {
					x[i] = float32(127 - 254*r.IntN(2)) // fixes the scale at 1
				}
			}
			dst, row := make([]float32, m*n), make([]float32, k)
			MatMul(p, dst, x, m, w, nil)
			for o := range n {
				w.Row(row, o)
				for i := range m {
					want := 0
					for j, v := range row {
						want += int(v) * int(x[i*k+j])
					}
					if got := dst[i*n+o]; got != float32(want) {
						t.Fatalf("m %d n %d k %d: [%d %d] = %v, want %d", m, n, k, i, o, got, want)
					}
				}
			}
		}
	})
}

// TestIQ4MatMul compares with float64 on the same values, and compares the bits for several numbers
// of threads.
func TestIQ4MatMul(t *testing.T) {
	two, five := NewPool(2), NewPool(5)
	defer two.Close()
	defer five.Close()
	forEachRole(t, nil, func(t *testing.T, one *Pool) {
		r := rand.New(rand.NewPCG(53, 54))
		for _, m := range []int{1, 2, 3, 6, 7, 12, 31, 65} {
			const n, k = 203, 1056
			w := randomIQ4(t, r, n, k, func() float32 { return (r.Float32() - .5) / 50 })
			x, bias := randomVector(r, m*k), randomVector(r, n)
			got, again := make([]float32, m*n), make([]float32, m*n)
			MatMul(one, got, x, m, w, bias)
			checkQuantProduct(t, got, x, m, w, bias, inSpans(one, w))
			for _, p := range []*Pool{two, five} {
				if one.steps() {
					p = p.Step()
				}
				MatMul(p, again, x, m, w, bias)
				for i := range got {
					if again[i] != got[i] {
						t.Fatalf("m %d: element %d = %v with %d threads, %v with one", m, i,
							again[i], p.Threads(), got[i])
					}
				}
			}
		}
	})
}

// TestIQ4Encode: only PackBlocks makes such a weight.
func TestIQ4Encode(t *testing.T) {
	if _, err := Quantize(nil, MatrixF32(1, 32, make([]float32, 32)), IQ4); err == nil {
		t.Error("Quantize: got no error")
	}
	w := &Matrix{Format: IQ4, N: 1, K: 32}
	w.Data = make([]byte, w.Bytes())
	if err := Encode(nil, w, MatrixF32(1, 32, make([]float32, 32))); err == nil {
		t.Error("Encode: got no error")
	}
}

// TestWidenIQ4: the processor's instructions and Go write the same bytes.
func TestWidenIQ4(t *testing.T) {
	r := rand.New(rand.NewPCG(55, 56))
	const blocks = 3
	src := make([]byte, blocks*quantBlockSize(IQ4))
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	got, want := make([]byte, blocks*quantBlockSize(Q8)), make([]byte, blocks*quantBlockSize(Q8))
	widenIQ4(got, src, blocks)
	widenIQ4Go(want, src, blocks)
	if !bytes.Equal(got, want) {
		t.Error("blocks differ")
	}
}
