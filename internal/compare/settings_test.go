package compare

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/reduce"
)

// worked is a table of two pictures with two questions each (exist, count), over settings grid,
// grid + RESTORE and holov + RESTORE:
//
//	           picture 1      picture 2
//	unreduced  right right    right wrong
//	grid       right wrong    wrong wrong
//	grid+R     right right    wrong wrong
//	holov+R    right right    right right
func worked(t *testing.T) *Table {
	t.Helper()
	settings := []Setting{
		{Base: "grid", NVis: 5}, {Base: "grid", Restore: true, NVis: 5},
		{Base: "holov", Restore: true, NVis: 5},
	}
	inside := reduce.Resolved{
		Stages: []reduce.Stage{{Layer: 1, Kept: 3, Merged: 2}, {Layer: 4, Kept: 2}},
	}
	return Tabulate(records(t, "++ +-", reduce.Resolved{}, 0, 0), settings, [][]*eval.Record{
		records(t, "+- --", reduce.Resolved{NVis: 5}, 0.5, 0.25),
		records(t, "++ --", reduce.Resolved{NVis: 5}, 0.25, 0.25),
		records(t, "++ ++", inside, 0.125, 0.125),
	}, 1)
}

// records are the outcomes of questions about pictures, which are apart by a space.
func records(
	t *testing.T, outcomes string, how reduce.Resolved, far ...float64,
) (out []*eval.Record) {
	t.Helper()
	resolved, err := json.Marshal(how)
	if err != nil {
		t.Fatal(err)
	}
	for picture, rights := range strings.Fields(outcomes) {
		for i, right := range rights {
			score, parsed := 0., "x"
			if right == '+' {
				score = 1
			}
			out = append(out, &eval.Record{
				Images: []string{string(rune('a' + picture))}, Score: &score, Parsed: &parsed,
				Category: []string{"exist", "count"}[i],
				Answer:   eval.Answer{Reduction: resolved, Distance: &far[picture]},
			})
		}
	}
	return out
}

// Ensure that a comparison has the values worked out by hand: of 4 questions, 3 are right from all
// tokens, 1 by grid, 2 by grid with RESTORE and 4 by holov with RESTORE.
func TestTabulate(t *testing.T) {
	got := worked(t)
	if got.Full[benchmarks.AllTasks] != 75 || got.Full["exist"] != 100 ||
		got.Questions["count"] != 2 || got.Pictures != 2 {
		t.Errorf("unreduced: %+v", got)
	}
	for _, c := range []struct {
		set      Setting
		all      float64
		keeps    float64 // mean of exist and count in percent of the unreduced 2 and 1 right
		over     map[string]float64
		distance float64
	}{
		{Setting{Base: "grid", Restore: false, NVis: 5}, 25, (1.0/2 + 0.0/1) / 2 * 100, map[string]float64{"unreduced": -50}, 0.375},
		{Setting{Base: "grid", Restore: true, NVis: 5}, 50, (1.0/2 + 1.0/1) / 2 * 100, map[string]float64{"unreduced": -25, "plain": 25}, 0.25},
		{Setting{Base: "holov", Restore: true, NVis: 5}, 100, (2.0/2 + 2.0/1) / 2 * 100, map[string]float64{"unreduced": 25, "grid": 50}, 0.125},
	} {
		row := got.Find(c.set)
		if row == nil || row.Accuracy[benchmarks.AllTasks] != c.all || row.Keeps != c.keeps ||
			row.Distance == nil || *row.Distance != c.distance {
			t.Errorf("%s: %+v", c.set, row)
			continue
		}
		over := map[string]float64{}
		for name, change := range row.Over {
			over[name] = change.Points
		}
		if !reflect.DeepEqual(over, c.over) {
			t.Errorf("%s: over %v, want %v", c.set, over, c.over)
		}
	}
	covered := worked(t)
	covered.Rows[2].Covered = true
	if !strings.Contains(covered.Rows[2].String(), "holov + RESTORE, covered anchors, 5 tokens") {
		t.Errorf("covered: %s", covered.Rows[2])
	}
	if c := got.Find(Setting{Base: "holov", Restore: true, NVis: 5}).Over["grid"]; c.Clear() != 0 ||
		c.Gained != 2 || c.Lost != 0 || c.Interval != (stats.Interval{0, 100}) {
		t.Errorf("holov over grid: %+v", c)
	}
	if (Balance{Interval: stats.Interval{-3, -1}}).Clear() != -1 ||
		(Balance{Interval: stats.Interval{1, 3}}).Clear() != 1 {
		t.Error("significant changes")
	}
}

// Ensure that the tables name methods, budgets, distances, schedules and the settings that were not
// measured, and that changes beyond doubt are bold.
func TestTables(t *testing.T) {
	all := worked(t)
	all.Refused = []Refusal{
		{Setting{Base: "fastv", NVis: 5}, "too few"},
		{Setting{Base: "fastv", Restore: true, NVis: 5}, "too few"},
	}
	all.Rows[2].Restore = false
	all.Rows[1].Over["plain"] = Balance{Points: 25, Interval: stats.Interval{1, 50}}
	var b strings.Builder
	for _, s := range all.Tables() {
		if err := s.Write(&b, "markdown"); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []string{
		"**5 tokens**\n", "| grid | 25.0 |", "| **+25.0 (+1.0…+50.0)** |", "| holov | 150.0 |",
		"| grid | 0.3750 | 0.2500 |\n| holov | 0.1250 |  |\n", "| holov | 5 | 1:5,4:2 |\n",
		"2 pictures, 4 questions, 75.0 % right",
		"not measured: fastv, 5 tokens; fastv + RESTORE, 5 tokens: too few\n",
	} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("no %q in\n%s", w, b.String())
		}
	}
	if none := (&Table{Refused: all.Refused}).Tables(); len(none) != 1 || len(none[0].Notes) != 2 {
		t.Errorf("nothing measured: %+v", none)
	}
}

// Ensure that impossible settings are reported, and that methods are selected by name.
func TestSettings(t *testing.T) {
	refuse := errors.New("too few")
	check := func(r *restore.Reduction) error {
		if r.NVis < 3 {
			return refuse
		}
		return nil
	}
	all, refused := Settings(check, nil, []int{64, 2})
	if len(all) < 40 || len(refused) != len(all) || refused[0].Reason != "too few" {
		t.Errorf("%d settings, refused %v", len(all), refused)
	}
	if few, _ := Settings(check, []string{"holov", "pool"}, []int{64}); len(few) != 5 ||
		!few[2].Covered || few[4].Covered {
		t.Errorf("two methods: %v", few)
	}
}
