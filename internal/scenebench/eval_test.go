package scenebench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"iter"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/stats"
)

// answerer makes an Ask from a function from question to full and reduced answer.
func answerer(f func(q scene.Question, reduced bool) string) Ask {
	return func(_ context.Context, _ *imageproc.Picture, qs []scene.Question) (full,
		reduced []Reply, err error) {
		for _, q := range qs {
			full = append(full, Reply{Text: f(q, false), Stopped: true})
			reduced = append(reduced, Reply{Text: f(q, true), Stopped: true})
		}
		return full, reduced, nil
	}
}

// items makes one picture from each row of "task answer" questions.
func items(rows ...[]scene.Question) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for i, qs := range rows {
			if !yield(Item{Name: string(rune('a' + i)), Questions: qs}, nil) {
				return
			}
		}
	}
}

func q(task, answer string) scene.Question {
	return scene.Question{Task: task, Text: task + "?", Answer: answer}
}

// The confusion tables of this file: 3 exist (yes yes no), 2 count (2 3), 1 text.
func sample() iter.Seq2[Item, error] {
	return items([]scene.Question{q("exist", "yes"), q("count", "2"), q("text", "47")},
		[]scene.Question{q("exist", "yes"), q("exist", "no"), q("count", "3")})
}

func run(t *testing.T, items iter.Seq2[Item, error], ask Ask) *Result {
	t.Helper()
	r, err := Run(context.Background(), items, 2, ask, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestHandWorkedAccuracies(t *testing.T) {
	truth := func(q scene.Question, _ bool) string { return q.Answer }
	always := func(a string) func(scene.Question, bool) string {
		return func(q scene.Question, reduced bool) string {
			if reduced {
				return a
			}
			return q.Answer
		}
	}
	perfect := map[string]float64{"exist": 100, "count": 100, "text": 100, "all": 100}
	for _, c := range []struct {
		name          string
		answer        func(scene.Question, bool) string
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
		{"near misses", func(q scene.Question, reduced bool) string { // the whole answer, exactly
			return map[string]string{
				"yes": "Yes", "no": "no.", "2": "02", "3": "3 ", "47": "4 7",
			}[q.Answer]
		}, map[string]float64{"exist": 0, "count": 0, "text": 0, "all": 0},
			map[string]float64{"exist": 0, "count": 0, "text": 0, "all": 0}, // no ratio exists
			map[string]Unparsable{"exist": {3, 3}, "count": {2, 2}, "text": {1, 1}}},
		// unreduced: no, 3, 9; reduced: yes, 2, 47
		{"weak unreduced run", func(q scene.Question, reduced bool) string {
			if q.Task == "text" {
				return map[bool]string{false: "9", true: "47"}[reduced]
			}
			if q.Task == "count" {
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
			r := run(t, sample(), answerer(c.answer))
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

// Ensure that an answer that was cut at the token limit is wrong even if its text is right so far.
func TestCutAnswersAreWrong(t *testing.T) {
	ask := func(_ context.Context, _ *imageproc.Picture, qs []scene.Question) (full,
		reduced []Reply, err error) {
		for _, q := range qs {
			full = append(full, Reply{Text: q.Answer, Stopped: true})
			reduced = append(reduced, Reply{Text: q.Answer})
		}
		return full, reduced, nil
	}
	if r := run(t, sample(), ask); r.Full[All] != 100 || r.Reduced[All] != 0 {
		t.Errorf("got %v and %v, want 100 and 0", r.Full[All], r.Reduced[All])
	}
}

// Ensure that changes are counted in pairs: equal accuracies on different questions are a change.
func TestPairedChange(t *testing.T) {
	rows := items([]scene.Question{
		q("exist", "yes"), q("exist", "no"), q("exist", "no"), q("text", "47"),
	})
	r := run(t, rows, answerer(func(q scene.Question, reduced bool) string {
		return map[bool]string{false: "yes", true: "no"}[reduced]
	}))
	// exist: yes-question lost, two no-questions gained; text wrong both times.
	if got := r.Change["exist"]; got.Lost != 1 || got.Gained != 2 || got.Points != 33.3 {
		t.Errorf("exist: got %+v, want 1 lost, 2 gained, +33.3", got)
	}
	if got := r.Change[All]; got.Lost != 1 || got.Gained != 2 || got.Points != 25 {
		t.Errorf("all: got %+v, want 1 lost, 2 gained, +25", got)
	}
	// One picture: every draw of the bootstrap is that picture.
	if got := r.Change[All].Interval; got != (stats.Interval{25, 25}) {
		t.Errorf("interval of a single picture: got %v, want 25…25", got)
	}
}

// Ensure that the bootstrap's interval has the width of the normal approximation, depends only on
// the seed, and contains the estimate.
func TestBootstrapWidth(t *testing.T) {
	pictures := make([]sheet, 400)
	for i := range pictures { // a quarter of the pictures lose their only question
		pictures[i] = sheet{"exist": {n: 1, full: 1, reduced: count(i%4 != 0)}}
	}
	got := bootstrap(pictures, 1)
	// standard error √(1/4 · 3/4 / 400) = 2.165 points: -25 ± 4.24 points; 2000 draws determine a
	// bound to about 0.1 standard errors, in steps of 0.25
	const tol = 0.5
	for name, want := range map[string]stats.Interval{
		"exist": {-29.24, -20.76}, All: {-29.24, -20.76}, VsFull: {70.76, 79.24},
	} {
		for k := range want {
			if !(math.Abs(got[name][k]-want[k]) <= tol) {
				t.Errorf("%s: bound %d is %.2f, want %.2f", name, k, got[name][k], want[k])
			}
		}
	}
	if !reflect.DeepEqual(got, bootstrap(pictures, 1)) {
		t.Error("one seed gave two intervals")
	}
}

// Ensure that results do not depend on how many pictures are asked about at the same time.
func TestWorkersDoNotMatter(t *testing.T) {
	ask := answerer(func(q scene.Question, reduced bool) string {
		if reduced && len(q.Text)%3 == 0 {
			return "no"
		}
		return q.Answer
	})
	var calls atomic.Int64
	var first *Result
	for _, workers := range []int{1, 4} {
		r, err := Run(context.Background(), drawn(12), 12, ask, RunOptions{
			Workers: workers, Seed: 3, Progress: func(done, total int) { calls.Add(1) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = r
		} else if d := cmp.Diff(first, r); d != "" {
			t.Error(d)
		}
	}
	if calls.Load() != 24 {
		t.Errorf("%d calls of Progress, want 24", calls.Load())
	}
	if first.Questions[scene.Describe] != 0 || first.Pictures != 12 {
		t.Errorf("drawn set: %+v, want 12 pictures and no descriptions", first.Questions)
	}
}

// Ensure that errors name the picture and stop the run, for any number of workers, and that
// cancelling stops it too.
func TestRunStops(t *testing.T) {
	broken := errors.New("no such weights")
	for _, workers := range []int{1, 3} {
		_, err := Run(context.Background(), sample(), 2,
			func(context.Context, *imageproc.Picture, []scene.Question) (full, reduced []Reply,
				err error) {
				return nil, nil, broken
			}, RunOptions{Workers: workers})
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "eval: ") {
			t.Errorf("got %v, want eval: ...: %v", err, broken)
		}
	}
	if _, err := Run(context.Background(), sample(), 2,
		func(context.Context, *imageproc.Picture, []scene.Question) (full, reduced []Reply,
			err error) {
			return make([]Reply, 3), make([]Reply, 1), nil
		}, RunOptions{}); err == nil ||
		!strings.Contains(err.Error(), "got 3 and 1 answers, want 3") {
		t.Errorf("too few answers: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, sample(), 2,
		answerer(func(q scene.Question, _ bool) string { return q.Answer }),
		RunOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Ensure that the JSON has the three promised fields in the promised form.
func TestResultJSON(t *testing.T) {
	r := run(t, sample(), answerer(func(q scene.Question, _ bool) string { return q.Answer }))
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
	if _, ok := got.Questions[All]; ok {
		t.Error("questions counts a total in addition to the tasks")
	}
	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"exist", "100.0", "keeps 100.0 %", "2 pictures"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, &text)
		}
	}
}

func writeFolder(t *testing.T, questions string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pictures"), 0o755); err != nil {
		t.Fatal(err)
	}
	var pic bytes.Buffer
	if err := png.Encode(&pic, image.NewNRGBA(image.Rect(0, 0, 5, 3))); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"questions.json": []byte(questions), "pictures/a.png": pic.Bytes(), "pictures/bad.png": []byte("text"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFolder(t *testing.T) {
	const one = `{"task": "exist", "question": "Is it?", "answer": "yes", "right": {"x": 1}}`
	f, err := OpenFolder(writeFolder(t, `[{"picture": "a.png", "seed": 5, "questions": [`+one+`]}, {"picture": "bad.png", "questions": [`+one+`]}]`))
	if err != nil {
		t.Fatal(err)
	}
	if f.Len() != 2 {
		t.Errorf("%d pictures, want 2", f.Len())
	}
	for item, err := range f.Items(1) {
		if err != nil {
			t.Fatal(err)
		}
		if item.Picture.Width != 5 || item.Picture.Height != 3 ||
			item.Questions[0].Answer != "yes" || item.Questions[0].Text != "Is it?" {
			t.Errorf("got %+v", item)
		}
	}
	var last error
	for _, err := range f.Items(2) {
		last = err
	}
	if last == nil || !strings.Contains(last.Error(), "bad.png") {
		t.Errorf("bad picture: got %v, want an error that names it", last)
	}

	for name, c := range map[string][2]string{
		"not JSON":     {`x`, "want an array"},
		"marked":       {"\ufeff[]", "no pictures"},
		"UTF-16":       {"\xfe\xff\x00[", "questions.json: is UTF-16"},
		"not UTF-8":    {"[{\"picture\": \"\xe9\"", "questions.json: is not UTF-8: got 0xe9 at byte 14"},
		"object":       {`{}`, "want an array"},
		"empty":        {`[]`, "no pictures"},
		"outside":      {`[{"picture": "../a.png"}]`, "inside pictures/"},
		"absolute":     {`[{"picture": "/a.png"}]`, "inside pictures/"},
		"no answer":    {`[{"picture": "a.png", "questions": [{"task": "x", "question": "y"}]}]`, "needs task, question and answer"},
		"total's name": {`[{"picture": "a.png", "questions": [{"task": "all", "question": "y", "answer": "z"}]}]`, "name of a total"},
	} {
		if _, err := OpenFolder(writeFolder(t, c[0])); err == nil ||
			!strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c[1])
		}
	}
	if _, err := OpenFolder(t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "questions.json") {
		t.Errorf("no questions.json: %v", err)
	}
}

func TestAnswersTask(t *testing.T) {
	for _, c := range []struct {
		task, text string
		want       bool
	}{
		{"exist", "yes", true}, {"exist", "Yes", false}, {"relation", "no", true}, {"relation", "2", false},
		{"attribute", "star", true}, {"attribute", "pink", true}, {"attribute", "hexagon", false},
		{"where", "center", true}, {"where", "middle left", true}, {"where", "middle center", false}, {"where", "left", false},
		{"count", "0", true}, {"count", "-1", false}, {"count", "two", false}, {"text", "47", true}, {"text", "047", false},
		{"poem", "anything", true}, {"poem", "", false},
	} {
		if got := answersTask(scene.Question{Task: c.task}, c.text); got != c.want {
			t.Errorf("%s: %q possible: %v, want %v", c.task, c.text, got, c.want)
		}
	}
}

func FuzzParseQuestions(f *testing.F) {
	f.Add([]byte(`[{"picture": "a.png", "questions": [{"task": "exist", "question": "Is it?", "answer": "yes"}]}]`))
	f.Add([]byte(`[{"picture": "../a.png"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parseQuestions(data)
		if err == nil && len(rows) == 0 {
			t.Error("no pictures and no error")
		}
	})
}
