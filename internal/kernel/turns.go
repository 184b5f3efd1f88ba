package kernel

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// turnsRows is the most rows of a product that planTurns computes.
	turnsRows = 2
	// turnsBytes is the least size of a weight whose product takes part in a trial. Smaller ones
	// may be in a cache, and memory is what these plans differ in.
	turnsBytes = 2 << 20
	// turnsTries is how many products of each plan a trial times.
	turnsTries = 40
)

// turnsTrial compares two plans for one or two rows. Unlike a trial for many rows, it times the
// products that a program makes anyway, with the plans in turn: their weights come from memory, and
// all threads read it.
type turnsTrial struct {
	chosen atomic.Int32 // a plan + 1, or 0 until the trial ends
	load   sync.Once
	mu     sync.Mutex
	PlanTrial
	n, k     int // shape of the weights that are timed, that of the first
	products uint
	times    [2][]float64 // seconds
}

var turnsTrials [IQ4 + 1]turnsTrial

// turnsName is the name of a format's trial.
func turnsName(f Format) string { return strings.ToLower(f.String()) + ", 1 or 2 rows" }

// turnsPlan returns the plan of a product of m rows with w, and what to call after it with the time
// that it took; nil: nothing.
func turnsPlan(level implementation, w *Matrix, m int) (plan, func(time.Duration)) {
	candidates := turnsCandidates(level, w.Format)
	if m > turnsRows || len(candidates) < 2 {
		return planRows, nil
	}
	if fixed := fixedPlan.Load(); fixed > 0 {
		if slices.Contains(candidates, plan(fixed-1)) {
			return plan(fixed - 1), nil
		}
		return planRows, nil
	}
	t := &turnsTrials[w.Format]
	t.load.Do(func() {
		if kept, p, ok := keptPlan(turnsName(w.Format), candidates); ok {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.PlanTrial = kept
			t.chosen.Store(int32(p) + 1)
		}
	})
	if chosen := t.chosen.Load(); chosen > 0 {
		return plan(chosen - 1), nil
	}
	if m > 1 || w.Bytes() < turnsBytes {
		return planRows, nil
	}
	i := t.turn(w.N, w.K)
	if i < 0 {
		return planRows, nil
	}
	return candidates[i], func(took time.Duration) {
		t.add(w.Format, candidates, i, took.Seconds())
	}
}

// turn returns the candidate to measure with a weight [n, k], or -1: only one shape is timed. The
// candidates do not alternate or have any other period, because a model's products do.
func (t *turnsTrial) turn(n, k int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.products == 0 {
		t.n, t.k = n, k
	}
	if t.n != n || t.k != k {
		return -1
	}
	t.products++
	return bits.OnesCount(t.products) % 2
}

// result returns the result of a trial that has ended.
func (t *turnsTrial) result() (PlanTrial, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.PlanTrial, t.chosen.Load() > 0
}

// add adds a measurement of candidate i. The last one chooses by the ratio of the medians.
func (t *turnsTrial) add(f Format, candidates []plan, i int, cost float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times[i] = append(t.times[i], cost)
	if t.chosen.Load() > 0 || min(len(t.times[0]), len(t.times[1])) < turnsTries {
		return
	}
	ratio := middle(t.times[1]) / middle(t.times[0])
	best := candidates[0]
	if ratio < trialGain {
		best = candidates[1]
	}
	t.PlanTrial = PlanTrial{Format: turnsName(f), Plan: planNames[best], Ratios: map[string]float64{
		planNames[candidates[0]]: 1, planNames[candidates[1]]: ratio,
	}}
	t.times = [2][]float64{}
	t.chosen.Store(int32(best) + 1)
	if planStore.save != nil {
		planStore.save(t.PlanTrial)
	}
}
