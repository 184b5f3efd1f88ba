package paper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/table"
)

// column is a benchmark of the paper's tables.
type column struct {
	name string // the paper's heading
	key  string // name in package bench
	part string // a metric other than the quoted one
}

// columnKeys maps the paper's headings to benchmarks.
var columnKeys = map[string]string{
	"GQA": "gqa", "MMB": "mmbench-en", "MME": "mme", "POPE": "pope", "SQA^IMG": "scienceqa",
	"SQA": "scienceqa", "VQA^V2": "vqav2", "VQA^Text": "textvqa", "TextVQA": "textvqa",
	"SEED": "seedbench",
}

// benchmarks are the columns of a table that show benchmarks.
func (t *printed) benchmarks() (out []column) {
	for _, name := range t.Columns {
		if key := columnKeys[name]; key != "" {
			c := column{name: name, key: key}
			if t.Number == 2 && name == "SEED" { // its 70.2 counts only pictures
				c.part = "image"
			}
			out = append(out, c)
		}
	}
	return out
}

// averaged are the benchmarks of a table's Average; Tables 4 to 7 show only the Average.
func (t *printed) averaged() []column {
	if all := t.benchmarks(); len(all) > 0 {
		return all
	}
	return (&printed{
		Columns: strings.Fields("GQA MMB MME POPE SQA^IMG VQA^V2 VQA^Text SEED"),
	}).benchmarks()
}

// draft is a table or a figure in progress.
type draft struct {
	*Maker
	ctx     context.Context
	t       *printed // nil for a figure
	src     *Source
	reasons []string // why cells are empty, each once
	err     error    // the first one; later figures are empty
}

// fail keeps the first error; nil is none.
func (d *draft) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// measure is kept, unless something failed before.
func (d *draft) measure(
	kind string, of []any, left time.Duration, out any, f func() error,
) {
	if d.err == nil {
		d.err = d.kept(kind, of, left, out, f)
	}
}

// cell is a figure, or a letter with a note.
func (d *draft) cell(v float64, why string) any {
	if why == "" {
		return v
	}
	i := slices.Index(d.reasons, why)
	if i < 0 {
		i = len(d.reasons)
		d.reasons = append(d.reasons, why)
	}
	return "(" + letter(i) + ")"
}

// letter is a, b, …, z, aa, ab, ….
func letter(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return letter(i/26-1) + letter(i%26)
}

// notes explains the letters.
func (d *draft) notes() (out []string) {
	for i, why := range d.reasons {
		out = append(out, fmt.Sprintf("(%s) %s", letter(i), why))
	}
	return out
}

// average is the Average of the paper's tables: the mean over benchmarks of the figure divided by
// the unreduced one's, in percent. For drawn scenes it is the mean over tasks. If a benchmark of
// the table is missing there is no Average, because it would be a different quantity.
func (d *draft) average(s Setting) (float64, string) {
	parts := d.t.averaged()
	if d.src.Scenes {
		parts = tasks()
	}
	v, of, why := d.meanOver(s, parts)
	if of > 0 && why != "" {
		why = fmt.Sprintf("an Average of %d of %d benchmarks would be another figure than the "+
			"paper's; missing: %s", of, len(parts), why)
	}
	return v, why
}

// meanOver returns the mean of the retained percentages of some benchmarks, their number, and why
// one is missing.
func (d *draft) meanOver(s Setting, parts []column) (v float64, of int, missing string) {
	for _, c := range parts {
		x, why := d.figure(s, c)
		whole, whyWhole := d.figure(full, c)
		switch {
		case why == "" && whyWhole != "":
			why = whyWhole
		case why == "" && whole == 0:
			why = c.name + ": the unreduced figure is 0"
		}
		if why == "" {
			v += 100 * x / whole
			of++
		} else if missing == "" {
			missing = why
		}
	}
	return v / float64(max(1, of)), of, missing
}

// retained is the paper's Average over only some benchmarks, computed from the printed values.
func (t *printed) retained(row int, parts []column) any {
	of := t
	if t.Number >= 14 && t.Number <= 17 { // these have no row of the unreduced model
		of, _ = tableOf(1)
	}
	sum := 0.
	for _, c := range parts {
		v, ok := t.value(row, c.name).(float64)
		whole, known := of.value(0, c.name).(float64)
		if !ok || !known {
			return nil
		}
		sum += 100 * v / whole
	}
	return sum / float64(len(parts))
}

