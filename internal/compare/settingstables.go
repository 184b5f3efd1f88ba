package compare

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	benchmarks "github.com/restore-vlm/restore/eval/bench"
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

// headings are the columns of the readable forms.
var headings = []string{
	"method", "alone", "95 %", "over grid", "+ RESTORE", "95 %", "over grid", "gain of RESTORE",
	"covered", "95 %", "gain of covered",
}

// lines returns the readable rows of one budget. number words a change.
func (t *Table) lines(nVis int, number func(Balance) string) (out [][]string) {
	for _, base := range t.bases() {
		plain, with := t.Find(Setting{Base: base, NVis: nVis}), t.Find(Setting{
			Base: base, Restore: true, NVis: nVis,
		})
		if plain == nil && with == nil {
			continue
		}
		line := []string{base}
		for _, r := range []*Row{plain, with} {
			if r == nil {
				line = append(line, "", "", "")
				continue
			}
			over := ""
			if c, ok := r.Over["grid"]; ok {
				over = number(c)
			}
			line = append(line, fmt.Sprintf("%.1f", r.Keeps), r.Interval.String(), over)
		}
		gain := ""
		if with != nil && plain != nil {
			gain = number(with.Over["plain"])
		}
		line = append(line, gain, "", "", "")
		if r := t.Find(Setting{base, true, nVis, true}); r != nil {
			copy(line[len(line)-3:], []string{
				fmt.Sprintf("%.1f", r.Keeps), r.Interval.String(), number(r.Over["restore"]),
			})
		}
		out = append(out, line)
	}
	return out
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

// WriteTable prints the comparison for people.
func (t *Table) WriteTable(w io.Writer) error {
	b := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, n := range t.budgets() {
		fmt.Fprintf(b, "%d tokens\t\n%s\t\n", n, strings.Join(headings, "\t"))
		for _, line := range t.lines(n, Balance.String) {
			fmt.Fprintf(b, "%s\t\n", strings.Join(line, "\t"))
		}
	}
	if err := b.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, t.caption())
	return t.writeRefused(w, "not measured: %s: %s\n")
}

// bold words a change in Markdown, in bold where its interval leaves out 0.
func bold(c Balance) string {
	if c.Clear() != 0 {
		return fmt.Sprintf("**%+.1f** (%s)", c.Points, c.Interval.Signed())
	}
	return c.String()
}

// WriteMarkdown prints the comparison as Markdown: what covered anchors change in one table of
// all budgets, where there are several, then a table a budget. Changes whose interval leaves
// out 0 are bold.
func (t *Table) WriteMarkdown(w io.Writer) error {
	fmt.Fprintf(w, "%s\n", t.caption())
	t.writeCovered(w)
	for _, n := range t.budgets() {
		writeGrid(w, fmt.Sprintf("%d tokens", n), headings, t.lines(n, bold))
	}
	t.writeDistances(w)
	schedules := ""
	for _, r := range t.Rows {
		if len(r.Stages) > 0 && !r.Restore {
			schedules += fmt.Sprintf("- `%s`, %d: `%s`\n", r.Base, r.NVis, scheduleOf(r.Stages))
		}
	}
	if schedules != "" {
		fmt.Fprintf(w,
			"\nSchedules inside the decoder (layer:rows) that the budgets come to:\n\n%s",
			schedules)
	}
	if len(t.Refused) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\nNot measured:\n\n")
	return t.writeRefused(w, "- %s: %s\n")
}

// writeGrid prints a table as Markdown, without the rows that have only a name.
func writeGrid(w io.Writer, title string, head []string, rows [][]string) {
	rows = slices.DeleteFunc(rows, func(r []string) bool { return strings.Join(r[1:], "") == "" })
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### %s\n\n| %s |\n|---|%s\n", title, strings.Join(head, " | "),
		strings.Repeat("--:|", len(head)-1))
	for _, r := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r, " | "))
	}
}

