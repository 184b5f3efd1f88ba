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
		!strings.Contains(err.Error(), `"tall": unknown, want rows|blocks|turns`) {
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
				for _, rows := range []int{1, 2, 3, 8, 23, 24, 31, 32, 47, 48, 126} {
					for _, n := range []int{1 << 16, 1<<16 + 1} {
						want := planRows
						if slices.Contains(m.plansOf(t, f, rows), name) &&
							(n%quantPanel == 0 || rows <= turnsRows) {
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

// Ensure that a trial chooses a plan of many rows for every format that has several, that Plans
// lists it, and that products with fewer rows, or with an incomplete panel, do without it.
func TestPlans(t *testing.T) {
	plansByTrial(t)
	forEachMachine(t, func(t *testing.T, b *backend, m machine) {
		if b.on != b.isa && testing.Short() {
			t.Skip("Go takes long")
		}
		var formats []string
		for _, p := range Plans() {
			if !(p.Ratios["rows"] == 1 && p.Ratios[p.Plan] > 0) || p.Kernels != m.name {
				t.Errorf("%+v", p)
			}
			formats = append(formats, p.Format)
			t.Logf("%+v", p)
		}
		for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
			has := len(m.plansOf(t, f, trialRows)) > 1
			if slices.Contains(formats, f.String()) != has {
				t.Errorf("%v: listed in %v, want %t", f, formats, has)
			}
			for i := range planNames {
				b.many[f].ended.Store(int32(i) + 1)
				for rows := 3; rows <= trialRows; rows++ {
					got, _ := b.choose(&Matrix{Format: f, N: 64, K: 64}, rows)
					want := planRows
					if slices.Contains(m.plansOf(t, f, rows), planNames[i]) {
						want = plan(i)
					}
					if got != want {
						t.Fatalf("%v, %d rows: %s after %s was chosen", f, rows, planNames[got],
							planNames[i])
					}
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
		if m.plans == nil {
			t.Skip("every product has one plan")
		}
		r := rand.New(rand.NewPCG(41, 42))
		for _, c := range [][3]int{
			{1, 64, 32}, {1, 300, 1061}, {2, 192, 352}, {2, 133, 4100},
			{8, 64, 32}, {9, 63, 70}, {13, 97, 200}, {33, 64, 32},
			{31, 677, 133}, {70, 100, 1061}, {124, 160, 64}, {37, 96, 1100}, {32, 32, 512},
		} {
			rows, n, k := c[0], c[1], c[2]
			if b.on != b.isa && rows*n*k > 1<<20 {
				continue // Go takes long
			}
			values, x := randomVector(r, n*k), randomVector(r, rows*k)
			if rows == 37 {
				largestSums(values, x, k)
			}
			for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
				w := &Matrix{Format: f, N: n, K: k}
				if f == IQ4 {
					w.Data = make([]byte, w.Bytes())
					for i := range w.Data {
						w.Data[i] = byte(r.Uint32()) & 0x9f // finite scales
					}
				} else {
					var err error
					if w, err = Quantize(nil, MatrixF32(n, k, values), f); err != nil {
						t.Fatal(err)
					}
				}
				plansAgree(t, m, w, x, rows, randomVector(r, n))
			}
		}
	})
}

// largestSums fills weights, whose rows have k values, and x with values of the largest sums.
func largestSums(values, x []float32, k int) {
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

func plansAgree(t *testing.T, m machine, w *Matrix, x []float32, rows int, bias []float32) {
	const canary = 1234.5
	size := rows * w.N
	want, got := make([]float32, size), make([]float32, size+8)
	plans := m.plansOf(t, w.Format, rows)
	if len(plans) < 2 {
		return
	}
	for i, name := range plans {
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
