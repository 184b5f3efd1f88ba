package engine

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/model"
)

// prepared is a constraint whose preparation a function does.
type prepared struct {
	only
	prepare func(ctx context.Context) error
}

func (p *prepared) Prepare(ctx context.Context) error { return p.prepare(ctx) }

// blocked returns a preparation that lasts until its context ends, and a channel that is closed
// when it has begun.
func blocked() (prepare func(ctx context.Context) error, begun chan struct{}) {
	begun = make(chan struct{})
	return func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		return context.Cause(ctx)
	}, begun
}

// Ensure that a constraint is prepared before its first use while other requests run, and that a
// failure, a panic, a cancelled context and Close end only its request.
func TestPreparer(t *testing.T) {
	e := opened(t, Options{Parallel: 1})
	list := []int32{400, 17, 230}
	request := func(prepare func(ctx context.Context) error) Request {
		return Request{Prompt: "?", Constraint: &prepared{only{list: list}, prepare}}
	}
	begun, proceed := make(chan struct{}), make(chan struct{})
	slow, err := e.Submit(context.Background(), request(func(context.Context) error {
		close(begun)
		<-proceed
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	if _, err := e.Ask(context.Background(), Request{Prompt: "?", MaxTokens: 2}); err != nil {
		t.Errorf("a request next to a preparation: %v", err)
	}
	close(proceed)
	if a, err := slow.Answer(); err != nil || !slices.Equal(a.Tokens, list) {
		t.Errorf("prepared: got %+v, %v", a, err)
	}
	unfit := errors.New("unfit")
	for _, c := range []struct {
		prepare func(ctx context.Context) error
		want    error
	}{
		{func(context.Context) error { return unfit }, unfit},
		{func(context.Context) error { panic("fault") }, errs.ErrInternal},
	} {
		if _, err := e.Ask(context.Background(), request(c.prepare)); !errors.Is(err, c.want) {
			t.Errorf("got %v, want %v", err, c.want)
		}
	}
	gone := errors.New("gone")
	endPreparation(t, e, request, gone,
		func(cancel context.CancelCauseFunc) error { cancel(gone); return nil })
	endPreparation(t, e, request, errs.ErrClosed,
		func(context.CancelCauseFunc) error { return e.Close() })
}

// endPreparation ends a request that is being prepared, and expects an error.
func endPreparation(
	t *testing.T, e *Engine, request func(func(ctx context.Context) error) Request, want error,
	end func(cancel context.CancelCauseFunc) error,
) {
	t.Helper()
	prepare, begun := blocked()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	j, err := e.Submit(ctx, request(prepare))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := end(cancel); err != nil {
		t.Error(err)
	}
	if _, err := j.Answer(); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// Ensure that only the requests that are next are prepared.
func TestPreparedAhead(t *testing.T) {
	e := opened(t, Options{Parallel: 2})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var jobs []*Job
	begun := make(chan struct{}, 5)
	for range 5 {
		j, err := e.Submit(ctx, Request{Prompt: "?", Constraint: &prepared{
			prepare: func(ctx context.Context) error {
				begun <- struct{}{}
				<-ctx.Done()
				return context.Cause(ctx)
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
	}
	<-begun
	<-begun
	nothing := func(*model.Run) error { return nil }
	if err := e.Do(context.Background(), nothing); err != nil { // the device had its turn
		t.Fatal(err)
	}
	if n := len(begun); n != 0 {
		t.Errorf("%d requests are prepared, want 2", n+2)
	}
	cancel()
	for _, j := range jobs {
		if _, err := j.Answer(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want its context's cause", err)
		}
	}
}
