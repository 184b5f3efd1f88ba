package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// withOwnMethod makes the test's binary register its own method first.
const withOwnMethod = "RESTORE_TEST_OWN_METHOD"

// every keeps the tokens at equal steps, from the one given by its parameter.
type every struct{ first int }

// Declare implements reduce.Declarer.
func (e *every) Declare(d *reduce.Declaration) {
	d.Int(&e.first, reduce.Parameter{
		Name: "every-first", Unit: "N", Least: new(0.), Most: new(100.), Help: "first token",
	})
}

// Keep implements reduce.Criterion.
func (e *every) Keep(in *reduce.Input, k int) ([]int32, error) {
	kept := make([]int32, k)
	for i := range kept {
		kept[i] = int32((i*(in.N/k) + e.first) % in.N)
	}
	return kept, nil
}

func registerOwn() {
	err := methods.Register(reduce.Method{Name: "every", Title: "every so many tokens"},
		func() reduce.Criterion { return new(every) })
	if err != nil {
		panic(err)
	}
}

// Ensure that one method, added in one place, gets a flag, a variable, a JSON field, a help text, a
// description and a row of documentation, and that all of them work.
func TestOwnMethod(t *testing.T) {
	with := func(env string, args ...string) clitest.Result {
		cmd := process(args...)
		cmd.Env = append(cmd.Env, withOwnMethod+"=1", env)
		return clitest.Finish(t, cmd)
	}
	picture := clitest.Drawn(t, 7)
	run := []string{"run", "--image", picture, "-p", "?", "--base", "every", "--json"}
	for name, c := range map[string]struct {
		env  string
		args []string
		want string
	}{
		"help":         {"", []string{"run", "--help"}, "grid, pool, downsample, every (default holov, env RESTORE_BASE)"},
		"completed":    {"", []string{"__complete", "run", "--base", "every", "--every"}, "--every-first\tfirst token\n"},
		"described":    {"", []string{"methods", "every"}, "--every-first\n        first token (default 0, 0 to 100, env RESTORE_EVERY_FIRST, JSON every_first)\n"},
		"listed":       {"", []string{"methods", "every", "--json"}, `{"name":"every-first","field":"every_first","default":"0","range":"0 to 100","help":"first token"}`},
		"documented":   {"", []string{"methods", "--parameters"}, "| `--every-first` | `RESTORE_EVERY_FIRST` | `every_first` | 0 | 0 to 100 | first token | every |\n"},
		"flag":         {"", append(run, "--every-first", "7"), `"every_first":7`},
		"variable":     {"RESTORE_EVERY_FIRST=8", run, `"every_first":8`},
		"default":      {"", run, `"base":"every"`},
		"out of range": {"", append(run, "--every-first", "101"), "--every-first: got 101, want 0 to 100"},
		"another's":    {"", []string{"run", "-p", "?", "--every-first", "3"}, "--every-first: got 3, which has no effect with base holov (it belongs to every)"},
		"useless":      {"", append(run, "--gamma", "0", "--every-first", "3"), "--every-first: got 3, which has no effect with gamma 0"},
	} {
		r := with(c.env, c.args...)
		if !strings.Contains(clitest.Plain(r.Out+r.Err), clitest.Plain(c.want)) {
			t.Errorf("%s: exit %d, stdout %.300q, stderr %.300q, want %q", name, r.Code, r.Out,
				r.Err, c.want)
		}
	}
}

var update = flag.Bool("update", false, "rewrite the table of parameters in docs/methods.md")

// Ensure that the table of parameters in docs/methods.md is the program's output.
func TestDocumentedParameters(t *testing.T) {
	const doc = "../../docs/methods.md"
	raw, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	text, r := string(raw), commandLine("methods", "--parameters")
	first, _, _ := strings.Cut(r.Out, "\n")
	begin := strings.Index(text, first)
	if r.Code != cli.ExitOK || begin < 0 {
		t.Fatalf("exit %d; docs/methods.md has no table that begins %q", r.Code, first)
	}
	end := begin
	for strings.HasPrefix(text[end:], "|") {
		end += strings.IndexByte(text[end:], '\n') + 1
	}
	if text[begin:end] == r.Out {
		return
	}
	if !*update {
		t.Error("docs/methods.md: the table is not what 'restore methods --parameters' " +
			"prints; -update writes it")
		return
	}
	if err := os.WriteFile(doc, []byte(text[:begin]+r.Out+text[end:]), 0o644); err != nil {
		t.Fatal(err)
	}
}
