package fleet

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore/errs"
)

// Ensure that a stream that nobody reads holds up neither the worker nor other requests, and that
// its answer is kept whole.
func TestStreamNobodyReads(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	text := strings.TrimSpace(strings.Repeat("word ", 5000))
	slow, err := k.Submit(t.Context(), question(text, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Answer(); err != nil { // it is made
		t.Fatal(err)
	}
	if a, err := asking(t.Context(), k, "a few words"); err != nil || a.Text != "a few words" {
		t.Errorf("got %+v, %v", a, err)
	}
	var got strings.Builder
	for e, ok := slow.Next(); ok; e, ok = slow.Next() {
		got.WriteString(e.Text)
	}
	if a, err := slow.Answer(); err != nil || a.Text != text || got.String() != text {
		t.Errorf("got %d bytes of %d, %v", got.Len(), len(text), err)
	}
}

// Ensure that the times of an answer have everything in them from the arrival of the request on:
// waiting, loading pictures, and the way to a worker and back.
func TestTimes(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	b.takes = 30 * time.Millisecond
	runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	const before, wait = time.Hour, 20 * time.Millisecond
	r := loading("words", func(context.Context) ([]byte, error) {
		time.Sleep(wait)
		return pixel(), nil
	})
	r.Arrived = time.Now().Add(-before)
	a, err := answerOf(t.Context(), k, r)
	if err != nil {
		t.Fatal(err)
	}
	all := time.Since(r.Arrived)
	x := a.Timings
	if x.Prepare < wait || x.Queue < before || x.FirstToken != x.Queue+x.Prepare ||
		x.FirstToken > all-b.takes {
		t.Errorf("got %+v of %v in all, %v of it at the worker", x, all, b.takes)
	}
}

// Ensure that a request loads its pictures when it has a place in the queue, and not if that is
// full, and that a failure gives the place back.
func TestLoadInQueue(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{Queue: -1})
	refused := errors.New("refused")
	for range 3 {
		r := loading("words", func(ctx context.Context) ([]byte, error) {
			full := loading("more", func(context.Context) ([]byte, error) {
				t.Error("loaded without a place")
				return pixel(), nil
			})
			if _, err := k.Submit(ctx, full); !errors.Is(err, errs.ErrQueueFull) {
				t.Errorf("a second request: got %v", err)
			}
			if _, err := k.Count(ctx, full); !errors.Is(err, errs.ErrQueueFull) {
				t.Errorf("a second count: got %v", err)
			}
			return nil, refused
		})
		if _, err := k.Submit(t.Context(), r); !errors.Is(err, refused) {
			t.Errorf("got %v, want %v", err, refused)
		}
		if _, err := k.Count(t.Context(), r); !errors.Is(err, refused) {
			t.Errorf("a count: got %v, want %v", err, refused)
		}
	}
}

// halted is a store whose objects stop in the middle, as the client library reports it.
type halted struct{ jetstream.ObjectStore }

func (halted) GetInfo(
	context.Context, string, ...jetstream.GetObjectInfoOpt,
) (*jetstream.ObjectInfo, error) {
	return new(jetstream.ObjectInfo), nil
}

func (halted) GetBytes(context.Context, string, ...jetstream.GetObjectOpt) ([]byte, error) {
	from, to := net.Pipe()
	defer to.Close()
	if err := from.SetReadDeadline(time.Now()); err != nil {
		return nil, err
	}
	_, err := from.Read(make([]byte, 1))
	return nil, err
}

// Ensure that a picture that stops in the middle is the servers' fault: it is no attempt at the
// request, of which there are few.
func TestObjectHalted(t *testing.T) {
	t.Parallel()
	c := connect(t, natsServer(t), quick)
	c.callTime = 100 * time.Millisecond
	if _, err := c.object(t.Context(), halted{}, "name"); !errors.Is(err, errAway) ||
		!strings.Contains(err.Error(), "the NATS server does not answer") {
		t.Errorf("got %v, want %v", err, errAway)
	}
}
