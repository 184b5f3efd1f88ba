package kernel

import (
	"strings"
	"testing"
)

func TestSetPlan(t *testing.T) {
	defer fixedPlan.Store(fixedPlan.Load())
	for _, name := range planNames {
		if err := SetPlan(name); err != nil {
			t.Error(err)
		}
	}
	err := planFromEnvironment("tall")
	if err == nil || !strings.Contains(err.Error(), "KERNEL_PLAN") ||
		!strings.Contains(err.Error(), `"tall": unknown, want rows|wide|blocks`) {
		t.Errorf("an unknown plan: %v", err)
	}
}

// Ensure that a plan is chosen for every format that has several, and that its trial is reported.
func TestPlans(t *testing.T) {
	defer fixedPlan.Store(fixedPlan.Load())
	fixedPlan.Store(0)
	for _, trial := range Plans() {
		if !(trial.Ratios["rows"] == 1 && trial.Ratios[trial.Plan] > 0) {
			t.Errorf("%+v", trial)
		}
		t.Logf("%+v", trial)
	}
	if err := SetPlan("rows"); err != nil {
		t.Fatal(err)
	}
	for _, trial := range Plans() {
		if trial.Plan != "rows" {
			t.Errorf("fixed: %+v", trial)
		}
	}
}
