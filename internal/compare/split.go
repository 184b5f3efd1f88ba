package compare

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/internal/table"
)

// Split divides a benchmark's questions by whether a control, usually the picture shrunk, answers
// them at a budget, as VTC-Bench (ACL 2026) does: a question that the control answers needs little
// of the picture and says little about a method.
type Split struct {
	Benchmark string     `json:"benchmark"`
	Protocol  string     `json:"protocol"`
	Split     string     `json:"split"`
	By        string     `json:"by"`            // label of the control's run
	After     float64    `json:"visual_tokens"` // mean number that the decoder read in the control's run
	Answered  int        `json:"answered"`      // questions of the control's run that it answers
	Left      int        `json:"left"`          // and those that it does not
	Rows      []SplitRow `json:"rows"`          // the unreduced run first, then the budget's others by name
}

// SplitRow is a run on both sides of a split; a side without questions is nil.
type SplitRow struct {
	Run      string `json:"run"`
	Answered *Side  `json:"answered"`
	Left     *Side  `json:"left"`

	full bool // the unreduced run
}

// Side is a run over the questions of one side.
type Side struct {
	Questions int            `json:"questions"`
	Pictures  int            `json:"pictures"`
	Accuracy  float64        `json:"accuracy"` // mean points, in percent
	Interval  stats.Interval `json:"interval"` // of Accuracy: bootstrap over pictures

	// Cost compares with the unreduced run, over the questions that it answered too; nil if there
	// is none, and in its own row.
	Cost *Change `json:"cost,omitempty"`
}

// answeredFrom is the least number of points, of 1, of a question that counts as answered.
const answeredFrom = 0.5

// Splits divides the questions of each benchmark and budget by the answers of the runs of base
// alone. Each other run that was reduced belongs to the split of its own budget, which must have a
// run of base. seed starts the random numbers of the intervals.
func Splits(runs []*eval.Records, base string, seed int64) ([]*Split, error) {
	all := names(runs)
	full := map[string]*named{} // by benchmark
	by := map[string]*named{}   // by benchmark and budget
	for _, r := range all {
		name, budget, restore := reductionIn(r)
		switch key := r.benchmark + " " + budget; {
		case r.unreduced():
			full[r.benchmark] = cmp.Or(full[r.benchmark], r)
		case name == base && !restore:
			by[key] = cmp.Or(by[key], r)
		}
	}
	of := map[string]*Split{}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		s, err := newSplit(by[key], full[by[key].benchmark], seed)
		if err != nil {
			return nil, err
		}
		of[key] = s
	}
	for _, r := range all {
		name, budget, _ := reductionIn(r)
		key := r.benchmark + " " + budget
		if name == "none" || by[key] == r {
			continue
		}
		s := of[key]
		if s == nil {
			return nil, fmt.Errorf("compare: %s: no run of %s alone at the budget of %s, want one",
				r.Dir, base, r.label)
		}
		if err := s.add(by[key], r, full[r.benchmark], seed); err != nil {
			return nil, err
		}
	}
	out := slices.Collect(maps.Values(of))
	slices.SortFunc(out, func(a, b *Split) int {
		return cmp.Or(strings.Compare(a.head(), b.head()), cmp.Compare(b.After, a.After),
			strings.Compare(a.By, b.By))
	})
	for _, s := range out {
		slices.SortStableFunc(s.Rows, func(a, b SplitRow) int {
			return cmp.Or(one(b.full)-one(a.full), strings.Compare(a.Run, b.Run))
		})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("compare: no run of %s alone among the folders, want one for "+
			"each budget", base)
	}
	return out, nil
}

// reductionIn returns the method, the budget and whether RESTORE is over the method, from the
// settings of a run.
func reductionIn(r *named) (base, budget string, restore bool) {
	how := howOf(r.Records)
	base, _ = how["base"].(string)
	on, given := how["restore"].(bool)
	return cmp.Or(base, "none"), budgetIn(how), on || !given
}

// newSplit is the split by the control's run, with the row of the unreduced run, which may be nil.
func newSplit(control, full *named, seed int64) (*Split, error) {
	s := &Split{
		Benchmark: control.setting("benchmark"), Protocol: control.setting("protocol"),
		Split: control.setting("split"), By: control.label,
	}
	for _, x := range control.List {
		s.After += float64(x.After)
		if x.Score == nil {
			return nil, fmt.Errorf("compare: %s: split %s has no public answers", s.Benchmark,
				s.Split)
		}
		if *x.Score >= answeredFrom {
			s.Answered++
		} else {
			s.Left++
		}
	}
	s.After /= float64(max(1, len(control.List)))
	if full == nil {
		return s, nil
	}
	return s, s.add(control, full, nil, seed)
}

// add adds the row of a run to the split by the run of the control. full is the unreduced run; nil:
// there is none, or it is the run itself.
func (s *Split) add(control, r, full *named, seed int64) error {
	points, err := pointsOf(control, r)
	if err != nil {
		return err
	}
	var against []point
	if full != nil {
		if against, err = pointsOf(full, r); err != nil {
			return err
		}
	}
	answers := map[int]bool{} // by the control
	for _, x := range control.List {
		answers[x.ID] = *x.Score >= answeredFrom
	}
	side := func(want bool) *Side {
		other := func(x point) bool {
			got, ok := answers[x.id]
			return !ok || got != want
		}
		own := slices.DeleteFunc(slices.Clone(points), other)
		if len(own) == 0 {
			return nil
		}
		for i := range own {
			own[i].a = 0 // the change is then the accuracy itself
		}
		c := change(own, seed)
		x := &Side{
			Questions: c.Questions, Pictures: c.Pictures, Accuracy: c.B, Interval: c.Interval,
		}
		if both := slices.DeleteFunc(slices.Clone(against), other); len(both) > 0 {
			cost := change(both, seed)
			x.Cost = &cost
		}
		return x
	}
	name, _, _ := reductionIn(r)
	s.Rows = append(s.Rows, SplitRow{r.label, side(true), side(false), name == "none"})
	return nil
}

// head names the benchmark, protocol and split.
func (s *Split) head() string { return joined(", ", s.Benchmark, s.Protocol, s.Split) }

// Table is the split as a table.
func (s *Split) Table() *table.Table {
	t := &table.Table{
		Title: fmt.Sprintf("%s: %d questions that %s answers, %d that it does not", s.head(),
			s.Answered, s.By, s.Left),
		Columns: []table.Column{
			{Name: "run"}, {Name: "answered", Decimals: 1}, {Name: "95 %"}, {Name: "cost"},
			{Name: "not answered", Decimals: 1}, {Name: "95 %"}, {Name: "cost"},
		},
		Notes: []string{
			"Mean points in percent. Answered: at least half the points of the question. Cost: " +
				"points less the unreduced run's, over the questions that both answered. " +
				"Intervals are 95 % and draw pictures.",
		},
	}
	for _, r := range s.Rows {
		t.Rows = append(t.Rows, slices.Concat(table.Row{r.Run}, r.Answered.cells(), r.Left.cells()))
	}
	return t
}

func (x *Side) cells() table.Row {
	if x == nil {
		return table.Row{nil, nil, nil}
	}
	row := table.Row{x.Accuracy, x.Interval.String(), nil}
	if c := x.Cost; c != nil {
		row[2] = fmt.Sprintf("%+.1f (%s)", c.Points, c.Interval.Signed())
	}
	return row
}
