package kernel

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestSetPlan(t *testing.T) {
	plansByTrial(t)
	for _, name := range planNames {
		if err := SetPlan(name); err != nil {
			t.Error(err)
		}
	}
	err := planFromEnvironment("tall")
	if err == nil || !strings.Contains(err.Error(), "KERNEL_PLAN") ||
		!strings.Contains(err.Error(), `"tall": unknown, want rows|turns`) {
		t.Errorf("an unknown plan: %v", err)
	}
}

// Ensure that products use the plan that is fixed, or rows where they do not have it, without a
// trial, and that Plans lists it.
func TestFixedPlan(t *testing.T) {
	plansByTrial(t)
	forEachMachine(t, func(t *testing.T, b *backend, m machine) {
		for _, name := range planNames {
			if err := SetPlan(name); err != nil {
				t.Fatal(err)
			}
			for f := range Format(formatCount) {
				for _, rows := range []int{1, 2, 3, 8, 126} {
					for _, n := range []int{1 << 16, 1<<16 + 1} {
						want := planRows
						if slices.Contains(m.plansOf(f, rows), name) {
							want = plan(slices.Index(planNames[:], name))
						}
						got, timed := b.choose(&Matrix{Format: f, N: n, K: 64, Model: true}, rows)
						if got != want || timed.shape != nil {
							t.Fatalf("%s: %v [%d 64], %d rows: %s, timed %t, want %s", name, f, n,
								rows, planNames[got], timed.shape != nil, planNames[want])
						}
					}
				}
			}
			for _, p := range Plans() {
				if p.Plan != name && p.Plan != "rows" || p.Ratios != nil || p.Kernels != m.name {
					t.Errorf("%s is fixed: %+v", name, p)
				}
			}
		}
	})
}

// Ensure that every plan of every machine gives the bits of the first, for any number of threads,
// that these are close to the exact product, and that nothing is written past the end.
func TestPlansAgree(t *testing.T) {
	plansByTrial(t)
	forEachMachine(t, func(t *testing.T, b *backend, m machine) {
		if !m.turns {
			t.Skip("every product has one plan")
		}
		r := rand.New(rand.NewPCG(41, 42))
		for _, c := range [][3]int{{1, 64, 32}, {1, 300, 1061}, {2, 192, 352}, {2, 133, 4100}} {
			rows, n, k := c[0], c[1], c[2]
			values, x := randomVector(r, n*k), randomVector(r, rows*k)
			for _, f := range []Format{Q8, Q4, Q4M} {
				w, err := Quantize(nil, MatrixF32(n, k, values), f)
				if err != nil {
					t.Fatal(err)
				}
				plansAgree(t, m, w, x, rows, randomVector(r, n))
			}
		}
	})
}

func plansAgree(t *testing.T, m machine, w *Matrix, x []float32, rows int, bias []float32) {
	const canary = 1234.5
	size := rows * w.N
	want, got := make([]float32, size), make([]float32, size+8)
	for i, name := range m.plansOf(w.Format, rows) {
		if err := SetPlan(name); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			MatMul((*Pool)(nil).Step(), want, x, rows, w, bias)
			checkQuantProduct(t, want, x, rows, w, bias, false)
		}
		for _, threads := range []int{1, 3} {
			for i := range got {
				got[i] = canary
			}
			p := NewPool(threads)
			MatMul(p.Step(), got[:size], x, rows, w, bias)
			p.Close()
			for i, v := range want {
				if got[i] != v {
					t.Fatalf("%v, plan %s, m %d n %d k %d, %d threads: element %d = %v, want %v",
						w.Format, name, rows, w.N, w.K, threads, i, got[i], v)
				}
			}
			if got[size] != canary {
				t.Fatalf("%v, plan %s, m %d n %d k %d: wrote past the end",
					w.Format, name, rows, w.N, w.K)
			}
		}
	}
}
