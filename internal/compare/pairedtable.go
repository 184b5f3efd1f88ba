package compare

import (
	"fmt"
	"maps"
	"slices"

	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/table"
)

// Tables are one table with a line per task: both accuracies, their intervals and what changed.
func (r *Paired) Tables() []*table.Table {
	t := &table.Table{
		Title: fmt.Sprintf("Accuracy with and without the reduction, %d pictures", r.Pictures),
		Columns: []table.Column{
			{Name: "task"}, {Name: "questions"}, {Name: "unreduced", Decimals: 1}, {Name: "95 %"},
			{Name: "reduced", Decimals: 1}, {Name: "95 %"},
			{Name: "change", Decimals: 1, Signed: true}, {Name: "95 %"}, {Name: "lost"},
			{Name: "gained"},
		},
	}
	line := func(name string, n int) {
		t.Rows = append(t.Rows, append(table.Row{name, n, r.Full[name],
			r.FullInterval[name].String(), r.Reduced[name], r.ReducedInterval[name].String()},
			r.Change[name].cells()...))
	}
	total := 0
	for _, task := range slices.Sorted(maps.Keys(r.Questions)) {
		line(task, r.Questions[task])
		total += r.Questions[task]
	}
	line(benchmarks.AllTasks, total)
	if v, ok := r.Reduced[benchmarks.VsFull]; ok {
		t.Notes = append(t.Notes, fmt.Sprintf("keeps %.1f %% of the unreduced accuracy (%s), "+
			"mean over tasks", v, r.ReducedInterval[benchmarks.VsFull]))
	}
	if r.Distance != nil {
		t.Notes = append(t.Notes,
			fmt.Sprintf("weighted Hausdorff distance %.4f, mean over pictures", *r.Distance))
	}
	var odd Unparsable
	for _, u := range r.Unparsable {
		odd = odd.add(u)
	}
	if odd != (Unparsable{}) {
		t.Notes = append(t.Notes, fmt.Sprintf("answers outside a task's possible ones: %d "+
			"unreduced, %d reduced (counted as wrong)", odd.Full, odd.Reduced))
	}
	return []*table.Table{t}
}

// cells are a change's points, interval, and numbers of questions.
func (c Balance) cells() table.Row {
	return table.Row{c.Points, c.Interval.Signed(), c.Lost, c.Gained}
}
