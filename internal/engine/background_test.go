package engine

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

// Ensure that a running background request waits while another one runs, and takes no place of the
// queue.
func TestBackgroundWaits(t *testing.T) {
	e := opened(t, Options{Parallel: 2, Queue: 1})
	n, at, on := 0, make(chan struct{}), make(chan struct{})
	behind := Request{
		Prompt: "Count.", MaxTokens: 100, IgnoreEnd: true, Background: true,
		Constraint: eachToken(func() {
			if n++; n == 2 {
				close(at)
				<-on
			}
		}),
	}
	j, err := e.Submit(context.Background(), behind)
	if err != nil {
		t.Fatal(err)
	}
	<-at
	var waiting []*Job
	for range 3 { // one place is never the background's
		more, err := e.Submit(context.Background(), Request{Prompt: "?", MaxTokens: 1,
			Background: true})
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, more)
	}
	other, err := e.Submit(context.Background(), Request{
		Prompt: "?", MaxTokens: 50, IgnoreEnd: true, Constraint: eachToken(func() {
			if n != 2 {
				t.Errorf("%d tokens of the background, want none after 2", n)
			}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	close(on)
	if a, err := other.Answer(); err != nil || len(a.Tokens) != 50 {
		t.Errorf("got %+v, %v, want 50 tokens", a, err)
	}
	if a, err := j.Answer(); err != nil || len(a.Tokens) != 100 {
		t.Errorf("background: got %+v, %v, want 100 tokens", a, err)
	}
	for _, j := range waiting {
		if _, err := j.Answer(); err != nil {
			t.Error(err)
		}
	}
}

// Ensure that a background request that is being encoded or read makes way, and has its answer when
// it is asked again.
func TestBackgroundYields(t *testing.T) {
	e := tiny(t, Options{FeatureBytes: -1})
	reqs := mixed(t, e, 8)
	for i := range reqs {
		reqs[i].NoCache = true
	}
	want, failed := together(e, reqs, background)
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	yields := 0
	for after := range 40 {
		var wg sync.WaitGroup
		behind := reqs[0]
		behind.Background = true
		ctx := &callContext{Context: context.Background(), left: after, call: func() {
			ended := make(chan struct{})
			wg.Go(func() {
				defer close(ended)
				a, err := e.Ask(context.Background(), reqs[1])
				if err != nil || !slices.Equal(a.Tokens, want[1].Tokens) {
					t.Errorf("after %d polls: got %+v, %v", after, a, err)
				}
			})
			for { // until it is queued
				if !e.device.mu.TryLock() {
					return // perhaps the poll's caller holds it
				}
				queued := len(e.device.waiting) > 0
				e.device.mu.Unlock()
				select {
				case <-ended:
					return
				default:
				}
				if queued {
					return
				}
				runtime.Gosched()
			}
		}}
		for {
			a, err := e.Ask(ctx, behind)
			if errors.Is(err, errs.ErrYielded) {
				yields++
				continue
			}
			if err != nil || !slices.Equal(a.Tokens, want[0].Tokens) {
				t.Errorf("background after %d polls: got %+v, %v", after, a, err)
			}
			break
		}
		wg.Wait()
	}
	if yields == 0 {
		t.Error("no request made way")
	}
}

// callContext calls a function at one call of Err.
type callContext struct {
	context.Context
	mu   sync.Mutex
	left int
	call func()
}

func (c *callContext) Err() error {
	c.mu.Lock()
	c.left--
	now := c.left == -1
	c.mu.Unlock()
	if now {
		c.call()
	}
	return nil
}

// Ensure that requests of both kinds end with little memory for keys and values.
func TestBackgroundWithLittleMemory(t *testing.T) {
	plain := tiny(t, Options{})
	reqs := mixed(t, plain, 8)
	for i := range reqs {
		reqs[i].NoCache, reqs[i].MaxTokens = true, 90
	}
	want, failed := together(plain, reqs, background)
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	pages := 6 * int64(plain.shape.Layers) * plain.pages.PageBytes()
	small := tiny(t, Options{KVBytes: pages})
	var wg sync.WaitGroup
	for i := range reqs {
		r := reqs[i]
		r.Background = i%2 == 0
		wg.Go(func() {
			for {
				a, err := small.Ask(context.Background(), r)
				if errors.Is(err, errs.ErrYielded) {
					continue
				}
				if err != nil || !slices.Equal(a.Tokens, want[i].Tokens) {
					t.Errorf("request %d: got %+v, %v", i, a, err)
				}
				return
			}
		})
	}
	wg.Wait()
}
