package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/scene"
)

// broken is a model that panics when it gets pictures.
type broken struct{ model.Multimodal }

func (broken) Pictures(*imageproc.Pixels) ([]model.Picture, error) { panic("of a model") }

// Ensure that a panic while a picture is prepared is the error of every request about it, now and
// later, and that it leaves nothing behind.
func TestPanicInPreparation(t *testing.T) {
	panics := 0
	e := opened(t, Options{Panicked: func(any, []byte) { panics++ }})
	whole := e.m
	e.m = broken{whole}
	r := Request{Prompt: "?", Images: Pictures(drawn(t, 1)), MaxTokens: 1}
	for range 2 {
		if _, err := e.Ask(context.Background(), r); !errors.Is(err, errs.ErrInternal) {
			t.Errorf("got %v, want %v", err, errs.ErrInternal)
		}
	}
	if panics != 2 {
		t.Errorf("%d panics were reported, want 2", panics)
	}
	r.Load = func(context.Context) error { panic("of a caller") }
	if _, err := e.Ask(context.Background(), r); !errors.Is(err, errs.ErrInternal) {
		t.Errorf("a panic of Load: got %v", err)
	}
	e.m, r.Load = whole, nil
	if _, err := e.Ask(context.Background(), r); err != nil {
		t.Error(err)
	}
}

// Ensure that pictures that are being loaded count in the queue, that a failure gives the place
// back, and that requests run in order of arrival, however long their pictures take.
func TestQueueOfPictures(t *testing.T) {
	e := opened(t, Options{Parallel: 1, Queue: 2})
	hold := e.hold()
	data := scene.New(1).PNG()
	m := &Image{}
	loading, load := make(chan struct{}), make(chan error)
	slow := Request{
		Messages: []Message{user(Part{Image: m}, Part{Text: "?"})}, MaxTokens: 1,
		Load: func(context.Context) error {
			close(loading)
			m.File = data
			return <-load
		},
	}
	var order []string
	var all sync.WaitGroup
	ask := func(name string, r Request) {
		r.Constraint = eachToken(func() { order = append(order, name) })
		all.Go(func() {
			if _, err := e.Ask(context.Background(), r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	ask("slow", slow)
	<-loading
	quick := Request{Prompt: "What is there?", MaxTokens: 1}
	for i, name := range []string{"second", "third"} {
		ask(name, quick)
		for e.Stats().Waiting < 2+i {
			time.Sleep(time.Millisecond)
		}
	}
	for _, r := range []Request{quick, {Prompt: "?", Images: Pictures(drawn(t, 1))}} {
		if _, err := e.Submit(context.Background(), r); !errors.Is(err, errs.ErrQueueFull) {
			t.Errorf("a fourth: %v", err)
		}
	}
	load <- nil
	e.prepared(3)
	close(hold)
	all.Wait()
	if want := []string{"slow", "second", "third"}; !slices.Equal(order, want) {
		t.Errorf("got answers in the order %v, want %v", order, want)
	}
	refused := errors.New("refused")
	slow.Load = func(context.Context) error { return refused }
	for range 4 {
		if _, err := e.Ask(context.Background(), slow); !errors.Is(err, refused) {
			t.Errorf("got %v, want %v", err, refused)
		}
	}
}

// Ensure that each class of pictures has room of its own.
func TestRoom(t *testing.T) {
	r := newRoom()
	for _, n := range []int64{0, 1 << 20, 1<<20 + 1, 8 << 20, 8<<20 + 1, 64 << 20, 1 << 40} {
		class := 0
		for n > sizes[class].largest {
			class++
		}
		var in []func()
		ctx, cancel := context.WithCancel(context.Background())
		each := max(n, smallest)
		for left := sizes[class].together; left >= each || in == nil; left -= each {
			leave, err := r.enter(ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			in = append(in, leave)
		}
		cancel()
		if _, err := r.enter(ctx, n); err == nil {
			t.Errorf("%d pictures of %d pixels had room, want %d", len(in)+1, n, len(in))
		}
		for _, small := range sizes[:class] {
			leave, err := r.enter(context.Background(), small.largest)
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		for _, leave := range in {
			leave()
		}
	}
}
