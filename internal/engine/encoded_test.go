package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// counted is a model that counts the pictures that it encodes.
type counted struct {
	model.Multimodal
	pictures int
}

// Encode implements model.Multimodal.
func (c *counted) Encode(
	r *model.Run, pics []model.Picture, n model.Needs,
) ([]*model.Visual, error) {
	c.pictures += len(pics)
	return c.Multimodal.Encode(r, pics, n)
}

// Ensure that requests with several reductions share a picture's encoding, that their answers are
// the same as without, and that the limit in bytes, another salt and NoCache are honoured.
func TestEncodedShared(t *testing.T) {
	reductions := []methods.Options{
		{}, {Base: "holov", NVis: 64, Restore: true}, {Base: "divprune", NVis: 64},
		{Base: "visionzip", NVis: 32, Restore: true}, {Base: "fastv", NVis: 128},
		{Base: "dart", NVis: 64},
	}
	var alone [][]int32
	ask := func(e *Engine, o methods.Options, change func(r *Request)) *Answer {
		t.Helper()
		r := Request{Prompt: "What is there?", Images: Pictures(drawn(t, 1)), Reduce: o,
			MaxTokens: 8}
		if change != nil {
			change(&r)
		}
		a, err := e.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct {
		name string
		most int64
		want int // pictures encoded
	}{
		{"none kept", 0, len(reductions) - 1}, // fastv reads what the first request encoded
		{"all kept", 1 << 30, 1}, {"too large to keep", 1, len(reductions) - 1},
	} {
		e := opened(t, Options{EncodedBytes: c.most})
		m := &counted{Multimodal: e.m}
		e.m = m
		for i, o := range reductions {
			got := ask(e, o, nil).Tokens
			if alone = append(alone, got); !slices.Equal(got, alone[i]) {
				t.Errorf("%s: %s: got tokens %v, want %v", c.name, o.Base, got, alone[i])
			}
		}
		if m.pictures != c.want {
			t.Errorf("%s: %d pictures were encoded, want %d", c.name, m.pictures, c.want)
		}
		if n := e.encoded.bytes; c.most == 1<<30 && n < 4*576*192 || n > c.most {
			t.Errorf("%s: %d bytes are kept, want at most %d", c.name, n, c.most)
		}
		if len(e.shared) != e.encoded.order.Len() {
			t.Errorf("%s: %d pictures are shared, want the %d that are kept", c.name,
				len(e.shared), e.encoded.order.Len())
		}
		before := m.pictures
		another := methods.Options{Base: "grid", NVis: 64}
		ask(e, another, func(r *Request) { r.NoCache = true })
		ask(e, another, func(r *Request) { r.Salt = "another" })
		if m.pictures != before+2 {
			t.Errorf("%s: without caches and with another salt: %d pictures were encoded, want 2",
				c.name, m.pictures-before)
		}
	}
}

// ending is a model whose first encoding ends with the request: the last product is skipped.
type ending struct {
	model.Multimodal
	cancel context.CancelFunc
}

func (m *ending) Encode(
	r *model.Run, pics []model.Picture, n model.Needs,
) ([]*model.Visual, error) {
	v, err := m.Multimodal.Encode(r, pics, n)
	if m.cancel != nil && err == nil {
		m.cancel()
		m.cancel = nil
		clear(v[0].X)
	}
	return v, err
}

// Ensure that the encoding of a picture whose request was cancelled at its end serves no other
// request.
func TestEncodedCancelled(t *testing.T) {
	r := Request{Prompt: "What is there?", Images: Pictures(drawn(t, 1)), MaxTokens: 8,
		Reduce: methods.Options{Base: "holov", NVis: 64}}
	want, err := opened(t, Options{}).Ask(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	e := opened(t, Options{EncodedBytes: 1 << 30})
	ctx, cancel := context.WithCancel(context.Background())
	e.m = &ending{e.m, cancel}
	if _, err := e.Ask(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cancellation", err)
	}
	if a, err := e.Ask(context.Background(), r); err != nil || a.Text != want.Text {
		t.Errorf("after it: got %+v, %v, want %q", a, err, want.Text)
	}
}

// Ensure that requests at the same time, with many pictures and little room, leave nothing in use.
func TestEncodedTogether(t *testing.T) {
	e := opened(t, Options{EncodedBytes: 5e6})
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			_, err := e.Ask(context.Background(), Request{
				Prompt: "What is there?", Images: Pictures(drawn(t, int64(i%4))), MaxTokens: 1,
				Reduce: methods.Options{Base: "holov", NVis: 32 + i/4},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	kept := int64(0)
	for _, s := range e.shared {
		if kept += s.bytes(); s.users != 0 || s.unused == nil {
			t.Errorf("a picture has %d users, kept: %v", s.users, s.unused != nil)
		}
	}
	if kept != e.encoded.bytes || kept > 5e6 || len(e.shared) != e.encoded.order.Len() {
		t.Errorf("%d bytes of %d pictures are kept, want %d of %d", kept, len(e.shared),
			e.encoded.bytes, e.encoded.order.Len())
	}
}
