package kernel

import (
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/restore-vlm/restore/internal/racetest"
)

// smallTrials makes products with weights [64, 4096] take part in trials until the test ends: they
// are large enough for two threads.
func smallTrials(t *testing.T) {
	before := trialBytes
	t.Cleanup(func() { trialBytes = before })
	trialBytes = (&Matrix{Format: Q4, N: 64, K: 4096}).Bytes()
}

// trialWeight returns a weight that takes part in trials, and a product with it.
func trialWeight(t testing.TB, p *Pool, f Format, n, k int) (w *Matrix, product func() []float32) {
	t.Helper()
	r := rand.New(rand.NewPCG(43, 44))
	w, err := Quantize(p, MatrixF32(n, k, randomVector(r, n*k)), f)
	if err != nil {
		t.Fatal(err)
	}
	w.Model = true
	x, dst := randomVector(r, k), make([]float32, n)
	step := p.Step()
	return w, func() []float32 { MatMul(step, dst, x, 1, w, nil); return dst }
}

// keepTrials makes trials store their results until the test ends, and returns them.
func keepTrials(t *testing.T) *[]PlanTrial {
	load, save := planStore.load, planStore.save
	t.Cleanup(func() { KeepPlans(load, save) })
	kept := new([]PlanTrial)
	KeepPlans(func(kernels, format string) (PlanTrial, bool) {
		i := slices.IndexFunc(*kept, func(p PlanTrial) bool {
			return p.Kernels == kernels && p.Format == format
		})
		if i < 0 {
			return PlanTrial{}, false
		}
		return (*kept)[i], true
	}, func(p PlanTrial) { *kept = append(*kept, p) })
	return kept
}

// Ensure that on every machine products of a model's weights end a trial, with the same bits before
// and after it, that the choice is listed and stored, and that a later process takes it over, but
// not another machine.
func TestTrialOfProducts(t *testing.T) {
	plansByTrial(t)
	smallTrials(t)
	p := NewPool(2)
	defer p.Close()
	forEachMachine(t, func(t *testing.T, _ *backend, m machine) {
		if !m.turns {
			t.Skip("one row has one plan")
		}
		kept := keepTrials(t)
		w, product := trialWeight(t, p, Q8, 64, 4096)
		want := slices.Clone(product())
		for i := range 2*trialTries + 2 {
			if !slices.Equal(product(), want) {
				t.Fatalf("product %d has other bits", i)
			}
		}
		if len(*kept) != 1 {
			t.Fatalf("stored %+v, want one trial", *kept)
		}
		got := (*kept)[0]
		if got.Kernels != m.name || got.Format != "q8, 1 or 2 rows" || got.N != 64 ||
			got.K != 4096 || got.Ratios["rows"] != 1 || !(got.Ratios["turns"] > 0) {
			t.Errorf("stored %+v", got)
		}
		for _, other := range machines {
			chosen, timed := newBackend(other.isa).choose(w, 1)
			if same := other.isa == m.isa; same != (timed.shape == nil) &&
				other.turns || same && planNames[chosen] != got.Plan {
				t.Errorf("%s after %+v: %s, timed %t", other.name, got, planNames[chosen],
					timed.shape != nil)
			}
		}
		if !slices.ContainsFunc(Plans(), func(p PlanTrial) bool {
			return p.Format == got.Format && p.Plan == got.Plan && p.N == 64
		}) {
			t.Errorf("%+v is not listed", got)
		}
	})
}

// Ensure that the weights of the model in use are measured, whatever was multiplied first: other
// weights, small ones, products that ended early, or a few products of another shape.
func TestTrialOfModel(t *testing.T) {
	plansByTrial(t)
	smallTrials(t)
	kept := keepTrials(t)
	b := use(t, isa{impl: implAVX512, vnni: true})
	p := NewPool(2)
	defer p.Close()
	unmarked, measure := trialWeight(t, p, Q4, 96, 4096)
	unmarked.Model = false
	for range 2*trialTries + 2 {
		measure()
	}
	var ended atomic.Bool
	ended.Store(true)
	_, cancelled := trialWeight(t, p.Until(ended.Load), Q4, 128, 4096)
	_, small := trialWeight(t, p, Q4, 32, 4096)
	for range 2*trialTries + 2 {
		cancelled()
		small()
	}
	_, draft := trialWeight(t, p, Q4, 160, 4096)
	_, product := trialWeight(t, p, Q4, 64, 4096)
	for range 2*trialTries + 2 {
		if draft(); len(*kept) > 0 {
			t.Fatalf("ended with %+v", *kept)
		}
		for range 2 {
			product()
		}
		if len(*kept) > 0 {
			break
		}
	}
	if len(*kept) != 1 || (*kept)[0].N != 64 {
		t.Errorf("chosen by %+v, want [64 4096]", *kept)
	}
	if b.trials[Q4].shapes != nil {
		t.Error("measurements are kept after the end")
	}
}

