package eval

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/reduce"
)

// Setting is one cell of a comparison: a method, alone or with RESTORE, and its budget. For methods inside the decoder the budget is the
// mean number of visual rows that enter a layer.
type Setting struct {
	Base    string `json:"base"`
	Restore bool   `json:"restore"`
	NVis    int    `json:"n_vis"`
}

// Refusal is a setting that cannot be.
type Refusal struct {
	Setting
	Reason string `json:"reason"`
}

// controls are the methods that look at nothing; every other is set against them.
var controls = []string{"random", "grid", "pool"}

// Settings returns every method of package reduce, alone and with RESTORE, at every budget, and apart from them those that m cannot
// honour, with the reason.
func Settings(m *restore.Model, budgets []int) (use []Setting, refused []Refusal) {
	for _, method := range reduce.Methods() {
		if method.Name == "none" {
			continue
		}
		for _, n := range budgets {
			for _, on := range []bool{false, true} {
				set := Setting{method.Name, on, n}
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

func (s Setting) options(seed int64) reduce.Options {
	o := reduce.Options{Base: s.Base, NVis: s.NVis, Restore: s.Restore}
	if s.Base == "random" {
		o.Seed = seed
	}
	return o
}

// Row is what one setting measured. Figures are percent or points, rounded to a tenth.
type Row struct {
	Setting
	Stages   []reduce.Stage     `json:"stages,omitempty"` // the schedule that the budget came to, inside the decoder
	Accuracy map[string]float64 `json:"accuracy"`         // by task, and All
	Keeps    float64            `json:"keeps"`            // VsFull
	Interval Interval           `json:"keeps_interval"`   // bootstrap over pictures

	// Over compares with other runs over the same pictures: "unreduced"; with RESTORE "plain", the same method alone; and the controls at
	// the same budget, with RESTORE where this row is.
	Over map[string]Change `json:"over"`

	Distance *float64 `json:"distance,omitempty"` // weighted Hausdorff distance, mean over pictures; not inside the decoder
}

// Table is a comparison of settings over the same questions.
type Table struct {
	Pictures     int                 `json:"pictures"`
	Questions    map[string]int      `json:"questions"` // by task
	Full         map[string]float64  `json:"full"`      // accuracy from all tokens, by task and All
	FullInterval map[string]Interval `json:"full_interval"`
	Rows         []Row               `json:"rows"`
	Refused      []Refusal           `json:"refused"`
	Setup        map[string]any      `json:"setup,omitempty"`
}

// marks are the outcomes of one picture's questions, of the unreduced run first, then of every setting.
type marks struct {
	tasks    []string
	right    [][]bool
	stages   [][]reduce.Stage
	distance []float64
}

// Compare asks m the questions of total items from all visual tokens and under every setting, greedily. A picture is encoded once for all of
// them (a method that acts in or before the encoder encodes it again) and read by the decoder once a setting; inside the decoder, where the
// choice depends on the question, once a question.
func Compare(ctx context.Context, m *restore.Model, items iter.Seq2[Item, error], total int, settings []Setting, seed int64, run RunOptions) (*Table, error) {
	pictures, err := each(ctx, items, total, run, func(ctx context.Context, item Item) (*marks, error) {
		seen, err := m.See(ctx, []*imageproc.Picture{item.Picture})
		if err != nil {
			return nil, err
		}
		out := &marks{}
		for _, q := range item.Questions {
			out.tasks = append(out.tasks, q.Task)
		}
		for i := range len(settings) + 1 {
			o := reduce.Options{}
			if i > 0 {
				o = settings[i-1].options(seed)
			}
			replies, how, err := askAll(ctx, m.NewConversation(o), seen, item.Questions)
			if err != nil {
				if i > 0 {
					err = fmt.Errorf("%s: %w", settings[i-1], err)
				}
				return nil, err
			}
			right := make([]bool, len(replies))
			for j, r := range replies {
				right[j] = r.Stopped && r.Text == item.Questions[j].Answer
			}
			far := math.NaN()
			if run.Distance && i > 0 && !o.Inside() {
				d, err := m.Hausdorff(ctx, seen, o)
				if err != nil {
					return nil, err
				}
				far = d[0]
			}
			out.right, out.stages, out.distance = append(out.right, right), append(out.stages, how.Stages), append(out.distance, far)
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	t := tabulate(pictures, settings, run.Seed)
	info := m.Info()
	t.Setup = map[string]any{"model": info.Name, "kernel": info.Kernel, "weights": info.Kept, "seed": seed, "interval_seed": run.Seed}
	return t, nil
}

// String names the setting: "holov + RESTORE, 64 tokens".
func (s Setting) String() string {
	with := ""
	if s.Restore {
		with = " + RESTORE"
	}
	return fmt.Sprintf("%s%s, %d tokens", s.Base, with, s.NVis)
}

func tabulate(pictures []*marks, settings []Setting, seed int64) *Table {
	t := &Table{Pictures: len(pictures), Questions: map[string]int{}, Full: map[string]float64{}, FullInterval: map[string]Interval{}}
	// versus scores run b against run a.
	versus := func(a, b int) *Result {
		records := make([][]Record, len(pictures))
		for i, p := range pictures {
			for q, task := range p.tasks {
				records[i] = append(records[i], Record{Task: task, FullRight: p.right[a][q], ReducedRight: p.right[b][q]})
			}
		}
		return score(records, seed)
	}
	full := versus(0, 0)
	t.Questions, t.Full, t.FullInterval = full.Questions, full.Full, full.FullInterval
	for i, s := range settings {
		r := versus(0, i+1)
		row := Row{Setting: s, Accuracy: map[string]float64{}, Keeps: r.Reduced[VsFull], Interval: r.ReducedInterval[VsFull], Over: map[string]Change{"unreduced": r.Change[All]}}
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
			against("plain", Setting{s.Base, false, s.NVis})
		}
		for _, c := range controls {
			against(c, Setting{c, s.Restore, s.NVis})
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
