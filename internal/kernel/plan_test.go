package kernel

import (
	"math"
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
		!strings.Contains(err.Error(), `"tall": unknown, want rows|wide|blocks|turns`) {
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

// Ensure that the trial for one or two rows takes the second plan only if its median is lower by
// enough, that both plans compute both of two weights that alternate, that it times one shape, and
// that the result is kept.
func TestTurnsTrial(t *testing.T) {
	defer func(load func(string) (PlanTrial, bool), save func(PlanTrial)) {
		KeepPlans(load, save)
	}(planStore.load, planStore.save)
	candidates := []plan{planRows, planTurns}
	for ratio, want := range map[float64]string{0.8: "turns", 0.99: "rows", 1.2: "rows"} {
		var saved []PlanTrial
		KeepPlans(nil, func(p PlanTrial) { saved = append(saved, p) })
		var trial turnsTrial
		used := [2][2]int{} // by plan and weight
		for n := range 10 * turnsTries {
			i := trial.turn(4096, 4096)
			if other := trial.turn(11008, 4096); other != -1 {
				t.Fatalf("%d for another shape", other)
			}
			used[i][n%2]++
			cost := 1 + float64(n%13)/1000
			if n%7 == 0 {
				cost *= 30 // another process
			}
			if i == 1 {
				cost *= ratio
			}
			trial.add(Q4, candidates, i, cost)
		}
		got, ok := trial.result()
		if !ok || got.Plan != want || math.Abs(got.Ratios["turns"]-ratio) > 0.008 ||
			got.Ratios["rows"] != 1 || got.Format != "q4, 1 or 2 rows" {
			t.Errorf("%v: got %+v, %t, want %s", ratio, got, ok, want)
		}
		if len(saved) != 1 || saved[0].Plan != want {
			t.Errorf("%v: saved %+v", ratio, saved)
		}
		for i, by := range used {
			if by[0] < 3*turnsTries/2 || by[1] < 3*turnsTries/2 {
				t.Errorf("plan %d computed %v products of the two weights", i, by)
			}
		}
	}
}
