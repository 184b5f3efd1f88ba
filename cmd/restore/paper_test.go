package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPaper(t *testing.T) {
	dir := t.TempDir()
	records := "--records=" + filepath.Join(dir, "records")
	r := cli("paper", "table", "8", records)
	if r.code != exitOK || !strings.Contains(r.out, "1.359") || r.err != "" {
		t.Fatalf("%+v", r)
	}
	r = cli("paper", "table", "18", "--n=1", records, "--json")
	var page struct {
		Item, Model, Data string
		Scenes            bool
		Columns           []struct{ Name string }
		Rows              [][]any
	}
	if err := json.Unmarshal([]byte(r.out), &page); err != nil || r.code != exitOK ||
		page.Item != "table 18" || page.Data != "1 drawn scenes" || !page.Scenes ||
		len(page.Rows) != 4 || len(page.Rows[0]) != len(page.Columns) {
		t.Fatalf("%v: %+v", err, r)
	}
	for name, begins := range map[string]string{"t.tex": `\begin{table}`, "t.md": "**Table",
		"t.csv": "part,method", "t.svg": "<svg ", "t.txt": "Table 18"} {
		file := filepath.Join(dir, name)
		if r := cli("paper", "table", "18", "--n=1", records, "--out", file); r.code != exitOK ||
			r.out != "" {
			t.Errorf("%s: %+v", name, r)
		}
		if data, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(data), begins) {
			t.Errorf("%s begins with %.20q, %v, want %q", name, data, err, begins)
		}
	}
	r = cli("paper", "figure", "3", "--format", "csv", records)
	if r.code != exitOK || !strings.HasPrefix(r.out, "part,distance,D,log(c - D)\n,0,1,0\n") {
		t.Errorf("%+v", r)
	}
	r = cli("paper", "figure", "2", "--n=1", "--out", filepath.Join(dir, "f.svg"), records)
	if data, err := os.ReadFile(filepath.Join(dir, "f.svg")); err != nil || r.code != exitOK ||
		!strings.Contains(string(data), "drawn scenes") {
		t.Errorf("%v: %+v", err, r)
	}

	r = cli("paper", "list", "--n=1", records, "--json")
	var list struct {
		Items []paperLine
	}
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Items) != 24 {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, x := range list.Items {
		switch x.Item {
		case "table 18":
			if x.Runs != 12 || x.Done != 12 || x.Seconds != 0 || x.Benchmarks <= 0 {
				t.Errorf("%+v, want it on record", x)
			}
		case "table 1":
			if x.Runs != 34 || x.Seconds <= 0 || len(x.Needs) != 8 || len(x.Missing) != 3 {
				t.Errorf("%+v, want 34 runs, 3 of them not possible", x)
			}
		}
	}
}

func TestPaperAsks(t *testing.T) {
	records := "--records=" + t.TempDir()
	args := []string{"paper", "table", "11", "--data", benchData + "llava", "--limit=1", records}
	r := cli(args...)
	if r.code != exitUsage || !strings.Contains(r.err, "24 of 24 runs are open, about ") ||
		!strings.Contains(r.err, "restore: --yes: missing, want it where nobody can be asked") {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct{ want, args string }{
		{"want the number of a table", "paper table"},
		{"want the number of a table", "paper table one"},
		{"want 1 to 20", "paper table 21"},
		{"measures nothing", "paper figure 1"},
		{"--format: got \"gif\"", "paper table 8 --format gif"},
		{"--json and --format", "paper table 8 --json --format csv"},
		{"--n: has no use with --data .", "paper table 8 --data . --n 3"},
		{"--limit: has no use with --data scenes", "paper table 8 --limit 3"},
		{"--n: out of range", "paper table 8 --n 0"},
		{"--protocol: has no use", "paper table 8 --protocol lmms"},
		{"--protocol: got \"x\"", "paper table 8 --data . --protocol x"},
		{"--parallel: out of range", "paper list --parallel 0"},
		{"no such file", "paper table 11 --data not/there --yes"},
	} {
		r := cli(append(strings.Fields(c.args), records)...)
		if r.code == exitOK || r.out != "" || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
	}
}
