package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/nn"
)

// Decoded is how long sequences took to decode together.
type Decoded struct {
	Tokens int           // of all sequences, in the time when all of them ran
	Steps  int           // that made these tokens
	Time   time.Duration // that these steps took
	Work   nn.Counts     // of these steps; zero unless the engine counts it
}

// Decode runs n sequences after the same prompt of random tokens and measures while all of them
// run: approximately gen tokens each, at least half as many. If some end too early because others
// started late, all run again for twice as long.
func Decode(ctx context.Context, e *engine.Engine, n, prompt, gen int) (*Decoded, error) {
	for most := gen + n; ; most *= 2 {
		d, err := decode(ctx, e, n, prompt, most)
		if err != nil || 2*d.Tokens >= n*gen && d.Time > 0 {
			return d, err
		}
	}
}

// decode runs n sequences of most tokens. Time is negative if one ended before another began.
func decode(ctx context.Context, e *engine.Engine, n, prompt, most int) (*Decoded, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	runs, err := start(ctx, e, n, prompt, most)
	if err != nil {
		stop(err)
	}
	if failed := runs.wait(); err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	from, to := runs[0].first(), runs[0].last()
	for _, r := range runs {
		if r.first().at.After(from.at) {
			from = r.first()
		}
		if r.last().at.Before(to.at) {
			to = r.last()
		}
	}
	d := &Decoded{Time: to.at.Sub(from.at), Work: to.work.Since(from.work)}
	for _, r := range runs {
		steps := 0
		for _, t := range r.tokens {
			if t.at.After(from.at) && !t.at.After(to.at) {
				steps++
			}
		}
		d.Tokens, d.Steps = d.Tokens+steps, max(d.Steps, steps)
	}
	return d, nil
}

// Stalled is how long running sequences waited for their next tokens while the prompt of another
// one was read.
type Stalled struct {
	Gaps  []time.Duration // between two tokens of a sequence, in order of time, for all sequences
	First time.Duration   // until the first token of the other
}

// Stall runs n sequences after a prompt of random tokens, reads another prompt of rows rows while
// they run, and measures the delay of both. Each of the n sequences generates up to most tokens.
func Stall(ctx context.Context, e *engine.Engine, n, prompt, rows, most int) (*Stalled, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	runs, err := start(ctx, e, n, prompt, most)
	for _, r := range runs {
		select {
		case <-r.begun:
		case <-ctx.Done():
		}
	}
	from := time.Now()
	if err == nil {
		_, err = e.Ask(ctx, engine.Request{
			Tokens: Words(e, 1, rows), MaxTokens: 1, IgnoreEnd: true, NoCache: true,
		})
	}
	to := time.Now()
	stop(errMeasured)
	if failed := runs.wait(); err == nil && !errors.Is(failed, errMeasured) {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	s := &Stalled{First: to.Sub(from)}
	for _, r := range runs {
		for i, t := range r.tokens[1:] {
			if before := r.tokens[i]; t.at.After(from) && before.at.Before(to) {
				s.Gaps = append(s.Gaps, t.at.Sub(before.at))
			}
		}
	}
	if len(s.Gaps) == 0 {
		return nil, fmt.Errorf("lab: all sequences ended, after %d tokens, before a prompt of "+
			"%d tokens was read", most, rows)
	}
	return s, nil
}

var errMeasured = errors.New("lab: measured")

// running are sequences that decode together.
type running []*clocked

// clocked is a sequence that records when each of its tokens was chosen.
type clocked struct {
	engine *engine.Engine
	job    *engine.Job
	tokens []moment
	begun  chan struct{} // closed after some tokens
}

// moment is a time, and what the engine had counted until then.
type moment struct {
	at   time.Time
	work nn.Counts
}

// start begins n sequences of most tokens. With an error, it returns those that were started.
func start(ctx context.Context, e *engine.Engine, n, prompt, most int) (running, error) {
	ids := Words(e, 0, prompt)
	var runs running
	for range n {
		r := &clocked{
			engine: e, tokens: make([]moment, 0, most), begun: make(chan struct{}),
		}
		var err error
		r.job, err = e.Submit(ctx, engine.Request{
			Tokens: ids, MaxTokens: most, IgnoreEnd: true, Constraint: r,
		})
		if err != nil {
			return runs, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// wait waits until all sequences have ended and returns the first error.
func (r running) wait() error {
	var first error
	for _, c := range r {
		if _, err := c.job.Answer(); first == nil {
			first = err
		}
	}
	return first
}

func (c *clocked) first() moment { return c.tokens[0] }
func (c *clocked) last() moment  { return c.tokens[len(c.tokens)-1] }

// Mask implements engine.Constraint: every token is allowed.
func (c *clocked) Mask() []uint64 { return nil }

// Accept implements engine.Constraint.
func (c *clocked) Accept(int32) error {
	now := moment{time.Now(), c.engine.Source().Work.Total()}
	if c.tokens = append(c.tokens, now); len(c.tokens) == 4 {
		close(c.begun)
	}
	return nil
}

// Done implements engine.Constraint.
func (c *clocked) Done() bool { return false }
