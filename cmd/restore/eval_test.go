package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/methods"
)

// Ensure that variants are compared with the reduction of the flags, over the same pictures.
func TestEvalVariants(t *testing.T) {
	args := []string{"eval", "scenes", "--n", "2", "--base", "grid", "--n-vis", "16"}
	r := cli(append(args, "--variant", `{"n_vis":64}`, "--variant", "{}", "--json")...)
	var j struct {
		Rows []struct {
			Name  string
			Rows  float64
			First *struct{ Points float64 } `json:"over_first"`
		}
	}
	if err := json.Unmarshal([]byte(r.out), &j); err != nil || len(j.Rows) != 3 {
		t.Fatalf("exit %d, %v, stderr %q, %q", r.code, err, r.err, r.out)
	}
	if a, b, c := j.Rows[0], j.Rows[1], j.Rows[2]; a.Rows != 16 || a.First != nil || b.Rows != 64 ||
		b.Name != `{"n_vis":64}` || b.First == nil || c.First == nil || c.First.Points != 0 {
		t.Errorf("got %+v", j.Rows)
	}
	r = cli(append(args, "--variant", `{"base":"fastv","n_vis":192}`)...)
	if r.code != exitOK || !strings.Contains(r.out, `{"base":"fastv","n_vis":192}  191.8`) ||
		!strings.Contains(r.out, "as flags say") {
		t.Errorf("exit %d, stderr %q, %q", r.code, r.err, r.out)
	}
	for want, more := range map[string][]string{
		"--variant: has no use with --all, got {}":          nil,
		`--variant: {"gama":1}: methods: gama: got no such`: {"--variant", `{"gama":1}`},
		"--distance: has no use with --variant":             {"--variant", "{}", "--distance"},
	} {
		args := append(args, more...)
		if more == nil {
			args = []string{"eval", "scenes", "--all", "--variant", "{}"}
		}
		if r := cli(args...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, r.code, r.err, want)
		}
	}
}

// Ensure that all methods are compared over the same pictures in every format, with a plot, and
// that errors name flags without effect.
func TestEvalAll(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "m.svg")
	r := cli("eval", "scenes", "--all", "--n", "1", "--n-vis", "128", "--format", "json", "--plot",
		plot)
	var j struct {
		Rows []struct {
			Base    string
			Restore bool
			Keeps   float64
			Over    map[string]any
		}
		Refused []struct{ Base, Reason string }
	}
	if err := json.Unmarshal([]byte(r.out), &j); r.code != exitOK || err != nil || r.err != "" ||
		len(j.Rows) < 28 {
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
		want := 2
		if _, covered := methods.Grouping(name); covered {
			want = 3
		}
		if seen[name] != want {
			t.Errorf("%s: %d rows, want %d", name, seen[name], want)
		}
	}
	b, err := os.ReadFile(plot)
	if err != nil || !strings.Contains(string(b), "+ RESTORE") ||
		!strings.Contains(string(b), "divprune") {
		t.Errorf("plot: %v", err)
	}
	for want, args := range map[string][]string{
		"--n-vis: several budgets, got 64,32, want one, or --all":  {"--n-vis", "64,32"},
		"--plot: has no use for one method":                        {"--plot", "a.svg"},
		"--format: has no use for one method, got csv":             {"--format", "csv"},
		`--format: got "xml", want table|markdown|csv|json`:        {"--format", "xml"},
		"--json and --format: both given, got csv":                 {"--json", "--format", "csv"},
		"--base: has no use with --all, got grid":                  {"--all", "--base", "grid"},
		"--gamma: has no use with --all, got 0.2":                  {"--all", "--gamma", "0.2"},
		"--n-vis: out of range, got 577, want at most the 576":     {"--all", "--n-vis", "577"},
		`--plot: got "a.gif", want a name that ends in .svg`:       {"--all", "--plot", "a.gif"},
		`--n-vis: cannot be used, got "64,x", want whole numbers`:  {"--n-vis", "64,x"},
		`--n-vis: cannot be used, got "64,64", want whole numbers`: {"--n-vis", "64,64"},
	} {
		if r := cli(append([]string{"eval", "scenes", "--n", "1"},
			args...)...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.code, r.err, want)
		}
	}
}

