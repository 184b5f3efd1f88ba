package server

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/media"
)

// fake answers with given words, one per piece.
type fake struct {
	words    []string
	pause    time.Duration // before each piece
	parallel int
	queue    int
	prepare  func(r *restore.Request) error // may refuse
	fail     func(piece int) error          // may end an answer
	count    func(r *restore.Request, p *restore.PictureReport)

	mu       sync.Mutex
	running  int
	queued   int
	requests []*restore.Request
}

func (f *fake) Info() *restore.Info {
	return &restore.Info{
		ID: "builtin", Created: time.Unix(1760000000, 0), Params: 4_100_000, Vocab: 640,
		Bytes: 8_200_000, KVPerToken: 9216, Context: 4096, Family: "llava",
		Format: "safetensors", Quant: "F16", Digest: strings.Repeat("ab", 32),
		Template: "{{ x }}", Fingerprint: "fp_1a2b3c4d5e6f", VisualTokens: 576,
		Encoder:  &restore.Encoder{Type: "q8", Why: "it is fast"},
		Parallel: f.parallel, Queue: f.queue,
	}
}

// settings are the defaults and limits of a server with a fake.
func settings(loader *media.Loader) api.Settings {
	return api.Settings{
		Aliases:   []string{"tiny"},
		Sampling:  restore.Sampling{TopP: 0.95, TopK: 40, MinP: 0.05},
		Reduction: &restore.Reduction{Base: "holov", NVis: 64},
		Pictures:  restore.PictureOptions{MaxBytes: 1000, MaxPixels: 64e6},
		MaxImages: 2, Media: loader,
	}
}

func (f *fake) Tokenize(text string, special, parse bool) ([]restore.Token, error) {
	var out []restore.Token
	for _, c := range []byte(text) {
		out = append(out, restore.Token{ID: int32(c), Bytes: []byte{c}})
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

func (f *fake) Stats() restore.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return restore.Stats{Running: f.running, Queued: f.queued, KVLimit: 100, FeatureUnsaved: 3}
}

type fakeJob struct {
	f      *fake
	r      *restore.Request
	c      restore.Answer
	pieces chan *restore.Piece
	a      *restore.Answer
	err    error
}

func (f *fake) job(r *restore.Request) (*fakeJob, error) {
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	if f.prepare != nil {
		if err := f.prepare(r); err != nil {
			return nil, err
		}
	}
	j := &fakeJob{f: f, r: r, pieces: make(chan *restore.Piece, len(f.words))}
	j.c.Usage.Prompt = 10
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if p.Picture != nil {
				j.c.Usage.Prompt, j.c.Usage.Image = j.c.Usage.Prompt+64, j.c.Usage.Image+64
				j.c.Pictures = append(
					j.c.Pictures,
					restore.PictureReport{Width: 4, Height: 4, Tokens: 576, Kept: 32, Merged: 32,
						Cache: restore.CacheNone, Method: "m", Parameters: json.RawMessage("{}")},
				)
				if f.count != nil {
					f.count(r, &j.c.Pictures[len(j.c.Pictures)-1])
				}
			}
		}
	}
	return j, nil
}

func (f *fake) Count(ctx context.Context, r *restore.Request) (*restore.Answer, error) {
	j, err := f.job(r)
	if err == nil {
		err = r.Load(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &j.c, nil
}

func (f *fake) Submit(ctx context.Context, r *restore.Request) (restore.Job, error) {
	j, err := f.job(r)
	if err != nil {
		return nil, err
	}
	if err := f.enter(); err != nil {
		return nil, err
	}
	if err := r.Load(ctx); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.queued--
		return nil, err
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
		return &errs.FullError{Running: f.running, Waiting: f.queued, RetryAfter: 3}
	}
	f.queued++
	return nil
}

func (j *fakeJob) Next() (*restore.Piece, bool) {
	e, ok := <-j.pieces
	return e, ok
}

func (j *fakeJob) Ready() bool { return len(j.pieces) > 0 }

func (j *fakeJob) Answer() (*restore.Answer, error) {
	for range j.pieces {
	}
	return j.a, j.err
}

func (j *fakeJob) run(ctx context.Context) (*restore.Answer, error) {
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
	a := &restore.Answer{Finish: restore.FinishStop, Usage: j.c.Usage, Pictures: j.c.Pictures}
	a.Usage.Generated = len(f.words)
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
		e := &restore.Piece{Text: word}
		if j.r.Logprobs {
			e.Tokens = []restore.Token{{Bytes: []byte(word), Logprob: -1}}
			a.Logprobs = append(a.Logprobs, e.Tokens...)
		}
		j.pieces <- e
	}
	return a, nil
}

var errPicture = &api.FieldError{
	Path: "messages[0].content[0].image_url.url",
	Err: &errs.PictureError{Index: -1, Fault: errs.TooManyPixels,
		Width: 9000, Height: 9000, Got: 81_000_000, Limit: 64_000_000, Err: errs.ErrDamaged},
}
