package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/eval"
)

// run is a run of a benchmark over ten pictures with two questions each; points has a digit
// 0 or 1 a question.
func run(benchmark, base string, points string, quoted float64) *eval.Records {
	r := &eval.Records{Dir: base + "-" + benchmark, Settings: map[string]any{
		"benchmark": benchmark, "protocol": "paper", "split": "s",
		"reduction": map[string]any{"base": base, "nvis": 64.0, "restore": base == "holov"}}}
	for i, c := range points {
		score := float64(c - '0')
		r.List = append(r.List, &eval.Record{
			ID: i, Prompt: fmt.Sprint("q", i), Images: []string{fmt.Sprint("p", i/2)},
			Score:    &score,
			Category: "ab"[i%2 : i%2+1],
			Answer: eval.Answer{
				Usage:   eval.Usage{After: 64},
				Seconds: eval.Seconds{Encode: float64(1 - i%2), FirstToken: float64(i)},
			},
		})
	}
	name := map[string]string{"gqa": "accuracy", "mme": "total", "ocrbench": "total"}[benchmark]
	r.Result = &eval.Result{Metrics: eval.Metrics{{Name: name, Value: quoted}}}
	for _, x := range r.List {
		r.Result.Scores = append(r.Result.Scores, eval.LineScore{ID: x.ID, Score: x.Score})
	}
	return r
}

// Ensure that runs with other parameters have other labels: they share no row of retained accuracy.
func TestLabel(t *testing.T) {
	for want, how := range map[string]map[string]any{
		"unreduced":                           nil,
		"holov 64 + RESTORE":                  {"base": "holov", "n_vis": 64., "at_most": true},
		"holov 64, positions sequential":      {"base": "holov", "n_vis": 64., "restore": false, "positions": "sequential"},
		"holov 64 + RESTORE, covered anchors": {"base": "holov", "n_vis": 64., "anchors": "covered", "join": "all"},
		"random 64 + RESTORE": {
			"base": "random", "n_vis": 64., "anchors": "released", "join": "rest", "seed": 0.,
		},
		"holov 0.1 + RESTORE, anchors uniform, gamma 0.25": {
			"base": "holov", "keep_ratio": 0.1, "gamma": 0.25, "anchors": "uniform",
		},
	} {
		r := &eval.Records{Settings: map[string]any{"reduction": how}}
		if base, budget, rest := labelOf(r); base+budget+rest != want {
			t.Errorf("%v: got %q, %q, %q, want %q", how, base, budget, rest, want)
		}
	}
}

// Ensure that an unreduced run is the reference wherever it stands, and that a run over other
// questions ends no comparison of others.
func TestReference(t *testing.T) {
	full, holov, grid := run("gqa", "none", "1111", 1), run("gqa", "holov", "1101", 1),
		run("gqa", "grid", "1001", 1)
	apart := run("gqa", "random", "111111", 1)
	apart.List = apart.List[4:]
	c, err := Runs([]*eval.Records{holov, apart, grid, full}, 0)
	if err != nil || len(c.Pairs) != 2 || c.Pairs[0].Reference != "unreduced" ||
		c.Pairs[1].Reference != "unreduced" || c.Pairs[1].Run != "grid 64" {
		t.Fatalf("got %+v, %v", c, err)
	}
	want := []string{"none-gqa and random-gqa: no question that both answered"}
	if !slices.Equal(c.Skipped, want) {
		t.Errorf("got %q, want %q", c.Skipped, want)
	}
	c, err = Runs([]*eval.Records{grid, holov}, 0)
	if err != nil || c.Pairs[0].Reference != "grid 64" {
		t.Errorf("no unreduced run: got %+v, %v, want the first", c, err)
	}
}

// Ensure that a run that a server reduced, by its default or by the name of a preset, is not taken
// for an unreduced one.
func TestReducedByServer(t *testing.T) {
	for want, did := range map[string]string{
		"holov 32 + RESTORE, covered anchors": `{"base":"holov","n_vis":32,"restore":true,"anchors":"covered"}`,
		"grid 64":                             `{"base":"grid","n_vis":64,"restore":false}`,
		"unreduced":                           `{"base":"none","n_vis":576}`,
	} {
		r := &eval.Records{
			Settings: map[string]any{"server": "http://127.0.0.1:8642", "model": "t"},
			List:     []*eval.Record{{Answer: eval.Answer{Reduction: []byte(did)}}},
		}
		if base, budget, rest := labelOf(r); base+budget+rest != want {
			t.Errorf("%s: got %q, %q, %q, want %q", did, base, budget, rest, want)
		}
		if want == "unreduced" {
			continue
		}
		if base, _, _ := reductionIn(&named{Records: r}); base == "none" {
			t.Errorf("%s: not reduced", did)
		}
	}
}

