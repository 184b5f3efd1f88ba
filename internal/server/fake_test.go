package server

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/ask"
)

// fake answers with given words, one per piece.
type fake struct {
	words    []string
	pause    time.Duration // before each piece
	parallel int
	queue    int
	prepare  func(r *ask.Request) error // may refuse
	fail     func(piece int) error      // may end an answer
	count    func(r *ask.Request, p *ask.PictureReport)

	mu       sync.Mutex
	running  int
	queued   int
	requests []*ask.Request
}

func (f *fake) Info() *Info {
	return &Info{
		ID:         "builtin",
		Aliases:    []string{"tiny"},
		Created:    time.Unix(1760000000, 0),
		Params:     4_100_000,
		Vocab:      640,
		Size:       8_200_000,
		KVPerToken: 9216, Context: 4096,
		Family:       "llava",
		Format:       "safetensors",
		Quant:        "F16",
		Digest:       strings.Repeat("ab", 32),
		Template:     "{{ x }}",
		Fingerprint:  "fp_1a2b3c4d5e6f",
		VisualTokens: 576,
		Encoder:      &Encoder{Type: "q8", Why: "it is fast"},
		Methods:      []string{"holov", "random"},
		Parameters:   []string{"base", "n_vis"},
		Parallel:     f.parallel,
		Queue:        f.queue,
		Defaults: Defaults{
			TopP:    0.95,
			TopK:    40,
			MinP:    0.05,
			Restore: map[string]any{"base": "holov", "n_vis": 64},
		},
	}
}

func (f *fake) Tokenize(text string, o TokenizeOptions) ([]Token, error) {
	var out []Token
	for _, c := range []byte(text) {
		out = append(out, Token{int32(c), []byte{c}})
	}
	return out, nil
}

func (f *fake) Detokenize(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteByte(byte(id))
	}
	return b.String()
}

func (f *fake) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return State{Running: f.running, Queued: f.queued, KVLimit: 100, FeatureUnsaved: 3}
}

type fakeJob struct {
	f      *fake
	r      *ask.Request
	c      ask.Count
	pieces chan *ask.Event
	a      *ask.Answer
	err    error
}

func (f *fake) job(r *ask.Request) (*fakeJob, error) {
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	if f.prepare != nil {
		if err := f.prepare(r); err != nil {
			return nil, err
		}
	}
	j := &fakeJob{f: f, r: r, c: ask.Count{Prompt: 10}, pieces: make(chan *ask.Event, len(f.words))}
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if p.Picture != nil {
				j.c.Prompt, j.c.Image = j.c.Prompt+64, j.c.Image+64
				j.c.Pictures = append(
					j.c.Pictures,
					ask.PictureReport{Width: 4, Height: 4, Tokens: 576, Kept: 32, Merged: 32,
						Cache: ask.CacheNone, Method: "m", Parameters: json.RawMessage("{}")},
				)
				if f.count != nil {
					f.count(r, &j.c.Pictures[len(j.c.Pictures)-1])
				}
			}
		}
	}
	return j, nil
}

func (f *fake) Count(ctx context.Context, r *ask.Request) (*ask.Count, error) {
	j, err := f.job(r)
	if err == nil && r.Load != nil {
		err = r.Load(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &j.c, nil
}

func (f *fake) Submit(ctx context.Context, r *ask.Request) (Job, error) {
	j, err := f.job(r)
	if err != nil {
		return nil, err
	}
	if err := f.enter(); err != nil {
		return nil, err
	}
	if r.Load != nil {
		if err := r.Load(ctx); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.queued--
			return nil, err
		}
	}
	go func() {
		defer close(j.pieces)
		j.a, j.err = j.run(ctx)
	}()
	return j, nil
}

// enter takes a place in the queue.
func (f *fake) enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running >= f.parallel && f.queued >= f.queue {
		return &FullError{Running: f.running, Waiting: f.queued, RetryAfter: 3}
	}
	f.queued++
	return nil
}

func (j *fakeJob) Next() (*ask.Event, bool) {
	e, ok := <-j.pieces
	return e, ok
}

func (j *fakeJob) Ready() bool { return len(j.pieces) > 0 }

func (j *fakeJob) Answer() (*ask.Answer, error) {
	for range j.pieces {
	}
	return j.a, j.err
}

func (j *fakeJob) run(ctx context.Context) (*ask.Answer, error) {
	f := j.f
	for {
		f.mu.Lock()
		if f.running < f.parallel {
			f.running++
			f.queued--
			f.mu.Unlock()
			break
		}
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			f.mu.Lock()
			f.queued--
			f.mu.Unlock()
			return nil, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	a := &ask.Answer{Finish: ask.Stop, Count: j.c, Completion: len(f.words)}
	for i, word := range f.words {
		if f.fail != nil {
			if err := f.fail(i); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(f.pause):
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		a.Text += word
		e := &ask.Event{Text: word}
		if j.r.Logprobs {
			e.Tokens = []ask.Token{{Bytes: []byte(word), Logprob: -1}}
			a.Tokens = append(a.Tokens, e.Tokens...)
		}
		j.pieces <- e
	}
	return a, nil
}

var errPicture = &FieldError{
	Path: "messages[0].content[0].image_url.url",
	Err: &errs.PictureError{Index: -1, Fault: errs.TooManyPixels,
		Width: 9000, Height: 9000, Got: 81_000_000, Limit: 64_000_000, Err: errs.ErrDamaged},
}