// Ensure that products of several goroutines decide one trial.
func TestTrialConcurrent(t *testing.T) {
	plansByTrial(t)
	smallTrials(t)
	kept := keepTrials(t)
	b := use(t, isa{impl: implAVX512, vnni: true})
	var wg sync.WaitGroup
	for range 4 {
		_, product := trialWeight(t, nil, Q8, 64, 4096)
		wg.Go(func() {
			for range trialTries {
				product()
				b.trials[Q8].outcome()
			}
		})
	}
	wg.Wait()
	if len(*kept) != 1 {
		t.Errorf("stored %+v, want one trial", *kept)
	}
}

// Ensure that the number of shapes that a trial measures is limited.
func TestTrialShapes(t *testing.T) {
	var trial trial
	trial.begin(isa{impl: implAVX512, vnni: true}, Q4)
	for n := range 10 * trialShapes {
		if s, _ := trial.turn(n, 4096); (s != nil) != (n < trialShapes) {
			t.Fatalf("shape %d: measured %t", n, s != nil)
		}
	}
	if s, _ := trial.turn(3, 4096); s == nil || s.n != 3 {
		t.Errorf("an earlier shape: %+v", s)
	}
}

// Ensure that a trial takes the second plan only if its median is lower by
// enough, that both plans compute both of two weights that alternate, and that the result is kept.
func TestTrialChooses(t *testing.T) {
	kept := keepTrials(t)
	for ratio, want := range map[float64]string{0.8: "turns", 0.99: "rows", 1.2: "rows"} {
		*kept = nil
		var trial trial
		trial.begin(isa{impl: implAVX512, vnni: true}, Q4)
		used := [2][2]int{} // by plan and weight
		for n := 0; ; n++ {
			s, i := trial.turn(4096, 4096)
			if s == nil {
				break
			}
			used[i][n%2]++
			seconds := 1 + float64(n%13)/1000
			if n%7 == 0 {
				seconds *= 30 // another process
			}
			if i == 1 {
				seconds *= ratio
			}
			trial.add(s, i, seconds)
		}
		if len(*kept) != 1 {
			t.Fatalf("%v: stored %+v", ratio, *kept)
		}
		got := (*kept)[0]
		if p, ok := trial.outcome(); !ok || planNames[p] != want || got.Plan != want ||
			!(math.Abs(got.Ratios["turns"]-ratio) <= 0.008) || got.Ratios["rows"] != 1 {
			t.Errorf("%v: got %+v, want %s", ratio, got, want)
		}
		for i, by := range used {
			if by[0] < trialTries/3 || by[1] < trialTries/3 {
				t.Errorf("plan %d computed %v products of the two weights", i, by)
			}
		}
	}
}

// Ensure that a product allocates nothing, with every type of weights and every plan: fixed, while
// a trial measures, and after it.
func TestMatMulDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	plansByTrial(t)
	p := NewPool(2)
	defer p.Close()
	forEachMachine(t, func(t *testing.T, b *backend, m machine) {
		for f := range Format(formatCount) {
			if b.on.impl == implGo && (!f.packed() || f == Q12) {
				continue // the reference allocates memory to widen rows
			}
			for _, rows := range []int{1, 2, 50} {
				plans := m.plansOf(f, rows)
				if b.on != b.isa && len(plans) < 2 {
					continue // the same as Go's
				}
				w := &Matrix{Format: f, N: 64, K: (4096/rows + 31) &^ 31} // for two threads
				w.Data = make([]byte, w.Bytes())
				for _, name := range plans {
					if err := SetPlan(name); err != nil {
						t.Fatal(err)
					}
					allocatesNothing(t, p, w, rows, "plan "+name)
				}
			}
		}
	})
}

// Ensure that a product allocates nothing while a trial measures it, nor after the trial.
func TestTrialDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	plansByTrial(t)
	smallTrials(t)
	two := NewPool(2)
	defer two.Close()
	p := two.Step()
	forEachMachine(t, func(t *testing.T, b *backend, m machine) {
		keepTrials(t)
		for f := range Format(formatCount) {
			if len(m.plansOf(f, 1)) < 2 {
				continue
			}
			w := &Matrix{Format: f, N: 64, K: 4096, Model: true}
			w.Data = make([]byte, w.Bytes())
			for rows := turnsRows; rows > 0; rows-- {
				allocatesNothing(t, p, w, rows, "during a trial")
			}
			trial := &b.trials[f]
			if len(trial.shapes) != 1 || trial.shapes[0].products < 30 {
				t.Errorf("%v: not measured: %+v", f, trial.shapes)
			}
			for x, dst := make([]float32, w.K), make([]float32, w.N); ; {
				if _, ok := trial.outcome(); ok {
					break
				}
				MatMul(p, dst, x, 1, w, nil)
			}
			for rows := turnsRows; rows > 0; rows-- {
				allocatesNothing(t, p, w, rows, "after a trial")
			}
		}
	})
}

// allocatesNothing checks a product of rows rows with w.
func allocatesNothing(t *testing.T, p *Pool, w *Matrix, rows int, when string) {
	t.Helper()
	x, dst := make([]float32, rows*w.K), make([]float32, rows*w.N)
	product := func() { MatMul(p, dst, x, rows, w, nil) }
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would empty the pools of buffers
	product()                                        // buffers grow
	if n := testing.AllocsPerRun(30, product); n >= 1 {
		t.Errorf("%v, %d rows, %s: %v allocations a product, want 0", w.Format, rows, when, n)
	}
}
