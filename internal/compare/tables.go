package compare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/table"
)

// Tables are the comparison as tables: the runs against their reference, in total and by category,
// and what each setting retains.
func (c *Comparison) Tables() []*table.Table {
	out := []*table.Table{c.pairs()}
	if len(c.Retained) > 0 {
		out = append(out, c.retained())
	}
	return out
}

func (c *Comparison) pairs() *table.Table {
	s := &table.Table{
		Title: "Runs against the reference of their benchmark",
		Columns: []table.Column{
			{
				Name: "run",
			}, {Name: "metric"}, {Name: "reference", Decimals: 2}, {Name: "this run", Decimals: 2},
			{Name: "questions"}, {Name: "points", Decimals: 2, Signed: true}, {Name: "95 %"},
			{Name: "lost"}, {Name: "gained"}, {Name: "McNemar p", Decimals: 4},
		},
		Notes: []string{
			"Points: mean over questions that both answered, in percent; the metric may count " +
				"otherwise. The interval draws pictures. Lost and gained: questions with " +
				"fewer and more points; " +
				"p is exact, two-sided. No metric: a run is not complete, or is over other " +
				"questions than the reference.",
		},
	}
	last := ""
	for _, p := range c.Pairs {
		head := joined(", ", p.Benchmark, p.Protocol, p.Split, "against "+p.Reference)
		if head != last {
			s.Rows = append(s.Rows, table.Row{head})
			last = head
		}
		row := table.Row{p.Run, nil, nil, nil}
		if p.Metric != "" {
			row = table.Row{p.Run, p.Metric, p.A, p.B}
		}
		s.Rows = append(s.Rows, append(row, p.Change.cells()...))
		for _, name := range slices.Sorted(maps.Keys(p.Categories)) {
			x := p.Categories[name]
			row := table.Row{"  " + name, "points", x.A, x.B}
			s.Rows = append(s.Rows, append(row, x.cells()...))
		}
	}
	return s
}

func (c *Change) cells() []any {
	return []any{c.Questions, c.Points, fmt.Sprintf("%+.2f to %+.2f", c.Interval[0], c.Interval[1]),
		c.Lost, c.Gained, c.P}
}

func (c *Comparison) retained() *table.Table {
	s := &table.Table{
		Title: "Retained, in percent of the unreduced run",
		Columns: []table.Column{{Name: "run"}, {Name: "Average", Decimals: 1}, {Name: "benchmarks"},
			{
				Name:     "visual tokens",
				Decimals: 1,
			}, {Name: "first token, s", Decimals: 3}, {Name: "missing"}},
		Notes: []string{
			"Average: mean over benchmarks of metric / unreduced metric, as the paper has it; " +
				"each counts alike, OCRBench does not. First token: median of questions whose " +
				"picture was not yet encoded.",
		},
	}
	for _, r := range c.Retained {
		var after, first any
		if r.After > 0 {
			after = r.After
		}
		if r.FirstToken > 0 {
			first = r.FirstToken
		}
		s.Rows = append(
			s.Rows,
			table.Row{
				r.Run,
				r.Percent,
				len(r.Benchmarks),
				after,
				first,
				strings.Join(r.Missing, ", "),
			},
		)
	}
	return s
}
