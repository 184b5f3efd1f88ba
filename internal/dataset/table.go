package dataset

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
)

// maxCell is the most bytes of a cell: a picture in base64.
const maxCell = 256 << 20

// maxColumns is the most columns of a table.
const maxColumns = 1024

// Table yields the rows of a tab-separated file by the rules of pandas' read_table. A cell that
// begins with a quotation mark ends with one, and may hold tabs, line ends and doubled marks. Empty
// lines are skipped. A cell that is empty or stands for a missing value (see Absent) is null, and
// so are missing cells at the end of a line. All others are texts.
func Table(path string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		t := newTable(f)
		header, line, err := t.record()
		if err == io.EOF {
			err = errors.New("holds no header")
		}
		if err != nil {
			yield(nil, fmt.Errorf("%s: line %d: %w", path, line, err))
			return
		}
		for row := int64(0); ; row++ {
			at := t.at
			record, line, err := t.record()
			if err == io.EOF {
				return
			}
			if err == nil && len(record) > len(header) {
				err = fmt.Errorf("got %d cells, want at most the header's %d", len(record),
					len(header))
			}
			if err != nil {
				yield(nil, fmt.Errorf("%s: row %d (line %d): %w", path, row, line, err))
				return
			}
			cells := make(map[string]any, len(header))
			for i, name := range header {
				cells[name] = nil
				if i < len(record) && !Absent(record[i]) {
					cells[name] = record[i]
				}
			}
			r := NewRow(path, row, line, cells)
			r.at = at
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Cell returns a function that reads one cell of a table's row again, so that a picture need not be
// held in memory.
func (r *Row) Cell(column string) func() (string, error) {
	again := &Row{file: r.file, row: r.row, line: r.line, at: r.at}
	return func() (string, error) {
		f, err := os.Open(again.file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		header, _, err := newTable(f).record()
		if err != nil {
			return "", fmt.Errorf("%s: %w", again.file, err)
		}
		if _, err := f.Seek(again.at, io.SeekStart); err != nil {
			return "", err
		}
		record, _, err := (&table{in: bufio.NewReaderSize(f, 1<<16)}).record()
		if err != nil {
			return "", fmt.Errorf("%s: %w", again.Where(), err)
		}
		i := slices.Index(header, column)
		if i < 0 || i >= len(record) {
			return "", fmt.Errorf("%s, column %q: missing", again.Where(), column)
		}
		return record[i], nil
	}
}

// Absent reports whether pandas reads a cell as a missing value.
func Absent(cell string) bool {
	switch cell {
	case "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
		"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null":
		return true
	}
	return false
}

type table struct {
	in   *bufio.Reader
	line int   // of the next byte
	at   int64 // the next byte
}

// newTable reads from the beginning of a file.
func newTable(f io.Reader) *table {
	text := files.NewTextReader(f)
	return &table{in: bufio.NewReaderSize(text, 1<<16), line: 1, at: text.Marked()}
}

// record returns the cells of the next line that is not empty, and the number of its first line.
func (t *table) record() (cells []string, line int, err error) {
	l := new(tableLine)
	for line = t.line; ; {
		c, err := t.in.ReadByte()
		switch {
		case err == io.EOF && l.open():
			return nil, line, errors.New("a quoted cell has no end")
		case err == io.EOF && l.text:
			l.endCell()
			return l.cells, line, nil
		case err != nil:
			return nil, line, err
		}
		t.at++
		if c == '\r' && !l.open() { // alone or before \n, it ends a line
			if next, err := t.in.Peek(1); err == nil && next[0] == '\n' {
				t.in.Discard(1)
				t.at++
			}
			c = '\n'
		}
		if c == '\n' {
			t.line++
		}
		if l.cell.Len() >= maxCell {
			return nil, line, fmt.Errorf("a cell of more than %d bytes", maxCell)
		}
		if c != '\n' || l.open() {
			l.add(c)
			if len(l.cells) >= maxColumns {
				return nil, line, fmt.Errorf("more than %d cells", maxColumns)
			}
			continue
		}
		if l.text {
			l.endCell()
			return l.cells, line, nil
		}
		l, line = new(tableLine), t.line
	}
}

// tableLine is a line as far as it was read.
type tableLine struct {
	cells          []string
	cell           strings.Builder
	begun          bool // the cell has a byte
	quoted, closed bool // the cell begins with a quotation mark; another may be its end
	text           bool // the line holds more than spaces
}

// open reports whether the line ends inside a quoted cell.
func (l *tableLine) open() bool { return l.quoted && !l.closed }

// endCell ends the cell.
func (l *tableLine) endCell() {
	l.cells = append(l.cells, l.cell.String())
	l.cell.Reset()
	l.begun, l.quoted, l.closed = false, false, false
}

// add adds a byte that does not end the line.
func (l *tableLine) add(c byte) {
	switch {
	case c == '"' && l.open():
		l.closed = true
		return
	case c == '"' && l.quoted: // doubled
		l.closed = false
	case l.open():
	case c == '\t':
		l.endCell()
		l.text = true
		return
	case c == '"' && !l.begun:
		l.quoted, l.begun, l.text = true, true, true
		return
	default:
		l.quoted = false
		l.begun = true
		l.text = l.text || c != ' '
	}
	l.cell.WriteByte(c)
}
