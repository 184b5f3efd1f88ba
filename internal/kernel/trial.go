package kernel

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// PlanTrial tells how a plan was chosen.
type PlanTrial struct {
	Kernels string             // instructions that the plans use
	Format  string             // of the weights, with the rows
	Plan    string             // chosen
	Ratios  map[string]float64 // each plan's median time relative to the first plan's
	N, K    int                // shape of the model's weights that were measured
}

// planStore keeps the results of trials between processes.
var planStore struct {
	load func(kernels, format string) (PlanTrial, bool)
	save func(PlanTrial)
}

// KeepPlans sets functions that load and save trial results of this machine. It must be called
// before the first product.
func KeepPlans(load func(kernels, format string) (PlanTrial, bool), save func(PlanTrial)) {
	planStore.load, planStore.save = load, save
}

// trialGain is the ratio below which a plan is preferred to the first.
const trialGain = 0.98

// trial chooses one of two plans for one or two rows with weights in a format, once. It times the
// products of the model in use, with the plans in turn: their weights come from memory, and all
// threads read it. It ends when it has timed enough products with weights of one shape.
type trial struct {
	kernels, format string // of its PlanTrial
	plans           []plan
	ended           atomic.Int32 // the chosen plan + 1, or 0

	mu     sync.Mutex
	loaded bool // an earlier result was looked up
	result PlanTrial
	shapes []*shapeTimes
}

func (t *trial) begin(s isa, f Format) {
	t.kernels, t.format, t.plans = s.String(), strings.ToLower(f.String())+", 1 or 2 rows",
		s.plans(f, 1)
}

// outcome returns the chosen plan if the trial has ended, now or in an earlier process.
func (t *trial) outcome() (plan, bool) {
	if t.ended.Load() == 0 {
		t.mu.Lock()
		t.load()
		t.mu.Unlock()
	}
	p := t.ended.Load()
	return plan(p - 1), p > 0
}

// load looks up an earlier result, once. The caller holds mu.
func (t *trial) load() {
	if t.loaded || planStore.load == nil {
		return
	}
	t.loaded = true
	kept, ok := planStore.load(t.kernels, t.format)
	p := plan(slices.Index(planNames[:], kept.Plan))
	if ok && slices.Contains(t.plans, p) {
		t.result = kept
		t.ended.Store(int32(p) + 1)
	}
}

// end chooses by the ratio of the second plan's median time to the first one's. The caller holds
// mu.
func (t *trial) end(ratio float64, n, k int) {
	best := t.plans[0]
	if ratio < trialGain {
		best = t.plans[1]
	}
	t.result = PlanTrial{
		Kernels: t.kernels, Format: t.format, Plan: planNames[best], N: n, K: k,
		Ratios: map[string]float64{planNames[t.plans[0]]: 1, planNames[t.plans[1]]: ratio},
	}
	t.ended.Store(int32(best) + 1)
	if planStore.save != nil {
		planStore.save(t.result)
	}
}

// shown is the trial as Plans returns it if p is in use: it may be fixed.
func (t *trial) shown(p plan) PlanTrial {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name := planNames[p]; name != t.result.Plan {
		return PlanTrial{Kernels: t.kernels, Format: t.format, Plan: name}
	}
	return t.result
}

// middle sorts list and returns its median.
func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// trialBytes is the least size of a weight whose product takes part in a trial. Smaller ones may be
// in a cache, and memory is what these plans differ in. Tests lower it.
var trialBytes = 2 << 20

const (
	// trialTries is how many products of each plan with weights of one shape a trial times.
	trialTries = 40
	// trialShapes is the most shapes that it times: models have fewer.
	trialShapes = 16
)

// shapeTimes are measurements of products with weights [n, k].
type shapeTimes struct {
	n, k     int
	products uint
	counts   [2]int
	seconds  [2][trialTries]float64 // by plan
}

// timing measures one product for a trial.
type timing struct {
	trial *trial
	shape *shapeTimes // nil: nothing is measured
	plan  int         // index in the trial's plans
	start time.Time
}

// choose returns the plan of a product of m rows with w, and what measures it.
func (t *trial) choose(w *Matrix, m int) (plan, timing) {
	if p, ok := t.outcome(); ok {
		return p, timing{}
	}
	if m > 1 || !w.Model || w.Bytes() < trialBytes {
		return t.plans[0], timing{}
	}
	s, i := t.turn(w.N, w.K)
	if s == nil {
		return t.plans[0], timing{}
	}
	return t.plans[i], timing{trial: t, shape: s, plan: i, start: time.Now()}
}

// turn returns the plan to measure with a weight [n, k], and where to add the time; nil: nowhere.
// The plans do not alternate or have any other period, because a model's products do.
func (t *trial) turn(n, k int) (*shapeTimes, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() > 0 {
		return nil, 0
	}
	at := slices.IndexFunc(t.shapes, func(s *shapeTimes) bool { return s.n == n && s.k == k })
	if at < 0 {
		if at = len(t.shapes); at == trialShapes {
			return nil, 0
		}
		t.shapes = append(t.shapes, &shapeTimes{n: n, k: k})
	}
	s := t.shapes[at]
	s.products++
	return s, bits.OnesCount(s.products) % 2
}

// end adds the time from the start until now to the measurements.
func (m timing) end() { m.trial.add(m.shape, m.plan, time.Since(m.start).Seconds()) }

// add adds a measurement of plan i with weights of shape s. The last one ends the trial, by the
// ratio of the medians.
func (t *trial) add(s *shapeTimes, i int, seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() > 0 || s.counts[i] == trialTries {
		return
	}
	s.seconds[i][s.counts[i]] = seconds
	if s.counts[i]++; min(s.counts[0], s.counts[1]) < trialTries {
		return
	}
	first := middle(s.seconds[0][:])
	t.end(middle(s.seconds[1][:])/first, s.n, s.k)
	t.shapes = nil
}
