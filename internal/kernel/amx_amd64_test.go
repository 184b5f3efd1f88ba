//go:build !purego

package kernel

import (
	"math"
	oldrand "math/rand"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"
)

// TestTilesUnderSignals: products in several goroutines keep their bits while the garbage collector
// interrupts their threads with signals and moves them to other threads.
func TestTilesUnderSignals(t *testing.T) {
	if choice() != implAMX {
		t.Skip("no AMX")
	}
	r := rand.New(rand.NewPCG(45, 46))
	m, n, k := 50, 256, 1024
	w, err := Quantize(nil, MatrixF32(n, k, randomVector(r, n*k)), Q4)
	if err != nil {
		t.Fatal(err)
	}
	x, want := randomVector(r, m*k), make([]float32, m*n)
	MatMul(nil, want, x, m, w, nil)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			got := make([]float32, m*n)
			for range 60 {
				MatMul(nil, got, x, m, w, nil)
				for i, v := range got {
					if v != want[i] {
						t.Errorf("element %d = %v, %v alone", i, v, want[i])
						return
					}
				}
				runtime.GC()
			}
		})
	}
	wg.Wait()
}

// TestAttendTileLayout: attention with the rows and units of tiles of AMX, which a processor with
// bfloat16 and without AMX multiplies by words.
func TestAttendTileLayout(t *testing.T) {
	if !computing().bf16 {
		t.Skip("no bfloat16")
	}
	ops := attnAMX
	ops.pairs = []attnTile{tileByWords(64), tileByWords(32), tileByWords(16)}
	pool := NewPool(2)
	defer pool.Close()
	r := oldrand.New(oldrand.NewSource(10))
	cases := append(attnCases(),
		attnCase{heads: 2, kvHeads: 2, dim: 72, tq: 70, tk: 1100},
		attnCase{heads: 1, kvHeads: 1, dim: 32, tq: 40, tk: 7})
	for _, c := range cases {
		if c.causal || c.dim%2 != 0 {
			continue
		}
		a := c.make(r)
		a.Rounding = RoundBytes
		checked := a.check()
		attendTiled(pool, &checked, &ops)
		b := *a
		b.Rounding = Exact
		b.Q, b.K, b.Scale = roundedRows(a.Q, a.Scale), roundedRows(a.K, 1), 1
		b.V = roundedRows(a.V, 1)
		most := 0.0
		for _, v := range b.V {
			most = max(most, math.Abs(float64(v)))
		}
		out, probs := attendRef(&b)
		t.Run(c.String(), func(t *testing.T) {
			// a probability is rounded to 8 bits, so that it is off by 2^-9 of itself, and so is a
			// query where it is scaled by log2 e before it is rounded
			checkAttention(t, &b, out, probs, most/256+attnTol)
		})
	}
}

// tileByWords is attnPairs for tiles of 16 rows, whose k is rounded up to whole units.
func tileByWords(w int) attnTile {
	return func(a *float32, lda int, b *float32, ldb int, c *float32, ldc, k, tiles, add int) {
		pair := func(p *float32, i int) (low, high float32) {
			v := *(*uint32)(unsafe.Pointer(offset(p, i)))
			return BFloat(uint16(v)), BFloat(uint16(v >> 16))
		}
		for r := range tiles * tileRows {
			for col := range w {
				to := offset(c, r*ldc+col)
				if add == 0 {
					*to = 0
				}
				for i := range (k + attnAMX.pairUnit - 1) / attnAMX.pairUnit * attnAMX.pairUnit {
					x0, x1 := pair(a, r*lda+i)
					y0, y1 := pair(b, i*ldb+col)
					*to += x0*y0 + x1*y1
				}
			}
		}
	}
}
