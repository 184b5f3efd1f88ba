// Package compare compares runs of benchmarks by their records.
package compare

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
)

// Comparison compares each run with the reference of its benchmark: the first unreduced run or, if
// there is none, the first run.
type Comparison struct {
	Pairs    []*Pair    `json:"pairs"`
	Retained []Retained `json:"retained"`          // by setting
	Skipped  []string   `json:"skipped,omitempty"` // pairs that cannot be compared, and why
}

// Pair is a run and its reference.
type Pair struct {
	Benchmark string `json:"benchmark"`
	Protocol  string `json:"protocol"`
	Split     string `json:"split"`
	Reference string `json:"reference"` // label of the reference
	Run       string `json:"run"`

	// Metric is the benchmark's main metric; "" if a run is not complete, or its result is over
	// other questions than the reference's.
	Metric string  `json:"metric"`
	A      float64 `json:"a"` // of the reference
	B      float64 `json:"b"`

	Change     Change            `json:"change"`
	Categories map[string]Change `json:"categories,omitempty"`
}

// Change compares two runs over the questions that both answered, by the points of each.
type Change struct {
	Questions int            `json:"questions"`
	Pictures  int            `json:"pictures"`
	A         float64        `json:"a"`      // mean points, in percent
	B         float64        `json:"b"`      // of the other run
	Points    float64        `json:"points"` // B minus A
	Interval  stats.Interval `json:"interval"`
	Lost      int            `json:"lost"`    // questions with fewer points
	Gained    int            `json:"gained"`  // questions with more points
	P         float64        `json:"mcnemar"` // probability of so uneven a split by chance
}

// Retained is a setting's mean over benchmarks of its metric in percent of the unreduced run's; the
// paper's tables call it Average. A benchmark is missing where the setting has no result, or one
// over other questions than the unreduced run's.
type Retained struct {
	Run        string             `json:"run"`
	Line       string             `json:"-"` // Run without its budget: runs of one line of a plot
	Percent    float64            `json:"percent"`
	Benchmarks map[string]float64 `json:"benchmarks"` // each one's percentage
	Missing    []string           `json:"missing,omitempty"`
	// Mean number of visual tokens that the decoder read, and the median time of new pictures; 0 if
	// the server that answered does not report them.
	After      float64 `json:"visual_tokens"`
	FirstToken float64 `json:"first_token_seconds"`
}

// labelOf names a run by its reduction, in parts: with released anchors as they are, with covered
// ones, whatever may join them, and all other parameters but seeds by their names.
func labelOf(r *eval.Records) (base, budget, rest string) {
	how := howOf(r)
	base, _ = how["base"].(string)
	if base == "" || base == "none" {
		return "unreduced", "", ""
	}
	named := append([]string{"base", "restore", "at_most", "defaults", "seed"}, budgets...)
	if on, given := how["restore"].(bool); on || !given {
		rest += " + RESTORE"
		anchors, _ := how["anchors"].(string)
		if anchors == "covered" {
			rest += ", covered anchors"
		}
		if anchors == "covered" || anchors == "released" {
			named = append(named, "anchors", "join")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(how)) {
		if !slices.Contains(named, name) {
			rest += fmt.Sprintf(", %s %v", name, how[name])
		}
	}
	return base, budgetIn(how), rest
}

// howOf is the reduction in the settings of a run or, where a server chose it, as the server
// reports it.
func howOf(r *eval.Records) map[string]any {
	how, given := r.Settings["reduction"].(map[string]any)
	if given || len(r.List) == 0 {
		return how
	}
	did := reductionOf(r.List[0])
	how = map[string]any{"base": did.Base, "n_vis": did.NVis, "restore": did.Restore}
	if did.Anchors == "covered" {
		how["anchors"] = did.Anchors
	}
	return how
}

// budgets are the names of a budget in the settings of a reduction.
var budgets = []string{"nvis", "n_vis", "keepratio", "keep_ratio", "schedule"}

// budgetIn is the budget in the settings of a reduction, after a space; "" without one.
func budgetIn(how map[string]any) string {
	for _, name := range budgets {
		if v, ok := how[name]; ok {
			return fmt.Sprintf(" %v", v)
		}
	}
	return ""
}

// Runs compares runs. seed starts the random numbers of the intervals.
func Runs(runs []*eval.Records, seed int64) (*Comparison, error) {
	if len(runs) < 2 {
		return nil, errors.New("compare: one run, want at least two")
	}
	c := &Comparison{}
	all, reference := names(runs), map[string]*named{}
	for _, r := range all {
		if a := reference[r.benchmark]; a == nil || r.unreduced() && !a.unreduced() {
			reference[r.benchmark] = r
		}
	}
	for _, r := range all {
		a := reference[r.benchmark]
		if a == r {
			continue
		}
		p, err := pair(a, r, seed)
		var apart *apartError
		switch {
		case errors.As(err, &apart):
			c.Skipped = append(c.Skipped, apart.Error())
		case err != nil:
			return nil, err
		default:
			c.Pairs = append(c.Pairs, p)
		}
	}
	switch {
	case len(c.Pairs) == 0 && len(c.Skipped) > 0:
		return nil, fmt.Errorf("compare: %s", c.Skipped[0])
	case len(c.Pairs) == 0:
		return nil, errors.New("compare: no two runs of one benchmark, protocol and split")
	}
	c.Retained = retained(all)
	return c, nil
}

// named is a run with its names.
type named struct {
	*eval.Records
	benchmark string // with protocol and split
	label     string
	line      string // label without the budget
}

// unreduced reports whether the run read every token.
func (r *named) unreduced() bool {
	base, _, _ := reductionIn(r)
	return base == "none"
}

// setting is the text of a setting.
func (r *named) setting(name string) string { return fmt.Sprint(r.Settings[name]) }

// joined joins the texts that are not empty, as a protocol or a split may be.
func joined(by string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), by)
}

