package kernel

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Ensure that a weight with reordered columns gives the same bits as the same columns with
// reordered inputs, and that its rows are in the order of the inputs.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(71, 72))
	p := NewPool(2)
	defer p.Close()
	for _, c := range []struct{ n, k int }{{70, 40}, {96, 96}, {64, 2*orderedPart + 64}} {
		n, k := c.n, c.k
		order := make([]int32, k)
		for i, at := range r.Perm(k) {
			order[i] = int32(at)
		}
		for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
			from := f
			if f == IQ4 { // only PackBlocks makes it; its bytes may be any bytes of Q4
				from = Q4
			}
			w, err := Quantize(p, MatrixF32(n, k, randomVector(r, n*k)), from)
			if err != nil {
				t.Fatal(err)
			}
			w.Format = f
			ordered := *w
			ordered.Order = order
			row, got := make([]float32, k), make([]float32, k)
			for o := range n {
				w.Row(row, o)
				ordered.Row(got, o)
				for i, at := range order {
					if got[at] != row[i] {
						t.Fatalf("%v: row %d, input %d: got %v, want %v", f, o, at, got[at], row[i])
					}
				}
			}
			forEachISA(t, func(t *testing.T) { orderedProducts(t, p, r, w, &ordered) })
		}
	}
}

// orderedProducts compares products of w and gathered inputs with products of ordered and all
// inputs.
func orderedProducts(t *testing.T, p *Pool, r *rand.Rand, w, ordered *Matrix) {
	for _, m := range []int{1, 9, 67} {
		x := randomVector(r, m*w.K)
		gathered := make([]float32, len(x))
		for i := range m {
			for j, at := range ordered.Order {
				gathered[i*w.K+j] = x[i*w.K+int(at)]
			}
		}
		want, got := make([]float32, m*w.N), make([]float32, m*w.N)
		for _, p := range []*Pool{p, p.Step()} {
			MatMul(p, want, gathered, m, w, nil)
			MatMul(p, got, x, m, ordered, nil)
			if !slices.Equal(got, want) {
				t.Errorf("%v, %d rows of %d, step %t: differs from gathered inputs", w.Format, m,
					w.K, p.steps())
			}
		}
	}
}

// Ensure that blocks keep every value and every scale, in whole panels and in the last one.
func TestPackBlocks(t *testing.T) {
	for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
		for _, n := range []int{1, 31, 32, 70} {
			const k = 96
			r := rand.New(rand.NewPCG(uint64(n), uint64(f)))
			scales := make([]float32, n*k/quantBlock)
			minima := make([]float32, len(scales))
			q := make([]uint8, n*k)
			for i := range scales {
				scales[i] = Half(uint16(r.UintN(0x7c00)) | uint16(r.UintN(2))<<15)
				if f == Q4M {
					minima[i] = Half(uint16(r.UintN(0x7c00)) | uint16(r.UintN(2))<<15)
				}
			}
			for i := range q {
				q[i] = uint8(r.UintN(16))
				if f == Q8 {
					q[i] = uint8(r.UintN(256))
				}
			}
			dst := &Matrix{Format: f, N: n, K: k}
			dst.Data = make([]byte, dst.Bytes())
			pool := NewPool(2)
			defer pool.Close()
			err := PackBlocks(pool, dst, func(s, m []float32, v []uint8, row int) error {
				copy(s, scales[row*k/quantBlock:])
				copy(m, minima[row*k/quantBlock:])
				copy(v, q[row*k:(row+1)*k])
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, k)
			for o := range n {
				dst.Row(got, o)
				for i, x := range got {
					value := int(q[o*k+i]) - quantOffset(f)
					if f == IQ4 {
						value = int(iq4Values[q[o*k+i]])
					}
					want := float32(value) * scales[(o*k+i)/quantBlock]
					if f == Q4M {
						want = float32(float64(want) + float64(minima[(o*k+i)/quantBlock]))
					}
					if math.Float32bits(x) != math.Float32bits(want) {
						t.Fatalf("%v, %d rows: row %d, column %d: got %v, want %v", f, n, o, i, x,
							want)
					}
				}
			}
		}
	}
}

func TestPackBlocksErrors(t *testing.T) {
	one := func(_, _ []float32, _ []uint8, _ int) error { return nil }
	matrix := func(f Format, n, k int) *Matrix {
		m := &Matrix{Format: f, N: n, K: k}
		m.Data = make([]byte, m.Bytes())
		return m
	}
	stop := errors.New("stop")
	for what, err := range map[string]error{
		"odd rows":  PackBlocks(nil, matrix(Q8, 1, 40), one),
		"no blocks": PackBlocks(nil, matrix(F16, 1, 32), one),
		"infinite scale": PackBlocks(nil, matrix(Q8, 1, 32),
			func(s, _ []float32, _ []uint8, _ int) error {
				s[0] = 70000
				return nil
			}),
		"infinite minimum": PackBlocks(nil, matrix(Q4M, 1, 32),
			func(_, m []float32, _ []uint8, _ int) error {
				m[0] = -70000
				return nil
			}),
		"five bits": PackBlocks(nil, matrix(Q4M, 1, 32),
			func(_, _ []float32, q []uint8, _ int) error {
				q[31] = 16
				return nil
			}),
		"reader": PackBlocks(nil, matrix(Q4, 1, 32), func(_, _ []float32, _ []uint8, _ int) error { return stop }),
	} {
		if err == nil || what == "reader" && !errors.Is(err, stop) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