// some returns the benchmarks of a table's Average that have an unreduced figure, if some have
// none.
func (d *draft) some() (some []column) {
	if d.src.Scenes {
		return nil
	}
	all := d.t.averaged()
	for _, c := range all {
		if _, why := d.figure(full, c); why == "" {
			some = append(some, c)
		}
	}
	if len(some) == len(all) {
		return nil
	}
	return some
}

// someNote names the benchmarks of an average.
func someNote(some []column) []string {
	if some == nil {
		return nil
	}
	var names []string
	for _, c := range some {
		names = append(names, c.name)
	}
	return []string{fmt.Sprintf("The Average of %d is over %s, and so is the paper's next to it, "+
		"from the values that it prints.", len(some), strings.Join(names, ", "))}
}

// tasks are the columns for drawn scenes.
func tasks() (all []column) {
	for _, task := range bench.SceneTasks {
		all = append(all, column{task, bench.ScenesName, task})
	}
	return all
}

// figure is a benchmark's figure under a setting, or the reason why there is none.
func (d *draft) figure(s Setting, c column) (float64, string) {
	var x *outcome
	if d.err == nil {
		x, d.err = d.run(d.ctx, d.src, s, c.key)
	}
	if d.err != nil {
		return 0, d.err.Error()
	}
	protocol := d.src.options.Protocol
	if protocol == "" {
		protocol = bench.Paper
	}
	if d.src.Scenes {
		protocol = ""
	}
	return x.value(c.key, protocol, c.part)
}

// title is a table's title with the model and the data that were measured.
func (d *draft) title() string {
	return fmt.Sprintf("Table %d. %s. Measured: %s on %s; paper: %s.",
		d.t.Number, d.t.Title, d.Name(), d.src.title(), d.t.Model)
}

// title is the source's name, with a protocol other than the paper's and the limit of questions.
func (s *Source) title() string {
	out := s.Name
	if s.options.Protocol == bench.LMMS {
		out += " by lmms-eval's protocol"
	}
	if s.Limit > 0 {
		out += fmt.Sprintf(" (the first %d questions)", s.Limit)
	}
	return out
}

// finish adds the notes that all pages share.
func (d *draft) finish(out *table.Table) *table.Table {
	model := llava15
	if d.t != nil {
		model = d.t.Model
	}
	out.Notes = append(out.Notes, budgetNote(modelTokens[model], d.Model.Info().VisualTokens)...)
	if d.src.Scenes {
		out.Notes = append(out.Notes, sceneNote)
	}
	return out
}

// sceneNote explains the limits of drawn scenes.
const sceneNote = "Drawn scenes stand in for the paper's benchmarks, and the model is another: " +
	"ours and the paper's are about different questions, and only their order can be compared."

// byBenchmark makes a table with methods as rows and benchmarks as columns, our figures next to the
// paper's.
func (d *draft) byBenchmark(settings []Setting) *table.Table {
	t := d.t
	out := &table.Table{Title: d.title(), Columns: []table.Column{
		{Name: "method"}, {Name: "Average", Decimals: 1}, paperColumn("Average", 1),
	}}
	shown, some := t.benchmarks(), d.some()
	if d.src.Scenes {
		shown = tasks()
	}
	if some != nil {
		name := fmt.Sprintf("of %d", len(some))
		ours := table.Column{Name: "Average " + name, Label: name, Decimals: 1}
		out.Columns = append(out.Columns, ours, paperColumn("Average "+name, 1))
	}
	for _, c := range shown {
		decimals := 1
		if c.key == "mme" {
			decimals = 0
		}
		out.Columns = append(out.Columns, table.Column{Name: c.name, Decimals: decimals})
		if !d.src.Scenes {
			out.Columns = append(out.Columns, paperColumn(c.name, decimals))
		}
	}
	section := ""
	for i := range t.Rows {
		if s := t.Rows[i].Section; s != section && s != "" {
			section = s
			out.Rows = append(out.Rows, table.Row{section})
		}
		row := table.Row{d.rowName(t, i), d.cell(d.average(settings[i])), t.value(i, "Average")}
		if some != nil {
			v, _, why := d.meanOver(settings[i], some)
			row = append(row, d.cell(v, why), t.retained(i, some))
		}
		for _, c := range shown {
			row = append(row, d.cell(d.figure(settings[i], c)))
			if !d.src.Scenes {
				row = append(row, t.value(i, c.name))
			}
		}
		out.Rows = append(out.Rows, row)
	}
	out.Notes = append(d.notes(), someNote(some)...)
	return d.finish(out)
}

