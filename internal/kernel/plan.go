package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A plan is a way to compute products with 8- and 4-bit weights. All plans for a format give the
// same bits.
type plan uint8

const (
	planRows   plan = iota // tiles of as many rows as there are, over all of K
	planWide               // tiles of three rows and two panels
	planBlocks             // K in blocks whose weights fit the first-level cache
	planTurns              // for one or two rows: vectors of 256 bits, four panels in turn
)

var planNames = [...]string{
	planRows: "rows", planWide: "wide", planBlocks: "blocks", planTurns: "turns",
}

var (
	fixedPlan atomic.Int32 // a plan + 1, or 0 if trials choose
	planError = planFromEnvironment(os.Getenv("KERNEL_PLAN"))
)

func planFromEnvironment(name string) error {
	if err := SetPlan(name); err != nil {
		return fmt.Errorf("environment variable KERNEL_PLAN: %w", err)
	}
	return nil
}

// SetPlan makes products use the plan with this name for all formats that have it; "" means that
// trials choose. It must not be called while an operation runs.
func SetPlan(name string) error {
	if name == "" {
		fixedPlan.Store(0)
		return nil
	}
	i := slices.Index(planNames[:], name)
	if i < 0 {
		return fmt.Errorf("kernel: plan %q: unknown, want %s", name,
			strings.Join(planNames[:], "|"))
	}
	fixedPlan.Store(int32(i) + 1)
	return nil
}

// HasPlans reports whether products of m rows with weights in f have several plans on this machine.
func HasPlans(f Format, m int) bool {
	if m <= turnsRows {
		return len(turnsCandidates(impl(), f)) > 1
	}
	return m > quantFew && !tiledFormat(f, m) && len(planCandidates(impl(), f)) > 1
}

// planChoice is the chosen plan of a format.
type planChoice struct {
	choose sync.Once
	PlanTrial
	plan plan
}

var planChoices [IQ4 + 1]planChoice

// PlanTrial tells how a format's plan was chosen.
type PlanTrial struct {
	Format string             // of the weights
	Plan   string             // chosen
	Ratios map[string]float64 // each plan's median time relative to the first plan's
}

// planStore keeps the results of trials between processes.
var planStore struct {
	load func(format string) (PlanTrial, bool)
	save func(PlanTrial)
}

// KeepPlans sets functions that load and save trial results of this machine. It must be called
// before the first product.
func KeepPlans(load func(format string) (PlanTrial, bool), save func(PlanTrial)) {
	planStore.load, planStore.save = load, save
}

// Plans returns the plans of all formats that have several on this machine. It runs trials for
// formats that no product has used yet, except for one or two rows: these trials need a model's
// weights, and are left out until they have ended.
func Plans() []PlanTrial {
	var list []PlanTrial
	for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
		if len(planCandidates(impl(), f)) < 2 {
			continue
		}
		p := planOf(impl(), f)
		t := planChoices[f].PlanTrial
		t.Format = f.String() // also of a plan that was never tried
		list = append(list, t.shown(p))
	}
	for _, f := range []Format{Q8, Q4, Q4M} {
		w := &Matrix{Format: f}
		p, _ := turnsPlan(impl(), w, 1)
		if t, ok := turnsTrials[f].result(); ok {
			list = append(list, t.shown(p))
		}
	}
	return list
}

// shown is a trial as Plans returns it if p is in use: it may be fixed.
func (t PlanTrial) shown(p plan) PlanTrial {
	if name := planNames[p]; name != t.Plan {
		return PlanTrial{Format: t.Format, Plan: name}
	}
	return t
}

// keptPlan loads the result of a trial of these candidates.
func keptPlan(format string, candidates []plan) (t PlanTrial, p plan, ok bool) {
	if planStore.load == nil {
		return t, p, false
	}
	kept, ok := planStore.load(format)
	i := slices.Index(planNames[:], kept.Plan)
	if !ok || i < 0 || !slices.Contains(candidates, plan(i)) {
		return t, p, false
	}
	return kept, plan(i), true
}

// middle sorts list and returns its median.
func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// planOf returns the plan for products of many rows with weights in f.
func planOf(level implementation, f Format) plan {
	candidates := planCandidates(level, f)
	if fixed := plan(fixedPlan.Load() - 1); slices.Contains(candidates, fixed) {
		return fixed
	}
	if len(candidates) < 2 {
		return planRows
	}
	c := &planChoices[f]
	c.choose.Do(func() {
		var ok bool
		if c.PlanTrial, c.plan, ok = keptPlan(f.String(), candidates); ok {
			return
		}
		c.plan, c.Ratios = tryPlans(level, f, candidates)
		c.Format, c.Plan = f.String(), planNames[c.plan]
		if planStore.save != nil {
			planStore.save(c.PlanTrial)
		}
	})
	return c.plan
}

const (
	// A trial's product, on one thread, takes less than a millisecond; its weights come from the
	// second-level cache.
	trialRows, trialPanels, trialK = 126, 4, 4096
	// trialTurns is how often each plan is timed. A trial also ends after trialTime, once each plan
	// had a turn.
	trialTurns = 25
	trialTime  = 150 * time.Millisecond
	// trialGain is the ratio below which a plan is preferred to the first.
	trialGain = 0.98
)

// tryPlans times candidates in turns and chooses by the median of the ratios within a turn.
func tryPlans(level implementation, f Format, candidates []plan) (plan, map[string]float64) {
	w := &Matrix{Format: f, N: trialPanels * quantPanel, K: trialK}
	w.Data = growWork(nil, w.Bytes())
	for i := range w.Data { // scales from 2⁻¹⁵ to 0.01
		w.Data[i] = byte(i*167+i>>8) & 0x9f
	}
	x := make([]float32, trialRows*trialK)
	for i := range x {
		x[i] = float32(i%251)/125 - 1
	}
	dst := make([]float32, trialRows*w.N)
	t := newQuantProduct(level, dst, x, trialRows, w, nil)
	defer t.free()
	strips := hasStrips(level)
	if strips { // in addition to the activations that they are made from
		t.plan = planBlocks
	}
	for i := range t.actTasks() {
		t.quantize(i)
	}
	t.panels, t.mBlocks = trialPanels, 1
	ratios := make([][]float64, len(candidates))
	times := make([]float64, len(candidates))
	begin := time.Now()
	for turn := range trialTurns + 1 {
		if turn > 1 && time.Since(begin) > trialTime {
			break
		}
		for i := range candidates {
			i = (i + turn) % len(candidates)
			t.plan = candidates[i]
			piped := t.plan == planBlocks && !strips
			if piped {
				addOffsets(t.acts, actMagic)
			}
			start := time.Now()
			t.task(0)
			times[i] = time.Since(start).Seconds()
			if piped {
				addOffsets(t.acts, -actMagic)
			}
		}
		if turn == 0 {
			continue // the first turn only warms the caches
		}
		for i := range candidates {
			ratios[i] = append(ratios[i], times[i]/times[0])
		}
	}
	best, least := candidates[0], trialGain
	medians := map[string]float64{}
	for i, c := range candidates {
		median := middle(ratios[i])
		medians[planNames[c]] = median
		if median < least {
			best, least = c, median
		}
	}
	return best, medians
}
