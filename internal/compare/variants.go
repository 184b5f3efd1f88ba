package compare

import (
	"fmt"
	"maps"
	"slices"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/internal/table"
)

// VariantRow is what one variant measured. Figures are percent or points, rounded to a tenth.
type VariantRow struct {
	Name      string             `json:"name"`
	Rows      float64            `json:"rows"`     // visual rows that enter a layer, mean over pictures
	Accuracy  map[string]float64 `json:"accuracy"` // by task, and AllTasks
	Keeps     float64            `json:"keeps"`    // VsFull
	Interval  stats.Interval     `json:"keeps_interval"`
	Unreduced Balance            `json:"over_unreduced"`
	First     *Balance           `json:"over_first,omitempty"` // the first variant, over the same pictures
}

// VariantTable compares variants over the same questions.
type VariantTable struct {
	Pictures  int                `json:"pictures"`
	Questions map[string]int     `json:"questions"` // by task
	Full      map[string]float64 `json:"full"`      // accuracy from all tokens, by task and AllTasks
	Rows      []VariantRow       `json:"rows"`
	Setup     map[string]any     `json:"setup"`
}

// Variants compares runs of a benchmark of scenes, each with the unreduced model's and with the
// first. seed starts the random numbers of the intervals.
func Variants(
	full []*eval.Record, names []string, runs [][]*eval.Record, seed int64,
) *VariantTable {
	t := &VariantTable{}
	for i, name := range names {
		r := NewPaired(full, runs[i], seed)
		t.Pictures, t.Questions, t.Full = r.Pictures, r.Questions, r.Full
		row := VariantRow{
			Name: name, Rows: rowsOf(runs[i]), Accuracy: accuracies(r),
			Keeps: r.Reduced[benchmarks.VsFull], Interval: r.ReducedInterval[benchmarks.VsFull],
			Unreduced: r.Change[benchmarks.AllTasks],
		}
		if i > 0 {
			c := NewPaired(runs[0], runs[i], seed).Change[benchmarks.AllTasks]
			row.First = &c
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// rowsOf is how many visual rows enter a layer, on average over layers and pictures.
func rowsOf(records []*eval.Record) (mean float64) {
	pictures := lastOf(records)
	for _, x := range pictures {
		how := reductionOf(x)
		rows := how.Mean
		if len(how.Stages) == 0 {
			rows = float64(how.NVis)
		}
		mean += rows / float64(len(pictures))
	}
	return stats.Tenth(mean)
}

// Tables are one table with a line a variant.
func (t *VariantTable) Tables() []*table.Table {
	tasks := slices.Sorted(maps.Keys(t.Questions))
	out := &table.Table{
		Title: fmt.Sprintf("Accuracy by task and what is kept of it, in percent; %d pictures",
			t.Pictures),
		Columns: []table.Column{
			{Name: "variant"}, {Name: "rows", Decimals: 1}, {Name: "keeps", Decimals: 1},
			{Name: "95 %"}, {Name: "over the first", Decimals: 1, Signed: true}, {Name: "95 %"},
		},
		Rows: []table.Row{{"unreduced", nil, 100., nil, nil, nil}},
	}
	for _, task := range tasks {
		out.Columns = append(out.Columns, table.Column{Name: task, Decimals: 1})
		out.Rows[0] = append(out.Rows[0], t.Full[task])
	}
	for _, r := range t.Rows {
		row := table.Row{r.Name, r.Rows, r.Keeps, r.Interval.String(), nil, nil}
		if r.First != nil {
			copy(row[4:], r.First.cells())
		}
		for _, task := range tasks {
			row = append(row, r.Accuracy[task])
		}
		out.Rows = append(out.Rows, row)
	}
	return []*table.Table{out}
}