// Ensure that worlds are drawn and asked about, that methods are selected by name, and that flags
// without effect are refused.
func TestEvalWorlds(t *testing.T) {
	r := cli("eval", "scenes", "--world", "crowd", "--n", "1", "--base", "grid", "--n-vis", "32",
		"--first-seed", "9", "--json")
	if r.code != exitOK || !strings.Contains(r.out, `"anchors":"covered"`) {
		t.Errorf("exit %d, %q, stderr %q", r.code, r.out, r.err)
	}
	r = cli("eval", "scenes", "--all", "--methods", "grid,random", "--n", "1", "--n-vis", "16")
	if r.code != exitOK || !strings.Contains(r.out, "gain of covered") ||
		strings.Contains(r.out, "holov") {
		t.Errorf("exit %d, %q, stderr %q", r.code, r.out, r.err)
	}
	picture := filepath.Join(t.TempDir(), "crowd.png")
	if r := cli("scene", "--world", "crowd", "--seed", "3", "-o", picture); r.code != exitOK ||
		strings.Count(r.out, "\n") < 12 {
		t.Errorf("exit %d, %q, stderr %q", r.code, r.out, r.err)
	}
	for want, args := range map[string][]string{
		`--world: cannot be used, got "busy", want plain|clutter|plates|crowd|small`: {"scene", "--world", "busy", "-o", "x.png"},
		`--methods: got "hollov", want holov|`:                                       {"eval", "scenes", "--all", "--methods", "hollov"},
		"--methods: has no use without --all":                                        {"eval", "scenes", "--methods", "holov"},
		"--world: has no use with --data":                                            {"eval", "scenes", "--world", "small", "--data", "testdata"},
	} {
		if r := cli(args...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.code, r.err, want)
		}
	}
}

// Budgets as users type them: an accepted list prints as it was meant.
func FuzzBudgets(f *testing.F) {
	for _, s := range []string{
		"64", "192,128, 64", "", ",", "64,64", "1e3", "-1", "99999999999999999999",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b := new(budgetsFlag)
		if b.Set(text) != nil {
			return
		}
		again := new(budgetsFlag)
		if err := again.Set(b.String()); err != nil || !slices.Equal(again.list, b.list) ||
			len(b.list) > maxBudgets ||
			b.text != strconv.Itoa(b.list[0]) {
			t.Errorf("%q: %v, %v, then %v", text, b.list, err, again.list)
		}
	})
}

// Ensure that an interrupted evaluation shows its results so far, and says how much they cover.
func TestEvalInterrupted(t *testing.T) {
	for _, args := range [][]string{
		{"scenes", "--json"}, {"scenes", "--all", "--methods", "grid", "--n-vis", "64", "--format", "json"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		a := &app{
			in: strings.NewReader(""), err: new(bytes.Buffer), getenv: func(string) string {
				return ""
			},
		}
		var out bytes.Buffer
		a.out = &out
		go func() {
			time.Sleep(1500 * time.Millisecond)
			cancel()
		}()
		code := execute(ctx, a, append([]string{"eval"}, append(args, "--n", "5000")...))
		line := fmt.Sprint(a.err)
		var got struct{ Pictures int }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil &&
			!strings.Contains(line, "there is no result") {
			t.Errorf("%v: exit %d, stdout %.80q, stderr %q: %v", args, code, out.String(), line,
				err)
		}
		want := fmt.Sprintf("restore: eval: interrupted, the result covers %d of 5000 pictures\n",
			got.Pictures)
		if code != exitFailure || got.Pictures > 0 && line != want {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, code, line, want)
		}
	}
}
