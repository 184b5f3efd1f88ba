package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
)

// talker answers with a function of the question.
type talker struct {
	say     func(q *eval.Question, reduced bool) string
	reduced bool
}

func (m *talker) Settings() map[string]any { return map[string]any{"reduced": m.reduced} }

func (m *talker) Answer(
	_ context.Context, asked []*eval.Question, done func(i int, a eval.Answer) error,
) error {
	for i, q := range asked {
		if err := done(i, eval.Answer{Text: m.say(q, m.reduced), Finish: "stop"}); err != nil {
			return err
		}
	}
	return nil
}

// q is a question of questions.json.
func q(task, answer string) string {
	return fmt.Sprintf(`{"task": %q, "question": %q, "answer": %q}`, task, task+"?", answer)
}

// The confusion tables of this file: 3 exist (yes yes no), 2 count (2 3), 1 text.
var sample = `[{"picture": "a", "questions": [` + q("exist", "yes") + "," + q("count", "2") + "," +
	q("text", "47") + `]}, {"picture": "b", "questions": [` + q("exist", "yes") + "," +
	q("exist", "no") + "," + q("count", "3") + `]}]`

// paired compares full and reduced answers to questions.
func paired(
	t *testing.T, questions string, say func(q *eval.Question, reduced bool) string,
) *Paired {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "questions.json")
	if err := os.WriteFile(path, []byte(questions), 0o600); err != nil {
		t.Fatal(err)
	}
	b, _, err := benchmarks.SceneFolder(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	records, err := eval.RunAll(t.Context(), b, []eval.Answerer{
		&talker{say: say}, &talker{say, true},
	}, eval.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return NewPaired(records[0], records[1], 0)
}

// Ensure that a picture whose questions are apart in the file is one picture, as with its questions
// together: intervals draw pictures.
func TestPicturesApart(t *testing.T) {
	say := func(q *eval.Question, reduced bool) string {
		if reduced && q.Images[0].Name == "a" {
			return "no"
		}
		return q.Doc.(string)
	}
	entry := func(picture string, n int) string {
		one := `{"picture": "` + picture + `", "questions": [` + q("exist", "yes") + `]}`
		return strings.Repeat(one+",", n-1) + one
	}
	together := paired(t, "["+entry("a", 4)+","+entry("b", 4)+"]", say)
	apart := paired(t, "["+entry("a", 2)+","+entry("b", 4)+","+entry("a", 2)+"]", say)
	if apart.Pictures != 2 || !cmp.Equal(apart, together) {
		t.Errorf("got %+v, want %+v", apart, together)
	}
	if i := apart.Change["exist"].Interval; i != (stats.Interval{-100, 0}) {
		t.Errorf("interval %v, want -100 to 0, for one of two pictures is lost", i)
	}
}

func TestHandWorkedAccuracies(t *testing.T) {
	truth := func(q *eval.Question, _ bool) string { return q.Doc.(string) }
	always := func(a string) func(*eval.Question, bool) string {
		return func(q *eval.Question, reduced bool) string {
			if reduced {
				return a
			}
			return q.Doc.(string)
		}
	}
	perfect := map[string]float64{"exist": 100, "count": 100, "text": 100, "all": 100}
	for _, c := range []struct {
		name          string
		answer        func(*eval.Question, bool) string
		full, reduced map[string]float64
		unparsable    map[string]Unparsable
	}{
		{"truth", truth, perfect,
			map[string]float64{"exist": 100, "count": 100, "text": 100, "all": 100, "vs_full": 100},
			nil},
		{"always yes", always("yes"), perfect, // exist 2/3, all 2/6, vs_full (2/3 + 0 + 0)/3 = 2/9
			map[string]float64{"exist": 66.7, "count": 0, "text": 0, "all": 33.3, "vs_full": 22.2},
			map[string]Unparsable{"count": {0, 2}, "text": {0, 1}}},
		{"always no", always("no"), perfect, // exist 1/3, all 1/6, vs_full 1/9
			map[string]float64{"exist": 33.3, "count": 0, "text": 0, "all": 16.7, "vs_full": 11.1},
			map[string]Unparsable{"count": {0, 2}, "text": {0, 1}}},
		{"unparsable", always("Yes. 2 47"), perfect,
			map[string]float64{"exist": 0, "count": 0, "text": 0, "all": 0, "vs_full": 0},
			map[string]Unparsable{"exist": {0, 3}, "count": {0, 2}, "text": {0, 1}}},
		{"empty", always(""), perfect,
			map[string]float64{"exist": 0, "count": 0, "text": 0, "all": 0, "vs_full": 0},
			map[string]Unparsable{"exist": {0, 3}, "count": {0, 2}, "text": {0, 1}}},
		{"near misses", func(q *eval.Question, reduced bool) string { // the whole answer, exactly
			return map[string]string{
				"yes": "Yes", "no": "no.", "2": "02", "3": "3 ", "47": "4 7",
			}[q.Doc.(string)]
		}, map[string]float64{"exist": 0, "count": 0, "text": 0, "all": 0},
			map[string]float64{"exist": 0, "count": 0, "text": 0, "all": 0}, // no ratio exists
			map[string]Unparsable{"exist": {3, 3}, "count": {2, 2}, "text": {1, 1}}},
		// unreduced: no, 3, 9; reduced: yes, 2, 47
		{"weak unreduced run", func(q *eval.Question, reduced bool) string {
			if q.Category == "text" {
				return map[bool]string{false: "9", true: "47"}[reduced]
			}
			if q.Category == "count" {
				return map[bool]string{false: "3", true: "2"}[reduced]
			}
			return map[bool]string{false: "no", true: "yes"}[reduced]
		}, map[string]float64{"exist": 33.3, "count": 50, "text": 0, "all": 33.3},
			// exist (2/3)/(1/3) = 2, count 1, text without a ratio: vs_full 3/2
			map[string]float64{
				"exist": 66.7, "count": 50, "text": 100, "all": 66.7, "vs_full": 150,
			}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := paired(t, sample, c.answer)
			if d := cmp.Diff(map[string]int{"exist": 3, "count": 2, "text": 1},
				r.Questions); d != "" {
				t.Error("questions:", d)
			}
			if d := cmp.Diff(c.full, r.Full); d != "" {
				t.Error("full:", d)
			}
			if d := cmp.Diff(c.reduced, r.Reduced); d != "" {
				t.Error("reduced:", d)
			}
			if len(c.unparsable)+len(r.Unparsable) > 0 {
				if d := cmp.Diff(c.unparsable, r.Unparsable); d != "" {
					t.Error("unparsable:", d)
				}
			}
		})
	}
}