// Ensure that a benchmark without a protocol, as drawn scenes, has no gap in its name.
func TestNoProtocol(t *testing.T) {
	var runs []*eval.Records
	for _, base := range []string{"none", "holov"} {
		r := run("gqa", base, "1100", 50)
		r.Settings["protocol"] = ""
		runs = append(runs, r)
	}
	c, err := Runs(runs, 0)
	if err != nil {
		t.Fatal(err)
	}
	head := c.Tables()[0].Rows[0][0]
	if got := c.Retained[0].Benchmarks["gqa s"]; got != 100 || head != "gqa, s, against unreduced" {
		t.Errorf("%q, %v", head, c.Retained[0].Benchmarks)
	}
}

func TestRuns(t *testing.T) {
	full, less := "11111111111111111100", "11110111011111110011"
	// Lost: 4, 8, 16, 17; gained: 18, 19. By category (even, odd): lost 3 and 1, gained 1 and 1.
	c, err := Runs([]*eval.Records{
		run("gqa", "none", full, 60), run("gqa", "holov", less, 54), run("mme", "none", full, 2000),
		run("mme", "holov", less,
			2100), run("ocrbench", "none", full, 500), run("ocrbench", "holov", less, 1),
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Pairs[0]
	// 2·(C(6,0)+C(6,1)+C(6,2))/64 = 44/64
	if p.Metric != "accuracy" || p.A != 60 || p.B != 54 || p.Change.Lost != 4 ||
		p.Change.Gained != 2 ||
		p.Change.Questions != 20 || p.Change.Pictures != 10 ||
		math.Abs(p.Change.P-44./64) > 1e-12 ||
		math.Abs(p.Change.Points+10) > 1e-12 ||
		p.Change.A != 90 ||
		p.Change.B != 80 {
		t.Errorf("%+v", p)
	}
	// Pictures change by 0, 0, -1, 0, -1, 0, 0, 0, -2 and +2 of 20 questions: the sum has a
	// standard error of √10·1.03 questions, or 16 points.
	if i := p.Change.Interval; !(i[0] < -25 && i[0] > -60 && i[1] > 10 && i[1] < 35) {
		t.Errorf("%v", i)
	}
	if a, b := p.Categories["a"], p.Categories["b"]; a.Lost != 3 || a.Gained != 1 || b.Lost != 1 ||
		b.Gained != 1 ||
		a.Questions != 10 {
		t.Errorf("%+v", p.Categories)
	}
	if len(c.Retained) != 2 || c.Retained[0].Percent != 100 ||
		math.Abs(c.Retained[1].Percent-97.5) > 1e-12 { // (90 + 105)/2
		t.Errorf("%+v", c.Retained)
	}
	if r := c.Retained[1]; r.Run != "holov 64 + RESTORE" ||
		r.Line != "holov + RESTORE" || r.After != 64 || r.FirstToken != 10 ||
		len(r.Benchmarks) != 2 {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	for _, s := range c.Tables() {
		if err := s.Write(&b, "text"); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"gqa, paper, s, against unreduced", "holov 64 + RESTORE  accuracy      60.00     54.00", "97.5",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// Ensure that metrics over different questions are not set against each other: here the first ten
// and all twenty.
func TestRunsOfDifferentQuestions(t *testing.T) {
	full := run("gqa", "none", "11111111111111111100", 90)
	part := run("gqa", "holov", "1111111111", 100)
	c, err := Runs([]*eval.Records{
		full, part, run("mme", "none", "1100", 2000), run("mme", "holov", "1100", 1500),
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Pairs[0]; p.Metric != "" || p.Change.Questions != 10 || p.Change.B != 100 {
		t.Errorf("%+v", p)
	}
	if r := c.Retained[1]; r.Percent != 75 || !slices.Equal(r.Missing, []string{"gqa paper s"}) {
		t.Errorf("%+v", r)
	}
}

func TestRunsRefused(t *testing.T) {
	changed := run("gqa", "holov", "10", 1)
	changed.List[1].Prompt = "another"
	hidden := run("gqa", "holov", "10", 1)
	hidden.List[0].Score = nil
	for want, runs := range map[string][]*eval.Records{
		"one run":                             {run("gqa", "none", "11", 1)},
		"no two runs of one benchmark":        {run("gqa", "none", "11", 1), run("mme", "none", "11", 1)},
		`question 1 differs: "q1" and "anoth`: {run("gqa", "none", "11", 1), changed},
		"split s has no public answers":       {run("gqa", "none", "11", 1), hidden},
		"no question that both answered":      {run("gqa", "none", "11", 1), run("gqa", "holov", "", 1)},
	} {
		if _, err := Runs(runs, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
