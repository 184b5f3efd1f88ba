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

// TestQ12Weights: every value is within half a step of its block's scale, and integers up to 2047
// are exact.
func TestQ12Weights(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(51, 52))
		p := NewPool(2)
		defer p.Close()
		n, k := 37, 300 // neither is a multiple of a panel or a block
		for _, source := range formats {
			m, v := randomMatrix(r, n, k, source, true)
			w, err := Quantize(p, m, Q12)
			if err != nil {
				t.Fatal(err)
			}
			if len(w.Data) != w.Bytes() || w.Bytes() != 3*3*(64+16*128*2) {
				t.Fatalf("%v: %d bytes", source, len(w.Data))
			}
			row := make([]float32, k)
			for o := range n {
				w.Row(row, o)
				for b := 0; b < k; b += 128 {
					most := 0.0
					for _, x := range v[o*k+b : o*k+min(k, b+128)] {
						most = max(most, math.Abs(float64(x)))
					}
					// half a step; 2⁻²² for the roundings of scale, inverse and product
					tol := most/2047/2 + most*0x1p-22
					for i := b; i < min(k, b+128); i++ {
						got, want := float64(row[i]), float64(v[o*k+i])
						if !(math.Abs(got-want) <= tol) {
							t.Fatalf("%v: [%d %d] = %v, want %v", source, o, i, got, want)
						}
					}
				}
			}
		}
		whole := make([]float32, 2*128)
		for i := range whole {
			whole[i] = float32(i*16%4095 - 2047)
		}
		whole[5], whole[130] = 2047, -2047
		w, err := Quantize(p, MatrixF32(2, 128, whole), Q12)
		if err != nil {
			t.Fatal(err)
		}
		row := make([]float32, 128)
		for o := range 2 {
			w.Row(row, o)
			for i, v := range row {
				if v != whole[o*128+i] {
					t.Fatalf("[%d %d] = %v, want %v", o, i, v, whole[o*128+i])
				}
			}
		}
		for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
			v := make([]float32, 20*140)
			v[18*140+131] = float32(bad)
			_, err := Quantize(p, MatrixF32(20, 140, v), Q12)
			if err == nil || !strings.Contains(err.Error(), "row 18, columns 128 to 139") {
				t.Errorf("%v: %v, want an error that names row 18, columns 128 to 139", bad, err)
			}
		}
	})
}

// TestQuantizeWords: every implementation gives the reference's bytes.
func TestQuantizeWords(t *testing.T) {
	r := rand.New(rand.NewPCG(53, 54))
	const blocks, step, scale = 5, 300, 280
	x := make([]float32, blocks*wordsBlock)
	for i := range x {
		x[i] = float32(math.Ldexp(r.NormFloat64(), r.IntN(12)))
		switch i / wordsBlock {
		case 1:
			x[i] = 0
		case 2:
			x[i] = float32(i%7-3) / 2 // halves of a step are ties
		case 3:
			x[i] *= 1e-36 // the scale is limited
		}
	}
	x[2*wordsBlock] = wordActMost
	bad := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
	forEachImpl(t, func(t *testing.T) {
		for turn := range 1 + len(bad) {
			x := append([]float32(nil), x...)
			if turn > 0 {
				x[4*wordsBlock+77] = bad[turn-1]
			}
			for _, most := range []int{wordMost, wordActMost} {
				want, got := make([]byte, blocks*step), make([]byte, blocks*step)
				quantizeWordsGo(want, scale, step, x, blocks, most)
				quantizeWords(got, scale, step, x, blocks, most)
				if turn > 0 { // only the scale matters: it is not finite
					bits := binary.LittleEndian.Uint32(got[4*step+scale:])
					if bits&0x7f800000 != 0x7f800000 {
						t.Fatalf("%v: scale %#x", bad[turn-1], bits)
					}
					want, got = want[:4*step], got[:4*step]
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("most %d: bytes differ from the reference", most)
				}
			}
		}
	})
}

