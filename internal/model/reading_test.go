package model

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/nn"
)

// slowFile is a checkpoint.Checked whose checks take some time and may fail.
type slowFile struct {
	checkpoint.Bundle
	parts int              // of a millisecond each, in a check
	bad   map[string]error // of these weights

	mu   sync.Mutex
	seen []string // names in the order in which their checks began
}

func (f *slowFile) Check(name string, alloc func(n int) []byte, ended func() bool) ([]byte, error) {
	f.mu.Lock()
	f.seen = append(f.seen, name)
	f.mu.Unlock()
	for range f.parts {
		if ended() {
			return nil, checkpoint.ErrEnded
		}
		time.Sleep(time.Millisecond)
	}
	if err := f.bad[name]; err != nil {
		return nil, err
	}
	b := []byte("file " + name)
	if alloc != nil {
		copy(alloc(len(b)), "copy")
		b = append([]byte("copy "), name...)
	}
	return b, nil
}

// read returns a Reading of weights called names, each with one matrix.
func (f *slowFile) read(names ...string) (*Reading, map[string]*nn.Matrix) {
	r, w := newReading(f, nil), map[string]*nn.Matrix{}
	for _, name := range names {
		w[name] = &nn.Matrix{}
		r.add(name, w[name], false)
	}
	return r, w
}

// pass passes the gate of a weight and returns its error.
func pass(r *Reading, name string) (err error) {
	defer func() {
		if u, ok := recover().(*nn.Unusable); ok {
			err = u.Err
		}
	}()
	r.named[name].gate.Pass()
	return nil
}

// Ensure that weights are checked in the order in which they were added, that one that is needed
// now does not wait for those before it, and that each is checked once.
func TestReadingOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowFile{parts: 10}
		r, w := f.read("a", "b", "c", "d", "e")
		again := &nn.Matrix{}
		if g := r.add("d", again, false); g != r.named["d"].gate || len(r.list) != 5 {
			t.Error("a weight that is bound twice has two gates")
		}
		start := time.Now()
		r.Start(2)
		time.Sleep(5 * time.Millisecond)
		if r.Err() != nil {
			t.Error(r.Err())
		}
		if err := pass(r, "d"); err != nil || time.Since(start) != 15*time.Millisecond {
			t.Errorf("after %v: %v, want 15 ms", time.Since(start), err)
		}
		if string(w["d"].Data) != "file d" || string(again.Data) != "file d" {
			t.Errorf("passed the gate to %q and %q", w["d"].Data, again.Data)
		}
		if err := r.Wait(context.Background()); err != nil || r.Err() != nil ||
			time.Since(start) != 40*time.Millisecond {
			t.Errorf("after %v: %v, want 40 ms", time.Since(start), err)
		}
		if want := []string{"a", "d", "b", "c", "e"}; !slices.Equal(f.seen, want) {
			t.Errorf("checked %v, want %v", f.seen, want)
		}
		r.Stop()
		if err := pass(r, "e"); err != nil || r.Err() != nil {
			t.Errorf("stopped after the end: %v, %v", err, r.Err())
		}
	})
}

// Ensure that weights that every token reads are copied, and others are not.
func TestReadingCopies(t *testing.T) {
	f := new(slowFile)
	r, w := f.read("embed", "tied")
	head, layer := &nn.Matrix{}, &nn.Matrix{}
	r.add("tied", head, true)
	r.add("layer", layer, true)
	r.Start(8)
	if err := r.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	for want, got := range map[string][]byte{
		"file embed": w["embed"].Data, "copy tied": head.Data, "copy layer": layer.Data,
	} {
		if string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if !bytes.Equal(w["tied"].Data, head.Data) {
		t.Error("the two matrices of a weight differ")
	}
	r.Stop()
}

// Ensure that a weight that fails its check cannot be used, that the error reaches those who wait
// for all weights, and that the rest is not read.
func TestReadingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("damaged")
		f := &slowFile{parts: 5, bad: map[string]error{"b": bad}}
		r, _ := f.read("b", "c", "d")
		r.Start(1)
		time.Sleep(time.Millisecond)
		for range 2 {
			if err := pass(r, "b"); err != bad {
				t.Errorf("got %v, want %v", err, bad)
			}
		}
		if err := r.Wait(context.Background()); err != bad || r.Err() != bad {
			t.Errorf("waited: %v, %v", err, r.Err())
		}
		if err := pass(r, "d"); err != bad {
			t.Errorf("a weight that was not checked: %v", err)
		}
		r.Stop()
		if r.Err() != bad {
			t.Errorf("stopped: %v", r.Err())
		}
		if slices.Contains(f.seen, "c") {
			t.Errorf("checked %v", f.seen)
		}
	})
}

// Ensure that Stop ends the checks at once, whoever makes or awaits them, and that a wait ends with
// its context.
func TestReadingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowFile{parts: 1000}
		r, _ := f.read("a", "b", "c")
		r.Start(1)
		ctx, cancel := context.WithCancelCause(context.Background())
		why := errors.New("why")
		var waits sync.WaitGroup
		var failed [4]error
		waits.Go(func() { failed[0] = pass(r, "a") })
		waits.Go(func() { failed[1] = pass(r, "c") })
		waits.Go(func() { failed[2] = r.Wait(context.Background()) })
		waits.Go(func() { failed[3] = r.Wait(ctx) })
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		cancel(why)
		synctest.Wait()
		r.Stop()
		waits.Wait()
		if d := time.Since(start); d > time.Millisecond {
			t.Errorf("stopped after %v", d)
		}
		for i, err := range failed[:3] {
			if !errors.Is(err, errs.ErrClosed) {
				t.Errorf("%d: %v", i, err)
			}
		}
		if failed[3] != why {
			t.Errorf("a wait with a context: %v", failed[3])
		}
		if err := pass(r, "b"); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("afterwards: %v", err)
		}
	})
	var none *Reading
	none.Start(1)
	none.Stop()
	if none.Err() != nil || none.Wait(context.Background()) != nil {
		t.Error("a model without checks waits for them")
	}
}
