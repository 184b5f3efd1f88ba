package api

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/wire"
)

// Submit passes a call to the service: one request for each choice, with consecutive seeds. The
// service reads their prompt once, because the later ones find it in the prefix cache.
func (f *Front) Submit(ctx context.Context, c *Call) (restore.Job, error) {
	if c.N < 2 {
		job, err := f.Service.Submit(ctx, c.Request)
		if err != nil {
			return nil, err
		}
		return &joined{Job: job}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &choices{call: c, cancel: cancel, pieces: make(chan choicePiece)}
	request := *c.Request
	if request.NoCache { // nobody else finds entries under this salt
		request.NoCache, request.Salt = false, rand.Text()
	}
	for i := range c.N {
		r := request
		r.Sampling.Seed += int64(i)
		job, err := f.Service.Submit(ctx, &r)
		if err != nil {
			cancel()
			var full *errs.FullError
			if errors.As(err, &full) && full.Running+full.Waiting == i { // all of them its own
				return nil, wire.Bad("invalid_value", "n", "got %d, want at most %d: each "+
					"choice takes a place (--parallel, --queue)", c.N, i)
			}
			return nil, err
		}
		j.jobs = append(j.jobs, &joined{Job: job})
	}
	for i, job := range j.jobs {
		j.running.Add(1)
		go j.forward(ctx, i, job)
	}
	go func() {
		j.running.Wait()
		close(j.pieces)
	}()
	return j, nil
}

// choices is the job of a call with several choices. Next sets the call's Choice, and Answer its
// Answers.
type choices struct {
	call    *Call
	jobs    []restore.Job
	cancel  context.CancelFunc
	running sync.WaitGroup
	pieces  chan choicePiece
}

type choicePiece struct {
	choice int
	piece  *restore.Piece
}

// joined is a job whose tokens come with the text that they end in. Tokens that add none at the end
// have a last piece: a stop string may cut a token whose first part was sent before.
type joined struct {
	restore.Job
	held []restore.Token
}

// Next implements [restore.Job].
func (j *joined) Next() (*restore.Piece, bool) {
	p, more := j.Job.Next()
	if !more && j.held == nil {
		return nil, false
	}
	if p == nil {
		p = new(restore.Piece)
	}
	j.held, p.Tokens = append(j.held, p.Tokens...), nil
	if p.Text != "" || !more {
		p.Tokens, j.held = j.held, nil
	}
	return p, true
}

// forward passes the pieces of one choice on.
func (j *choices) forward(ctx context.Context, choice int, job restore.Job) {
	defer j.running.Done()
	for p, more := job.Next(); more; p, more = job.Next() {
		if p.Text == "" && p.Tokens == nil {
			continue
		}
		select {
		case j.pieces <- choicePiece{choice, p}:
		case <-ctx.Done():
			return
		}
	}
}

// Next implements [restore.Job].
func (j *choices) Next() (*restore.Piece, bool) {
	p, more := <-j.pieces
	if more {
		j.call.Choice = p.choice
	}
	return p.piece, more
}

// Ready implements [restore.Job].
func (j *choices) Ready() bool { return false }

// Answer implements [restore.Job]. The answer is the first choice's, with the tokens of all and the
// longest decoding.
func (j *choices) Answer() (*restore.Answer, error) {
	defer j.cancel()
	go func() {
		for range j.pieces { // that nobody took
		}
	}()
	var sum restore.Answer
	var answers []*restore.Answer
	for i, job := range j.jobs {
		a, err := job.Answer()
		if err != nil {
			return nil, err
		}
		if answers = append(answers, a); i == 0 {
			sum = *a
			continue
		}
		sum.Usage.Generated += a.Usage.Generated
		sum.Timings.Decode = max(sum.Timings.Decode, a.Timings.Decode)
	}
	j.call.Answers = answers
	return &sum, nil
}

// EachAnswer returns the answers of all choices; a is the call's.
func (c *Call) EachAnswer(a *restore.Answer) []*restore.Answer {
	if c.Answers != nil {
		return c.Answers
	}
	return []*restore.Answer{a}
}
