package eval

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

// sums is a benchmark of 40 questions about 12 pictures: the right answer is the sum of the
// question's numbers.
func sums() *Benchmark {
	return &Benchmark{
		Name: "sums", Split: "test", MaxTokens: 7,
		Questions: func() iter.Seq2[*Question, error] {
			return func(yield func(*Question, error) bool) {
				for i := range 40 {
					name := fmt.Sprintf("p%d", i*7%12)
					q := &Question{
						ID:   i,
						Key:  int64(1000 + i),
						Text: fmt.Sprintf("%d + 2?", i),
						Doc:  fmt.Sprint(i + 2),
						Images: []Image{{Name: name, Open: func() (io.ReadCloser, error) {
							return io.NopCloser(strings.NewReader("picture " + name)), nil
						}}},
					}
					if !yield(q, nil) {
						return
					}
				}
			}
		},
		Score: func(q *Question, answer string) Score {
			return Right(answer == q.Doc.(string), answer)
		},
	}
}

// adder answers sums, wrongly if five divides the number.
type adder struct {
	setting string
	finish  string // of its answers; "": stop
	asked   atomic.Int32
	looked  atomic.Int32      // pictures that were opened
	before  func(n int) error // called before answer n, from 1
}

func (a *adder) Settings() map[string]any {
	return map[string]any{"adder": a.setting, "n": 3}
}