// checkQ12 compares a product with float64 on the exact activations. The tolerance is half a step
// of each activation, which assembly rounds, times the weight, plus float32 sums of the blocks.
func checkQ12(t *testing.T, p *Pool, r *rand.Rand, m, n, k int, withBias bool) {
	t.Helper()
	w, err := Quantize(p, MatrixF32(n, k, randomVector(r, n*k)), Q12)
	if err != nil {
		t.Fatal(err)
	}
	x := randomVector(r, m*k)
	for i := range x {
		if i%97 == 0 {
			x[i] *= 50 // an outlier
		}
	}
	var bias []float32
	if withBias {
		bias = randomVector(r, n)
	}
	dst := multiplied(t, p, x, m, w, bias)
	row := make([]float32, k)
	for o := range n {
		w.Row(row, o)
		for i := range m {
			var want, scale, rounding float64
			if withBias {
				want = float64(bias[o])
				scale = math.Abs(want)
			}
			for b := 0; b < k; b += wordsBlock {
				most, weight := 0.0, 0.0
				for j := b; j < min(k, b+wordsBlock); j++ {
					v, u := float64(x[i*k+j]), float64(row[j])
					most, weight = max(most, math.Abs(v)), weight+math.Abs(u)
					want += v * u
					scale += math.Abs(v * u)
				}
				rounding += most / wordActMost / 2 * weight
			}
			if got := float64(dst[i*n+o]); !(math.Abs(got-want) <= rounding+sumTol(k)*scale) {
				t.Fatalf("m %d n %d k %d: dst[%d %d] = %v, want %v within %v", m, n, k, i, o, got,
					want, rounding+sumTol(k)*scale)
			}
		}
	}
}

func TestQ12(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(55, 56))
		for size := range 100 {
			checkQ12(t, p, r, 1+size%13, 1+size*7%150, 2*size, size%2 == 0)
			checkQ12(t, p, r, size%5, size, 1+size*5%190, size%2 == 1)
		}
		checkQ12(t, p, r, 40, 300, 1061, true)
		checkQ12(t, p, r, 2, 64, 4096, true)
		checkQ12(t, p, r, 577, 65, 640, true)
	})
}

// TestQ12Exact: with integers that need no rounding, blocks are exact, up to the largest sum that
// 32 bits hold.
func TestQ12Exact(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		const m, n, k = 13, 33, 640
		v, x := make([]float32, n*k), make([]float32, m*k)
		for i := range v {
			v[i] = float32(i*i%4095 - 2047)
			if i%wordsBlock == 0 || i/k == 3 {
				v[i] = wordMost
			}
		}
		for i := range x {
			x[i] = float32(i*i%16383 - wordActMost)
			if i%wordsBlock == 0 || i/k == 4 {
				x[i] = -wordActMost
			}
		}
		w, err := Quantize(nil, MatrixF32(n, k, v), Q12)
		if err != nil {
			t.Fatal(err)
		}
		dst := make([]float32, m*n)
		MatMul(nil, dst, x, m, w, nil)
		for i := range m {
			for o := range n {
				want, size := 0.0, 0.0
				for j := range k {
					q := float64(x[i*k+j]) * float64(v[o*k+j])
					want, size = want+q, size+math.Abs(q)
				}
				// one rounding of each block, the product with its scales, and the sum of blocks;
				// the reference sums in float32 throughout
				tol := 12 * 0x1p-24 * size
				if impl() == implGo || impl() == implNEON {
					tol = sumTol(k) * size
				}
				if got := float64(dst[i*n+o]); !(math.Abs(got-want) <= tol) {
					t.Fatalf("[%d %d] = %v, want %v", i, o, got, want)
				}
			}
		}
	})
}

// TestQ12Bits: see checkBits.
func TestQ12Bits(t *testing.T) {
	forEachImpl(t, func(t *testing.T) { checkBits(t, Q12) })
}

// BenchmarkQ12 reports the rate of whole products of an encoder, and that of float16 next to it, in
// 10⁹ operations per second.
func BenchmarkQ12(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, threads := range []int{1, 2} {
		p := NewPool(threads)
		defer p.Close()
		for _, shape := range [][2]int{{1024, 1024}, {4096, 1024}, {1024, 4096}} {
			n, k := shape[0], shape[1]
			plain := MatrixF32(n, k, randomVector(r, n*k))
			const m = 577
			x, dst := randomVector(r, m*k), make([]float32, m*n)
			for _, f := range []Format{Q12, F16} {
				w := &Matrix{Format: f, N: n, K: k}
				w.Data = largeBytes(w.Bytes())
				if err := Encode(p, w, plain); err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("%v/%dx%d/t%d", f, n, k, threads), func(b *testing.B) {
					for b.Loop() {
						MatMul(p, dst, x, m, w, nil)
					}
					seconds := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(2*float64(m)*float64(n)*float64(k)/seconds/1e9, "GOP/s")
				})
			}
		}
	}
}
