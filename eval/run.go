package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore/errs"
)

// RunOptions are the choices of a run; the zero value works.
type RunOptions struct {
	// Records is the folder in which answers are stored as they arrive. An interrupted run
	// continues from there. "" stores nothing.
	Records string

	Selection // the questions that are asked

	// Parallel is how many pictures are asked about at the same time; 0 means 1. Results do not
	// depend on it.
	Parallel int

	// Progress is called after each answer, one call at a time; may be nil.
	Progress func(Progress)
}

// Progress tells how far a run is.
type Progress struct {
	Done, Total int
	Left        time.Duration // estimated from the rate so far; 0 before the first answer
}

// Run asks the questions of a benchmark that have no recorded answer yet and scores all answers. It
// asks all questions about the same pictures together, so that pictures are encoded once. It stops
// at the first error and when ctx is done; recorded answers are kept. A picture that cannot be
// decoded, an [errs.PictureError], does not stop it: the error at the end names these pictures.
func Run(
	ctx context.Context, b *Benchmark, m Answerer, o RunOptions,
) (result *Result, all []*Scored, err error) {
	r, err := start(b, o, runner{m: m, dir: o.Records})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.ask(ctx); err != nil {
		return nil, nil, err
	}
	return r.finish(ctx, r.runners[0])
}

