package restore_test

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/png"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

// blank returns the file of a black picture.
func blank(t *testing.T) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 40, 30))); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// Ensure that goroutines and requests may share a picture, and that its file is read once, also
// where the first request that reads it is cancelled.
func TestSharedPicture(t *testing.T) {
	m := embedded(t)
	file := blank(t)
	var calls atomic.Int32
	begun, stop := make(chan struct{}), errors.New("enough")
	late := restore.PictureFrom(func(ctx context.Context) ([]byte, error) {
		if calls.Add(1) == 1 {
			close(begun)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return file, nil
	}, nil)
	ready, err := restore.NewPicture(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context) error {
		_, err := m.Ask(ctx, restore.Request{
			Prompt: "What is there?", MaxTokens: 1,
			Pictures: []*restore.Picture{late, ready, late},
		})
		return err
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := ask(ctx); !errors.Is(err, stop) {
			t.Errorf("the cancelled request: got %v", err)
		}
	})
	<-begun
	for range 3 {
		all.Go(func() {
			if err := ask(t.Context()); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			_, err := ready.Decode()
			_, err2 := ready.Image()
			_, err3 := ready.File()
			if err := errors.Join(err, err2, err3); err != nil {
				t.Error(err)
			}
		})
	}
	cancel(stop)
	all.Wait()
	if n := calls.Load(); n != 2 {
		t.Errorf("the file was read %d times, want 2: once cancelled, once for all others", n)
	}
}

// Ensure that a conversation reads the files of its pictures.
func TestLatePictureInConversation(t *testing.T) {
	m := embedded(t)
	file, calls := blank(t), 0
	late := restore.PictureFrom(func(context.Context) ([]byte, error) {
		calls++
		return file, nil
	}, nil)
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := restore.Request{Prompt: "What is there?", Pictures: []*restore.Picture{late}}
	if err := c.ReadAhead(t.Context(), first); err != nil || calls != 1 {
		t.Errorf("ahead: got %v after %d calls, want one", err, calls)
	}
	got, err := c.Ask(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	ready, err := restore.NewPicture(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	first.Pictures = []*restore.Picture{ready}
	want, err := m.Ask(t.Context(), first)
	if err != nil || got.Text != want.Text || calls != 1 {
		t.Errorf("got %q after %d calls, want %q after one, %v", got.Text, calls, want.Text, err)
	}
	if _, err := c.Ask(t.Context(), restore.Request{Prompt: "And there?"}); err != nil {
		t.Error(err)
	}
}

// Ensure that a panic of the function that reads a picture's file ends only its request, which has
// no answer then, whether it is alone or part of a conversation.
func TestLoadPanics(t *testing.T) {
	var values []any
	m, err := restore.Open(t.Context(), "", &restore.Options{
		Panicked: func(v any, _ []byte) { values = append(values, v) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	type ask func(context.Context, restore.Request) (*restore.Answer, error)
	for name, do := range map[string]ask{"ask": m.Ask, "conversation": c.Ask} {
		values = nil
		late := restore.PictureFrom(func(context.Context) ([]byte, error) { panic(name) }, nil)
		_, err := do(t.Context(), restore.Request{
			Prompt: "What is there?", Pictures: []*restore.Picture{late, square()}})
		if !errors.Is(err, errs.ErrInternal) || len(values) != 1 || values[0] != name {
			t.Errorf("%s: got %v and panics %v, want errs.ErrInternal", name, err, values)
		}
	}
}

// endless is a picture that has a size and nothing else.
type endless struct{ image.Rectangle }

func (e endless) ColorModel() color.Model { return color.GrayModel }
func (e endless) Bounds() image.Rectangle { return e.Rectangle }
func (e endless) At(int, int) color.Color { return color.Black }

// Ensure that a nil, zero or empty picture is an errs.PictureError wherever it is used, and never a
// panic.
func TestNoPicture(t *testing.T) {
	m := embedded(t)
	late := func() *restore.Picture {
		return restore.PictureFrom(func(context.Context) ([]byte, error) {
			return blank(t), nil
		}, nil)
	}
	got := map[string]error{}
	for name, p := range map[string]*restore.Picture{
		"nil": nil, "zero": new(restore.Picture), "from nil": restore.PictureFrom(nil, nil),
		"not read": late(),
	} {
		_, got[name+": File"] = p.File()
		_, got[name+": Image"] = p.Image()
		_, got[name+": Decode"] = p.Decode()
		if name == "not read" {
			continue
		}
		_, got[name+": Ask"] = m.Ask(t.Context(), restore.Request{
			Prompt: "x", Pictures: []*restore.Picture{p},
		})
		if p == nil {
			continue
		}
		_, got[name+": Messages"] = m.Ask(t.Context(), restore.Request{Messages: []restore.Message{
			{Role: restore.User, Parts: []restore.Part{{Picture: p}}},
		}})
	}
	_, got["no image"] = restore.FromImage(nil)
	for name, err := range got {
		var bad *errs.PictureError
		if !errors.As(err, &bad) || bad.Fault != errs.EmptyPicture {
			t.Errorf("%s: got %v, want a picture error", name, err)
		}
	}
	var bad *errs.PictureError
	_, err := restore.FromImage(endless{image.Rect(0, 0, 1<<30, 1<<30)})
	if !errors.As(err, &bad) || bad.Fault != errs.TooManyPixels {
		t.Errorf("2⁶⁰ pixels: got %v", err)
	}
	_, err = restore.FromImage(endless{image.Rect(0, 0, math.MaxInt/2+1, 4)})
	if !errors.As(err, &bad) || bad.Fault != errs.TooManyPixels || bad.Got != math.MaxInt64 {
		t.Errorf("2⁶⁴ pixels: got %v", err)
	}
	if o := late().Options(); o.IgnoreEXIF {
		t.Errorf("options of a picture that is not read: got %+v", o)
	}
	p := restore.PictureFrom(nil, &restore.PictureOptions{IgnoreEXIF: true})
	if !p.Options().IgnoreEXIF {
		t.Error("options of a picture that is not read: IgnoreEXIF is lost")
	}
}
