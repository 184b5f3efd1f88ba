package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that budgets are found on the pictures of a folder, that a request uses them within bounds
// and its report says why, and that the embedded model has its own budgets.
func TestBudget(t *testing.T) {
	dir := t.TempDir()
	for i, seed := range []int{3, 5, 8} {
		data, err := os.ReadFile(drawn(t, int64(seed)))
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, string(rune('a'+i))+".png")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("of no use"),
		0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b.json")
	r := cli("budget", "--images", dir, "--mean", "16,24", "-o", file)
	if r.code != exitOK || !strings.Contains(r.out, "b.json: builtin, 3 pictures, "+dir) ||
		!strings.Contains(r.out, "auto:24  24") ||
		!strings.Contains(r.err, "skipped 1 files that are not pictures") {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	made, err := os.ReadFile(file)
	if r := cli("budget", "--images", dir, "--mean", "16,24"); err != nil || r.out != string(made) {
		t.Errorf("stdout %q, %v, want %q", r.out, err, made)
	}
	ask := []string{"run", "--image", drawn(t, numberSeed), "-p", number}
	for want, args := range map[string][]string{
		"(auto:24: ":           {"--n-vis", "auto:24", "--budget-file", file},
		"(auto:64: ":           {"--base", "dart", "--n-vis", "auto:64"},
		"n-vis 32 (guard: not": {"--n-vis", "32", "--guard"},
		"; guard: ":            {"--n-vis", "auto:32", "--guard"},
		"fastv, schedule ":     {"--base", "fastv", "--n-vis", "auto:192"},
		"picture 2":            {"--image", drawn(t, 5), "--n-vis", "auto:32"},
		" merged, auto:32: ":   {"--image", drawn(t, 5), "--n-vis", "auto:32"},
		// a --guard from the environment is ignored
		"grid, n-vis 64, posi":   {"--base", "grid", "--restore=false"},
		"holov, n-vis 64, gamma": nil,
	} {
		if r := cli(append(ask, args...)...); r.code != exitOK || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stdout %q, stderr %q, want %q", args, r.code, r.out, r.err, want)
		}
	}
	r = cli(append(ask, "--n-vis", "auto:32", "--json")...)
	if !strings.Contains(r.out, `"content":{"mean":32,"threshold":0.1`) {
		t.Errorf("JSON: got %q, %q", r.out, r.err)
	}
	if r := cli("eval", "scenes", "--n", "1", "--base", "grid", "--n-vis",
		"auto:32"); r.code != exitOK {
		t.Errorf("eval: exit %d, %q", r.code, r.err)
	}
}

func TestBudgetRefusals(t *testing.T) {
	empty := t.TempDir()
	for name, c := range map[string]struct {
		args string
		want string
	}{
		"mean":   {"budget --mean 0", "--mean: got 0, want at least 1"},
		"n":      {"budget --n -1", "--n: out of range, got -1"},
		"more":   {"budget --n 5 --images " + filepath.Dir(drawn(t, 3)), "--n: got 5, want at most the 1 pictures"},
		"folder": {"budget --images " + empty, empty + ": no pictures, want PNG"},
		"file":   {"budget --images " + empty + "/none", "no such file or folder"},
		"text":   {"run --n-vis auto:x", "--n-vis: got \"auto:x\", want a whole number of at least 1 after"},
		"known":  {"run -p x --n-vis auto:9 --image " + drawn(t, 3), "--n-vis: got auto:9, want a budget among 16,32,64"},
		"all":    {"eval scenes --all --n-vis auto:32", "--n-vis: got auto:32, want numbers with --all"},
		"useless": {"run -p x --budget-file " + filepath.Join("..", "..", "internal", "builtin", "checkpoint",
			"budget.json") + " --image " + drawn(t, 3), "--budget-file: got a file, which has no effect without"},
	} {
		r := cli(strings.Fields(c.args)...)
		if r.code == exitOK || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: exit %d, %q, want %q", name, r.code, r.err, c.want)
		}
	}
}
