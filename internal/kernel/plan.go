package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// A plan is a way to compute products with 8- and 4-bit weights. All plans for a format give the
// same bits.
type plan uint8

const (
	planRows   plan = iota // tiles of as many rows as there are, over all of K
	planBlocks             // K in blocks whose weights fit the first-level cache
	planTurns              // for one or two rows: vectors of 256 bits, four panels in turn
)

var planNames = [...]string{
	planRows: "rows", planBlocks: "blocks", planTurns: "turns",
}

// turnsRows is the most rows of planTurns.
const turnsRows = 2

// stripsRows is the fewest rows for planBlocks, by format. With fewer, weights arrive from memory
// too slowly in blocks, or widening them takes longer than it saves.
var stripsRows = [...]int{Q8: 48, IQ4: 48, Q4: 24, Q4M: 24}

// Lists of plans. The first is used unless another is faster.
var (
	onlyRows     = []plan{planRows}
	rowsOrTurns  = []plan{planRows, planTurns}
	rowsOrBlocks = []plan{planRows, planBlocks}
)

// plans returns the plans of products of m rows with weights in f.
func (s isa) plans(f Format, m int) []plan {
	switch {
	case !f.blocks():
	case s.vnni && m <= turnsRows && f != IQ4:
		return rowsOrTurns
	case s.strips() && m >= stripsRows[f]:
		return rowsOrBlocks
	}
	return onlyRows
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

// SetPlan makes products use the plan with this name, or rows if they do not have it; "" means that
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

// HasPlan reports whether products of m rows with weights in f have the plan with this name, and
// another, on this machine.
func HasPlan(name string, f Format, m int) bool {
	plans := current.Load().plans(f, m)
	return len(plans) > 1 && slices.Contains(plans, plan(slices.Index(planNames[:], name)))
}

// choose returns the plan of a product of m rows with w, and what measures it for a trial: the zero
// timing if none takes place.
func (b *backend) choose(w *Matrix, m int) (plan, timing) {
	switch {
	case m > turnsRows && w.N%quantPanel == 0 && w.K > 0: // whole panels
		return b.chosen(w.Format, m), timing{}
	case m > turnsRows || len(b.plans(w.Format, m)) < 2:
		return planRows, timing{}
	case fixedPlan.Load() > 0:
		return b.fixed(w.Format, m), timing{}
	}
	return b.few[w.Format].choose(w, m)
}

// chosen returns the plan of products of m rows, more than turnsRows, whose weights are whole
// panels. It may run a trial.
func (b *backend) chosen(f Format, m int) plan {
	plans := b.plans(f, m)
	switch {
	case len(plans) < 2:
		return planRows
	case fixedPlan.Load() > 0:
		return b.fixed(f, m)
	}
	if p := b.many[f].choose(b.on, f); slices.Contains(plans, p) {
		return p
	}
	return planRows
}

// fixed returns the plan that SetPlan has chosen for products of m rows with weights in f.
func (b *backend) fixed(f Format, m int) plan {
	if p := plan(fixedPlan.Load() - 1); slices.Contains(b.plans(f, m), p) {
		return p
	}
	return planRows
}

// Plans returns the plans of all formats that have several on this machine. It runs trials for
// formats that no product has used yet, except for one or two rows: these trials need a model's
// weights, and are left out until they have ended.
func Plans() []PlanTrial {
	b := current.Load()
	var many, few []PlanTrial
	for f := range Format(formatCount) {
		if t := &b.many[f]; len(t.plans) > 1 {
			p := b.fixed(f, trialRows)
			if fixedPlan.Load() == 0 {
				p = t.choose(b.on, f)
			}
			many = append(many, t.shown(p))
		}
		if t := &b.few[f]; len(t.plans) > 1 {
			if p, ok := t.outcome(); fixedPlan.Load() > 0 {
				few = append(few, t.shown(b.fixed(f, 1)))
			} else if ok {
				few = append(few, t.shown(p))
			}
		}
	}
	return append(many, few...)
}
