package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// A plan is a way to compute products of decoding steps with 8- and 4-bit weights. All plans for a
// format give the same bits.
type plan uint8

const (
	planRows  plan = iota // tiles of as many rows as there are
	planTurns             // for one or two rows: vectors of 256 bits, four panels in turn
)

var planNames = [...]string{planRows: "rows", planTurns: "turns"}

// turnsRows is the most rows of planTurns.
const turnsRows = 2

// allPlans are the plans. The first is used unless another is faster.
var allPlans = []plan{planRows, planTurns}

// plans returns the plans of products of m rows with weights in f.
func (s isa) plans(f Format, m int) []plan {
	if f.blocks() && s.vnni && m <= turnsRows && f != IQ4 {
		return allPlans
	}
	return allPlans[:1]
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
	case len(b.plans(w.Format, m)) < 2:
		return planRows, timing{}
	case fixedPlan.Load() > 0:
		return b.fixed(w.Format, m), timing{}
	}
	return b.trials[w.Format].choose(w, m)
}

// fixed returns the plan that SetPlan has chosen for products of m rows with weights in f.
func (b *backend) fixed(f Format, m int) plan {
	if p := plan(fixedPlan.Load() - 1); slices.Contains(b.plans(f, m), p) {
		return p
	}
	return planRows
}

// Plans returns the plans of the formats that have several for one or two rows. Trials need a
// model's weights; formats whose trial has not ended are left out.
func Plans() []PlanTrial {
	b := current.Load()
	var plans []PlanTrial
	for f := range Format(formatCount) {
		t := &b.trials[f]
		if len(t.plans) < 2 {
			continue
		}
		p, ok := t.outcome()
		if fixedPlan.Load() > 0 {
			p, ok = b.fixed(f, 1), true
		}
		if ok {
			plans = append(plans, t.shown(p))
		}
	}
	return plans
}
