package scenebench

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/stats"
)

// Item is one picture with its questions.
type Item struct {
	Name      string // what errors and records call the picture
	Picture   *imageproc.Picture
	Questions []scene.Question
}

// Reply is a model's answer to one question.
type Reply struct {
	Text    string
	Stopped bool // the model ended the answer itself; one cut at a limit is never right
}

// Ask answers questions about one picture, each in a conversation of its own, in order: once from
// all visual tokens and once with the reduction under test. All questions of a picture come in one
// call, so that it can be encoded once. Ask must be safe for concurrent use when RunOptions.Workers
// exceeds 1.
type Ask func(ctx context.Context, pic *imageproc.Picture, questions []scene.Question) (full,
	reduced []Reply, err error)

// RunOptions are the choices of a run; the zero value works.
type RunOptions struct {
	// pictures asked about at a time; 0 means 1. Results do not depend on it
	Workers  int
	Seed     int64 // of the bootstrap
	Distance bool  // measure Result.Distance too
	// called after each picture, never concurrently; total as given to Run
	Progress func(done, total int)
}

// Record is one question with both answers.
type Record struct {
	Picture  string `json:"picture"`
	Task     string `json:"task"`
	Question string `json:"question"`
	Answer   string `json:"answer"` // the true one
	Full     string `json:"full"`   // given from all visual tokens
	Reduced  string `json:"reduced"`

	FullRight    bool `json:"full_right"`
	ReducedRight bool `json:"reduced_right"`
}

// Run asks every question of total items twice, unreduced and reduced, and scores the answers. It
// stops at the first error and when ctx is done: then the result of the pictures so far, if there
// are any, comes with the error.
func Run(
	ctx context.Context, items iter.Seq2[Item, error], total int, ask Ask, o RunOptions,
) (*Result, error) {
	type answers struct {
		records []Record
		odd     map[string]Unparsable
	}
	all, err := each(ctx, items, total, o, func(ctx context.Context, item Item) (answers, error) {
		records, odd, err := askBoth(ctx, item, ask)
		return answers{records, odd}, err
	})
	if err != nil && (ctx.Err() == nil || len(all) == 0) {
		return nil, err
	}
	pictures, lax := make([][]Record, len(all)), map[string]Unparsable{}
	for i, a := range all {
		pictures[i] = a.records
		for task, u := range a.odd {
			lax[task] = lax[task].add(u)
		}
	}
	r := score(pictures, o.Seed)
	r.Unparsable = lax
	return r, err
}

// each calls f with every item, o.Workers of them at a time, and returns the results in the order
// of the items. It stops at the first error and when ctx is done; then the results so far come with
// the error.
func each[T any](
	ctx context.Context, items iter.Seq2[Item, error], total int, o RunOptions,
	f func(context.Context, Item) (T, error),
) ([]T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	type job struct {
		at   int
		item Item
	}
	jobs := make(chan job)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		done = map[int]T{}
	)
	for range max(1, o.Workers) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range jobs {
				v, err := f(ctx, j.item)
				if err == nil { // what a cancelled context left is not whole
					err = context.Cause(ctx)
				}
				if err != nil {
					cancel(fmt.Errorf("eval: %s: %w", j.item.Name, err))
					return
				}
				mu.Lock()
				done[j.at] = v
				if o.Progress != nil {
					o.Progress(len(done), total)
				}
				mu.Unlock()
			}
		}()
	}
	n := 0
feed:
	for item, err := range items {
		if err != nil {
			cancel(err)
			break
		}
		select {
		case jobs <- job{n, item}:
			n++
		case <-ctx.Done():
			break feed
		}
	}
	close(jobs)
	wg.Wait()
	var out []T
	for i := range n {
		if v, ok := done[i]; ok {
			out = append(out, v)
		}
	}
	return out, context.Cause(ctx)
}

// askBoth asks one picture's questions of both runs.
func askBoth(ctx context.Context, item Item, ask Ask) ([]Record, map[string]Unparsable, error) {
	full, reduced, err := ask(ctx, item.Picture, item.Questions)
	if err != nil {
		return nil, nil, err
	}
	if len(full) != len(item.Questions) || len(reduced) != len(item.Questions) {
		return nil, nil, fmt.Errorf("got %d and %d answers, want %d", len(full), len(reduced),
			len(item.Questions))
	}
	records := make([]Record, len(item.Questions))
	odd := map[string]Unparsable{}
	for i, q := range item.Questions {
		full, reduced := full[i], reduced[i]
		records[i] = Record{
			Picture: item.Name, Task: q.Task, Question: q.Text, Answer: q.Answer,
			Full: full.Text, FullRight: full.Stopped && full.Text == q.Answer,
			Reduced: reduced.Text, ReducedRight: reduced.Stopped && reduced.Text == q.Answer,
		}
		u := Unparsable{}
		if !full.Stopped || !answersTask(q, full.Text) {
			u.Full++
		}
		if !reduced.Stopped || !answersTask(q, reduced.Text) {
			u.Reduced++
		}
		if u != (Unparsable{}) {
			odd[q.Task] = odd[q.Task].add(u)
		}
	}
	return records, odd, nil
}

