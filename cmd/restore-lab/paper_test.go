package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

func TestPaper(t *testing.T) {
	dir := t.TempDir()
	records := "--records=" + filepath.Join(dir, "records")
	r := commandLine("paper", "table", "8", records)
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "1.359") || r.Err != "" {
		t.Fatalf("%+v", r)
	}
	r = commandLine("paper", "table", "18", "--n=1", records, "--json")
	var page struct {
		Item, Model, Data string
		Scenes            bool
		Columns           []struct{ Name string }
		Rows              [][]any
	}
	if err := json.Unmarshal([]byte(r.Out), &page); err != nil || r.Code != cli.ExitOK ||
		page.Item != "table 18" || page.Data != "1 drawn scenes" || !page.Scenes ||
		len(page.Rows) != 4 || len(page.Rows[0]) != len(page.Columns) {
		t.Fatalf("%v: %+v", err, r)
	}
	for name, begins := range map[string]string{"t.tex": `\begin{table}`, "t.md": "**Table",
		"t.csv": "part,method", "t.svg": "<svg ", "t.txt": "Table 18"} {
		file := filepath.Join(dir, name)
		if r := commandLine("paper", "table", "18", "--n=1", records, "--out",
			file); r.Code != cli.ExitOK ||
			r.Out != "" {
			t.Errorf("%s: %+v", name, r)
		}
		if data, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(data), begins) {
			t.Errorf("%s begins with %.20q, %v, want %q", name, data, err, begins)
		}
	}
	r = commandLine("paper", "figure", "3", "--format", "csv", records)
	if r.Code != cli.ExitOK || !strings.HasPrefix(r.Out, "part,distance,D,log(c - D)\n,0,1,0\n") {
		t.Errorf("%+v", r)
	}
	r = commandLine("paper", "figure", "2", "--n=1", "--out", filepath.Join(dir, "f.svg"), records)
	if data, err := os.ReadFile(filepath.Join(dir, "f.svg")); err != nil || r.Code != cli.ExitOK ||
		!strings.Contains(string(data), "drawn scenes") {
		t.Errorf("%v: %+v", err, r)
	}

	r = commandLine("paper", "list", "--n=1", records, "--json")
	var list struct {
		Items []paperLine
	}
	if err := json.Unmarshal([]byte(r.Out), &list); err != nil || len(list.Items) != 24 {
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

// Ensure that a table shares the runs of `eval`, the unreduced one and the reduced ones.
func TestPaperSharesRuns(t *testing.T) {
	data, err := filepath.Abs(benchData + "hub")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	asked := []string{"--data", data, "--limit=2"}
	for _, flags := range []string{
		"", "--base=holov --n-vis=64 --restore=false --positions=sequential",
	} {
		args := slices.Concat([]string{"eval", "gqa"}, asked, strings.Fields(flags))
		if r := commandLine(args...); r.Code != cli.ExitOK {
			t.Fatalf("%+v", r)
		}
	}
	r := commandLine(append([]string{"paper", "list", "--json"}, asked...)...)
	var list struct {
		Items []paperLine
	}
	if err := json.Unmarshal([]byte(r.Out), &list); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, x := range list.Items {
		if x.Item == "table 9" && x.Done != 2 {
			t.Errorf("%d runs of %s are on record, want 2", x.Done, x.Item)
		}
	}
}

// Ensure that the times of the paper's benchmarks can be known without a model's files.
func TestPaperListOfShape(t *testing.T) {
	r := commandLine("paper", "list", "--n=1", "--records="+t.TempDir(), "--json",
		"--shape", wordyShape(t))
	var list struct {
		Model string
		Items []paperLine
	}
	if err := json.Unmarshal([]byte(r.Out), &list); err != nil || len(list.Items) != 24 {
		t.Fatalf("%v: %+v", err, r)
	}
	var seconds float64 // all but the unreduced runs need more tokens than the shape has
	for _, x := range list.Items {
		seconds += x.Benchmarks
	}
	if !strings.HasSuffix(list.Model, "config.json") || seconds <= 0 {
		t.Errorf("%s: %v s: %+v", list.Model, seconds, list.Items)
	}
}

func TestPaperAsks(t *testing.T) {
	records := "--records=" + t.TempDir()
	args := []string{"paper", "table", "11", "--data", benchData + "llava", "--limit=1", records}
	r := commandLine(args...)
	if r.Code != cli.ExitUsage || !strings.Contains(r.Err, "24 of 24 runs are open, about ") ||
		!strings.Contains(r.Err, "restore-lab: --yes: missing, want it where nobody can be asked") {
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
		{"restore-lab: not/there: no such file or folder\n", "paper table 11 --data not/there --yes"},
	} {
		r := commandLine(append(strings.Fields(c.args), records)...)
		if r.Code == cli.ExitOK || r.Out != "" || !strings.Contains(r.Err, c.want) {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
	}
}
