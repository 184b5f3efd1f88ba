package dataset

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"unicode/utf8"
)

// Row is one row of a file. Its methods read a cell by the name of its column. The first failure is
// kept for Err, and all later calls return zero values.
type Row struct {
	file  string
	row   int64 // from 0, in the file
	line  int   // from 1, for files of lines; otherwise 0
	at    int64 // offset in the file, for tables; otherwise 0
	cells map[string]any
	err   error
}

// NewRow returns row number row of file. It begins at line, or 0 for files without lines. A cell is
// nil, a string, a bool, an int64, a float64, a json.Number, a []any or a map[string]any.
func NewRow(file string, row int64, line int, cells map[string]any) *Row {
	return &Row{file: file, row: row, line: line, cells: cells}
}

// Err returns the first error in a cell.
func (r *Row) Err() error { return r.err }

// Where names the row: its file and number.
func (r *Row) Where() string {
	if r.line > 0 {
		return fmt.Sprintf("%s: row %d (line %d)", r.file, r.row, r.line)
	}
	return fmt.Sprintf("%s: row %d", r.file, r.row)
}

// File returns the name of the row's file.
func (r *Row) File() string { return r.file }

// Row returns the row's number in its file, from 0.
func (r *Row) Row() int64 { return r.row }

// Fail records an error in a column.
func (r *Row) Fail(column, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s, column %q: %s", r.Where(), column, fmt.Sprintf(format, args...))
	}
}

// Has reports whether the column exists.
func (r *Row) Has(column string) bool { _, ok := r.cells[column]; return ok }

// Value returns the cell of a column, nil if it is null.
func (r *Row) Value(column string) any {
	v, ok := r.cells[column]
	if !ok {
		r.Fail(column, "missing")
	}
	return v
}

// Text returns a cell that holds a text.
func (r *Row) Text(column string) string {
	s, ok := r.Optional(column)
	if !ok && r.err == nil {
		r.Fail(column, "got null, want a text")
	}
	return s
}

// Optional returns a cell that holds a text or null; ok is false for null.
func (r *Row) Optional(column string) (s string, ok bool) {
	switch v := r.Value(column).(type) {
	case nil:
	case string:
		return r.utf8(column, v), true
	default:
		r.Fail(column, "got %s, want a text", kind(v))
	}
	return "", false
}

// Int returns a cell that holds a whole number, or its decimal digits.
func (r *Row) Int(column string) int64 {
	v := r.Value(column)
	if r.err != nil {
		return 0
	}
	n, ok := whole(v)
	if !ok {
		r.Fail(column, "got %s, want a whole number", show(v))
	}
	return n
}

// Bool returns a cell that holds a boolean.
func (r *Row) Bool(column string) bool {
	v, ok := r.Value(column).(bool)
	if !ok {
		r.Fail(column, "got %s, want true or false", show(r.cells[column]))
	}
	return v
}

// Key returns a cell that holds a text or a whole number, unchanged.
func (r *Row) Key(column string) any {
	switch v := r.Value(column).(type) {
	case string:
		return r.utf8(column, v)
	default:
		if n, ok := whole(v); ok {
			return n
		}
		r.Fail(column, "got %s, want a text or a whole number", show(v))
	}
	return nil
}

// Texts returns a cell that holds a list of texts, nil if it is null.
func (r *Row) Texts(column string) []string {
	v := r.Value(column)
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		r.Fail(column, "got %s, want a list of texts", kind(v))
		return nil
	}
	out := make([]string, len(list))
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			r.Fail(column, "item %d: got %s, want a text", i, kind(v))
		}
		out[i] = r.utf8(column, s)
	}
	return out
}

// List returns a cell that holds a list, each item as a row; nil if it is null.
func (r *Row) List(column string) []*Row {
	v := r.Value(column)
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		r.Fail(column, "got %s, want a list", kind(v))
		return nil
	}
	out := make([]*Row, len(list))
	for i, v := range list {
		cells, ok := v.(map[string]any)
		if !ok {
			r.Fail(column, "item %d: got %s, want an object", i, kind(v))
		}
		out[i] = NewRow(fmt.Sprintf("%s, column %q, item", r.Where(), column), int64(i), 0, cells)
	}
	return out
}

// Take keeps the first failure of rows that List returned.
func (r *Row) Take(rows []*Row) {
	for _, item := range rows {
		if r.err == nil {
			r.err = item.err
		}
	}
}

// Rest returns all cells but one as a text; it is equal for equal cells.
func (r *Row) Rest(but string) string {
	cells := maps.Clone(r.cells)
	delete(cells, but)
	data, err := json.Marshal(cells)
	if err != nil {
		r.Fail(but, "%v", err)
	}
	return string(data)
}

func (r *Row) utf8(column, s string) string {
	if !utf8.ValidString(s) {
		r.Fail(column, "is not UTF-8")
		return ""
	}
	return s
}

func whole(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case json.Number:
		n, err := strconv.ParseInt(v.String(), 10, 64)
		return n, err == nil
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

// kind names the type of a cell's value.
func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a text"
	case bool:
		return "a truth value"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a number"
}

// show is kind, followed by the value if it is short.
func show(v any) string {
	switch v := v.(type) {
	case string:
		if len(v) > 40 {
			v = string([]rune(v[:40])) + "…"
		}
		return strconv.Quote(v)
	case bool, int64, float64, json.Number:
		return fmt.Sprint(v)
	}
	return kind(v)
}
