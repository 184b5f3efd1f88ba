//go:build !purego

package kernel

import (
	"math/rand/v2"
	"testing"
)

// TestQuantWide: the tiles of two panels give the bits of those of one.
func TestQuantWide(t *testing.T) {
	if !hasVNNI || impl() != implAVX512 {
		t.Skip("no VNNI of 512 bits")
	}
	before := preferWide
	defer func() { preferWide = before }()
	t.Logf("this machine prefers them: %v", preferWide())
	r := rand.New(rand.NewPCG(41, 42))
	for _, c := range [][3]int{{8, 64, 32}, {9, 63, 70}, {13, 97, 200}, {31, 677, 333}, {70, 300, 1061}, {124, 160, 64}} {
		m, n, k := c[0], c[1], c[2]
		w, err := Quantize(nil, MatrixF32(n, k, randomVector(r, n*k)), Q8)
		if err != nil {
			t.Fatal(err)
		}
		x, bias := randomVector(r, m*k), randomVector(r, n)
		for _, bias := range [][]float32{bias, nil} {
			const canary = 1234.5
			want, got := make([]float32, m*n), make([]float32, m*n+8)
			for i := range got {
				got[i] = canary
			}
			preferWide = func() bool { return false }
			MatMul(nil, want, x, m, w, bias)
			preferWide = func() bool { return true }
			for _, threads := range []int{1, 3} {
				p := NewPool(threads)
				MatMul(p, got[:m*n], x, m, w, bias)
				p.Close()
				for i, v := range want {
					if got[i] != v {
						t.Fatalf("m %d n %d k %d, %d threads: element %d = %v, want %v", m, n, k, threads, i, got[i], v)
					}
				}
				if got[m*n] != canary {
					t.Fatalf("m %d n %d k %d: wrote past the end", m, n, k)
				}
			}
		}
	}
}
