package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that a benchmark answered by workers has the answers of one machine.
func TestFleetEval(t *testing.T) {
	url, _, _ := tested.Fleet(t, 2)
	read := func(more ...string) string {
		dir := t.TempDir()
		args := append(
			[]string{
				"eval",
				"pope",
				"--data",
				benchData + "hub",
				"--base",
				"holov",
				"--n-vis",
				"64",
				"--limit",
				"6",
				"--records",
				dir,
				"--json",
			},
			more...)
		r := commandLine(args...)
		if r.Code != cli.ExitOK {
			t.Fatalf("%v: exit %d, %s", args, r.Code, r.Err)
		}
		var out struct {
			Metrics any
			Scores  any
		}
		if err := json.Unmarshal([]byte(r.Out), &out); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if one, many := read(), read("--nats", url); one != many {
		t.Errorf("one machine:\n%s\nworkers:\n%s", one, many)
	}
}

// Ensure that an unreduced run of workers has the name of a local one: they share their answers.
func TestFleetShares(t *testing.T) {
	url, _, _ := tested.Fleet(t, 1)
	names := map[string]bool{}
	for _, more := range [][]string{nil, {"--nats", url}} {
		dir := t.TempDir()
		args := []string{
			"eval", "pope", "--data", benchData + "hub", "--limit", "2", "--records", dir,
		}
		if r := commandLine(append(args, more...)...); r.Code != cli.ExitOK {
			t.Fatalf("%v: %+v", more, r)
		}
		records, err := eval.ReadRecords(dir)
		if err != nil {
			t.Fatal(err)
		}
		names[records.Hash] = true
	}
	if len(names) != 1 {
		t.Errorf("got the names %v, want one", names)
	}
}

// Ensure that drawn scenes answered by workers have the answers of one machine, and that options
// that workers cannot honour are refused.
func TestFleetScenes(t *testing.T) {
	url, _, _ := tested.Fleet(t, 2)
	read := func(more ...string) string {
		t.Helper()
		args := append([]string{"eval", "scenes", "--n", "4", "--n-vis", "32", "--json"}, more...)
		r := commandLine(args...)
		var out map[string]any
		if err := json.Unmarshal([]byte(r.Out), &out); r.Code != cli.ExitOK || err != nil {
			t.Fatalf("%v: exit %d, %v, %s", args, r.Code, err, r.Err)
		}
		delete(out, "setup")
		data, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	one, many := read(), read("--nats", url)
	if one != many {
		t.Errorf("one machine:\n%s\nworkers:\n%s", one, many)
	}
	if !strings.Contains(many, `"pictures":4`) {
		t.Errorf("got %s, want 4 pictures", many)
	}
	for _, more := range [][]string{
		{"--all"}, {"--distance"}, {"--variant", "{}"}, {"--quant", "q8"},
		{"--fitprune-recipe", os.DevNull}, {"--budget-file", os.DevNull},
	} {
		args := append([]string{"eval", "scenes", "--n", "1", "--nats", url}, more...)
		if r := commandLine(args...); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, more[0]+": ") {
			t.Errorf("%v: exit %d, %s", args, r.Code, r.Err)
		}
	}
}
