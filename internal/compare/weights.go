package compare

import (
	"cmp"
	"fmt"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/internal/table"
)

// Weights names the types in which weights are kept, as engine.Options does.
type Weights struct {
	Quant        string `json:"quant"`
	EncoderQuant string `json:"encoder_quant"`
}

// WeightsRow is what one plan measured, compared with the weights as stored.
type WeightsRow struct {
	Weights
	Accuracy float64        `json:"accuracy"` // percent of all questions
	Interval stats.Interval `json:"interval"` // Wilson
	Change   Balance        `json:"change"`   // against the weights as stored, over the same questions
	Resident int64          `json:"resident"` // bytes that the weights take
}

// WeightsTable compares plans over the same questions.
type WeightsTable struct {
	Pictures  int            `json:"pictures"`
	Questions int            `json:"questions"`
	Stored    WeightsRow     `json:"stored"`
	Rows      []WeightsRow   `json:"rows"`
	Setup     map[string]any `json:"setup,omitempty"`

	records []*eval.Record // with the weights as stored
}

// NewWeightsTable begins a table from the records of a benchmark of scenes with the weights as
// stored, which take resident bytes.
func NewWeightsTable(stored []*eval.Record, resident int64) *WeightsTable {
	r := NewPaired(stored, stored, 0)
	return &WeightsTable{
		Pictures: r.Pictures, Questions: len(stored), records: stored, Stored: WeightsRow{
			Accuracy: r.Full[benchmarks.AllTasks], Interval: r.FullInterval[benchmarks.AllTasks],
			Resident: resident,
		},
	}
}

// Add adds a plan of weights by its records of the same questions. seed starts the random numbers
// of the intervals.
func (t *WeightsTable) Add(w Weights, records []*eval.Record, resident, seed int64) {
	r := NewPaired(t.records, records, seed)
	t.Rows = append(t.Rows, WeightsRow{
		w, r.Reduced[benchmarks.AllTasks], r.ReducedInterval[benchmarks.AllTasks],
		r.Change[benchmarks.AllTasks], resident,
	})
}

// Tables are one table with a line a plan.
func (t *WeightsTable) Tables() []*table.Table {
	out := &table.Table{
		Title: fmt.Sprintf("Accuracy by types of weights: %d questions about %d pictures",
			t.Questions, t.Pictures),
		Columns: []table.Column{
			{Name: "decoder"}, {Name: "encoder"}, {Name: "weights MB", Decimals: 1},
			{Name: "right", Decimals: 1}, {Name: "95 %"},
			{Name: "change", Decimals: 1, Signed: true}, {Name: "95 %"}, {Name: "lost"},
			{Name: "gained"},
		},
		Notes: []string{"Changes are paired with the weights as stored, their intervals a " +
			"bootstrap over pictures."},
	}
	for i, r := range append([]WeightsRow{t.Stored}, t.Rows...) {
		change := r.Change.cells()
		if i == 0 {
			change = make(table.Row, len(change))
		}
		out.Rows = append(out.Rows, append(table.Row{cmp.Or(r.Quant, "as stored"),
			cmp.Or(r.EncoderQuant, "as stored"), float64(r.Resident) / 1e6, r.Accuracy,
			r.Interval.String()}, change...))
	}
	return []*table.Table{out}
}
