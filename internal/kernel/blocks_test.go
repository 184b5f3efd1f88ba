package kernel

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// Ensure that blocks are kept as they are, every value and every scale, in whole panels
// and in the last one.
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
