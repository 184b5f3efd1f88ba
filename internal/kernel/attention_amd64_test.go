//go:build !purego

package kernel

import (
	"math"
	"math/rand"
	"testing"
	"unsafe"
)

// TestAttendTileLayout: attention with the rows and units of tiles of AMX, which a processor with
// bfloat16 and without AMX multiplies by words.
func TestAttendTileLayout(t *testing.T) {
	if !computing().bf16 {
		t.Skip("no bfloat16")
	}
	ops := attnAMX
	ops.pairs = []attnTile{tileByWords(64), tileByWords(32), tileByWords(16)}
	ops.pairProbs = probsByWords
	pool := NewPool(2)
	defer pool.Close()
	r := rand.New(rand.NewSource(10))
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
		b, tol := pairsReference(a)
		b.Rounding = Exact
		out, probs := attendRef(&b)
		t.Run(c.String(), func(t *testing.T) { checkAttention(t, &b, out, probs, tol, attnTol) })
	}
}

// probsByWords is attnProbsAMX.
func probsByWords(a *float32, lda int, b *float32, panel int, p *float32, ldp int, sums, m,
	_ *float32, masks *uint32, k, groups, whole, loads, dots, stores, _, _, _, _ int) {
	const half = attnFusedGroup
	if steps := (k + 15) / 16; 4*steps*(loads+dots)+2*stores != pairRows ||
		4*steps*(loads+dots) < tileRows {
		panic("the rows that become probabilities beside the products are not one tile")
	}
	scores := make([]float32, pairRows*2*half)
	for g := range groups {
		if g%2 == 0 {
			tileByWords(2*half)(a, lda, offset(b, g/2*panel), 2*half, &scores[0], 2*half, k, 1, 0)
		}
		for r := range pairRows {
			seen := ^uint32(0)
			if g >= whole {
				seen = unsafe.Slice(masks, pairRows*(groups-whole))[(g-whole)*pairRows+r]
			}
			to := unsafe.Slice((*uint16)(unsafe.Pointer(offset(p, r*ldp+g*half/2))), half)
			for i := range half {
				x := math.Exp2(float64(scores[r*2*half+g%2*half+i] - *offset(m, r)))
				if seen>>i&1 == 0 {
					x = 0
				}
				*offset(sums, r*16+i%16) += float32(x)
				to[i] = roundBF16(float32(x))
			}
		}
	}
}

// tileByWords is attnPairs for tiles of 32 rows, whose k is rounded up to whole units.
func tileByWords(w int) attnTile {
	return func(a *float32, lda int, b *float32, ldb int, c *float32, ldc, k, tiles, add int) {
		pair := func(p *float32, i int) (low, high float32) {
			v := *(*uint32)(unsafe.Pointer(offset(p, i)))
			return BFloat(uint16(v)), BFloat(uint16(v >> 16))
		}
		for r := range tiles * pairRows {
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
