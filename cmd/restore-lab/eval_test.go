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

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/methods"
)

// Ensure that variants are compared with the reduction of the flags, over the same pictures.
func TestEvalVariants(t *testing.T) {
	args := []string{"eval", "scenes", "--n", "2", "--base", "grid", "--n-vis", "16"}
	r := commandLine(append(args, "--variant", `{"n_vis":64}`, "--variant", "{}", "--json")...)
	var j struct {
		Rows []struct {
			Name  string
			Rows  float64
			First *struct{ Points float64 } `json:"over_first"`
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || len(j.Rows) != 3 {
		t.Fatalf("exit %d, %v, stderr %q, %q", r.Code, err, r.Err, r.Out)
	}
	if a, b, c := j.Rows[0], j.Rows[1], j.Rows[2]; a.Rows != 16 || a.First != nil || b.Rows != 64 ||
		b.Name != `{"n_vis":64}` || b.First == nil || c.First == nil || c.First.Points != 0 {
		t.Errorf("got %+v", j.Rows)
	}
	r = commandLine(append(args, "--variant", `{"base":"fastv","n_vis":192}`)...)
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, `{"base":"fastv","n_vis":192}  191.8`) ||
		!strings.Contains(r.Out, "as flags say") {
		t.Errorf("exit %d, stderr %q, %q", r.Code, r.Err, r.Out)
	}
	for want, more := range map[string][]string{
		"--variant: has no use with --all, got {}": nil,
		`--variant: {"gama":1}: gama: got no such`: {"--variant", `{"gama":1}`},
		"--distance: has no use with --variant":    {"--variant", "{}", "--distance"},
	} {
		args := append(args, more...)
		if more == nil {
			args = []string{"eval", "scenes", "--all", "--variant", "{}"}
		}
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

// Ensure that settings that cannot be measured are named next to a CSV file too, which has no place
// for them.
func TestEvalAllRefused(t *testing.T) {
	r := commandLine("eval", "scenes", "--all", "--methods", "fastv", "--n", "1", "--n-vis", "64",
		"--format", "csv")
	want := "not measured: fastv, 64 tokens; fastv + RESTORE, 64 tokens: methods: n-vis: got a " +
		"mean of 64 tokens a layer"
	if r.Code != cli.ExitOK || !strings.Contains(r.Err, want) {
		t.Errorf("%+v, want %q", r, want)
	}
}

// Ensure that all methods are compared over the same pictures in every format, with a plot, and
// that errors name flags without effect.
func TestEvalAll(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "m.svg")
	r := commandLine("eval", "scenes", "--all", "--n", "1", "--n-vis", "128", "--format", "json",
		"--plot",
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
	// stderr may have lines of progress: a busy machine takes longer than a minute
	if err := json.Unmarshal([]byte(r.Out), &j); r.Code != cli.ExitOK || err != nil ||
		len(j.Rows) < 28 {
		t.Fatalf("exit %d, %v, stderr %q, %q", r.Code, err, r.Err, r.Out)
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
	for _, m := range methods.Methods()[1:] {
		want := 2
		if methods.Covers(m.Name) {
			want = 3
		}
		if !m.TakesBudget() {
			want = 0
		}
		if seen[m.Name] != want {
			t.Errorf("%s: %d rows, want %d", m.Name, seen[m.Name], want)
		}
	}
	b, err := os.ReadFile(plot)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{ // once in the legend; one panel for each method
		">alone<": 1, ">+ RESTORE<": 1, ">+ RESTORE, covered anchors<": 1, ">holov<": 1,
		">divprune<": 1, ">mmtok<": 1,
	} {
		if got := strings.Count(string(b), text); got != want {
			t.Errorf("plot: %q %d times, want %d", text, got, want)
		}
	}
	for want, args := range map[string][]string{
		"--n-vis: several budgets, got 64,32, want one, or --all":  {"--n-vis", "64,32"},
		"--plot: has no use for one method":                        {"--plot", "a.svg"},
		`--format: got "xml", want text|markdown|csv|latex|json`:   {"--format", "xml"},
		"--json and --format: both given, got csv":                 {"--json", "--format", "csv"},
		"--base: has no use with --all, got grid":                  {"--all", "--base", "grid"},
		"--gamma: has no use with --all, got 0.2":                  {"--all", "--gamma", "0.2"},
		"--n-vis: out of range, got 577, want at most the 576":     {"--all", "--n-vis", "577"},
		`--plot: got "a.gif", want a name that ends in .svg`:       {"--all", "--plot", "a.gif"},
		`--n-vis: cannot be used, got "64,x", want whole numbers`:  {"--n-vis", "64,x"},
		`--n-vis: cannot be used, got "64,64", want whole numbers`: {"--n-vis", "64,64"},
	} {
		if r := commandLine(append([]string{"eval", "scenes", "--n", "1"},
			args...)...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

// Ensure that worlds are drawn and asked about, that methods are selected by name, and that flags
// without effect are refused.
func TestEvalWorlds(t *testing.T) {
	r := commandLine("eval", "scenes", "--world", "crowd", "--n", "1", "--base", "grid", "--n-vis",
		"32",
		"--first-seed", "9", "--json")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, `"anchors":"covered"`) {
		t.Errorf("exit %d, %q, stderr %q", r.Code, r.Out, r.Err)
	}
	r = commandLine("eval", "scenes", "--all", "--methods", "grid,random", "--n", "1", "--n-vis",
		"16")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "gain of covered") ||
		strings.Contains(r.Out, "holov") {
		t.Errorf("exit %d, %q, stderr %q", r.Code, r.Out, r.Err)
	}
	picture := filepath.Join(t.TempDir(), "crowd.png")
	if r := commandLine("scene", "--world", "crowd", "--seed", "3", "-o",
		picture); r.Code != cli.ExitOK ||
		strings.Count(r.Out, "\n") < 12 {
		t.Errorf("exit %d, %q, stderr %q", r.Code, r.Out, r.Err)
	}
	for want, args := range map[string][]string{
		`--world: cannot be used, got "busy", want plain|clutter|plates|crowd|small`: {"scene", "--world", "busy", "-o", "x.png"},
		`--methods: got "hollov", want holov|`:                                       {"eval", "scenes", "--all", "--methods", "hollov"},
		"--methods: has no use without --all":                                        {"eval", "scenes", "--methods", "holov"},
		"--world: has no use with --data":                                            {"eval", "scenes", "--world", "small", "--data", "testdata"},
	} {
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
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
		b := new(cli.BudgetsFlag)
		if b.Set(text) != nil {
			return
		}
		again := new(cli.BudgetsFlag)
		if err := again.Set(b.String()); err != nil || !slices.Equal(again.List, b.List) ||
			len(b.List) > cli.MaxBudgets ||
			b.Text != strconv.Itoa(b.List[0]) {
			t.Errorf("%q: %v, %v, then %v", text, b.List, err, again.List)
		}
	})
}

// Ensure that an interrupted evaluation shows its results so far, and says how much they cover.
func TestEvalInterrupted(t *testing.T) {
	for _, args := range [][]string{
		{"scenes", "--json"}, {"scenes", "--all", "--methods", "grid", "--n-vis", "64", "--format", "json"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var out, errOut bytes.Buffer
		a := cli.NewApp(thisProgram, strings.NewReader(""), &out, &errOut, clitest.Unset)
		go func() {
			time.Sleep(500 * time.Millisecond)
			cancel()
		}()
		code := cli.Execute(ctx, a, append([]string{"eval"}, append(args, "--n", "5000")...))
		line := errOut.String()
		var got struct{ Pictures int }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil &&
			!strings.Contains(line, "there is no result") {
			t.Errorf("%v: exit %d, stdout %.80q, stderr %q: %v", args, code, out.String(), line,
				err)
		}
		want := fmt.Sprintf(
			"restore-lab: eval: interrupted, the result covers %d of 5000 pictures\n",
			got.Pictures)
		if code != cli.ExitFailure || got.Pictures > 0 && line != want {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, code, line, want)
		}
	}
}

// Ensure that eval quant prints a line for every plan, and one object as JSON.
func TestEvalQuant(t *testing.T) {
	r := commandLine("eval", "quant", "--n", "1", "--plans", "q8,q4+q8")
	if r.Code != cli.ExitOK || r.Err != "" ||
		!strings.Contains(r.Out, "\nas stored  as stored") ||
		!strings.Contains(r.Out, "\nq8 ") || !strings.Contains(r.Out, "\nq4 ") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	r = commandLine("eval", "quant", "--n", "1", "--plans", "f32", "--base", "none", "--json")
	var j struct {
		Rows []struct {
			Quant  string
			Change struct{ Lost, Gained int }
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || len(j.Rows) != 1 ||
		j.Rows[0].Quant != "f32" || j.Rows[0].Change.Lost+j.Rows[0].Change.Gained != 0 {
		t.Errorf("exit %d, stdout %q, stderr %q: %v", r.Code, r.Out, r.Err, err)
	}
	for _, plan := range []string{"q5", "q4+q4", "+q8", ""} {
		if r := commandLine("eval", "quant", "--plans", plan); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, "--plans: ") {
			t.Errorf("%q: exit %d, stderr %q", plan, r.Code, r.Err)
		}
	}
}

// Ensure that the benchmark prints both accuracies as a table and as one JSON object.
func TestEvalScenes(t *testing.T) {
	r := commandLine("eval", "scenes", "--n", "2")
	if r.Code != cli.ExitOK || r.Err != "" || !strings.Contains(r.Out, "unreduced") ||
		!strings.Contains(r.Out, "all") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	r = commandLine("eval", "scenes", "--n", "2", "--base", "grid", "--restore=false", "--distance",
		"--json")
	var j struct {
		Questions     map[string]int
		Full, Reduced map[string]float64
		Distance      float64
	}
	if err := json.Unmarshal([]byte(r.Out), &j); r.Code != cli.ExitOK || err != nil ||
		!(j.Distance > 0.05 && j.Distance < 1) || j.Full["all"] <= j.Reduced["all"] ||
		j.Reduced["vs_full"] == 0 {
		t.Errorf("exit %d, stdout %q, stderr %q, %v", r.Code, r.Out, r.Err, err)
	}
}
