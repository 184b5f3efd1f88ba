package scenebench

import (
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/stats"
)

// Variant is a reduction under a name.
type Variant struct {
	Name    string
	Options methods.Options
}

// VariantRow is what one variant measured. Figures are percent or points, rounded to a tenth.
type VariantRow struct {
	Name      string             `json:"name"`
	Rows      float64            `json:"rows"`     // visual rows that enter a layer, mean over pictures
	Accuracy  map[string]float64 `json:"accuracy"` // by task, and All
	Keeps     float64            `json:"keeps"`    // VsFull
	Interval  stats.Interval     `json:"keeps_interval"`
	Unreduced Change             `json:"over_unreduced"`
	First     *Change            `json:"over_first,omitempty"` // the first variant, over the same pictures
}

// VariantTable compares variants over the same questions.
type VariantTable struct {
	Pictures  int                `json:"pictures"`
	Questions map[string]int     `json:"questions"` // by task
	Full      map[string]float64 `json:"full"`      // accuracy from all tokens, by task and All
	Rows      []VariantRow       `json:"rows"`
	Setup     map[string]any     `json:"setup"`
}

// Variants asks m the questions of total items from all visual tokens and under every variant,
// and sets each against the first. When ctx ends, the table of the pictures so far, if there are
// any, comes with the error.
func Variants(
	ctx context.Context, m *engine.Engine, items iter.Seq2[Item, error], total int,
	variants []Variant, run RunOptions,
) (*VariantTable, error) {
	options := make([]methods.Options, len(variants))
	for i, v := range variants {
		options[i] = v.Options
	}
	name := func(i int) string { return variants[i].Name }
	pictures, err := markAll(ctx, m, items, total, options, name, run)
	if len(pictures) == 0 {
		return nil, err
	}
	info := m.Info()
	t := &VariantTable{Pictures: len(pictures), Setup: map[string]any{
		"model": info.Name, "kernel": info.Kernel, "weights": info.Kept, "interval_seed": run.Seed,
	}}
	for i, v := range variants {
		r := versus(pictures, 0, i+1, run.Seed)
		t.Questions, t.Full = r.Questions, r.Full
		row := VariantRow{
			Name: v.Name, Accuracy: maps.Clone(r.Reduced), Keeps: r.Reduced[VsFull],
			Interval: r.ReducedInterval[VsFull], Unreduced: r.Change[All],
		}
		delete(row.Accuracy, VsFull)
		for _, p := range pictures {
			row.Rows += p.rows[i+1] / float64(len(pictures))
		}
		row.Rows = stats.Tenth(row.Rows)
		if i > 0 {
			c := versus(pictures, 1, i+1, run.Seed).Change[All]
			row.First = &c
		}
		t.Rows = append(t.Rows, row)
	}
	return t, err
}

// WriteTable prints a line a variant.
func (t *VariantTable) WriteTable(w io.Writer) error {
	tasks := slices.Sorted(maps.Keys(t.Questions))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "variant\trows\tkeeps\t95 %\tover the first\t95 %")
	for _, task := range tasks {
		fmt.Fprint(tw, "\t"+task)
	}
	fmt.Fprintln(tw)
	fmt.Fprint(tw, "unreduced\t\t100.0\t\t\t")
	for _, task := range tasks {
		fmt.Fprintf(tw, "\t%.1f", t.Full[task])
	}
	fmt.Fprintln(tw)
	for _, r := range t.Rows {
		over, interval := "", ""
		if r.First != nil {
			over, interval = fmt.Sprintf("%+.1f", r.First.Points), r.First.Interval.Signed()
		}
		fmt.Fprintf(tw, "%s\t%.1f\t%.1f\t%s\t%s\t%s", r.Name, r.Rows, r.Keeps, r.Interval, over,
			interval)
		for _, task := range tasks {
			fmt.Fprintf(tw, "\t%.1f", r.Accuracy[task])
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "accuracy by task and what is kept of it, in percent; %d pictures\n",
		t.Pictures)
	return err
}
