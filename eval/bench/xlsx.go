package bench

import (
	"archive/zip"
	"embed"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/pytext"
)

// writeMMBench writes the table for MMBench's server with LLaVA's columns or lmms-eval's.
func writeMMBench(w io.Writer, all []*eval.Scored, paper, culture bool) error {
	columns := "index question answer prediction hint source split category L2-category A B C D E"
	switch {
	case paper:
		columns = "index question A B C D prediction answer split"
	case culture:
		columns = "index question answer prediction source category A B C D E"
	}
	rows := [][]any{{}}
	for _, c := range strings.Fields(columns) {
		rows[0] = append(rows[0], c)
	}
	for _, x := range all {
		m := x.Question.Doc.(*mmbRow)
		var row []any
		for _, c := range strings.Fields(columns) {
			var v any
			switch c {
			case "index":
				v = m.index
			case "prediction":
				v = pytext.Strip(x.Answer)
			case "L2-category":
				v = m.l2
			default:
				var ok bool
				if v, ok = m.cells[c]; !ok && c == "E" {
					v = "nan" // the harness writes this for an option that no question has
				}
			}
			row = append(row, v)
		}
		rows = append(rows, row)
	}
	return writeXLSX(w, rows)
}

// workbook holds the fixed parts of a workbook with one sheet.
//
//go:embed all:workbook
var workbook embed.FS

// workbookParts maps the files of workbook to their names in a workbook.
var workbookParts = [][2]string{
	{"workbook/types.xml", "[Content_Types].xml"},
	{"workbook/root.xml", "_rels/.rels"},
	{"workbook/workbook.xml", "xl/workbook.xml"},
	{"workbook/sheets.xml", "xl/_rels/workbook.xml.rels"},
}

// writeXLSX writes a workbook with one sheet. A cell is a text, an int64, or nil if it is empty.
func writeXLSX(w io.Writer, rows [][]any) error {
	z := zip.NewWriter(w)
	for _, p := range workbookParts {
		data, err := workbook.ReadFile(p[0])
		if err != nil {
			return err
		}
		out, err := z.Create(p[1])
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	sheet, err := z.Create("xl/worksheets/sheet1.xml")
	if err != nil {
		return err
	}
	if err := writeSheet(sheet, rows); err != nil {
		return err
	}
	return z.Close()
}

const spreadsheet = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"

func writeSheet(w io.Writer, rows [][]any) error {
	fmt.Fprintf(w, "%s<worksheet xmlns=%q><sheetData>", xml.Header, spreadsheet)
	for i, row := range rows {
		fmt.Fprintf(w, `<row r="%d">`, i+1)
		for j, v := range row {
			at := fmt.Sprintf("%c%d", 'A'+j, i+1)
			switch v := v.(type) {
			case int64:
				fmt.Fprintf(w, `<c r="%s"><v>%d</v></c>`, at, v)
			case string:
				fmt.Fprintf(w, `<c r="%s" t="inlineStr"><is><t xml:space="preserve">`, at)
				if err := xml.EscapeText(w, []byte(v)); err != nil {
					return err
				}
				fmt.Fprint(w, `</t></is></c>`)
			}
		}
		fmt.Fprint(w, "</row>")
	}
	_, err := io.WriteString(w, "</sheetData></worksheet>")
	return err
}
