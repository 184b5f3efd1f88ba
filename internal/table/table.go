// Package table writes tables as text for a terminal, Markdown, CSV, LaTeX and JSON.
package table

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/wrap"
)

// Table has columns, rows and notes.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    []Row    `json:"rows"`
	Notes   []string `json:"notes,omitempty"` // below the table
}

// Column is a column's heading and number format.
type Column struct {
	Name     string `json:"name"`
	Label    string `json:"-"` // the heading in text, if shorter
	Decimals int    `json:"-"`
	Signed   bool   `json:"-"` // positive numbers get a plus
}

// Row is a row of cells: each a string, a Strong one, an int, a float64, or nil for empty. A row
// with a single string is a heading for the rows below it.
type Row []any

// Strong is a text that is bold where a format has that.
type Strong string

// Formats are the output formats of a table.
var Formats = []string{"text", "markdown", "csv", "latex", "json"}

// Write writes a table in one of the Formats.
func (t *Table) Write(w io.Writer, format string) error {
	switch format {
	case "text":
		return t.writeText(w)
	case "markdown":
		return t.writeMarkdown(w)
	case "csv":
		return t.writeCSV(w)
	case "latex":
		return t.writeLaTeX(w)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		return enc.Encode(t)
	}
	return fmt.Errorf("table: format: got %q, want %s", format, strings.Join(Formats, ", "))
}

// heading reports whether a row is a heading.
func (r Row) heading() bool {
	_, text := r[0].(string)
	return len(r) == 1 && text
}

// label is the heading in text formats.
func (c *Column) label() string {
	if c.Label != "" {
		return c.Label
	}
	return c.Name
}

// text formats a cell for text formats.
func (c *Column) text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case Strong:
		return string(v)
	case int:
		return strconv.Itoa(v)
	case float64:
		s := strconv.FormatFloat(v, 'f', c.Decimals, 64)
		if strings.Trim(s, "-0.") == "" { // no minus before zero
			s = strings.TrimPrefix(s, "-")
		} else if c.Signed && v > 0 {
			s = "+" + s
		}
		return s
	}
	return fmt.Sprint(v)
}

// number reports whether a cell is right-aligned.
func number(v any) bool {
	switch v.(type) {
	case int, float64:
		return true
	}
	return false
}

