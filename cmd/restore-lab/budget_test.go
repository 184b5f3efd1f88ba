package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that budgets are found on the pictures of a folder, that a request uses them within bounds
// and its report says why, and that the embedded model has its own budgets.
func TestBudget(t *testing.T) {
	dir := t.TempDir()
	for i, seed := range []int{3, 5, 8} {
		data, err := os.ReadFile(clitest.Drawn(t, int64(seed)))
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
	r := commandLine("budget", "--images", dir, "--mean", "16,24", "-o", file)
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "b.json: builtin, 3 pictures, "+dir) ||
		!strings.Contains(r.Out, "auto:24  24") ||
		!strings.Contains(r.Err, "skipped 1 file without a picture") {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	made, err := os.ReadFile(file)
	if r := commandLine("budget", "--images", dir, "--mean", "16,24"); err != nil ||
		r.Out != string(made) {
		t.Errorf("stdout %q, %v, want %q", r.Out, err, made)
	}
	ask := []string{"run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p", clitest.Number}
	for want, args := range map[string][]string{
		"(auto:24: ":           {"--n-vis", "auto:24", "--budget-file", file},
		"(auto:64: ":           {"--base", "dart", "--n-vis", "auto:64"},
		"n-vis 32 (guard: not": {"--n-vis", "32", "--guard"},
		"; guard: ":            {"--n-vis", "auto:32", "--guard"},
		"fastv, schedule ":     {"--base", "fastv", "--n-vis", "auto:192"},
		"picture 2":            {"--image", clitest.Drawn(t, 5), "--n-vis", "auto:32"},
		" merged, auto:32: ":   {"--image", clitest.Drawn(t, 5), "--n-vis", "auto:32"},
		// a --guard from the environment is ignored
		"grid, n-vis 64, posi":   {"--base", "grid", "--restore=false"},
		"holov, n-vis 64, gamma": nil,
	} {
		r := commandLine(append(append(ask, "--verbose"), args...)...)
		if r.Code != cli.ExitOK || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stdout %q, stderr %q, want %q", args, r.Code, r.Out, r.Err, want)
		}
	}
	r = commandLine(append(ask, "--n-vis", "auto:32", "--json")...)
	if !strings.Contains(r.Out, `"content":{"mean":32,"threshold":0.1`) {
		t.Errorf("JSON: got %q, %q", r.Out, r.Err)
	}
	if r := commandLine("eval", "scenes", "--n", "1", "--base", "grid", "--n-vis",
		"auto:32"); r.Code != cli.ExitOK {
		t.Errorf("eval: exit %d, %q", r.Code, r.Err)
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
		"more":   {"budget --n 5 --images " + filepath.Dir(clitest.Drawn(t, 3)), "--n: got 5, want at most the 1 pictures"},
		"folder": {"budget --images " + empty, empty + ": no pictures, want PNG"},
		"file":   {"budget --images " + empty + "/none", "no such file or folder"},
		"text":   {"run --n-vis auto:x", "--n-vis: got \"auto:x\", want a whole number of at least 1 after"},
		"known":  {"run -p x --n-vis auto:9 --image " + clitest.Drawn(t, 3), "--n-vis: got auto:9, want a budget among 16,32,64"},
		"all":    {"eval scenes --all --n-vis auto:32", "--n-vis: got auto:32, want numbers with --all"},
		"useless": {"run -p x --budget-file " + filepath.Join("..", "..", "internal", "builtin", "checkpoint",
			"budget.json") + " --image " + clitest.Drawn(t, 3), "--budget-file: got a file, which has no effect without"},
	} {
		r := commandLine(strings.Fields(c.args)...)
		if r.Code == cli.ExitOK || !strings.Contains(r.Err, c.want) {
			t.Errorf("%s: exit %d, %q, want %q", name, r.Code, r.Err, c.want)
		}
	}
}