// rowName is a row's label. The paper calls its own method "+ ours".
func (mk *Maker) rowName(t *printed, i int) string {
	switch t.Number {
	case 14:
		return t.component(i)
	case 15:
		return t.text(i, "Method") + ", " + t.text(i, "Calibration")
	case 16:
		return t.text(i, "Method") + ", " + t.text(i, "Reduction Type")
	case 17:
		return t.text(i, "Position Type")
	case 19:
		if i > 0 {
			return t.text(i, "Method")
		}
	}
	name := t.text(i, "Method")
	if bases[t.Rows[i].Method] == "" {
		return "all tokens"
	}
	if strings.HasPrefix(name, "+") {
		name = "  " + name
	}
	return name
}

// component names a row of Tables 4 and 14.
func (t *printed) component(i int) string {
	name := fmt.Sprintf("(%d)", i+1)
	for _, c := range [][2]string{{"Incorporating Merging", "merging"},
		{"Retaining Position", "positions"}, {"Attention Calibration", "calibration"}} {
		if k := slices.Index(t.Columns, c[0]); t.Rows[i].Cells[k] == true {
			name += " " + c[1]
		}
	}
	return name
}

// budgetNote says how budgets for the paper's model were converted for ours, whose numbers of
// visual tokens are given; 0 depends on the picture.
func budgetNote(theirs, ours int) []string {
	if theirs == ours {
		return nil
	}
	if ours == 0 {
		return []string{"Budgets are the paper's shares of each picture's tokens."}
	}
	return []string{fmt.Sprintf(
		"Budgets are the paper's shares, of the %d tokens that a picture has here.", ours)}
}

// paperColumn is a column with the paper's values.
func paperColumn(name string, decimals int) table.Column {
	return table.Column{Name: name + ", paper", Label: "paper", Decimals: decimals}
}

// matrix makes a table whose cells are settings and show one figure: the Average, or a benchmark's.
func (d *draft) matrix(m matrix) *table.Table {
	out := &table.Table{Title: d.title(), Columns: []table.Column{{Name: m.corner}}}
	var some []column
	if m.of.key == "" {
		some = d.some()
	}
	detail, _ := tableOf(min(Tables, d.t.Number+10)) // Tables 14 to 17 have 4 to 7 in full
	for _, c := range m.columns {
		name := c
		if some != nil {
			name = strings.TrimPrefix(c+", Average", "Average, ") + fmt.Sprintf(" of %d", len(some))
		}
		out.Columns = append(out.Columns, table.Column{Name: name, Decimals: m.decimals},
			paperColumn(name, m.decimals))
	}
	for i := range m.settings {
		row := table.Row{m.rows[i]}
		for j, s := range m.settings[i] {
			paper := m.paper[i][j]
			v, why := d.shown(s, m)
			if some != nil {
				v, _, why = d.meanOver(s, some)
				paper = detail.retained(i*len(m.columns)+j, some)
			}
			row = append(row, d.cell(v, why), paper)
		}
		out.Rows = append(out.Rows, row)
	}
	if some == nil {
		out.Notes = append(out.Notes, "Figure: "+figureName(d.src, m)+".")
	}
	out.Notes = append(out.Notes, d.notes()...)
	out.Notes = append(out.Notes, someNote(some)...)
	return d.finish(out)
}

// matrix describes a table of settings.
type matrix struct {
	corner        string
	rows, columns []string
	settings      [][]Setting
	paper         [][]any
	decimals      int
	// of is the benchmark whose figure the cells show; zero means the Average. task is the task
	// that replaces it for scenes.
	of   column
	task string
}

// shown is the figure of a setting in a table of settings.
func (d *draft) shown(s Setting, m matrix) (float64, string) {
	c := m.of
	switch {
	case c.key == "":
		return d.average(s)
	case d.src.Scenes:
		c = column{m.task, bench.ScenesName, m.task}
	}
	return d.figure(s, c)
}

// figureName says what the cells of a table of settings show.
func figureName(src *Source, m matrix) string {
	switch {
	case m.of.key != "" && src.Scenes:
		return fmt.Sprintf("accuracy of the task %q, %% (paper: %s)", m.task, bench.Title(m.of.key))
	case m.of.key == "ocrbench":
		return bench.Title(m.of.key) + ", right answers (paper: of 1,000 questions)"
	case m.of.key != "":
		return bench.Title(m.of.key)
	case src.Scenes:
		return "mean over tasks of accuracy / unreduced accuracy, % (paper: over eight benchmarks)"
	}
	return "Average over eight benchmarks, %"
}
