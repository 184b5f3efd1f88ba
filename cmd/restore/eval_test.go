package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Ensure that all methods are compared over the same pictures in every form, with a plot, and that flags without use are named.
func TestEvalAll(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "m.svg")
	r := cli("eval", "scenes", "--all", "--n", "1", "--n-vis", "128", "--format", "json", "--plot", plot)
	var j struct {
		Rows []struct {
			Base    string
			Restore bool
			Keeps   float64
			Over    map[string]any
		}
		Refused []struct{ Base, Reason string }
	}
	if err := json.Unmarshal([]byte(r.out), &j); r.code != exitOK || err != nil || r.err != "" || len(j.Rows) < 28 {
		t.Fatalf("exit %d, %v, stderr %q, %q", r.code, err, r.err, r.out)
	}
	seen := map[string]int{}
	for _, row := range j.Rows {
		seen[row.Base]++
		if row.Over["unreduced"] == nil || row.Restore && row.Over["plain"] == nil {
			t.Errorf("%+v", row)
		}
	}
	for _, refused := range j.Refused {
		seen[refused.Base]++
	}
	for _, name := range methodNames()[1:] {
		if seen[name] != 2 {
			t.Errorf("%s: %d rows, want 2", name, seen[name])
		}
	}
	b, err := os.ReadFile(plot)
	if err != nil || !strings.Contains(string(b), "+ RESTORE") || !strings.Contains(string(b), "divprune") {
		t.Errorf("plot: %v", err)
	}
	for want, args := range map[string][]string{
		"--n-vis: several budgets, got 64,32, want one, or --all":    {"--n-vis", "64,32"},
		"--plot: has no use for one method":                          {"--plot", "a.svg"},
		"--format: has no such form for one method, got csv":         {"--format", "csv"},
		`--format: got "xml", want table|markdown|csv|json`:          {"--format", "xml"},
		"--json and --format: both given, got csv":                   {"--json", "--format", "csv"},
		"--base: has no use beside --all, got grid":                  {"--all", "--base", "grid"},
		"--gamma: has no use beside --all, got 0.2":                  {"--all", "--gamma", "0.2"},
		"--n-vis: out of range, got 577, want at most the 576":       {"--all", "--n-vis", "577"},
		`--plot: got "a.gif", want a name that ends in .svg or .png`: {"--all", "--plot", "a.gif"},
		`--n-vis: cannot be used, got "64,x", want whole numbers`:    {"--n-vis", "64,x"},
		`--n-vis: cannot be used, got "64,64", want whole numbers`:   {"--n-vis", "64,64"},
	} {
		if r := cli(append([]string{"eval", "scenes", "--n", "1"}, args...)...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.code, r.err, want)
		}
	}
}

// Budgets as users type them: a list that is taken reads back as it was meant.
func FuzzBudgets(f *testing.F) {
	for _, s := range []string{"64", "192,128, 64", "", ",", "64,64", "1e3", "-1", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b := &budgetsFlag{new(evalOptions)}
		if b.Set(text) != nil {
			return
		}
		again := &budgetsFlag{new(evalOptions)}
		if err := again.Set(b.String()); err != nil || !slices.Equal(again.o.nVis, b.o.nVis) || len(b.o.nVis) > maxBudgets || b.o.reduction.o.NVis != b.o.nVis[0] {
			t.Errorf("%q: %v, %v, then %v", text, b.o.nVis, err, again.o.nVis)
		}
	})
}