// Unparsable counts answers that are none of a task's possible ones, or were cut at the token
// limit. They are wrong like any other wrong answer; many of them mean a model that has lost the
// thread rather than the picture.
type Unparsable struct {
	Full    int `json:"full"`
	Reduced int `json:"reduced"`
}

func (u Unparsable) add(o Unparsable) Unparsable {
	return Unparsable{u.Full + o.Full, u.Reduced + o.Reduced}
}

// Change counts the questions whose outcome differs between the runs and their balance.
type Change struct {
	Lost     int            `json:"lost"`     // right unreduced, wrong reduced
	Gained   int            `json:"gained"`   // wrong unreduced, right reduced
	Points   float64        `json:"points"`   // reduced less unreduced accuracy
	Interval stats.Interval `json:"interval"` // of Points: bootstrap over pictures
}

// Result is what a run measured. Accuracies are percent, rounded to a tenth. Its JSON has the
// fields "questions", "full" and "reduced", and next to them the intervals.
type Result struct {
	Questions map[string]int     `json:"questions"` // by task
	Full      map[string]float64 `json:"full"`      // by task, and All
	Reduced   map[string]float64 `json:"reduced"`   // by task, All, and VsFull where defined

	Pictures        int                       `json:"pictures"`
	FullInterval    map[string]stats.Interval `json:"full_interval"`    // Wilson, by task and All
	ReducedInterval map[string]stats.Interval `json:"reduced_interval"` // Wilson; VsFull: bootstrap over pictures
	Change          map[string]Change         `json:"change"`           // by task and All
	Unparsable      map[string]Unparsable     `json:"unparsable"`       // by task; empty when there is none

	// weighted Hausdorff distance of the reduction, mean over pictures, where it was asked for
	Distance *float64 `json:"distance,omitempty"`

	Setup   map[string]any `json:"setup,omitempty"` // model, reduction and seeds, for the record
	Records []Record       `json:"-"`               // in the order of pictures and questions
}

// score turns the records of each picture into a result.
func score(pictures [][]Record, seed int64) *Result {
	r := &Result{
		Questions: map[string]int{}, Full: map[string]float64{}, Reduced: map[string]float64{},
		Pictures:     len(pictures),
		FullInterval: map[string]stats.Interval{}, ReducedInterval: map[string]stats.Interval{},
		Change: map[string]Change{},
	}
	sum, each := sheet{}, make([]sheet, len(pictures))
	for i, records := range pictures {
		each[i] = sheet{}
		for _, q := range records {
			t := tally{n: 1, full: count(q.FullRight), reduced: count(q.ReducedRight)}
			each[i][q.Task] = each[i][q.Task].add(t)
			for _, name := range []string{q.Task, All} {
				c := r.Change[name]
				c.Lost += count(q.FullRight && !q.ReducedRight)
				c.Gained += count(!q.FullRight && q.ReducedRight)
				r.Change[name] = c
			}
		}
		sum.add(each[i])
		r.Records = append(r.Records, records...)
	}
	spread := bootstrap(each, seed)
	figures := func(name string, t tally) {
		if t.n == 0 {
			return
		}
		r.Full[name], r.FullInterval[name] = percent(t.full, t.n), wilsonPercent(t.full, t.n)
		r.Reduced[name], r.ReducedInterval[name] = percent(t.reduced, t.n),
			wilsonPercent(t.reduced, t.n)
		c := r.Change[name]
		c.Points, c.Interval = stats.Tenth(t.difference()), spread[name].Round()
		r.Change[name] = c
	}
	for _, task := range sum.tasks() {
		r.Questions[task] = sum[task].n
		figures(task, sum[task])
	}
	figures(All, sum.total())
	if v, ok := sum.vsFull(); ok {
		r.Reduced[VsFull], r.ReducedInterval[VsFull] = stats.Tenth(100*v), spread[VsFull].Round()
	}
	return r
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func percent(right, n int) float64 { return stats.Tenth(100 * float64(right) / float64(n)) }

func wilsonPercent(right, n int) stats.Interval {
	i := stats.Wilson(right, n)
	return stats.Interval{100 * i[0], 100 * i[1]}.Round()
}
