package compare

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
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

// WriteTable prints the comparison for people.
func (t *WeightsTable) WriteTable(w io.Writer) error {
	b := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(b, "decoder\tencoder\tweights MB\tright\t95 %\tchange\t95 %\tlost\tgained\t")
	name := func(s string) string {
		if s == "" {
			return "as stored"
		}
		return s
	}
	fmt.Fprintf(b, "as stored\tas stored\t%.1f\t%.1f\t%s\t\t\t\t\t\n",
		float64(t.Stored.Resident)/1e6, t.Stored.Accuracy, t.Stored.Interval)
	for _, r := range t.Rows {
		fmt.Fprintf(b, "%s\t%s\t%.1f\t%.1f\t%s\t%+.1f\t%+.1f…%+.1f\t%d\t%d\t\n", name(r.Quant),
			name(r.EncoderQuant), float64(r.Resident)/1e6,
			r.Accuracy, r.Interval, r.Change.Points, r.Change.Interval[0], r.Change.Interval[1],
			r.Change.Lost, r.Change.Gained)
	}
	if err := b.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d questions about %d pictures; changes are paired with the "+
		"weights as stored, their intervals a bootstrap over pictures\n", t.Questions, t.Pictures)
	return err
}
