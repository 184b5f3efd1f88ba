package eval

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
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
// at the first error and when ctx is done; recorded answers are kept.
func Run(
	ctx context.Context, b *Benchmark, m Answerer, o RunOptions,
) (_ *Result, _ []*Scored, err error) {
	questions, err := take(b, o.Selection)
	if err != nil {
		return nil, nil, err
	}
	r := &run{b: b, m: m, o: o, answers: map[int]string{}, total: len(questions)}
	if err := r.open(questions); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", b.Name, err)
	}
	if r.j != nil {
		defer func() {
			if closed := r.j.close(); err == nil {
				err = closed
			}
		}()
	}
	if err := r.ask(ctx, questions); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", b.Name, err)
	}
	all := make([]*Scored, len(questions))
	for i, q := range questions {
		answer, ok := r.answers[q.ID]
		if !ok {
			return nil, nil, fmt.Errorf("%s: question %d was asked and not answered", b.Name, q.ID)
		}
		all[i] = &Scored{Question: q, Answer: answer, Answered: true, Score: b.Score(q, answer)}
	}
	result, err := b.result(ctx, all)
	if err == nil && r.j != nil {
		err = r.j.finish(result)
	}
	return result, all, err
}

// run is a run in progress.
type run struct {
	b *Benchmark
	m Answerer
	o RunOptions
	j *journal // nil if nothing is stored

	mu      sync.Mutex
	answers map[int]string
	total   int
	fresh   int // answers of this run
	start   time.Time
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
	hash, err := hashOf(settingsOf(b, m))
	var parts []string
	for _, s := range []string{b.Name, b.Split, b.Protocol, hash} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "-"), err
}

// tokens returns the most tokens of an answer.
func (b *Benchmark) tokens() int {
	if b.MaxTokens > 0 {
		return b.MaxTokens
	}
	return 128
}

// open reads the records and checks that they belong to these questions.
func (r *run) open(questions []*Question) error {
	if r.o.Records == "" {
		return nil
	}
	var err error
	if r.j, err = openJournal(r.o.Records, settingsOf(r.b, r.m)); err != nil {
		return err
	}
	texts := map[int]string{}
	for _, q := range questions {
		texts[q.ID] = q.Text
	}
	for _, x := range r.j.List {
		text, ok := texts[x.ID]
		if ok && text != x.Prompt {
			r.j.close()
			return fmt.Errorf("%s: question %d was %q, now %q: the data have changed", r.o.Records,
				x.ID, x.Prompt, text)
		}
		if ok {
			r.answers[x.ID] = x.Text
		}
	}
	return nil
}

// groups collects the questions about the same pictures that have no answer yet, in the order of
// each group's first question.
func (r *run) groups(questions []*Question) [][]*Question {
	var out [][]*Question
	of := map[string]int{}
	for _, q := range questions {
		if _, ok := r.answers[q.ID]; ok {
			continue
		}
		var names []string
		for _, i := range q.Images {
			names = append(names, i.Name)
		}
		key := strings.Join(names, "\x00")
		i, ok := of[key]
		if !ok || len(q.Images) == 0 {
			i = len(out)
			of[key] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], q)
	}
	return out
}

// ask asks the remaining questions, o.Parallel groups at a time.
func (r *run) ask(ctx context.Context, questions []*Question) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan []*Question)
	var wg sync.WaitGroup
	r.start = time.Now()
	for range max(1, r.o.Parallel) {
		wg.Go(func() {
			for group := range jobs {
				err := r.m.Answer(ctx, group, r.b.tokens(), func(i int, a Answer) error {
					return r.done(group[i], a)
				})
				if err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for _, group := range r.groups(questions) {
		select {
		case jobs <- group:
		case <-ctx.Done():
			break feed
		}
	}
	close(jobs)
	wg.Wait()
	return context.Cause(ctx)
}

// done records an answer.
func (r *run) done(q *Question, a Answer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.j != nil {
		if err := r.j.add(r.record(q, a)); err != nil {
			return err
		}
	}
	r.answers[q.ID] = a.Text
	r.fresh++
	if r.o.Progress != nil {
		open := r.total - len(r.answers)
		each := time.Since(r.start) / time.Duration(r.fresh)
		r.o.Progress(Progress{Done: len(r.answers), Total: r.total,
			Left: each * time.Duration(open)})
	}
	return nil
}

func (r *run) record(q *Question, a Answer) *Record {
	x := &Record{
		ID:       q.ID,
		Key:      q.Key,
		Prompt:   q.Text,
		Images:   []string{},
		Category: q.Category,
		Answer:   a,
		Settings: r.j.Hash,
	}
	for _, i := range q.Images {
		x.Images = append(x.Images, i.Name)
	}
	s := r.b.Score(q, a.Text)
	if !s.Failed || s.Parsed != "" {
		x.Parsed = &s.Parsed
	}
	if r.b.Submission == nil || !r.b.Submission.Only {
		x.Score = &s.Points
	}
	return x
}
