package eval

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// Ensure that the first question runs alone, all are asked once, and at most eight run at once.
func TestEach(t *testing.T) {
	const n = 40
	var asked [n]atomic.Int32
	var running, most atomic.Int32
	err := each(context.Background(), n, func(_ context.Context, i int) error {
		if i > 0 && asked[0].Load() != 1 {
			t.Errorf("question %d began before the first ended", i)
		}
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer running.Add(-1)
		asked[i].Add(1)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range asked {
		if got := asked[i].Load(); got != 1 {
			t.Errorf("question %d was asked %d times, want once", i, got)
		}
	}
	if got := most.Load(); got > together {
		t.Errorf("%d questions ran at once, want at most %d", got, together)
	}
}

// Ensure that an error of the first asks nothing else, and that another cancels the rest.
func TestEachError(t *testing.T) {
	failed := errors.New("failed")
	asked := 0
	err := each(context.Background(), 3, func(context.Context, int) error {
		asked++
		return failed
	})
	if !errors.Is(err, failed) || asked != 1 {
		t.Errorf("got %v after %d questions, want %v after 1", err, asked, failed)
	}
	err = each(context.Background(), 3, func(ctx context.Context, i int) error {
		switch i {
		case 1:
			return failed
		case 2:
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	})
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want %v", err, failed)
	}
	if err := each(context.Background(), 0, nil); err != nil {
		t.Errorf("no questions: %v", err)
	}
}
