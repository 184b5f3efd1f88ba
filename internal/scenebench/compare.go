package scenebench

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/engine"
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
// apart from them those that m cannot honour, with the reason. No bases are all methods.
func Settings(m *engine.Engine, bases []string, budgets []int) (use []Setting, refused []Refusal) {
	for _, method := range methods.Methods() {
		if method.Name == "none" || bases != nil && !slices.Contains(bases, method.Name) {
			continue
		}
		forms := []Setting{{Base: method.Name}, {Base: method.Name, Restore: true}}
		if _, covered := methods.Grouping(method.Name); covered {
			forms = append(forms, Setting{Base: method.Name, Restore: true, Covered: true})
		}
		for _, n := range budgets {
			for _, set := range forms {
				set.NVis = n
				if _, err := m.Resolve(set.options(0)); err != nil {
					refused = append(refused, Refusal{set, err.Error()})
					continue
				}
				use = append(use, set)
			}
		}
	}
	return use, refused
}

func (s Setting) options(seed int64) methods.Options {
	o := methods.Options{Base: s.Base, NVis: s.NVis, Restore: s.Restore}
	switch _, covered := methods.Grouping(s.Base); {
	case s.Covered:
		o.Anchors, o.Join = "covered", "all"
	case s.Restore && covered: // not what a small budget would choose by itself
		o.Anchors, o.Join = "released", "rest"
	}
	if m, err := methods.Lookup(s.Base); err == nil && m.Draws {
		o.Seed = &seed
	}
	return o
}

// Row is what one setting measured. Figures are percent or points, rounded to a tenth.
type Row struct {
	Setting
	Stages   []reduce.Stage     `json:"stages,omitempty"` // the schedule that the budget came to, inside the decoder
	Accuracy map[string]float64 `json:"accuracy"`         // by task, and All
	Keeps    float64            `json:"keeps"`            // VsFull
	Interval stats.Interval     `json:"keeps_interval"`   // bootstrap over pictures

	// Over compares with other runs over the same pictures: "unreduced"; with RESTORE "plain", the
	// same method alone; of covered anchors "restore", the same with the paper's; and the controls
	// at the same budget, in the same form.
	Over map[string]Change `json:"over"`

	Distance *float64 `json:"distance,omitempty"` // weighted Hausdorff distance, mean over pictures; not inside the decoder
}

// Table is a comparison of settings over the same questions.
type Table struct {
	Pictures     int                       `json:"pictures"`
	Questions    map[string]int            `json:"questions"` // by task
	Full         map[string]float64        `json:"full"`      // accuracy from all tokens, by task and All
	FullInterval map[string]stats.Interval `json:"full_interval"`
	Rows         []Row                     `json:"rows"`
	Refused      []Refusal                 `json:"refused"`
	Setup        map[string]any            `json:"setup,omitempty"`
}

// Compare asks m the questions of total items from all visual tokens and under every setting,
// greedily. A picture is encoded once for all of them (a method that acts in or before the encoder
// encodes it again) and read by the decoder once a setting; inside the decoder, where the choice
// depends on the question, once a question. When ctx ends, the table of the pictures so far, if
// there are any, comes with the error.
func Compare(
	ctx context.Context, m *engine.Engine, items iter.Seq2[Item, error], total int,
	settings []Setting, seed int64, run RunOptions,
) (*Table, error) {
	options := make([]methods.Options, len(settings))
	for i, s := range settings {
		options[i] = s.options(seed)
	}
	name := func(i int) string { return settings[i].String() }
	pictures, err := markAll(ctx, m, items, total, options, name, run)
	if len(pictures) == 0 {
		return nil, err
	}
	t := tabulate(pictures, settings, run.Seed)
	info := m.Info()
	t.Setup = map[string]any{
		"model": info.Name, "kernel": info.Kernel, "weights": info.Kept, "seed": seed,
		"interval_seed": run.Seed,
	}
	return t, err
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

func tabulate(pictures []*marks, settings []Setting, seed int64) *Table {
	t := &Table{
		Pictures: len(pictures), Questions: map[string]int{}, Full: map[string]float64{},
		FullInterval: map[string]stats.Interval{},
	}
	versus := func(a, b int) *Result { return versus(pictures, a, b, seed) }
	full := versus(0, 0)
	t.Questions, t.Full, t.FullInterval = full.Questions, full.Full, full.FullInterval
	for i, s := range settings {
		r := versus(0, i+1)
		row := Row{
			Setting: s, Accuracy: map[string]float64{}, Keeps: r.Reduced[VsFull],
			Interval: r.ReducedInterval[VsFull], Over: map[string]Change{
				"unreduced": r.Change[All],
			},
		}
		for task, v := range r.Reduced {
			if task != VsFull {
				row.Accuracy[task] = v
			}
		}
		if len(pictures) > 0 {
			row.Stages = pictures[0].stages[i+1]
		}
		against := func(name string, other Setting) {
			if j := slices.Index(settings, other); j >= 0 && other != s {
				row.Over[name] = versus(j+1, i+1).Change[All]
			}
		}
		if s.Restore {
			against("plain", Setting{Base: s.Base, NVis: s.NVis})
		}
		if s.Covered {
			against("restore", Setting{Base: s.Base, Restore: true, NVis: s.NVis})
		}
		for _, c := range controls {
			against(c, Setting{c, s.Restore, s.NVis, s.Covered})
		}
		var far []float64
		for _, p := range pictures {
			if d := p.distance[i+1]; !math.IsNaN(d) {
				far = append(far, d)
			}
		}
		row.Distance = mean(far)
		t.Rows = append(t.Rows, row)
	}
	return t
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
func (c Change) Clear() int {
	switch {
	case c.Interval[0] > 0:
		return 1
	case c.Interval[1] < 0:
		return -1
	}
	return 0
}
