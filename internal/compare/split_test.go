package compare

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/eval"
)

// Ensure that the split counts by hand: ten questions of five pictures; downsampling answers the
// first four, of which the method loses one; of the other six, which the full run answers but for
// the last two, it answers three.
func TestSplits(t *testing.T) {
	full, small, less := "1111111100", "1111000000", "1110110001"
	runs := []*eval.Records{
		run("gqa", "holov", less, 1), run("gqa", "downsample", small, 1),
		run("gqa", "none", full, 1),
	}
	all, err := Splits(runs, "downsample", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Answered != 4 || all[0].Left != 6 || all[0].After != 64 ||
		all[0].By != "downsample 64" || len(all[0].Rows) != 2 {
		t.Fatalf("%+v", all[0])
	}
	for i, want := range []struct {
		run                     string
		answered, left          float64
		costAnswered, costLeft  float64
		lost, gained            int // of those left
		answeredPics, leftPicts int
	}{
		{"unreduced", 100, 100 * 4. / 6, 0, 0, 0, 0, 2, 3},
		{"holov 64 + RESTORE", 75, 50, -25, -100. / 6, 2, 1, 2, 3},
	} {
		r := all[0].Rows[i]
		near := func(got, want float64) bool { return math.Abs(got-want) < 1e-9 }
		if r.Run != want.run || !near(r.Answered.Accuracy, want.answered) ||
			!near(r.Left.Accuracy, want.left) || r.Answered.Questions != 4 ||
			r.Left.Questions != 6 || r.Answered.Pictures != want.answeredPics ||
			r.Left.Pictures != want.leftPicts {
			t.Errorf("%+v %+v %+v, want %+v", r, r.Answered, r.Left, want)
		}
		if in := r.Left.Interval; !(in[0] <= want.left && want.left <= in[1] && in[0] < in[1]) {
			t.Errorf("%s: interval %v", r.Run, in)
		}
		if (r.Left.Cost == nil) != (i == 0) {
			t.Fatalf("%s: cost %+v", r.Run, r.Left.Cost)
		}
		if c := r.Left.Cost; c != nil && (!near(c.Points, want.costLeft) || c.Lost != want.lost ||
			c.Gained != want.gained || !near(r.Answered.Cost.Points, want.costAnswered)) {
			t.Errorf("%s: cost %+v and %+v", r.Run, r.Answered.Cost, c)
		}
	}
	var b strings.Builder
	if err := all[0].Table().Write(&b, "text"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"gqa, paper, s: 4 questions that downsample 64 answers, 6 that it does not", "-16.7 (",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// Ensure that points between 0 and 1 split at a half, that a side may be empty, and that the
// unreduced run may be missing.
func TestSplitsParts(t *testing.T) {
	small, other := run("vqa", "downsample", "11", 1), run("vqa", "holov", "10", 1)
	half, third := 0.5, 0.3
	small.List[0].Score, small.List[1].Score = &half, &third
	all, err := Splits([]*eval.Records{small, other}, "downsample", 0)
	if err != nil || all[0].Answered != 1 || all[0].Rows[0].Answered.Accuracy != 100 ||
		all[0].Rows[0].Left.Accuracy != 0 || all[0].Rows[0].Left.Cost != nil {
		t.Errorf("%+v, %v", all, err)
	}
	all, err = Splits([]*eval.Records{run("vqa", "downsample", "11", 1), other}, "downsample", 0)
	if err != nil || all[0].Rows[0].Left != nil {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := json.Marshal(all); err != nil {
		t.Error(err)
	}
}

func TestSplitsRefused(t *testing.T) {
	other := run("gqa", "grid", "10", 1)
	other.Settings["reduction"] = map[string]any{"base": "grid", "nvis": 32.0, "restore": false}
	hidden := run("gqa", "downsample", "10", 1)
	hidden.List[0].Score = nil
	for want, runs := range map[string][]*eval.Records{
		"grid-gqa: no run of downsample alone at the budget of grid 32": {
			run("gqa", "downsample", "11", 1), other,
		},
		"no run of downsample alone at the budget of holov 64": {run("gqa", "holov", "11", 1)},
		"no run of downsample alone among the folders":         {run("gqa", "none", "11", 1)},
		"split s has no public answers":                        {hidden, run("gqa", "holov", "11", 1)},
	} {
		_, err := Splits(runs, "downsample", 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