// names labels all runs so that the labels of one benchmark differ.
func names(runs []*eval.Records) []*named {
	all, count := make([]*named, len(runs)), map[[2]string]int{}
	for i, records := range runs {
		base, budget, rest := labelOf(records)
		r := &named{Records: records, label: base + budget + rest, line: base + rest}
		r.benchmark = joined(" ", r.setting("benchmark"), r.setting("protocol"),
			r.setting("split"))
		all[i] = r
		count[[2]string{r.benchmark, r.label}]++
	}
	for _, r := range all {
		if count[[2]string{r.benchmark, r.label}] > 1 {
			r.label += " (" + r.Dir + ")"
			r.line += " (" + r.Dir + ")"
		}
	}
	return all
}

// point is one question in a comparison.
type point struct {
	id                int
	a, b              float64
	picture, category string
}

// apartError says that two runs of a benchmark answered no question in common.
type apartError struct{ a, b string } // folders

func (e *apartError) Error() string {
	return fmt.Sprintf("%s and %s: no question that both answered", e.a, e.b)
}

func pair(a, b *named, seed int64) (*Pair, error) {
	p := &Pair{
		Benchmark: a.setting("benchmark"), Protocol: a.setting("protocol"),
		Split: a.setting("split"), Reference: a.label, Run: b.label,
	}
	points, err := pointsOf(a, b)
	if err != nil {
		return nil, err
	}
	p.Change = change(points, seed)
	categories := map[string][]point{}
	for _, x := range points {
		if x.category != "" {
			categories[x.category] = append(categories[x.category], x)
		}
	}
	if len(categories) > 1 {
		p.Categories = map[string]Change{}
		for name, points := range categories {
			p.Categories[name] = change(points, seed)
		}
	}
	if sameQuestions(a.Result, b.Result) {
		name, va, ok := benchmarks.Quoted(p.Benchmark, p.Protocol, a.Result.Metrics)
		_, vb, ok2 := benchmarks.Quoted(p.Benchmark, p.Protocol, b.Result.Metrics)
		if ok && ok2 {
			p.Metric, p.A, p.B = name, va, vb
		}
	}
	return p, nil
}

// sameQuestions reports whether there are two results, and both are over the same questions.
func sameQuestions(a, b *eval.Result) bool {
	return a != nil && b != nil && slices.EqualFunc(a.Scores, b.Scores,
		func(x, y eval.LineScore) bool { return x.ID == y.ID })
}

