package compare

import (
	"fmt"
	"maps"
	"slices"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/reduce"
)

// Setting is one cell of a comparison: a method, alone, with RESTORE as the paper has it, or with
// covered anchors and kept tokens that may be joined; and its budget. For methods inside the
// decoder the budget is the mean number of visual rows that enter a layer.
type Setting struct {
	Base    string `json:"base"`
	Restore bool   `json:"restore"`
	NVis    int    `json:"n_vis"`
	Covered bool   `json:"covered,omitempty"` // with Restore
}

// Refusal is a setting that cannot be.
type Refusal struct {
	Setting
	Reason string `json:"reason"`
}

// controls are the methods that look at nothing; every other is set against them.
var controls = []string{"random", "grid", "pool"}

// Settings returns the methods of bases, alone and with RESTORE in both forms, at every budget, and
// apart from them those that check refuses, with the reason. No bases are all methods that take a
// budget.
func Settings(
	check func(*restore.Reduction) error, bases []string, budgets []int,
) (use []Setting, refused []Refusal) {
	for _, method := range methods.Methods() {
		if method.Name == "none" || bases == nil && !method.TakesBudget() ||
			bases != nil && !slices.Contains(bases, method.Name) {
			continue
		}
		forms := []Setting{{Base: method.Name}, {Base: method.Name, Restore: true}}
		if methods.Covers(method.Name) {
			forms = append(forms, Setting{Base: method.Name, Restore: true, Covered: true})
		}
		for _, n := range budgets {
			for _, set := range forms {
				set.NVis = n
				if err := check(set.Reduction(0)); err != nil {
					refused = append(refused, Refusal{set, err.Error()})
					continue
				}
				use = append(use, set)
			}
		}
	}
	return use, refused
}

// Reduction returns the setting's reduction; methods that draw start from seed.
func (s Setting) Reduction(seed int64) *restore.Reduction {
	r := &restore.Reduction{
		Base: s.Base, NVis: s.NVis, Plain: !s.Restore, Options: map[string]any{},
	}
	switch {
	case s.Covered:
		r.Options["anchors"], r.Options["join"] = "covered", "all"
	case s.Restore && methods.Covers(s.Base): // not what a small budget would choose by itself
		r.Options["anchors"], r.Options["join"] = "released", "rest"
	}
	if m, err := methods.Lookup(s.Base); err == nil && m.Draws {
		r.Options["seed"] = seed
	}
	return r
}

// Row is what one setting measured. Figures are percent or points, rounded to a tenth.
type Row struct {
	Setting
	Stages   []reduce.Stage     `json:"stages,omitempty"` // the schedule that the budget came to, inside the decoder
	Accuracy map[string]float64 `json:"accuracy"`         // by task, and AllTasks
	Keeps    float64            `json:"keeps"`            // VsFull
	Interval stats.Interval     `json:"keeps_interval"`   // bootstrap over pictures

	// Over compares with other runs over the same pictures: "unreduced"; with RESTORE "plain", the
	// same method alone; of covered anchors "restore", the same with the paper's; and the controls
	// at the same budget, in the same form.
	Over map[string]Balance `json:"over"`

	Distance *float64 `json:"distance,omitempty"` // weighted Hausdorff distance, mean over pictures; not inside the decoder
}

// Table is a comparison of settings over the same questions.
type Table struct {
	Pictures     int                       `json:"pictures"`
	Questions    map[string]int            `json:"questions"` // by task
	Full         map[string]float64        `json:"full"`      // accuracy from all tokens, by task and AllTasks
	FullInterval map[string]stats.Interval `json:"full_interval"`
	Rows         []Row                     `json:"rows"`
	Refused      []Refusal                 `json:"refused"`
	Setup        map[string]any            `json:"setup,omitempty"`
}

// String names the setting: "holov + RESTORE, 64 tokens".
func (s Setting) String() string {
	with := ""
	switch {
	case s.Covered:
		with = " + RESTORE, covered anchors"
	case s.Restore:
		with = " + RESTORE"
	}
	return fmt.Sprintf("%s%s, %d tokens", s.Base, with, s.NVis)
}

// Tabulate compares settings by their records of the same questions about scenes; full are the
// unreduced model's. seed starts the random numbers of the intervals.
func Tabulate(full []*eval.Record, settings []Setting, runs [][]*eval.Record, seed int64) *Table {
	whole := NewPaired(full, full, seed)
	t := &Table{
		Pictures: whole.Pictures, Questions: whole.Questions, Full: whole.Full,
		FullInterval: whole.FullInterval,
	}
	for i, s := range settings {
		r := NewPaired(full, runs[i], seed)
		row := Row{
			Setting: s, Stages: reductionOf(lastOf(runs[i])[0]).Stages,
			Accuracy: accuracies(r), Keeps: r.Reduced[benchmarks.VsFull],
			Interval: r.ReducedInterval[benchmarks.VsFull],
			Over:     map[string]Balance{"unreduced": r.Change[benchmarks.AllTasks]},
			Distance: r.Distance,
		}
		for name, other := range s.rivals() {
			if j := slices.Index(settings, other); j >= 0 && other != s {
				row.Over[name] = NewPaired(runs[j], runs[i], seed).Change[benchmarks.AllTasks]
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// rivals are the settings that a setting is set against, by their names in Row.Over.
func (s Setting) rivals() map[string]Setting {
	out := map[string]Setting{}
	for _, c := range controls {
		out[c] = Setting{c, s.Restore, s.NVis, s.Covered}
	}
	if s.Restore {
		out["plain"] = Setting{Base: s.Base, NVis: s.NVis}
	}
	if s.Covered {
		out["restore"] = Setting{Base: s.Base, Restore: true, NVis: s.NVis}
	}
	return out
}

// accuracies are the reduced run's, by task and AllTasksTasks.
func accuracies(r *Paired) map[string]float64 {
	out := maps.Clone(r.Reduced)
	delete(out, benchmarks.VsFull)
	return out
}

// Find returns the row of a setting, nil where it was not measured.
func (t *Table) Find(s Setting) *Row {
	for i := range t.Rows {
		if t.Rows[i].Setting == s {
			return &t.Rows[i]
		}
	}
	return nil
}

// Clear says which way a change lies beyond doubt: 1 or -1 where its interval leaves out 0, else 0.
func (c Balance) Clear() int {
	switch {
	case c.Interval[0] > 0:
		return 1
	case c.Interval[1] < 0:
		return -1
	}
	return 0
}
