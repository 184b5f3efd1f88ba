package dataset

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	got, err := collect(Lines(file(t, "q.jsonl", "\ufeff{\"a\": 1}\n\n {\"a\": \"é\"} \n")))
	if err != nil || strings.Join(got, " ") != `{"a":1} {"a":"é"}` {
		t.Errorf("%s %v", got, err)
	}
	for in, want := range map[string]string{
		"{}\n[1]":       "row 1 (line 2): want a JSON object",
		"{}\nnull":      "row 1 (line 2): want a JSON object, got null",
		"{} {}":         "row 0 (line 1): want one JSON object, got more after it",
		"{\"a\": 1":     "row 0 (line 1): want a JSON object",
		"{\"a\":\"\xff": "row 0 (line 1): is not UTF-8: got 0xff at byte 6",
		"{}\n{}\n\xff":  "row 2 (line 3): is not UTF-8: got 0xff at byte 6",
		"{\x00}\x00":    "row 0 (line 1): is not text: got a zero byte at byte 1, as in UTF-16",
	} {
		if _, err := collect(Lines(file(t, "q.jsonl", in))); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func TestArray(t *testing.T) {
	got, err := collect(Array(file(t, "q.json",
		"\ufeff"+`{"info": {"data": [1]}, "data": [{"a": 1}, {"b": [2]}], "x": 3}`), "data"))
	if err != nil || strings.Join(got, " ") != `{"a":1} {"b":[2]}` {
		t.Errorf("%s %v", got, err)
	}
	got, err = collect(Array(file(t, "q.json", ` [{"a": 1}] `), ""))
	if err != nil || strings.Join(got, " ") != `{"a":1}` {
		t.Errorf("%s %v", got, err)
	}
	for in, want := range map[string]string{
		`{"a": []}`:              `column "data": missing`,
		`[1]`:                    `want a JSON object with "data", got [`,
		`{"data": {}}`:           "want a JSON array, got {",
		`{"data": [{}, 1]}`:      "row 1: want a JSON object",
		`{"data": [{"a": 1}`:     "unexpected EOF",
		"{\"data\": [{\"\xfe\":": "is not UTF-8: got 0xfe at byte 12",
		"\xfe\xff\x00{":          "is UTF-16",
		``:                       "not JSON",
	} {
		if _, err := collect(Array(file(t, "q.json", in), "data")); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// Ensure that a document must end where its file does, as in Python: files that were joined by
// accident would lose the second half.
func TestMoreThanOneDocument(t *testing.T) {
	for text, want := range map[string]string{
		`[{"a":1}] [{"a":2}]`:           "want one JSON document, got more after it",
		`[{"a":1}] x`:                   "want one JSON document, got more after it",
		`{"q":[{"a":1}],"r":{"s":[1]}}`: "<nil>",
		`{"q":[{"a":1}],"r":2} {}`:      "want one JSON document, got more after it",
		`{"q":[{"a":1}],"r":{"s":`:      "unexpected EOF",
		`{"q":[{"a":1}]`:                "unexpected EOF",
		"[{\"a\":1}]\n\n":               "<nil>",
	} {
		member := ""
		if text[0] == '{' {
			member = "q"
		}
		got, err := collect(Array(file(t, "q.json", text), member))
		if len(got) != 1 || !strings.HasSuffix(fmt.Sprint(err), want) {
			t.Errorf("%s: %d rows, %v, want one and %s", text, len(got), err, want)
		}
	}
}

// Ensure that a row has limits, and that rows before and after a long one are read.
func TestRowLimits(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	got, err := collect(Array(file(t, "q.json", `[{"a":"`+long+`"},{"a":"`+long+`"},{"b":1}]`), ""))
	if err != nil || len(got) != 3 || got[2] != `{"b":1}` {
		t.Errorf("long rows: got %d rows, %v", len(got), err)
	}
	most := `{"a":[` + strings.Repeat("0,", maxValues-3) + `0],"b":"[{,\",[{,"}`
	if _, err := collect(Lines(file(t, "q.jsonl", most))); err != nil {
		t.Errorf("the most values: %v", err)
	}
	many := `{"a":[` + strings.Repeat("0,", maxValues) + `0]}`
	for want, read := range map[string]func() ([]string, error){
		"row 0 (line 1): more than 1048576 values": func() ([]string, error) {
			return collect(Lines(file(t, "q.jsonl", many)))
		},
		"row 1: more than 1048576 values": func() ([]string, error) {
			return collect(Array(file(t, "q.json", "[{},"+many+"]"), ""))
		},
	} {
		if _, err := read(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	in := &bounded{in: strings.NewReader("12345"), left: 4}
	if got, err := io.ReadAll(in); string(got) != "1234" || err == nil {
		t.Errorf("got %q, %v, want four bytes and an error", got, err)
	}
}

func TestObject(t *testing.T) {
	var names []string
	for m, err := range Object(file(t, "q.json", `{"b": {"x": 1}, "a": {"x": 2}}`)) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, m.Name)
		if m.Int("x") == 0 || m.Err() != nil {
			t.Error(m.Err())
		}
	}
	if strings.Join(names, " ") != "b a" {
		t.Error(names)
	}
}

// Ensure that an error in a cell names file, row and column.
func TestRow(t *testing.T) {
	cells := map[string]any{"n": nil, "s": "x", "d": "12", "l": []any{"a", 1.0}, "bad": "\xff"}
	for want, read := range map[string]func(*Row){
		`f: row 3 (line 7), column "none": missing`:                        func(r *Row) { r.Text("none") },
		`f: row 3 (line 7), column "n": got null, want a text`:             func(r *Row) { r.Text("n") },
		`f: row 3 (line 7), column "l": got a list, want a text`:           func(r *Row) { r.Text("l") },
		`f: row 3 (line 7), column "s": got "x", want a whole number`:      func(r *Row) { r.Int("s") },
		`f: row 3 (line 7), column "l": item 1: got a number, want a text`: func(r *Row) { r.Texts("l") },
		`f: row 3 (line 7), column "s": got "x", want true or false`:       func(r *Row) { r.Bool("s") },
		`f: row 3 (line 7), column "bad": is not UTF-8`:                    func(r *Row) { r.Text("bad") },
		`f: row 3 (line 7), column "l": item 0: got a text, want an object`: func(r *Row) {
			r.List("l")
		},
	} {
		r := NewRow("f", 3, 7, cells)
		if read(r); r.Err() == nil || r.Err().Error() != want {
			t.Errorf("got %v, want %s", r.Err(), want)
		}
	}
	r := NewRow("f", 3, 7, cells)
	if r.Int("d") != 12 || r.Key("d") != "12" || r.Err() != nil {
		t.Errorf("digits: %v", r.Err())
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"data": [{"a": 1}, {"b": [2, {"c": null}]}]}`)
	f.Add("{\"a\":\"x\"}\n{\"a\":2}")
	f.Add(`{"data":[{"a":"\\"[{,"},` + strings.Repeat("[", 9) + strings.Repeat("]", 9) + `]}`)
	f.Fuzz(func(t *testing.T, text string) {
		path := file(t, "q.json", text)
		_, _ = collect(Lines(path))
		_, _ = collect(Array(path, "data"))
		_, _ = collect(Array(path, ""))
		for _, err := range Object(path) {
			if err != nil {
				break
			}
		}
	})
}