// pointsOf returns the questions that both runs answered.
func pointsOf(a, b *named) ([]point, error) {
	of := map[int]*eval.Record{}
	for _, x := range a.List {
		of[x.ID] = x
	}
	var points []point
	for _, y := range b.List {
		x := of[y.ID]
		if x == nil {
			continue
		}
		if x.Prompt != y.Prompt {
			return nil, fmt.Errorf("compare: %s and %s: question %d differs: %q and %q", a.Dir,
				b.Dir, y.ID, x.Prompt, y.Prompt)
		}
		if x.Score == nil || y.Score == nil {
			return nil, fmt.Errorf("compare: %v: split %v has no public answers",
				a.Settings["benchmark"], a.Settings["split"])
		}
		picture := strings.Join(y.Images, "\x00")
		if picture == "" {
			picture = fmt.Sprintf("\x00%d", y.ID)
		}
		points = append(points, point{y.ID, *x.Score, *y.Score, picture, y.Category})
	}
	if len(points) == 0 {
		return nil, fmt.Errorf("compare: %w", &apartError{a.Dir, b.Dir})
	}
	return points, nil
}

// change summarises points; their order does not matter.
func change(points []point, seed int64) Change {
	slices.SortFunc(points, func(x, y point) int { return strings.Compare(x.picture, y.picture) })
	type cluster struct{ sum, n float64 }
	var clusters []cluster
	c := Change{Questions: len(points)}
	last := ""
	for i, x := range points {
		if i == 0 || x.picture != last {
			clusters, last = append(clusters, cluster{}), x.picture
		}
		k := &clusters[len(clusters)-1]
		k.sum += x.b - x.a
		k.n++
		c.A += x.a
		c.B += x.b
		switch {
		case x.b < x.a:
			c.Lost++
		case x.b > x.a:
			c.Gained++
		}
	}
	n := float64(len(points))
	c.A, c.B, c.Points = 100*c.A/n, 100*c.B/n, 100*(c.B-c.A)/n
	c.Pictures, c.P = len(clusters), stats.McNemar(c.Lost, c.Gained)
	c.Interval = stats.Bootstrap(len(clusters), 1, seed, func(drawn []int, out []float64) {
		sum, n := 0.0, 0.0
		for _, i := range drawn {
			sum += clusters[i].sum
			n += clusters[i].n
		}
		out[0] = 100 * sum / n
	})[0]
	return c
}

// retained averages each setting over the benchmarks in the paper's Average.
func retained(runs []*named) []Retained {
	full := map[string]*named{} // by benchmark
	var benches []string
	value := func(r *named) (float64, bool) {
		if r.Result == nil {
			return 0, false
		}
		name := r.setting("benchmark")
		_, v, ok := benchmarks.Quoted(name, r.setting("protocol"), r.Result.Metrics)
		return v, ok && benchmarks.Averaged(name)
	}
	for _, r := range runs {
		if v, ok := value(r); ok && v != 0 && strings.HasPrefix(r.label, "unreduced") {
			if full[r.benchmark] == nil {
				full[r.benchmark] = r
				benches = append(benches, r.benchmark)
			}
		}
	}
	if len(full) == 0 {
		return nil
	}
	var out []Retained
	of := map[string]int{}
	var times [][]float64
	var counts []int
	for _, r := range runs {
		v, ok := value(r)
		whole := full[r.benchmark]
		if !ok || whole == nil || !sameQuestions(whole.Result, r.Result) {
			continue
		}
		unreduced, _ := value(whole)
		j, seen := of[r.label]
		if !seen {
			j = len(out)
			of[r.label] = j
			out = append(out, Retained{
				Run: r.label, Line: r.line, Benchmarks: map[string]float64{},
			})
			times, counts = append(times, nil), append(counts, 0)
		}
		out[j].Benchmarks[r.benchmark] = 100 * v / unreduced
		for _, x := range r.List {
			out[j].After += float64(x.After)
			counts[j]++
			if x.Seconds.Encode > 0 {
				times[j] = append(times[j], x.Seconds.FirstToken)
			}
		}
	}
	for j := range out {
		x := &out[j]
		for _, name := range benches {
			if v, ok := x.Benchmarks[name]; ok {
				x.Percent += v / float64(len(x.Benchmarks))
			} else {
				x.Missing = append(x.Missing, name)
			}
		}
		x.After /= float64(max(1, counts[j]))
		x.FirstToken = stats.Upper(times[j], 0.5)
	}
	return out
}
