package paper

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// marks collects the reasons why cells are empty, each once.
type marks struct{ reasons []string }

// cell is a figure, or a letter with a note.
func (m *marks) cell(v float64, why string) any {
	if why == "" {
		return v
	}
	i := slices.Index(m.reasons, why)
	if i < 0 {
		i = len(m.reasons)
		m.reasons = append(m.reasons, why)
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

func (m *marks) notes() (out []string) {
	for i, why := range m.reasons {
		out = append(out, fmt.Sprintf("(%s) %s", letter(i), why))
	}
	return out
}

// average is the Average of the paper's tables: the mean over benchmarks of the figure divided by
// the unreduced one's, in percent. For drawn scenes it is the mean over tasks. If a benchmark of
// the table is missing there is no Average, because it would be a different quantity.
func (mk *Maker) average(ctx context.Context, t *printed, src *Source,
	s Setting) (float64, string, error) {
	parts := t.averaged()
	if src.Scenes {
		parts = tasks()
	}
	v, of, why, err := mk.meanOver(ctx, src, s, parts)
	if of > 0 && why != "" {
		why = fmt.Sprintf("an Average of %d of %d benchmarks would be another figure than the "+
			"paper's; missing: %s", of, len(parts), why)
	}
	return v, why, err
}

// meanOver returns the mean of the retained percentages of some benchmarks, their number, and why
// one is missing.
func (mk *Maker) meanOver(ctx context.Context, src *Source, s Setting,
	parts []column) (v float64, of int, missing string, err error) {
	for _, c := range parts {
		x, why, err := mk.figure(ctx, src, s, c)
		if err != nil {
			return 0, 0, "", err
		}
		whole, whyWhole, err := mk.figure(ctx, src, full, c)
		if err != nil {
			return 0, 0, "", err
		}
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
	return v / float64(max(1, of)), of, missing, nil
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
func (mk *Maker) some(ctx context.Context, t *printed, src *Source) (some []column, err error) {
	if src.Scenes {
		return nil, nil
	}
	all := t.averaged()
	for _, c := range all {
		_, why, err := mk.figure(ctx, src, full, c)
		if err != nil {
			return nil, err
		}
		if why == "" {
			some = append(some, c)
		}
	}
	if len(some) == len(all) {
		some = nil
	}
	return some, nil
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
func (mk *Maker) figure(ctx context.Context, src *Source, s Setting,
	c column) (float64, string, error) {
	x, err := mk.run(ctx, src, s, c.key)
	if err != nil {
		return 0, "", err
	}
	protocol := src.options.Protocol
	if protocol == "" {
		protocol = bench.Paper
	}
	if src.Scenes {
		protocol = ""
	}
	v, why := x.value(c.key, protocol, c.part)
	return v, why, nil
}

// title is a table's title with the model and the data that were measured.
func (mk *Maker) title(t *printed, src *Source) string {
	return fmt.Sprintf("Table %d. %s. Measured: %s on %s; paper: %s.",
		t.Number, t.Title, mk.Name(), src.title(), t.Model)
}

// title is the source's name and the limit of questions.
func (s *Source) title() string {
	if s.Limit > 0 {
		return fmt.Sprintf("%s (the first %d questions)", s.Name, s.Limit)
	}
	return s.Name
}

// finish adds the notes that all pages share. t is nil for figures.
func (mk *Maker) finish(out *table.Table, t *printed, src *Source) *table.Table {
	if t != nil {
		out.Notes = append(out.Notes, mk.budgetNote(t)...)
	}
	if src.Scenes {
		out.Notes = append(out.Notes, sceneNote)
	}
	return out
}

// sceneNote explains the limits of drawn scenes.
const sceneNote = "Drawn scenes stand in for the paper's benchmarks, and the model is another: " +
	"ours and the paper's are about different questions, and only their order can be compared."

// byBenchmark makes a table with methods as rows and benchmarks as columns, our figures next to the
// paper's.
func (mk *Maker) byBenchmark(ctx context.Context, t *printed, src *Source,
	settings []Setting) (*table.Table, error) {
	out := &table.Table{Title: mk.title(t, src), Columns: []table.Column{
		{Name: "method"}, {Name: "Average", Decimals: 1}, paperColumn("Average", 1),
	}}
	shown := t.benchmarks()
	some, err := mk.some(ctx, t, src)
	if err != nil {
		return nil, err
	}
	if src.Scenes {
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
		if !src.Scenes {
			out.Columns = append(out.Columns, paperColumn(c.name, decimals))
		}
	}
	m, section := &marks{}, ""
	for i := range t.Rows {
		if s := t.Rows[i].Section; s != section && s != "" {
			section = s
			out.Rows = append(out.Rows, table.Row{section})
		}
		v, why, err := mk.average(ctx, t, src, settings[i])
		if err != nil {
			return nil, err
		}
		row := table.Row{mk.rowName(t, i), m.cell(v, why), t.value(i, "Average")}
		if some != nil {
			v, _, why, err := mk.meanOver(ctx, src, settings[i], some)
			if err != nil {
				return nil, err
			}
			row = append(row, m.cell(v, why), t.retained(i, some))
		}
		for _, c := range shown {
			v, why, err := mk.figure(ctx, src, settings[i], c)
			if err != nil {
				return nil, err
			}
			row = append(row, m.cell(v, why))
			if !src.Scenes {
				row = append(row, t.value(i, c.name))
			}
		}
		out.Rows = append(out.Rows, row)
	}
	out.Notes = m.notes()
	out.Notes = append(out.Notes, someNote(some)...)
	return mk.finish(out, t, src), nil
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

// budgetNote says how the budgets of another model were converted.
func (mk *Maker) budgetNote(t *printed) []string {
	theirs, ours := modelTokens[t.Model], mk.Model.Info().VisualTokens
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
func (mk *Maker) matrix(
	ctx context.Context, t *printed, src *Source, m matrix,
) (*table.Table, error) {
	out := &table.Table{Title: mk.title(t, src), Columns: []table.Column{{Name: m.corner}}}
	var some []column
	var err error
	if m.of.key == "" {
		if some, err = mk.some(ctx, t, src); err != nil {
			return nil, err
		}
	}
	detail, err := tableOf(min(Tables, t.Number+10)) // Tables 14 to 17 have those of 4 to 7 in full
	if err != nil {
		return nil, err
	}
	for _, c := range m.columns {
		name := c
		if some != nil {
			name = strings.TrimPrefix(c+", Average", "Average, ") + fmt.Sprintf(" of %d", len(some))
		}
		out.Columns = append(out.Columns, table.Column{Name: name, Decimals: m.decimals},
			paperColumn(name, m.decimals))
	}
	notes := &marks{}
	for i := range m.settings {
		row := table.Row{m.rows[i]}
		for j, s := range m.settings[i] {
			paper := m.paper[i][j]
			v, why, err := mk.cell(ctx, t, src, s, m)
			if some != nil {
				v, _, why, err = mk.meanOver(ctx, src, s, some)
				paper = detail.retained(i*len(m.columns)+j, some)
			}
			if err != nil {
				return nil, err
			}
			row = append(row, notes.cell(v, why), paper)
		}
		out.Rows = append(out.Rows, row)
	}
	if some == nil {
		out.Notes = append(out.Notes, "Figure: "+mk.figureName(src, m)+".")
	}
	out.Notes = append(out.Notes, notes.notes()...)
	out.Notes = append(out.Notes, someNote(some)...)
	return mk.finish(out, t, src), nil
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

func (mk *Maker) cell(ctx context.Context, t *printed, src *Source, s Setting,
	m matrix) (float64, string, error) {
	c := m.of
	switch {
	case c.key == "":
		return mk.average(ctx, t, src, s)
	case src.Scenes:
		c = column{m.task, bench.ScenesName, m.task}
	}
	return mk.figure(ctx, src, s, c)
}

func (mk *Maker) figureName(src *Source, m matrix) string {
	switch {
	case m.of.key != "" && src.Scenes:
		return fmt.Sprintf("accuracy of the task %q, %% (paper: %s)", m.task, bench.Title(m.of.key))
	case m.of.key != "":
		return bench.Title(m.of.key)
	case src.Scenes:
		return "mean over tasks of accuracy / unreduced accuracy, % (paper: over eight benchmarks)"
	}
	return "Average over eight benchmarks, %"
}
