package compare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/table"
	"github.com/restore-vlm/restore/reduce"
)

// budgets are the table's, in the order of its rows.
func (t *Table) budgets() (out []int) {
	for _, r := range t.Rows {
		if !slices.Contains(out, r.NVis) {
			out = append(out, r.NVis)
		}
	}
	return out
}

// bases are the table's methods, in the order of its rows.
func (t *Table) bases() (out []string) {
	for _, r := range t.Rows {
		if !slices.Contains(out, r.Base) {
			out = append(out, r.Base)
		}
	}
	return out
}

// Tables are the comparison as tables: what covered anchors change, where there are several
// budgets; one for each budget; and distances and schedules, where there are any. Notes of the last
// one say what the figures are and what was not measured.
func (t *Table) Tables() []*table.Table {
	var out []*table.Table
	budgets := t.budgets()
	if len(budgets) > 1 {
		out = append(out, t.covered(budgets))
	}
	for _, n := range budgets {
		out = append(out, t.budget(n))
	}
	out = append(out, t.distances(budgets), t.schedules())
	for _, s := range out {
		s.Rows = slices.DeleteFunc(s.Rows, func(r table.Row) bool { return empty(r[1:]) })
	}
	out = slices.DeleteFunc(out, func(s *table.Table) bool { return len(s.Rows) == 0 })
	if len(out) == 0 {
		out = []*table.Table{{Title: "No setting was measured"}}
	}
	last := out[len(out)-1]
	last.Notes = append(last.Notes, t.caption())
	last.Notes = append(last.Notes, t.NotMeasured()...)
	return out
}

// empty reports whether cells hold nothing.
func empty(cells []any) bool {
	return !slices.ContainsFunc(cells, func(v any) bool { return v != nil })
}

// budget is the table of one budget.
func (t *Table) budget(n int) *table.Table {
	s := &table.Table{
		Title: fmt.Sprintf("%d tokens", n),
		Columns: []table.Column{
			{Name: "method"}, {Name: "alone", Decimals: 1}, {Name: "95 %"}, {Name: "over grid"},
			{Name: "+ RESTORE", Decimals: 1}, {Name: "95 %"}, {Name: "over grid"},
			{Name: "gain of RESTORE"}, {Name: "covered", Decimals: 1}, {Name: "95 %"},
			{Name: "gain of covered"},
		},
	}
	for _, base := range t.bases() {
		plain := t.Find(Setting{Base: base, NVis: n})
		with := t.Find(Setting{Base: base, Restore: true, NVis: n})
		covered := t.Find(Setting{base, true, n, true})
		s.Rows = append(s.Rows, slices.Concat(table.Row{base}, plain.cells("grid"),
			with.cells("grid"), table.Row{with.over("plain")}, covered.cells("restore")))
	}
	return s
}

// cells are what a row keeps, its interval, and the change over another run.
func (r *Row) cells(other string) table.Row {
	if r == nil {
		return table.Row{nil, nil, nil}
	}
	return table.Row{r.Keeps, r.Interval.String(), r.over(other)}
}

// over is the change over another run, nil if there is none; strong if its interval leaves out 0.
func (r *Row) over(other string) any {
	if r == nil {
		return nil
	}
	c, ok := r.Over[other]
	if !ok {
		return nil
	}
	return c.cell(c.String())
}

// cell is a text about a change, strong if its interval leaves out 0.
func (c Balance) cell(text string) any {
	if c.Clear() != 0 {
		return table.Strong(text)
	}
	return text
}

// caption says what the figures are.
func (t *Table) caption() string {
	n := 0
	for _, q := range t.Questions {
		n += q
	}
	return fmt.Sprintf("%d pictures, %d questions, %.1f %% right from all tokens (%s). "+
		"Alone and + RESTORE: mean over tasks of the accuracy in percent of the unreduced one. "+
		"Covered: + RESTORE with covered anchors and kept tokens that may be joined. Over "+
		"grid (each with its like), gain of RESTORE (over the method alone) and of covered "+
		"(over + RESTORE): points of all questions. All intervals are 95 %%, over the same "+
		"pictures.",
		t.Pictures, n, t.Full[benchmarks.AllTasks], t.FullInterval[benchmarks.AllTasks])
}

// covered is what RESTORE and its covered form keep at every budget.
func (t *Table) covered(budgets []int) *table.Table {
	s := &table.Table{
		Title:   "RESTORE → covered, and the gain, by budget",
		Columns: []table.Column{{Name: "method"}},
	}
	for _, n := range budgets {
		s.Columns = append(s.Columns, table.Column{Name: strconv.Itoa(n)})
	}
	for _, base := range t.bases() {
		row := table.Row{base}
		for _, n := range budgets {
			with := t.Find(Setting{Base: base, Restore: true, NVis: n})
			covered := t.Find(Setting{base, true, n, true})
			if with == nil || covered == nil {
				row = append(row, nil)
				continue
			}
			gain := covered.Over["restore"]
			row = append(row, gain.cell(fmt.Sprintf("%.1f → %.1f, %s", with.Keeps, covered.Keeps,
				gain)))
		}
		s.Rows = append(s.Rows, row)
	}
	return s
}

// distances are the weighted Hausdorff distances, where they were measured.
func (t *Table) distances(budgets []int) *table.Table {
	s := &table.Table{
		Title: "Weighted Hausdorff distance", Columns: []table.Column{{Name: "method"}},
	}
	for _, n := range budgets {
		s.Columns = append(s.Columns, table.Column{Name: fmt.Sprintf("%d alone", n), Decimals: 4},
			table.Column{Name: fmt.Sprintf("%d + RESTORE", n), Decimals: 4})
	}
	for _, base := range t.bases() {
		row := table.Row{base}
		for _, n := range budgets {
			for _, on := range []bool{false, true} {
				var far any
				if r := t.Find(Setting{Base: base, Restore: on, NVis: n}); r != nil &&
					r.Distance != nil {
					far = *r.Distance
				}
				row = append(row, far)
			}
		}
		s.Rows = append(s.Rows, row)
	}
	return s
}

// schedules are the stages inside the decoder that budgets come to.
func (t *Table) schedules() *table.Table {
	s := &table.Table{
		Title:   "Schedules inside the decoder that the budgets come to",
		Columns: []table.Column{{Name: "method"}, {Name: "tokens"}, {Name: "layer:rows"}},
	}
	for _, r := range t.Rows {
		if len(r.Stages) > 0 && !r.Restore {
			s.Rows = append(s.Rows, table.Row{r.Base, r.NVis, scheduleOf(r.Stages)})
		}
	}
	return s
}

// scheduleOf words stages as the parameter schedule takes them.
func scheduleOf(stages []reduce.Stage) string {
	var s []string
	for _, st := range stages {
		s = append(s, fmt.Sprintf("%d:%d", st.Layer, st.Rows()))
	}
	return strings.Join(s, ",")
}

// NotMeasured has each reason once, with the settings that share it.
func (t *Table) NotMeasured() (lines []string) {
	var reasons []string
	who := map[string][]string{}
	for _, r := range t.Refused {
		if who[r.Reason] == nil {
			reasons = append(reasons, r.Reason)
		}
		who[r.Reason] = append(who[r.Reason], r.Setting.String())
	}
	for _, reason := range reasons {
		lines = append(lines,
			fmt.Sprintf("not measured: %s: %s", strings.Join(who[reason], "; "), reason))
	}
	return lines
}

// String gives the points with their interval as "+3.2 (+1.0…+5.4)".
func (c Balance) String() string { return fmt.Sprintf("%+.1f (%s)", c.Points, c.Interval.Signed()) }
