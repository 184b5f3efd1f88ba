package scenebench

import (
	"bytes"
	"context"
	"encoding/csv"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/methods"
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
func worked() *Table {
	none := [][]reduce.Stage{nil, nil, nil, {{Layer: 1, Kept: 3, Merged: 2}, {Layer: 4, Kept: 2}}}
	rows := []float64{9, 5, 5, 4}
	settings := []Setting{
		{Base: "grid", Restore: false, NVis: 5}, {Base: "grid", Restore: true, NVis: 5}, {Base: "holov", Restore: true, NVis: 5},
	}
	return tabulate([]*marks{
		{[]string{"exist", "count"}, [][]bool{{true, true}, {true, false}, {true, true}, {true, true}}, none, rows, []float64{0, 0.5, 0.25, 0.125}},
		{[]string{"exist", "count"}, [][]bool{{true, false}, {false, false}, {false, false}, {true, true}}, none, rows, []float64{0, 0.25, 0.25, 0.125}},
	}, settings, 1)
}

// Ensure that a comparison has the values worked out by hand: of 4 questions, 3 are right from all
// tokens, 1 by grid, 2 by grid with RESTORE and 4 by holov with RESTORE.
func TestTabulate(t *testing.T) {
	got := worked()
	if got.Full[All] != 75 || got.Full["exist"] != 100 || got.Questions["count"] != 2 ||
		got.Pictures != 2 {
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
		if row == nil || row.Accuracy[All] != c.all || row.Keeps != c.keeps ||
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
	covered := worked()
	covered.Rows[2].Covered = true
	if !strings.Contains(covered.Rows[2].String(), "holov + RESTORE, covered anchors, 5 tokens") {
		t.Errorf("covered: %s", covered.Rows[2])
	}
	if c := got.Find(Setting{Base: "holov", Restore: true, NVis: 5}).Over["grid"]; c.Clear() != 0 ||
		c.Gained != 2 || c.Lost != 0 || c.Interval != (stats.Interval{0, 100}) {
		t.Errorf("holov over grid: %+v", c)
	}
	if (Change{Interval: stats.Interval{-3, -1}}).Clear() != -1 ||
		(Change{Interval: stats.Interval{1, 3}}).Clear() != 1 {
		t.Error("significant changes")
	}
}

// Ensure that every format of the table names methods, budgets, schedules and the settings that
// were not measured.
func TestTableForms(t *testing.T) {
	table := worked()
	table.Refused = []Refusal{
		{Setting{Base: "fastv", Restore: false, NVis: 5}, "too few"}, {Setting{Base: "fastv", Restore: true, NVis: 5}, "too few"},
	}
	var b bytes.Buffer
	if err := table.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{
		"2 pictures, 4 questions, 75.0 % right", "### 5 tokens\n", "| grid | 25.0 |", "| holov |  |  |  | 150.0 |", "- fastv, 5 tokens; fastv + RESTORE, 5 tokens: too few\n",
		"| method | 5 alone | 5 + RESTORE |\n|---|--:|--:|\n| grid | 0.3750 | 0.2500 |\n| " +
			"holov |  | 0.1250 |\n"} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("markdown lacks %q:\n%s", w, b.String())
		}
	}
	table.Rows[2].Restore = false
	b.Reset()
	if err := table.WriteMarkdown(&b); err != nil ||
		!strings.Contains(b.String(), "- `holov`, 5: `1:5,4:2`\n") {
		t.Errorf("schedules: %v\n%s", err, b.String())
	}
	b.Reset()
	if err := table.WriteTable(&b); err != nil ||
		!strings.Contains(b.String(), "gain of RESTORE") ||
		!strings.Contains(b.String(), "not measured: fastv, 5 tokens") {
		t.Errorf("table: %v\n%s", err, b.String())
	}
	b.Reset()
	if err := worked().WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(lines) != 4 || lines[0][3] != "keeps" || lines[2][0] != "grid" ||
		lines[2][1] != "true" || lines[2][3] != "75.0" || lines[3][len(lines[3])-1] != "0.1250" {
		t.Errorf("csv: %v, %v", err, lines)
	}
}

// Ensure that the embedded model is asked under every setting, that a budget of all tokens changes
// nothing, and that impossible settings are reported.
func TestCompare(t *testing.T) {
	m := openModel(t)
	all, refused := Settings(m, nil, []int{64, 2})
	if len(all) < 40 || !strings.Contains(refused[0].Reason, "n-vis") {
		t.Errorf("%d settings, refused %v", len(all), refused)
	}
	if few, _ := Settings(m, []string{"holov", "pool"}, []int{64}); len(few) != 5 ||
		!few[2].Covered || few[4].Covered {
		t.Errorf("two methods: %v", few)
	}
	set := []Setting{
		{Base: "grid", Restore: false, NVis: 576}, {Base: "random", Restore: true, NVis: 576}, {Base: "holov", Restore: true, NVis: 64},
	}
	table, err := Compare(context.Background(), m, drawn(2), 2, set, 0, RunOptions{
		Workers: 2, Distance: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table.Rows[:2] {
		if c := row.Over["unreduced"]; c.Lost+c.Gained != 0 || *row.Distance != 0 {
			t.Errorf("%s: %+v", row.Setting, row)
		}
	}
	if row := table.Rows[2]; !(*row.Distance > 0) || row.Accuracy[All] == 0 {
		t.Errorf("%s: %+v", row.Setting, row)
	}
	one, err := Scenes(context.Background(), m, drawn(2), 2,
		methods.Options{Base: "holov", NVis: 64, Restore: true}, RunOptions{})
	if err != nil || one.Reduced[VsFull] != table.Rows[2].Keeps ||
		one.Change[All] != table.Rows[2].Over["unreduced"] {
		t.Errorf("alone %+v, %v; in a table %+v", one.Reduced, err, table.Rows[2])
	}
	if _, err := Compare(context.Background(), m, drawn(1), 1,
		[]Setting{{Base: "holov", Restore: false, NVis: 577}}, 0, RunOptions{}); err == nil ||
		!strings.Contains(err.Error(), "holov, 577 tokens") {
		t.Errorf("a budget above the tokens: %v", err)
	}
}