// RunAll asks several answerers the questions of a benchmark: all of them about one picture before
// the next, so that they can share what they compute of it. It returns the records of each, in the
// order of the questions. In o.Records every answerer has a folder, with its [RunName]. If RunAll
// ends early, the records of the pictures about which it asked everybody come with the error.
func RunAll(
	ctx context.Context, b *Benchmark, answerers []Answerer, o RunOptions,
) (records [][]*Record, err error) {
	var runners []runner
	for _, m := range answerers {
		x := runner{m: m}
		if o.Records != "" {
			name, err := RunName(b, m)
			if err != nil {
				return nil, err
			}
			x.dir = filepath.Join(o.Records, name)
		}
		runners = append(runners, x)
	}
	r, err := start(b, o, runners...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	err = r.ask(ctx)
	for _, x := range r.runners {
		if err == nil {
			_, _, err = r.finish(ctx, x)
		}
	}
	return r.complete(), err
}

// run is a run in progress.
type run struct {
	b         *Benchmark
	o         RunOptions
	questions []*Question
	runners   []*runner
	picture   func() string // pictureHash of the benchmark's first question

	mu      sync.Mutex
	done    int // answers, of all runners
	fresh   int // answers of this run
	start   time.Time
	damaged []damage
}

// damage is why questions could not be asked.
type damage struct {
	group []int // the questions, all about the same pictures
	err   error // an errs.PictureError
}

// runner is an answerer in a run.
type runner struct {
	m       Answerer
	dir     string    // folder of its records; "" stores nothing
	j       *journal  // nil if nothing is stored
	records []*Record // of the run's questions; nil: not answered
}

// start opens a run.
func start(b *Benchmark, o RunOptions, runners ...runner) (*run, error) {
	if o.Parallel < 0 {
		return nil, &errs.OptionError{Name: "parallel", Got: fmt.Sprint(o.Parallel),
			Want: "0 (1) or more", Fault: errs.TooSmall}
	}
	all, err := scorable(b, o.Selection)
	if err != nil {
		return nil, err
	}
	r := &run{b: b, o: o, questions: o.part(all), picture: sync.OnceValue(all[0].pictureHash)}
	for _, x := range runners {
		if x.m == nil {
			return nil, fmt.Errorf("%s: got no answerer, want one", b.Name)
		}
		x.records = make([]*Record, len(r.questions))
		r.runners = append(r.runners, &x)
		if err := r.resume(&x); err != nil {
			_ = r.close() // nothing was written
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	return r, nil
}

// close closes the records.
func (r *run) close() (err error) {
	for _, x := range r.runners {
		if x.j != nil {
			err = errors.Join(err, x.j.close())
		}
	}
	return err
}

// finish scores the answers of a runner, and stores its result.
func (r *run) finish(ctx context.Context, x *runner) (*Result, []*Scored, error) {
	all := make([]*Scored, len(r.questions))
	for i, q := range r.questions {
		a := x.records[i]
		if a == nil {
			return nil, nil, fmt.Errorf("%s: question %d was asked and not answered", r.b.Name,
				q.ID)
		}
		all[i] = &Scored{
			Question: q, Answer: a.Text, Answered: true, Score: r.b.score(q, a.Answer),
		}
	}
	result, err := r.b.result(ctx, all)
	if err == nil && x.j != nil {
		err = x.j.finish(result)
	}
	return result, all, err
}

// complete returns the records of each runner, without pictures about which not all were asked.
func (r *run) complete() [][]*Record {
	left := make([]bool, len(r.questions))
	for _, group := range byPictures(r.questions) {
		if r.open(group) {
			for _, i := range group {
				left[i] = true
			}
		}
	}
	out := make([][]*Record, len(r.runners))
	for i, x := range r.runners {
		for k, record := range x.records {
			if !left[k] {
				out[i] = append(out[i], record)
			}
		}
	}
	return out
}

// open reports whether a runner has not answered all questions of a group.
func (r *run) open(group []int) bool {
	return slices.ContainsFunc(r.runners, func(x *runner) bool { return len(x.open(group)) > 0 })
}

// open returns the questions of a group that the runner has not answered.
func (x *runner) open(group []int) []int {
	return slices.DeleteFunc(slices.Clone(group), func(i int) bool { return x.records[i] != nil })
}

// settingsOf returns all settings of a run.
func settingsOf(b *Benchmark, m Answerer) map[string]any {
	all := map[string]any{}
	maps.Copy(all, m.Settings())
	all["benchmark"], all["protocol"], all["split"] = b.Name, b.Protocol, b.Split
	all["max_tokens"] = b.tokens()
	return all
}

// RunName returns a name for a run from its benchmark and the settings that its answers depend on.
// Runs with the same name may share their records.
func RunName(b *Benchmark, m Answerer) (string, error) {
	if b == nil || m == nil {
		return "", errors.New("eval: got no benchmark or no answerer, want both")
	}
	hash, err := hashOf(settingsOf(b, m))
	var parts []string
	for _, s := range []string{b.Name, b.Split, b.Protocol, hash} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "-"), err
}

// resume reads the records of a runner and checks that they belong to these questions.
func (r *run) resume(x *runner) (err error) {
	if x.dir == "" {
		return nil
	}
	if x.j, err = openJournal(x.dir, settingsOf(r.b, x.m), r.picture()); err != nil {
		return err
	}
	of := map[int]*Record{}
	for _, old := range x.j.List {
		of[old.ID] = old
	}
	for i, q := range r.questions {
		old := of[q.ID]
		if old == nil {
			continue
		}
		if old.Prompt != q.Text {
			return fmt.Errorf("%s: question %d was %q, now %q: the data have changed", x.dir,
				q.ID, old.Prompt, q.Text)
		}
		x.records[i] = r.record(x, q, old.Answer)
		r.done++
	}
	return nil
}

// ByPictures collects the questions of a benchmark about the same pictures, in the order of each
// group's first question.
func ByPictures(b *Benchmark) (groups [][]*Question, err error) {
	questions, err := take(b, Selection{})
	for _, group := range byPictures(questions) {
		var about []*Question
		for _, i := range group {
			about = append(about, questions[i])
		}
		groups = append(groups, about)
	}
	return groups, err
}

// byPictures collects the indices of questions about the same pictures, in the order of each
// group's first question.
func byPictures(questions []*Question) (groups [][]int) {
	of := map[string]int{}
	for i, q := range questions {
		key := strings.Join(namesOf(q.Images), "\x00")
		at, ok := of[key]
		if !ok || len(q.Images) == 0 {
			at = len(groups)
			of[key] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], i)
	}
	return groups
}

// namesOf returns the names of pictures.
func namesOf(images []Image) []string {
	out := []string{}
	for _, i := range images {
		out = append(out, i.Name)
	}
	return out
}

// ask asks the remaining questions, o.Parallel groups at a time.
func (r *run) ask(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan []int)
	var wg sync.WaitGroup
	r.start = time.Now()
	for range max(1, r.o.Parallel) {
		wg.Go(func() {
			for group := range jobs {
				if ctx.Err() != nil { // since the group was handed over
					continue
				}
				if err := r.askGroup(ctx, group); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for _, group := range byPictures(r.questions) {
		if !r.open(group) {
			continue
		}
		select {
		case jobs <- group:
		case <-ctx.Done():
			break feed
		}
	}
	close(jobs)
	wg.Wait()
	if err := cmp.Or(context.Cause(ctx), r.damage()); err != nil {
		return fmt.Errorf("%s: %w", r.b.Name, err)
	}
	return nil
}

// mostDamaged is how many damaged pictures an error names.
const mostDamaged = 8

// damage returns an error that names the pictures that could not be decoded, and counts the
// questions about them; nil if there are none.
func (r *run) damage() error {
	if len(r.damaged) == 0 {
		return nil
	}
	slices.SortFunc(r.damaged, func(a, b damage) int { return cmp.Compare(a.group[0], b.group[0]) })
	questions := 0
	var named []error
	for _, d := range r.damaged {
		questions += len(d.group)
		if len(named) < mostDamaged {
			named = append(named, d.err)
		}
	}
	if n := len(r.damaged) - len(named); n > 0 {
		named = append(named, fmt.Errorf("and %d more", n))
	}
	return fmt.Errorf("%d of %d questions have no answer, since their pictures are damaged: %w",
		questions, len(r.questions), errors.Join(named...))
}

// askGroup asks every runner the questions about the same pictures that it has not answered. What
// one cannot decode, the others are not asked about.
func (r *run) askGroup(ctx context.Context, group []int) error {
	for _, x := range r.runners {
		open := x.open(group)
		var questions []*Question
		for _, i := range open {
			questions = append(questions, r.questions[i])
		}
		if len(open) == 0 {
			continue
		}
		err := x.m.Answer(ctx, questions, func(i int, a Answer) error {
			if i < 0 || i >= len(open) {
				return fmt.Errorf("eval: got an answer to question %d of %d, want 0 to %d", i,
					len(open), len(open)-1)
			}
			return r.add(x, open[i], a)
		})
		if picture := new(*errs.PictureError); errors.As(err, picture) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.damaged = append(r.damaged, damage{open, err})
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add records the answer to question i.
func (r *run) add(x *runner, i int, a Answer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.records[i] != nil {
		return fmt.Errorf("eval: got two answers to question %d, want one", r.questions[i].ID)
	}
	record := r.record(x, r.questions[i], a)
	if x.j != nil {
		if err := x.j.add(record); err != nil {
			return err
		}
	}
	x.records[i] = record
	r.done++
	r.fresh++
	if r.o.Progress != nil {
		total := len(r.questions) * len(r.runners)
		each := time.Since(r.start) / time.Duration(r.fresh)
		r.o.Progress(Progress{Done: r.done, Total: total,
			Left: each * time.Duration(total-r.done)})
	}
	return nil
}

// record makes the record of an answer.
func (r *run) record(x *runner, q *Question, a Answer) *Record {
	out := &Record{
		ID: q.ID, Key: q.Key, Prompt: q.Text, Images: namesOf(q.Images), Category: q.Category,
		Answer: a,
	}
	if x.j != nil {
		out.Settings = x.j.Hash
	}
	s := r.b.score(q, a)
	if !s.Failed || s.Parsed != "" {
		out.Parsed = &s.Parsed
	}
	if r.b.Submission == nil || !r.b.Submission.Only {
		out.Score = &s.Points
	}
	return out
}