func (t *Table) writeText(w io.Writer) error {
	widths := make([]int, len(t.Columns))
	for i := range t.Columns {
		widths[i] = utf8.RuneCountInString(t.Columns[i].label())
		for _, r := range t.Rows {
			if i < len(r) && !r.heading() {
				widths[i] = max(widths[i], utf8.RuneCountInString(t.Columns[i].text(r[i])))
			}
		}
	}
	var b strings.Builder
	across := 2 * (len(widths) - 1)
	for _, w := range widths {
		across += w
	}
	across = max(across, leastWidth)
	lines := func(text string) string {
		return strings.Join(wrap.Characters(text, across), "\n")
	}
	fmt.Fprintf(&b, "%s\n\n", lines(t.Title))
	line := func(cell func(i int) (text string, right bool)) {
		var parts []string
		for i := range t.Columns {
			text, right := cell(i)
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if right {
				text = pad + text
			} else {
				text += pad
			}
			parts = append(parts, text)
		}
		b.WriteString(strings.TrimRight(strings.Join(parts, "  "), " ") + "\n")
	}
	line(func(i int) (string, bool) { return t.Columns[i].label(), t.right(i) })
	for _, r := range t.Rows {
		if r.heading() {
			fmt.Fprintf(&b, "%s\n", r[0])
			continue
		}
		line(func(i int) (string, bool) {
			if i >= len(r) {
				return "", false
			}
			return t.Columns[i].text(r[i]), number(r[i]) || t.right(i)
		})
	}
	if len(t.Notes) > 0 {
		b.WriteByte('\n')
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "%s\n", lines(n))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// leastWidth is the width to which titles and notes may extend around a narrower table.
const leastWidth = 100

// right reports whether a column holds numbers.
func (t *Table) right(i int) bool {
	for _, r := range t.Rows {
		if i < len(r) && number(r[i]) {
			return true
		}
	}
	return false
}

func (t *Table) writeMarkdown(w io.Writer) error {
	escape := strings.NewReplacer("|", `\|`, "\n", " ", "  ", "&emsp;")
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**\n\n|", t.Title)
	for _, c := range t.Columns {
		fmt.Fprintf(&b, " %s |", escape.Replace(c.label()))
	}
	b.WriteString("\n|")
	for i := range t.Columns {
		b.WriteString(map[bool]string{true: "---:|", false: "---|"}[t.right(i)])
	}
	b.WriteByte('\n')
	for _, r := range t.Rows {
		b.WriteByte('|')
		for i := range t.Columns {
			switch {
			case i < len(r) && r.heading():
				fmt.Fprintf(&b, " *%s* |", escape.Replace(r[0].(string)))
			case i < len(r):
				text := escape.Replace(t.Columns[i].text(r[i]))
				if _, strong := r[i].(Strong); strong {
					text = "**" + text + "**"
				}
				fmt.Fprintf(&b, " %s |", text)
			default:
				b.WriteString(" |")
			}
		}
		b.WriteByte('\n')
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeCSV writes numbers in full precision; headings of rows have their own first column.
func (t *Table) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	line := []string{"part"}
	for _, c := range t.Columns {
		line = append(line, c.Name)
	}
	if err := out.Write(line); err != nil {
		return err
	}
	part := ""
	for _, r := range t.Rows {
		if r.heading() {
			part = r[0].(string)
			continue
		}
		line := []string{part}
		for i := range t.Columns {
			text := ""
			if i < len(r) {
				text = t.Columns[i].text(r[i])
				if v, ok := r[i].(float64); ok {
					text = strconv.FormatFloat(v, 'g', -1, 64)
				}
			}
			line = append(line, text)
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// latex escapes LaTeX commands and characters that its fonts lack.
var latex = strings.NewReplacer(`\`, `\textbackslash{}`, "&", `\&`, "%", `\%`, "$", `\$`, "#", `\#`,
	"_", `\_`, "{", `\{`, "}", `\}`, "~", `\textasciitilde{}`, "^", `\textasciicircum{}`, "<",
	`$<$`, ">", `$>$`, "±", `$\pm$`, "−", "$-$", "→", `$\to$`, "γ", `$\gamma$`, "Δ", `$\Delta$`,
	"×", `$\times$`, "↓", `$\downarrow$`, "↑", `$\uparrow$`)

// latexCell keeps the indentation of a row's name, which LaTeX would drop.
func latexCell(s string) string {
	text := strings.TrimLeft(s, " ")
	if text != s {
		return `\quad ` + latex.Replace(text)
	}
	return latex.Replace(text)
}

func (t *Table) writeLaTeX(w io.Writer) error {
	var b strings.Builder
	b.WriteString("\\begin{table}\n\\centering\n\\begin{tabular}{")
	for i := range t.Columns {
		b.WriteString(map[bool]string{true: "r", false: "l"}[t.right(i)])
	}
	b.WriteString("}\n\\toprule\n")
	var names []string
	for _, c := range t.Columns {
		names = append(names, latex.Replace(c.label()))
	}
	b.WriteString(strings.Join(names, " & ") + " \\\\\n\\midrule\n")
	for _, r := range t.Rows {
		if r.heading() {
			fmt.Fprintf(&b, "\\multicolumn{%d}{l}{\\textit{%s}} \\\\\n", len(t.Columns),
				latex.Replace(r[0].(string)))
			continue
		}
		cells := make([]string, len(t.Columns))
		for i := range t.Columns {
			if i < len(r) {
				cells[i] = latexCell(t.Columns[i].text(r[i]))
				if _, strong := r[i].(Strong); strong {
					cells[i] = `\textbf{` + cells[i] + "}"
				}
			}
		}
		b.WriteString(strings.Join(cells, " & ") + " \\\\\n")
	}
	title := strings.TrimSuffix(t.Title, ".") + "." // the notes follow in the same paragraph
	b.WriteString("\\bottomrule\n\\end{tabular}\n\\caption{" + latex.Replace(title))
	for _, n := range t.Notes {
		b.WriteString(" " + latex.Replace(n))
	}
	b.WriteString("}\n\\end{table}\n")
	_, err := io.WriteString(w, b.String())
	return err
}
