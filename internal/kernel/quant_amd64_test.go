//go:build !purego

package kernel

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Ensure that all plans for a format give the same bits.
func TestPlansAgree(t *testing.T) {
	before := Implementation()
	defer func() {
		if err := SetImplementation(before); err != nil {
			t.Error(err)
		}
		fixedPlan.Store(0)
	}()
	tried := 0
	for _, name := range []string{"avx512", "avx2"} {
		if SetImplementation(name) != nil || len(planCandidates(impl(), Q8)) < 2 {
			continue
		}
		tried++
		t.Run(name, plansOfLevelAgree)
	}
	if tried == 0 {
		t.Skip("no format has several plans here")
	}
}

func plansOfLevelAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for _, c := range [][3]int{
		{1, 64, 32}, {1, 300, 1061}, {2, 192, 352}, {2, 133, 4100},
		{8, 64, 32}, {9, 63, 70}, {13, 97, 200}, {33, 64, 32},
		{31, 677, 333}, {70, 300, 1061}, {124, 160, 64}, {37, 96, 1100}, {32, 32, 512},
	} {
		m, n, k := c[0], c[1], c[2]
		values, x := randomVector(r, n*k), randomVector(r, m*k)
		if m == 37 { // the largest sums
			for i := range values {
				values[i] = 7
				if i%k%quantBlock == 0 {
					values[i] = -8
				}
			}
			for i := range x {
				x[i] = 1
			}
		}
		plain := MatrixF32(n, k, values)
		for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
			w := &Matrix{Format: f, N: n, K: k}
			if f == IQ4 {
				w.Data = make([]byte, w.Bytes())
				for i := range w.Data {
					w.Data[i] = byte(r.Uint32()) & 0x9f // finite scales
				}
			} else {
				var err error
				if w, err = Quantize(nil, plain, f); err != nil {
					t.Fatal(err)
				}
			}
			for _, bias := range [][]float32{randomVector(r, n), nil} {
				plansAgree(t, w, x, m, bias)
			}
		}
	}
}

func plansAgree(t *testing.T, w *Matrix, x []float32, m int, bias []float32) {
	const canary = 1234.5
	size := m * w.N
	want, got := make([]float32, size), make([]float32, size+8)
	candidates := planCandidates(impl(), w.Format)
	if m <= turnsRows {
		candidates = turnsCandidates(impl(), w.Format)
	}
	for i, c := range candidates {
		if err := SetPlan(planNames[c]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			MatMul(nil, want, x, m, w, bias)
			continue
		}
		for _, threads := range []int{1, 3} {
			for i := range got {
				got[i] = canary
			}
			p := NewPool(threads)
			MatMul(p, got[:size], x, m, w, bias)
			p.Close()
			for i, v := range want {
				if got[i] != v {
					t.Fatalf("%v, plan %s, m %d n %d k %d, %d threads: element %d = %v, want %v",
						w.Format, planNames[c], m, w.N, w.K, threads, i, got[i], v)
				}
			}
			if got[size] != canary {
				t.Fatalf("%v, plan %s, m %d n %d k %d: wrote past the end",
					w.Format, planNames[c], m, w.N, w.K)
			}
		}
	}
}

// Ensure that products of one row end a trial, with the same bits before and after it.
func TestTurnsOfProducts(t *testing.T) {
	defer fixedPlan.Store(fixedPlan.Load())
	fixedPlan.Store(0)
	if len(turnsCandidates(impl(), Q4)) < 2 {
		t.Skip("one row has one plan here")
	}
	const n, k = 1024, 4096 // turnsBytes and more
	r := rand.New(rand.NewPCG(43, 44))
	w, err := Quantize(nil, MatrixF32(n, k, randomVector(r, n*k)), Q4)
	if err != nil {
		t.Fatal(err)
	}
	x, want, got := randomVector(r, k), make([]float32, n), make([]float32, n)
	MatMul(nil, want, x, 1, w, nil)
	for i := range 2*turnsTries + 2 {
		MatMul(nil, got, x, 1, w, nil)
		if !slices.Equal(got, want) {
			t.Fatalf("product %d has other bits", i)
		}
	}
	trial, ok := turnsTrials[Q4].result()
	if !ok || trial.Ratios["rows"] != 1 || !(trial.Ratios["turns"] > 0) {
		t.Errorf("got %+v, %t", trial, ok)
	}
	if list := Plans(); !slices.ContainsFunc(list, func(p PlanTrial) bool {
		return p.Format == trial.Format && p.Plan == trial.Plan
	}) {
		t.Errorf("%+v is not in %+v", trial, list)
	}
}