// Ensure that changes are counted in pairs: equal accuracies on different questions are a change.
func TestPairedChange(t *testing.T) {
	one := `[{"picture": "a", "questions": [` + q("exist", "yes") + "," + q("exist", "no") + "," +
		q("exist", "no") + "," + q("text", "47") + "]}]"
	r := paired(t, one, func(_ *eval.Question, reduced bool) string {
		return map[bool]string{false: "yes", true: "no"}[reduced]
	})
	// exist: yes-question lost, two no-questions gained; text wrong both times.
	if got := r.Change["exist"]; got.Lost != 1 || got.Gained != 2 || got.Points != 33.3 {
		t.Errorf("exist: got %+v, want 1 lost, 2 gained, +33.3", got)
	}
	if got := r.Change[benchmarks.AllTasks]; got.Lost != 1 || got.Gained != 2 || got.Points != 25 {
		t.Errorf("all: got %+v, want 1 lost, 2 gained, +25", got)
	}
	// One picture: every draw of the bootstrap is that picture.
	if got := r.Change[benchmarks.AllTasks].Interval; got != (stats.Interval{25, 25}) {
		t.Errorf("interval of a single picture: got %v, want 25…25", got)
	}
}

// Ensure that the bootstrap's interval has the width of the normal approximation, depends only on
// the seed, and contains the estimate.
func TestBootstrapWidth(t *testing.T) {
	p := &pairTallies{tasks: []string{"exist"}}
	for i := range 400 { // a quarter of the pictures lose their only question
		p.pictures = append(p.pictures, []tally{{n: 1, full: 1, reduced: one(i%4 != 0)}})
	}
	got := p.bootstrap(1)
	// standard error √(1/4 · 3/4 / 400) = 2.165 points: -25 ± 4.24 points; 2000 draws determine a
	// bound to about 0.1 standard errors, in steps of 0.25
	const tol = 0.5
	for i, want := range []stats.Interval{{-29.24, -20.76}, {-29.24, -20.76}, {70.76, 79.24}} {
		for k := range want {
			if !(math.Abs(got[i][k]-want[k]) <= tol) {
				t.Errorf("figure %d: bound %d is %.2f, want %.2f", i, k, got[i][k], want[k])
			}
		}
	}
	if !reflect.DeepEqual(got, p.bootstrap(1)) {
		t.Error("one seed gave two intervals")
	}
}

// Ensure that the JSON has the three promised fields in the promised form.
func TestResultJSON(t *testing.T) {
	r := paired(t, sample, func(q *eval.Question, _ bool) string { return q.Doc.(string) })
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Questions     map[string]int
		Full, Reduced map[string]float64
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Questions["exist"] != 3 || got.Full["all"] != 100 || got.Reduced["vs_full"] != 100 {
		t.Errorf("got %s", data)
	}
	if _, ok := got.Questions[benchmarks.AllTasks]; ok {
		t.Error("questions counts a total in addition to the tasks")
	}
	var text bytes.Buffer
	if err := r.Tables()[0].Write(&text, "text"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"exist", "100.0", "keeps 100.0 %", "2 pictures"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, &text)
		}
	}
}
