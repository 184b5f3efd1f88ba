package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/grammar"
)

// alone starts a fleet of one worker.
func alone(t *testing.T) (*echo, *Client) {
	t.Helper()
	s := natsServer(t)
	b := newEcho(1)
	runWorker(t, connect(t, s, quick), b, "m1")
	return b, newClient(t, connect(t, s, quick), ClientOptions{})
}

func pictureWith(t *testing.T, content string, o *restore.PictureOptions) *restore.Picture {
	t.Helper()
	p, err := restore.NewPicture(pictureOf([]byte(content)), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func reduction(t *testing.T, object string) *restore.Reduction {
	t.Helper()
	r := new(restore.Reduction)
	if err := json.Unmarshal([]byte(object), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// Ensure that the worker gets a request as the client sends it, without any defaults.
func TestRequestAsSent(t *testing.T) {
	t.Parallel()
	b, k := alone(t)
	holov := reduction(t, `{"base": "holov", "n_vis": 64, "gamma": 0.25}`)
	holov.AtMost = true
	none := reduction(t, `{"base": "none"}`)
	small := pictureWith(t, "small", &restore.PictureOptions{Name: "small.png", MaxPixels: 7,
		MaxBytes: 1 << 20, IgnoreEXIF: true})
	large := pictureWith(t, strings.Repeat("large", inlinePicture), nil)
	user := func(p ...restore.Part) []restore.Message {
		return []restore.Message{{Role: restore.User, Parts: p}}
	}
	for name, c := range map[string]struct {
		sent     restore.Request
		messages []restore.Message
	}{
		"a text alone": {restore.Request{Prompt: "Why?"}, user(restore.Part{Text: "Why?"})},
		"any object": {restore.Request{Prompt: "Why?", Format: restore.Format{Object: true}},
			user(restore.Part{Text: "Why?"})},
		"pictures": {restore.Request{Prompt: "this and that", System: "Be brief.", Reduction: holov,
			Pictures: []*restore.Picture{small, large}, Places: []int{0, 9}},
			append([]restore.Message{{Role: restore.System,
				Parts: []restore.Part{{Text: "Be brief."}}}},
				user(restore.Part{Picture: small}, restore.Part{Text: "this and "},
					restore.Part{Picture: large}, restore.Part{Text: "that"})...)},
		"reductions of pictures": {restore.Request{Reduction: none, Messages: user(
			restore.Part{Picture: small, Reduction: holov}, restore.Part{Text: "and"},
			restore.Part{Picture: large}, restore.Part{Picture: small, Reduction: none})},
			user(restore.Part{Picture: small, Reduction: holov}, restore.Part{Text: "and"},
				restore.Part{Picture: large}, restore.Part{Picture: small, Reduction: none})},
		"raw":    {restore.Request{Prompt: "as it stands", Raw: true}, nil},
		"tokens": {restore.Request{Tokens: []int32{1, 2, 3}}, nil},
		"all other fields": {restore.Request{Prompt: "x", MaxTokens: 5, Context: 99, IgnoreEnd: true,
			Sampling: restore.Sampling{Temperature: 0.7, TopK: 4, TopP: 0.9, MinP: 0.1,
				Seed: math.MaxInt64},
			Stop: []string{"\n", "<end>"}, Logprobs: true, Top: 3, Groups: true, NoCache: true,
			Salt: "s", Format: restore.Format{Schema: json.RawMessage(`{"type":"object"}`)}},
			user(restore.Part{Text: "x"})},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := answerOf(t.Context(), k, &c.sent); err != nil {
				t.Fatal(err)
			}
			want := c.sent
			if want.Pictures, want.Messages = nil, c.messages; want.Messages != nil {
				want.Prompt, want.System, want.Places = "", "", nil
			}
			submitted := *b.last
			if _, err := k.Count(t.Context(), &c.sent); err != nil {
				t.Fatal(err)
			}
			for how, got := range map[string]restore.Request{
				"submitted": submitted, "counted": *b.last,
			} {
				if got.Arrived = c.sent.Arrived; !reflect.DeepEqual(got, want) {
					t.Errorf("%s: got %+v, want %+v", how, got, want)
				}
			}
		})
	}
}

// Ensure that decoded pixels arrive at the worker.
func TestPixels(t *testing.T) {
	t.Parallel()
	b, k := alone(t)
	drawn := image.NewNRGBA(image.Rect(0, 0, 3, 2))
	for i := range drawn.Pix {
		drawn.Pix[i] = uint8(40 * i)
		if i%4 == 3 {
			drawn.Pix[i] = 255
		}
	}
	p, err := restore.FromImage(drawn)
	if err != nil {
		t.Fatal(err)
	}
	r := &restore.Request{Prompt: "x", Pictures: []*restore.Picture{p}}
	if _, err := answerOf(t.Context(), k, r); err != nil {
		t.Fatal(err)
	}
	got, err := b.last.Messages[0].Parts[0].Picture.Image()
	if err != nil || !reflect.DeepEqual(got, image.Image(drawn)) {
		t.Errorf("got %+v, %v, want %+v", got, err, drawn)
	}
}

// Ensure that an answer arrives as the worker made it, also one too large for a message.
func TestAnswerAsMade(t *testing.T) {
	c := connect(t, natsServer(t), quick)
	a := &restore.Answer{Text: "a<b", Tokens: []int32{1, 2}, Finish: restore.FinishLength,
		Logprobs: []restore.Token{{ID: 1, Bytes: []byte{0xff}, Logprob: -0.1,
			Top: []restore.Token{{ID: 2, Bytes: []byte("b"), Logprob: -3}}}},
		Pictures: []restore.PictureReport{{Width: 3, Height: 2, Tokens: 9, Kept: 1, Merged: 2,
			Mean: 4.5, Cache: restore.CacheDisk, Method: "holov",
			Parameters: json.RawMessage(`{"n_vis":3}`), Rows: 3, Cols: 3,
			Area:   restore.Area{X: 1, Y: 2, Width: 3, Height: 4},
			Groups: []restore.Group{{Members: []int{0, 4}, Position: 0.5}}}, {}},
		Usage:   restore.Usage{Prompt: 1, Image: 2, Cached: 3, Generated: 4},
		Timings: restore.Timings{Encode: time.Second, Decode: 1}, Worker: "w"}
	long := *a
	long.Text = strings.Repeat("x", 2<<20)
	for _, a := range []*restore.Answer{a, &long} {
		data, err := c.encodeResult(t.Context(), &result{Worker: "w", Answer: a})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.decodeResult(t.Context(), data)
		if err != nil || !reflect.DeepEqual(r.Answer, a) {
			t.Errorf("got %+v, %v, want %+v", r, err, a)
		}
	}
}

// is reports whether err holds an error that equals want.
func is[E error](want E) func(error) bool {
	return func(err error) bool {
		var got E
		return errors.As(err, &got) && reflect.DeepEqual(got, want)
	}
}

// Ensure that a fault of a request arrives at the client with its type, and is not tried again.
func TestErrors(t *testing.T) {
	t.Parallel()
	b, k := alone(t)
	option := &errs.OptionError{Name: "n-vis", Got: "577", Want: "at most 576", Why: "so many",
		Fault: errs.TooLarge}
	picture := &errs.PictureError{Index: 1, Fault: errs.TooManyPixels, Width: 30, Height: 20,
		Got: 600, Limit: 500, Err: errors.New("too many pixels")}
	full := &errs.ContextError{PromptTokens: 9, Positions: 12, Context: 8, Bytes: 3, MostBytes: 2}
	memory := &errs.MemoryError{What: "keys", Need: 5, Have: 3, Hint: "ask less"}
	schema := &grammar.Error{Pointer: "/a", Keyword: "type", Problem: "unknown"}
	for name, c := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"option": {option, is(option)}, "picture": {picture, is(picture)},
		"context": {full, is(full)}, "memory": {memory, is(memory)}, "schema": {schema, is(schema)},
	} {
		b.trying = func(string) error { return fmt.Errorf("worker: %w", c.err) }
		before := b.asked.Load()
		_, err := asking(t.Context(), k, "x")
		if !c.is(err) || err.Error() != c.err.Error() {
			t.Errorf("%s: got %v, want %v", name, err, c.err)
		}
		if n := b.asked.Load() - before; n != 1 {
			t.Errorf("%s: asked %d times, want once", name, n)
		}
		if _, err := k.Count(t.Context(), &restore.Request{Prompt: "x"}); !c.is(err) {
			t.Errorf("%s: a count: got %v, want %v", name, err, c.err)
		}
	}
}

// Ensure that a request whose error may be its worker's fault is tried again.
func TestTriedAgain(t *testing.T) {
	t.Parallel()
	b, k := alone(t)
	b.trying = func(string) error {
		if b.asked.Load() == 1 {
			return errs.ErrInternal
		}
		return nil
	}
	if a, err := asking(t.Context(), k, "word"); err != nil || a.Text != "word" {
		t.Errorf("got %+v, %v", a, err)
	}
}

// Ensure that a file that is no picture is refused with its place in the request.
func TestNoPicture(t *testing.T) {
	t.Parallel()
	b, k := alone(t)
	late := func(data []byte, o *restore.PictureOptions) *restore.Picture {
		return restore.PictureFrom(func(context.Context) ([]byte, error) { return data, nil }, o)
	}
	for fault, bad := range map[errs.PictureFault]*restore.Picture{
		errs.UnknownFormat: late([]byte("no picture"), nil),
		errs.EmptyPicture:  late(nil, nil),
		errs.TooManyBytes:  late(pixel(), &restore.PictureOptions{MaxBytes: 9}),
	} {
		r := &restore.Request{Prompt: "x",
			Pictures: []*restore.Picture{pictureWith(t, "first", nil), bad}}
		var got *errs.PictureError
		if _, err := answerOf(t.Context(), k, r); !errors.As(err, &got) || got.Index != 1 ||
			got.Fault != fault || got.Err == nil {
			t.Errorf("fault %d: got %+v, %v", fault, got, err)
		}
		if _, err := k.Count(t.Context(), r); !errors.As(err, &got) || got.Fault != fault {
			t.Errorf("fault %d: a count: got %v", fault, err)
		}
	}
	if n := b.asked.Load(); n != 0 {
		t.Errorf("the service was asked %d times", n)
	}
}

// Ensure that a request with a parameter that the worker does not know is refused, and that no
// worker tries what is no request.
func TestUnpack(t *testing.T) {
	read := func(ask string) error {
		_, err := new(Conn).unpack(t.Context(), nats.Header{},
			fmt.Appendf(nil, `{"id": "c.1", "ask": %s}`, ask), new(pictureCache))
		return err
	}
	if err := read(`{"Prompt": "x", "Reduction": {"base": "holov"}}`); err != nil {
		t.Error(err)
	}
	err := read(`{"Prompt": "x", "Reduction": {"depth": 3}}`)
	var option *errs.OptionError
	if f, final := failureOf(err); !final || !errors.As(f.err("w"), &option) ||
		option.Name != "depth" || option.Fault != errs.Unknown {
		t.Errorf("a parameter: got %v", err)
	}
	for _, ask := range []string{`3`, `null`, `{"Prompt": 3}`} {
		if _, final := failureOf(read(ask)); final {
			t.Errorf("%s is refused for good", ask)
		}
	}
}

// Ensure that a video, which only a model in the same process takes, is refused.
func TestVideo(t *testing.T) {
	t.Parallel()
	_, k := alone(t)
	var option *errs.OptionError
	_, err := k.Submit(t.Context(), &restore.Request{Prompt: "x", Video: new(restore.Video)})
	if !errors.As(err, &option) || option.Name != "video" {
		t.Errorf("got %v", err)
	}
}

// Ensure that a worker whose service does not tell tokens says so.
func TestNoTokens(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	runWorker(t, connect(t, s, quick), struct{ restore.Service }{b}, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	_, err := k.Tokenize("x", false, false)
	if err == nil || !strings.Contains(err.Error(), "does not tell tokens") {
		t.Errorf("got %v", err)
	}
	if n, err := k.Count(t.Context(), question("x", nil)); err != nil || n.Usage.Prompt != 7 {
		t.Errorf("count: got %+v, %v", n, err)
	}
}

// Ensure that a worker answers calls from the moment that clients see it.
func TestListedAnswersCalls(t *testing.T) {
	t.Parallel()
	s, l := natsServer(t), quick
	l.Partitions = 1
	var pairs sync.WaitGroup
	for i := range 24 {
		key, caller := fmt.Sprintf("m%d", i), connect(t, s, l)
		_, stop := runWorker(t, connect(t, s, l), newEcho(1), key)
		pairs.Go(func() {
			defer stop()
			k, err := caller.Client(t.Context(), ClientOptions{Model: key})
			if err != nil {
				t.Error(err)
				return
			}
			defer k.Close()
			if _, err := k.Tokenize("x", false, false); err != nil {
				t.Error(err)
			}
		})
	}
	pairs.Wait()
}
