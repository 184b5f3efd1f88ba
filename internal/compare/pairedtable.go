package compare

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	benchmarks "github.com/restore-vlm/restore/eval/bench"
)

// WriteTable prints the result for people: a line per task with both accuracies, their intervals
// and what changed.
func (r *Paired) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "task\tquestions\tunreduced\t95 %\treduced\t95 %\tchange\t95 %\tlost\tgained\t")
	line := func(name string, n int) {
		c := r.Change[name]
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%s\t%.1f\t%s\t%+.1f\t%+.1f…%+.1f\t%d\t%d\t\n", name, n,
			r.Full[name], r.FullInterval[name], r.Reduced[name], r.ReducedInterval[name], c.Points,
			c.Interval[0], c.Interval[1], c.Lost, c.Gained)
	}
	total := 0
	for _, task := range slices.Sorted(maps.Keys(r.Questions)) {
		line(task, r.Questions[task])
		total += r.Questions[task]
	}
	line(benchmarks.AllTasks, total)
	if err := t.Flush(); err != nil {
		return err
	}
	if v, ok := r.Reduced[benchmarks.VsFull]; ok {
		i := r.ReducedInterval[benchmarks.VsFull]
		if _, err := fmt.Fprintf(w, "keeps %.1f %% of the unreduced accuracy (%s), mean "+
			"over tasks; %d pictures\n", v, i, r.Pictures); err != nil {
			return err
		}
	}
	if r.Distance != nil {
		if _, err := fmt.Fprintf(w, "weighted Hausdorff distance %.4f, mean over pictures\n",
			*r.Distance); err != nil {
			return err
		}
	}
	var odd Unparsable
	for _, u := range r.Unparsable {
		odd = odd.add(u)
	}
	if odd != (Unparsable{}) {
		if _, err := fmt.Fprintf(w, "answers outside a task's possible ones: %d unreduced, "+
			"%d reduced (counted as wrong)\n", odd.Full, odd.Reduced); err != nil {
			return err
		}
	}
	return nil
}