// writeCovered prints as Markdown what RESTORE and its covered form keep at every budget.
func (t *Table) writeCovered(w io.Writer) {
	budgets, head := t.budgets(), []string{"method"}
	if len(budgets) < 2 {
		return
	}
	for _, n := range budgets {
		head = append(head, strconv.Itoa(n))
	}
	var rows [][]string
	for _, base := range t.bases() {
		row := []string{base}
		for _, n := range budgets {
			with := t.Find(Setting{Base: base, Restore: true, NVis: n})
			covered := t.Find(Setting{base, true, n, true})
			cell := ""
			if with != nil && covered != nil {
				cell = fmt.Sprintf("%.1f → %.1f, %s", with.Keeps, covered.Keeps,
					bold(covered.Over["restore"]))
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	writeGrid(w, "RESTORE → covered, and the gain, by budget", head, rows)
}

// writeDistances prints the weighted Hausdorff distances as Markdown, where they were measured.
func (t *Table) writeDistances(w io.Writer) {
	budgets, head := t.budgets(), []string{"method"}
	for _, n := range budgets {
		head = append(head, fmt.Sprintf("%d alone", n), fmt.Sprintf("%d + RESTORE", n))
	}
	var rows [][]string
	for _, base := range t.bases() {
		row := []string{base}
		for _, n := range budgets {
			for _, on := range []bool{false, true} {
				cell := ""
				if r := t.Find(Setting{Base: base, Restore: on, NVis: n}); r != nil &&
					r.Distance != nil {
					cell = fmt.Sprintf("%.4f", *r.Distance)
				}
				row = append(row, cell)
			}
		}
		rows = append(rows, row)
	}
	writeGrid(w, "Weighted Hausdorff distance", head, rows)
}

// scheduleOf words stages as --schedule takes them.
func scheduleOf(stages []reduce.Stage) string {
	var s []string
	for _, st := range stages {
		s = append(s, fmt.Sprintf("%d:%d", st.Layer, st.Rows()))
	}
	return strings.Join(s, ",")
}

// writeRefused prints each reason once, with the settings that share it.
func (t *Table) writeRefused(w io.Writer, format string) error {
	var reasons []string
	who := map[string][]string{}
	for _, r := range t.Refused {
		if who[r.Reason] == nil {
			reasons = append(reasons, r.Reason)
		}
		who[r.Reason] = append(who[r.Reason], r.Setting.String())
	}
	for _, reason := range reasons {
		if _, err := fmt.Fprintf(w, format, strings.Join(who[reason], "; "), reason); err != nil {
			return err
		}
	}
	return nil
}

// WriteCSV prints one line a setting. Empty fields were not measured.
func (t *Table) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	tasks := slices.Sorted(maps.Keys(t.Questions))
	others := append(append([]string{"unreduced", "plain"}, controls...), "restore")
	head := []string{"base", "restore", "n_vis", "keeps", "keeps_low", "keeps_high",
		benchmarks.AllTasks}
	head = append(head, tasks...)
	for _, o := range others {
		head = append(head, "over_"+o, "over_"+o+"_low", "over_"+o+"_high")
	}
	if err := c.Write(append(head, "covered", "distance")); err != nil {
		return err
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	for _, r := range t.Rows {
		line := []string{
			r.Base, strconv.FormatBool(r.Restore), strconv.Itoa(r.NVis), number(r.Keeps),
			number(r.Interval[0]), number(r.Interval[1]), number(r.Accuracy[benchmarks.AllTasks]),
		}
		for _, task := range tasks {
			line = append(line, number(r.Accuracy[task]))
		}
		for _, o := range others {
			ch, ok := r.Over[o]
			if !ok {
				line = append(line, "", "", "")
				continue
			}
			line = append(line, number(ch.Points), number(ch.Interval[0]), number(ch.Interval[1]))
		}
		far := ""
		if r.Distance != nil {
			far = strconv.FormatFloat(*r.Distance, 'f', 4, 64)
		}
		if err := c.Write(append(line, strconv.FormatBool(r.Covered), far)); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// String gives the points with their interval as "+3.2 (+1.0…+5.4)".
func (c Balance) String() string { return fmt.Sprintf("%+.1f (%s)", c.Points, c.Interval.Signed()) }