func (a *adder) Answer(
	ctx context.Context,
	qs []*Question,
	done func(int, Answer) error,
) error {
	if qs[0].MaxTokens != 7 {
		return fmt.Errorf("got %d tokens", qs[0].MaxTokens)
	}
	if _, err := qs[0].Images[0].Bytes(); err != nil {
		return err
	}
	a.looked.Add(1)
	for i, q := range qs {
		n := a.asked.Add(1)
		if a.before != nil {
			if err := a.before(int(n)); err != nil {
				return err
			}
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var x int
		if _, err := fmt.Sscanf(q.Text, "%d + 2?", &x); err != nil {
			return err
		}
		if x%5 > 0 {
			x += 2
		}
		answer := Answer{Text: fmt.Sprint(x), Finish: cmp.Or(a.finish, "stop"),
			Seconds: Seconds{Decode: rand.Float64()}}
		if err := done(i, answer); err != nil {
			return err
		}
	}
	return nil
}

// same reports whether two results are equal.
func same(a, b *Result) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// Ensure that damaged pictures end a run only when all other questions are answered, and that the
// same run answers the rest when they are mended.
func TestRunDamagedPictures(t *testing.T) {
	broken := map[string]bool{"p3": true, "p7": true}
	b := sums()
	all := b.Questions
	b.Questions = func() iter.Seq2[*Question, error] {
		return func(yield func(*Question, error) bool) {
			for q, err := range all() {
				image := &q.Images[0]
				if open := image.Open; broken[image.Name] {
					image.Open = func() (io.ReadCloser, error) {
						open()
						return nil, &errs.PictureError{Index: -1, Err: errors.New("cut short")}
					}
				}
				if !yield(q, err) {
					return
				}
			}
		}
	}
	want, _, err := Run(t.Context(), sums(), &adder{}, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := RunOptions{Records: t.TempDir(), Parallel: 3}
	a := &adder{}
	_, _, err = Run(t.Context(), b, a, o)
	var damaged *errs.PictureError
	text := strings.ReplaceAll(fmt.Sprint(err), "\n", "; ")
	if !errors.As(err, &damaged) || text != "sums: 7 of 40 questions have no answer, since "+
		"their pictures are damaged: p7: cut short; p3: cut short" {
		t.Errorf("got %s", text)
	}
	if n := a.asked.Load(); n != 33 {
		t.Errorf("%d questions were asked, want the 33 others", n)
	}
	clear(broken)
	got, _, err := Run(t.Context(), b, a, o)
	if err != nil || !same(got, want) || a.asked.Load() != 40 {
		t.Errorf("got %+v, %v after %d questions, want %+v", got, err, a.asked.Load(), want)
	}
}

func TestRun(t *testing.T) {
	a := &adder{}
	want, all, err := Run(t.Context(), sums(), a, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := want.Metrics.Get("accuracy"); v != 80 || len(all) != 40 || want.Questions != 40 ||
		a.looked.Load() != 12 {
		t.Fatalf("%+v, %d pictures opened", want, a.looked.Load())
	}
	for _, parallel := range []int{1, 3, 20} {
		dir := t.TempDir()
		var last Progress
		o := RunOptions{Records: dir, Parallel: parallel, Progress: func(p Progress) { last = p }}
		got, _, err := Run(t.Context(), sums(), &adder{}, o)
		if err != nil || !same(got, want) || last.Done != 40 || last.Total != 40 {
			t.Errorf("%d at a time: %v, %+v, %+v", parallel, err, got, last)
		}
		r, err := ReadRecords(dir)
		if err != nil || !same(r.Result, want) || len(r.List) != 40 || r.Settings["adder"] != "" ||
			r.Settings["split"] != "test" {
			t.Fatalf("%v: %+v", err, r)
		}
		slices.SortFunc(r.List, func(a, b *Record) int { return a.ID - b.ID })
		x := r.List[3]
		if x.Key != int64(1003) || x.Prompt != "3 + 2?" || x.Text != "5" || *x.Score != 1 ||
			*x.Parsed != "5" ||
			x.Images[0] != "p9" {
			t.Errorf("%+v", x)
		}
		// No question remains.
		b := &adder{}
		if got, _, err := Run(t.Context(), sums(), b, o); err != nil || !same(got, want) ||
			b.asked.Load() != 0 {
			t.Errorf("again: %v, %d asked", err, b.asked.Load())
		}
	}
}

// Ensure that a run that is killed ten times, also in the middle of a line, gives the same result
// as one that is not, and asks no question twice except the one that was cut off.
func TestRunKilled(t *testing.T) {
	want, _, err := Run(t.Context(), sums(), &adder{}, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		dir := t.TempDir()
		asked := int32(0)
		for range 10 {
			at := random.IntN(4)
			a := &adder{before: func(n int) error {
				if n > at {
					return errors.New("killed")
				}
				return nil
			}}
			if _, _, err := Run(t.Context(), sums(), a, RunOptions{
				Records: dir, Parallel: 1 + random.IntN(3),
			}); err == nil {
				t.Fatal("not killed")
			}
			asked += a.asked.Load()
			// A kill may cut off the line that is being written.
			path := filepath.Join(dir, recordsFile)
			if info, err := os.Stat(path); err == nil && info.Size() > 0 && random.IntN(2) == 0 {
				if err := os.Truncate(path, info.Size()-1-random.Int64N(min(40,
					info.Size()))); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, _, err := Run(t.Context(), sums(), &adder{}, RunOptions{Records: dir})
		if err != nil || !same(got, want) {
			t.Fatalf("%v: %+v, want %+v", err, got, want)
		}
	}
}

// Ensure that records with other settings or data, of a run in progress, and damaged ones are
// refused with the reason.
func TestRecordsRefused(t *testing.T) {
	dir := t.TempDir()
	o := RunOptions{Records: dir, Selection: Selection{Limit: 5}}
	if _, _, err := Run(t.Context(), sums(), &adder{}, o); err != nil {
		t.Fatal(err)
	}
	check := func(want string, b *Benchmark, a *adder) {
		t.Helper()
		if _, _, err := Run(t.Context(), b, a, o); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	check(`holds records of another run: adder was "", now "x"`, sums(), &adder{setting: "x"})
	changed := sums()
	changed.Questions = func() iter.Seq2[*Question, error] {
		return func(yield func(*Question, error) bool) {
			for q, err := range sums().Questions() {
				q.Text = "0" + q.Text
				if !yield(q, err) {
					return
				}
			}
		}
	}
	check(`question 0 was "0 + 2?", now "00 + 2?": the data have changed`, changed, &adder{})
	j, err := openJournal(dir, settingsOf(sums(), &adder{}), "")
	if err != nil {
		t.Fatal(err)
	}
	check("another run is writing there", sums(), &adder{})
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, recordsFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string]string{
		"records.jsonl: line 1: ":                         "{]\n" + string(whole),
		"line 6: of settings abc, want ":                  string(whole) + `{"id": 7, "settings": "abc"}` + "\n",
		"line 6: key: ":                                   string(whole) + `{"id": 7, "key": 1.5}` + "\n",
		"line 6: json: cannot unmarshal string into Go s": string(whole) + `{"id": "x"}` + "\n",
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		check(want, sums(), &adder{})
	}
}

// Ensure that a run does not continue with other pictures of the same names: its answers would be
// about the old ones. A complete run needs no pictures.
func TestRunOtherPictures(t *testing.T) {
	about := func(open func() (io.ReadCloser, error)) *Benchmark {
		b := sums()
		questions := b.Questions
		b.Questions = func() iter.Seq2[*Question, error] {
			return func(yield func(*Question, error) bool) {
				for q := range questions() {
					q.Images[0].At, q.Images[0].Open = "folder/"+q.Images[0].Name, open
					if !yield(q, nil) {
						return
					}
				}
			}
		}
		return b
	}
	files := func(grey uint8, cut int) func() (io.ReadCloser, error) {
		var file bytes.Buffer
		m := image.NewGray(image.Rect(0, 0, 1, 1))
		m.Pix[0] = grey
		if err := png.Encode(&file, m); err != nil {
			t.Fatal(err)
		}
		data := file.Bytes()[:file.Len()-cut]
		return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	}
	gone := func() (io.ReadCloser, error) { return nil, fs.ErrNotExist }
	dir := t.TempDir()
	for i, c := range []struct {
		open  func() (io.ReadCloser, error)
		shard int
		want  string
	}{
		{files(7, 0), 1, "<nil>"}, {files(7, 0), 2, "<nil>"},
		{files(7, 20), 1, "<nil>"}, // damaged
		{files(8, 0), 1, "sums: " + dir + ": holds answers about other pictures, want another folder"},
		{gone, 2, "<nil>"},
	} {
		_, _, err := Run(t.Context(), about(c.open), &adder{}, RunOptions{
			Records: dir, Selection: Selection{Shard: c.shard, Parts: 2},
		})
		if fmt.Sprint(err) != c.want {
			t.Errorf("run %d: %v, want %s", i, err, c.want)
		}
	}
}

// Ensure that records have the scores of the result, which metrics may change when they have seen
// all answers.
func TestRecordsScores(t *testing.T) {
	b := sums()
	b.Metrics = func(_ context.Context, all []*Scored) (Metrics, error) {
		all[5].Score = Right(true, "judged")
		return Metrics{{"right", Mean(all)}}, nil
	}
	dir := t.TempDir()
	if _, _, err := Run(t.Context(), b, new(adder), RunOptions{Records: dir}); err != nil {
		t.Fatal(err)
	}
	r, err := ReadRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.List {
		want := 1.
		if x.ID%5 == 0 && x.ID != 5 {
			want = 0
		}
		if *x.Score != want || x.ID == 5 && *x.Parsed != "judged" {
			t.Errorf("question %d: %q scores %v, want %v", x.ID, *x.Parsed, *x.Score, want)
		}
	}
}

// Ensure that parts of a run can be joined, and that limit and shard select the right questions.
func TestSelection(t *testing.T) {
	var joined []byte
	var settings string
	for shard := 1; shard <= 3; shard++ {
		dir := t.TempDir()
		r, _, err := Run(t.Context(), sums(), &adder{},
			RunOptions{Records: dir, Selection: Selection{Limit: 32, Shard: shard, Parts: 3}})
		if want := []int{11, 11, 10}[shard-1]; err != nil || r.Questions != want {
			t.Fatalf("%v: shard %d has %d questions, want %d", err, shard, r.Questions, want)
		}
		data, err := os.ReadFile(filepath.Join(dir, recordsFile))
		if err != nil {
			t.Fatal(err)
		}
		joined = append(joined, data...)
		settings = filepath.Join(dir, settingsFile)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, recordsFile), append(joined, joined...),
		0o600); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, settingsFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &adder{}
	r, _, err := Run(t.Context(), sums(), a, RunOptions{Records: dir})
	if err != nil || r.Questions != 40 || a.asked.Load() != 8 {
		t.Errorf("%v, %d asked", err, a.asked.Load())
	}
}

// Ensure that questions that cannot be summarised, and a part without any, are an error before the
// first question is asked.
func TestNothingToScore(t *testing.T) {
	for name, c := range map[string]struct {
		check func([]*Question) error
		s     Selection
		want  string
	}{
		"an empty part": {nil, Selection{Limit: 5, Shard: 4, Parts: 4},
			"sums: part 4 of 4 of 5 questions is empty"},
		"alone": {func(q []*Question) error { return fmt.Errorf("%d questions", len(q)) },
			Selection{Limit: 5, Shard: 3, Parts: 3}, "sums: 1 questions"},
	} {
		b, a := sums(), &adder{}
		b.Check = c.check
		if _, _, err := Run(t.Context(), b, a, RunOptions{Selection: c.s}); err == nil ||
			err.Error() != c.want || a.asked.Load() != 0 {
			t.Errorf("%s: got %v after %d questions, want %s", name, err, a.asked.Load(), c.want)
		}
		if _, _, err := ScoreAll(t.Context(), b, c.s, nil); err == nil || err.Error() != c.want {
			t.Errorf("%s: scoring: got %v, want %s", name, err, c.want)
		}
	}
}

// Ensure that several answerers are asked about one picture before the next, that each has its
// records, and that a run that ends early returns the pictures about which all were asked.
func TestRunAll(t *testing.T) {
	want, err := RunAll(t.Context(), sums(), []Answerer{&adder{}, &adder{setting: "b"}},
		RunOptions{Parallel: 3})
	if err != nil || len(want) != 2 || len(want[0]) != 40 || len(want[1]) != 40 {
		t.Fatalf("%v: %d records", err, len(want))
	}
	for i, x := range want[1] {
		if x.ID != i || *x.Score != *want[0][i].Score || (*x.Score == 0) != (i%5 == 0) {
			t.Errorf("%+v", x)
		}
	}
	o := RunOptions{Records: t.TempDir()}
	broken := errors.New("broken")
	stops := &adder{setting: "b", before: func(n int) error {
		if n > 5 { // in the middle of the second picture of four questions
			return broken
		}
		return nil
	}}
	first := &adder{}
	part, err := RunAll(t.Context(), sums(), []Answerer{first, stops}, o)
	if !errors.Is(err, broken) || len(part[0]) != 4 || len(part[1]) != 4 ||
		first.asked.Load() != 8 || part[0][1].Images[0] != "p0" {
		t.Fatalf("%v: %+v, %d asked", err, part, first.asked.Load())
	}
	second := &adder{setting: "b"}
	all, err := RunAll(t.Context(), sums(), []Answerer{first, second}, o)
	if err != nil || first.asked.Load() != 40 || second.asked.Load() != 35 ||
		len(all[1]) != 40 || !reflect.DeepEqual(all[1][7].Parsed, want[1][7].Parsed) {
		t.Errorf("%v: %d and %d asked", err, first.asked.Load(), second.asked.Load())
	}
	name, err := RunName(sums(), second)
	r, readErr := ReadRecords(filepath.Join(o.Records, name))
	if err = errors.Join(err, readErr); err != nil || r.Result == nil || len(r.List) != 40 {
		t.Errorf("%v: %+v", err, r)
	}
}

// Ensure that a question's own limit is used, and that where whole answers count, a cut one is
// wrong although its text is right so far.
func TestWholeAnswers(t *testing.T) {
	b := sums()
	b.MaxTokens, b.Whole = 3, true
	list := b.Questions
	b.Questions = func() iter.Seq2[*Question, error] {
		return func(yield func(*Question, error) bool) {
			for q, err := range list() {
				if q.MaxTokens = 7; !yield(q, err) {
					return
				}
			}
		}
	}
	a := &adder{finish: finishLength}
	r, _, err := Run(t.Context(), b, a, RunOptions{})
	if err != nil || r.Failed != 40 || r.Metrics[0].Value != 0 || r.Scores[1].Parsed != nil {
		t.Errorf("%v: %+v", err, r)
	}
}

// Ensure that recorded answers are kept when a context ends.
func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	a := &adder{before: func(n int) error {
		if n == 6 {
			cancel(cause)
		}
		return nil
	}}
	dir := t.TempDir()
	if _, _, err := Run(ctx, sums(), a, RunOptions{Records: dir}); !errors.Is(err, cause) {
		t.Fatal(err)
	}
	r, err := ReadRecords(dir)
	if err != nil || len(r.List) != 5 || r.Result != nil {
		t.Errorf("%v, %d records", err, len(r.List))
	}
}

// Ensure that a picture that cannot be read or decoded stops the run, and that the error names it.
func TestRunPicture(t *testing.T) {
	b := sums()
	list := b.Questions
	b.Questions = func() iter.Seq2[*Question, error] {
		return func(yield func(*Question, error) bool) {
			for q, err := range list() {
				if q.ID == 1 {
					q.Images[0].At = `f.parquet: row 1, column "image"`
					q.Images[0].Open = func() (io.ReadCloser, error) {
						return nil, errors.New("holds no picture")
					}
				}
				if !yield(q, err) {
					return
				}
			}
		}
	}
	_, _, err := Run(t.Context(), b, &adder{}, RunOptions{})
	if want := `sums: f.parquet: row 1, column "image": holds no picture`; err == nil ||
		err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// Ensure that metrics keep their order in JSON.
func TestMetrics(t *testing.T) {
	m := Metrics{{"z", 1.5}, {"a", 2}}
	data, err := json.Marshal(m)
	var back Metrics
	if err != nil || string(data) != `{"z":1.5,"a":2}` || json.Unmarshal(data, &back) != nil ||
		!reflect.DeepEqual(m, back) {
		t.Errorf("%v: %s %v", err, data, back)
	}
}

// endless is a file of one line without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Ensure that a line of records is refused before all of it is in memory.
func TestRecordsLine(t *testing.T) {
	r := &Records{Dir: "d", Hash: "s"}
	const want = "line 1: more than 67108864 bytes"
	end, err := r.read(endless{})
	if err == nil || !strings.Contains(err.Error(), want) || end != 0 {
		t.Errorf("got %d, %v", end, err)
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"id":1,"key":"x","settings":"s","score":null}` + "\n" + `{"id":2,`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &Records{Hash: "s"}
		_, _ = r.read(strings.NewReader(string(data)))
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add(`{"id":1,"answer":"x"}` + "\n\n" + `{"id":2,"answer":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = ReadAnswers(strings.NewReader(text), "stdin")
	})
}

// numbered answers questions by the numbers that it is given.
type numbered []int

func (numbered) Settings() map[string]any { return nil }

func (n numbered) Answer(
	_ context.Context, _ []*Question, done func(int, Answer) error,
) error {
	for _, i := range n {
		if err := done(i, Answer{Text: "0"}); err != nil {
			return err
		}
	}
	return nil
}

// Ensure that no benchmark, no answerer and an answerer that answers other questions than it was
// asked, or one twice, are errors and no panics.
func TestMisused(t *testing.T) {
	for want, run := range map[string]func() error{
		"a nil benchmark has no Questions": func() error {
			_, err := WritePrompts(io.Discard, nil, Selection{})
			return err
		},
		"a nil benchmark has no Score": func() error {
			_, _, err := Run(t.Context(), nil, new(adder), RunOptions{})
			return err
		},
		"sums: got no answerer": func() error {
			_, _, err := Run(t.Context(), sums(), nil, RunOptions{})
			return err
		},
		"got no benchmark or no answerer": func() error {
			_, err := RunName(sums(), nil)
			return err
		},
		"parallel: got -1": func() error {
			_, _, err := Run(t.Context(), sums(), new(adder), RunOptions{Parallel: -1})
			return err
		},
		"got an answer to question 99 of": func() error {
			_, _, err := Run(t.Context(), sums(), numbered{99}, RunOptions{})
			return err
		},
		"got an answer to question -1 of": func() error {
			_, _, err := Run(t.Context(), sums(), numbered{-1}, RunOptions{})
			return err
		},
		"got two answers to question 0": func() error {
			_, _, err := Run(t.Context(), sums(), numbered{0, 0}, RunOptions{})
			return err
		},
		"cat.png: got no file": func() error {
			_, err := (&Image{Name: "cat.png"}).Bytes()
			return err
		},
		"cat.png: got no file, want Open to return one": func() error {
			_, err := (&Image{Name: "cat.png", Open: func() (io.ReadCloser, error) {
				return nil, nil
			}}).Picture()
			return err
		},
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Ensure that a selection that selects nothing, a benchmark without questions or a rule, and
// questions that records could not tell apart are errors and no panics.
func TestRefused(t *testing.T) {
	for name, s := range map[string]Selection{
		"no part": {Parts: 3}, "a part of none": {Shard: 1}, "a part too many": {Shard: 4, Parts: 3},
		"part -1": {Shard: -1, Parts: 3}, "-3 parts": {Shard: 1, Parts: -3}, "limit": {Limit: -1},
	} {
		_, _, err := Run(t.Context(), sums(), new(adder), RunOptions{Selection: s})
		var bad *errs.OptionError
		if !errors.As(err, &bad) || name == "limit" && bad.Name != "limit" {
			t.Errorf("%s: got %v, want an error about the selection", name, err)
		}
	}
	for want, b := range map[string]*Benchmark{
		"no Questions": {Name: "sums", Score: sums().Score},
		"no Score":     {Name: "sums", Questions: sums().Questions},
		"number (ID) 0": {Name: "sums", Score: sums().Score,
			Questions: func() iter.Seq2[*Question, error] {
				return func(yield func(*Question, error) bool) {
					_ = yield(&Question{Text: "1?"}, nil) && yield(&Question{Text: "2?"}, nil)
				}
			}},
		"got nil": {Name: "sums", Score: sums().Score,
			Questions: func() iter.Seq2[*Question, error] {
				return func(yield func(*Question, error) bool) { yield(nil, nil) }
			}},
	} {
		_, _, err := Run(t.Context(), b, new(adder), RunOptions{})
		_, _, err2 := ScoreAll(t.Context(), b, Selection{}, nil)
		for _, err := range []error{err, err2} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
}
