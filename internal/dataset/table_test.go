package dataset

import (
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// file writes a file for a test.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// collect returns the rows' cells as JSON, and the error that ended them.
func collect(rows iter.Seq2[*Row, error]) (out []string, err error) {
	for r, err := range rows {
		if err != nil {
			return out, err
		}
		b, err := json.Marshal(r.cells)
		if err != nil {
			return out, err
		}
		out = append(out, string(b))
	}
	return out, nil
}

// Ensure that tables are read as pandas 3.1.1 reads them.
func TestTable(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain":              {"a\tb\n1\tx\n", `{"a":"1","b":"x"}`},
		"no end of line":     {"a\tb\n1\tx", `{"a":"1","b":"x"}`},
		"mark of UTF-8":      {"\ufeffa\tb\n1\tx", `{"a":"1","b":"x"}`},
		"absent":             {"a\tb\n\tNA\nnan\tnull", `{"a":null,"b":null} {"a":null,"b":null}`},
		"absent, quoted":     {"a\tb\n\"\"\t\"None\"", `{"a":null,"b":null}`},
		"not absent":         {"a\tb\nnone\tNone ", `{"a":"none","b":"None "}`},
		"quoted":             {"a\tb\n\"x\ty\n\"\"z\"\"\"\tq", `{"a":"x\ty\n\"z\"","b":"q"}`},
		"quote inside":       {"a\tb\nx\"y\tz", `{"a":"x\"y","b":"z"}`},
		"text after a quote": {"a\tb\n\"x\"y\"\tz", `{"a":"xy\"","b":"z"}`},
		"space before":       {"a\tb\n \"x\"\tz", `{"a":" \"x\"","b":"z"}`},
		"blank lines":        {"a\tb\n\n  \n1\t2\n\n", `{"a":"1","b":"2"}`},
		"carriage returns":   {"a\tb\r\n1\t2\r3\t4\r\n", `{"a":"1","b":"2"} {"a":"3","b":"4"}`},
		"returns in quotes":  {"a\tb\n\"x\r\ny\rz\"\t2", `{"a":"x\r\ny\rz","b":"2"}`},
		"short line":         {"a\tb\n1", `{"a":"1","b":null}`},
		"backslash n":        {"a\tb\nx\\ny\t2", `{"a":"x\\ny","b":"2"}`},
	} {
		got, err := collect(Table(file(t, "t.tsv", c.in)))
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s %v, want %s", name, got, err, c.want)
		}
	}
	for name, c := range map[string]struct{ in, want string }{
		"empty":        {"", "line 1: holds no header"},
		"long line":    {"a\tb\n1\t2\n1\t2\t3", "row 1 (line 3): got 3 cells, want at most the header's 2"},
		"open quote":   {"a\tb\n\"x\t1\n", "row 0 (line 2): a quoted cell has no end"},
		"long, quoted": {"a\n\"x\ny\"\t2", "row 0 (line 2): got 2 cells"},
		"UTF-16":       {"\xff\xfea\x00", "line 1: is UTF-16: got the byte-order mark FF FE"},
		"not UTF-8":    {"\ufeffa\n1\ncaf\xe9\n", "row 1 (line 3): is not UTF-8: got 0xe9 at byte 10"},
	} {
		_, err := collect(Table(file(t, "t.tsv", c.in)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Ensure that a cell can be read again.
func TestCell(t *testing.T) {
	for _, mark := range []string{"", "\ufeff"} {
		path := file(t, "t.tsv", mark+"a\tb\n\n\"x\ny\"\tp\n  \n2\tq\n")
		var again []func() (string, error)
		for r, err := range Table(path) {
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, r.Cell("b"))
		}
		for i, want := range []string{"p", "q"} {
			if got, err := again[i](); got != want || err != nil {
				t.Errorf("mark %q, row %d: %q %v, want %q", mark, i, got, err, want)
			}
		}
	}
}

func FuzzTable(f *testing.F) {
	f.Add("a\tb\n\"x\ty\n\"\"z\"\"\"\tq\r\n\n 1")
	f.Fuzz(func(t *testing.T, text string) {
		for r, err := range Table(file(t, "t.tsv", text)) {
			if err != nil {
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("more than a line: %q", err)
				}
				return
			}
			for name := range r.cells {
				r.Optional(name)
			}
		}
	})
}
