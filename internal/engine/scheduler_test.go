package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/internal/scene"
)

// opened returns the embedded model, as openedAt.
func opened(t *testing.T, o Options) *Engine {
	t.Helper()
	return openedAt(t, "", o, Hooks{})
}

// openedAt returns the model in a folder. It checks at the end of the test that all pages are free.
func openedAt(t *testing.T, path string, o Options, h Hooks) *Engine {
	t.Helper()
	o.Threads = cmp.Or(o.Threads, 2)
	e, err := OpenWith(formats.Files{Model: path}, o, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if e.closed.Load() {
			return
		}
		returned(t, e)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// returned checks that no place, page or cache entry is in use once the prefixes are dropped.
func returned(t *testing.T, e *Engine) {
	t.Helper()
	err := e.Do(context.Background(), func(*model.Run) error {
		for e.prefixes.evict() {
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n := len(e.prefixes.cuts); n > 0 {
		t.Errorf("%d prefixes are registered that nothing holds", n)
	}
	s := e.Stats()
	if s.KVBytes != 0 || s.Running != 0 || s.Waiting != 0 {
		t.Errorf("at the end: %+v, want nothing in use", s)
	}
	for key, n := range e.cached.entries {
		if n.users != 0 {
			t.Errorf("entry %x has %d users", key[:4], n.users)
		}
	}
	if n := len(e.shared) - e.encoded.order.Len(); n > 0 {
		t.Errorf("%d prepared pictures are kept without a request", n)
	}
}

var drawings sync.Map // by seed

func drawn(t testing.TB, seed int64) *imageproc.Picture {
	t.Helper()
	if p, ok := drawings.Load(seed); ok {
		return p.(*imageproc.Picture)
	}
	p, err := imageproc.Decode(scene.New(seed).PNG(), "scene", imageproc.DecodeOptions{EXIF: true})
	if err != nil {
		t.Fatal(err)
	}
	drawings.Store(seed, p)
	return p
}

// tiny is a checkpoint of eight small layers, without a tokenizer, with 36 tokens for a picture.
func tiny(t *testing.T, o Options) *Engine {
	t.Helper()
	return openedTiny(t, "testdata/inmodel-tiny", o)
}

// openedTiny is tiny with the files in a folder.
func openedTiny(t *testing.T, dir string, o Options) *Engine {
	t.Helper()
	processor, err := families.Processor([]byte(tinyProcessor))
	if err != nil {
		t.Fatal(err)
	}
	return openedAt(t, dir, o, Hooks{Processor: processor})
}

const tinyProcessor = `{"image_processor_type": "CLIPImageProcessor", "resample": 3, "size": {"shortest_edge": 84},
	"crop_size": {"height": 84, "width": 84}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.3, 0.3, 0.3]}`

// words draws n tokens; none is a picture token.
func words(e *Engine, seed uint64, n int) []int32 {
	from, ids := rand.New(rand.NewPCG(seed, 0)), []int32{}
	for len(ids) < n {
		if id := int32(from.IntN(e.shape.Vocab)); !e.visualToken(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// mixed returns requests with many kinds of budgets, methods and lengths, in tokens of tiny.
func mixed(t testing.TB, e *Engine, n int) []Request {
	options := []methods.Options{
		{Base: "holov", NVis: 12, Restore: true}, {}, {Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Restore: true},
		{Base: "divprune", NVis: 7}, {Base: "fastv", Schedule: "2:12", Positions: "sequential"},
		{Base: "tome", NVis: 18, Restore: true}, {Base: "sparsevlm", Schedule: "1:20,3:12,5:6"}, {Base: "holov", NVis: 12, Restore: true, DecodeDistance: new(false)},
		{Base: "fitprune", Schedule: "1:33,2:26,5:15", Restore: true}, {Base: "downsample", NVis: 9},
	}
	var out []Request
	for i := range n {
		r := Request{
			Reduce: options[i%len(options)], MaxTokens: 30 + 7*(i%5), IgnoreEnd: true,
			NoCache: true, Images: Pictures(drawn(t, int64(i%4))),
		}
		r.Tokens = slices.Insert(words(e, uint64(i), 9+13*(i%3)), 4, e.m.ImageToken())
		if i%4 == 3 {
			r.Sample = sample.Options{Temp: 0.9, TopK: 20, Seed: int64(i)}
		}
		if i%5 == 4 {
			r.Images = append(r.Images, &Image{Picture: drawn(t, 9)})
			r.Tokens = slices.Insert(r.Tokens, 7, e.m.ImageToken())
		}
		out = append(out, r)
	}
	return out
}

// together submits all requests at once.
func together(e *Engine, reqs []Request, ctx func(i int) context.Context) ([]*Answer, []error) {
	answers, failed := make([]*Answer, len(reqs)), make([]error, len(reqs))
	var wg sync.WaitGroup
	for i := range reqs {
		wg.Go(func() { answers[i], failed[i] = e.Ask(ctx(i), reqs[i]) })
	}
	wg.Wait()
	return answers, failed
}

func background(int) context.Context { return context.Background() }

// Ensure that each of many concurrent requests gets the same tokens as alone, with every kind of
// weight and cache, including methods inside the decoder.
func TestTogetherIsAlone(t *testing.T) {
	plans, n := []Options{
		{Parallel: 20}, {
			Quant: "q4", EncoderQuant: "q8", CacheType: "f16", Parallel: 4, Throughput: true,
		}, {Quant: "bf16", Parallel: 9, Throughput: true}, {Quant: "q8"},
	}, 20
	if testing.Short() { // the race detector is slow
		plans, n = plans[:2], 10
	}
	for _, o := range plans {
		e := tiny(t, o)
		reqs := mixed(t, e, n)
		want := make([]*Answer, len(reqs))
		for i, r := range reqs {
			var err error
			if want[i], err = e.Ask(context.Background(), r); err != nil {
				t.Fatal(i, err)
			}
		}
		got, failed := together(e, reqs, background)
		for i := range got {
			if failed[i] != nil {
				t.Errorf("quant %q: request %d: %v", o.Quant, i, failed[i])
			} else if !slices.Equal(got[i].Tokens, want[i].Tokens) {
				t.Errorf("quant %q: request %d: together %v, alone %v", o.Quant, i, got[i].Tokens,
					want[i].Tokens)
			}
		}
	}
}

// Ensure that caches change no answer: fresh, with features, with a prefix, and with salts.
func TestCachesChangeNothing(t *testing.T) {
	e := tiny(t, Options{})
	for i, r := range mixed(t, e, 12) {
		fresh, err := e.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		r.NoCache = false
		other := r
		other.Tokens, other.MaxTokens = append(slices.Clone(r.Tokens), 7, 8, 9), 1
		// so that the picture's keys are cached
		if _, err := e.Ask(context.Background(), other); err != nil {
			t.Fatal(err)
		}
		again, err := e.Ask(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		after := slices.Clone(r.Tokens)
		slices.Reverse(after)
		tail := slices.Index(after, e.m.ImageToken()) // tokens after the last picture
		if !slices.Equal(again.Tokens, fresh.Tokens) {
			t.Errorf("%d: from a cache %v, fresh %v", i, again.Tokens, fresh.Tokens)
		}
		for n, p := range again.Report.Images {
			want, last := FromPrefix, n == len(again.Report.Images)-1
			if r.Reduce.ReadsText() || last && tail < leastRead {
				want = FromFeatures
			}
			if p.Cache != want {
				t.Errorf("%d: picture %d from %s, want %s", i, n, p.Cache, want)
			}
		}
		if again.Report.Encode != 0 || again.Report.CachedTokens == 0 ||
			again.Report.PromptTokens != fresh.Report.PromptTokens ||
			again.Report.Kept != fresh.Report.Kept {
			t.Errorf("%d: again %+v", i, again.Report)
		}
		r.Salt = fmt.Sprint("salt ", i)
		if salted, err := e.Ask(context.Background(), r); err != nil ||
			!slices.Equal(salted.Tokens, fresh.Tokens) ||
			salted.Report.Images[0].Cache != FromNothing {
			t.Errorf("%d: with a salt from %s: %v", i, salted.Report.Images[0].Cache, err)
		}
	}
}

// Ensure that ten concurrent requests about one picture encode it once and read their common prefix
// once.
func TestPrefixSharedByTen(t *testing.T) {
	e := tiny(t, Options{Parallel: 10})
	reqs := make([]Request, 10)
	for i := range reqs {
		reqs[i] = mixed(t, e, 1)[0]
		reqs[i].NoCache, reqs[i].Tokens = false, append(reqs[i].Tokens, int32(20+i))
	}
	got, failed := together(e, reqs, background)
	from := map[string]int{}
	for i := range got {
		if failed[i] != nil {
			t.Fatal(failed[i])
		}
		from[got[i].Report.Images[0].Cache]++
		alone := reqs[i]
		alone.NoCache = true
		want, err := e.Ask(context.Background(), alone)
		if err != nil || !slices.Equal(want.Tokens, got[i].Tokens) {
			t.Errorf("%d: shared %v, alone %v, %v", i, got[i].Tokens, want.Tokens, err)
		}
	}
	if from[FromNothing] != 1 || from[FromPrefix] != 9 {
		t.Errorf("pictures from %v, want one encoded and nine with their keys", from)
	}
	if s := e.Stats().Features; s.Misses != 1 {
		t.Errorf("%+v, want one miss", s)
	}
}

// Ensure that a prompt has the same log probabilities, to the last bit, whatever part of it was in
// memory, up to all but its last token. Products with weights of 4 and 8 bits round activations, so
// last bits matter.
func TestPrefixBits(t *testing.T) {
	all := []Options{
		{Quant: "q4"}, {Quant: "q4", CacheType: "f32"}, {Quant: "q8", CacheType: "f32"},
	}
	slow := 8
	if kernel.Implementation() == "go" { // it has no kernels by the number of rows
		all, slow = all[:1], 1
	}
	for _, o := range all {
		e := opened(t, o)
		for left := 1; left < 30; left += 1 + left/slow {
			ids := make([]int32, 124)
			for i := range ids {
				ids[i] = int32((left*7919 + i*i*31 + i*17) % 600)
			}
			ask := func(ids []int32, fresh bool) *Answer {
				a, err := e.Ask(context.Background(), Request{
					Tokens: ids, MaxTokens: 12, IgnoreEnd: true, LogProbs: true, NoCache: fresh,
				})
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			whole := ask(ids, true)
			ask(ids[:len(ids)-left], false)
			rest := ask(ids, false)
			if rest.Report.CachedTokens < len(ids)-max(left, leastRead) {
				t.Errorf("%d tokens left: %d were in memory", left, rest.Report.CachedTokens)
			}
			for i := range whole.Scored {
				if a, b := whole.Scored[i], rest.Scored[i]; a.ID != b.ID || a.LogProb != b.LogProb {
					t.Errorf("quant %q, %d tokens left: token %d is %d with %v, fresh %d with %v",
						o.Quant, left, i, b.ID, b.LogProb, a.ID, a.LogProb)
					break
				}
			}
		}
	}
}

// hold keeps the device busy until the returned channel is closed.
func (e *Engine) hold() chan struct{} {
	begun, hold := make(chan struct{}), make(chan struct{})
	go e.Do(context.Background(), func(*model.Run) error { close(begun); <-hold; return nil })
	<-begun
	return hold
}

// prepared waits until n requests are prepared and wait for the device.
func (e *Engine) prepared(n int) {
	for {
		e.device.mu.Lock()
		waiting := len(e.device.waiting)
		e.device.mu.Unlock()
		if waiting >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Ensure that features that several requests need are made once even without a feature cache.
func TestSingleFlight(t *testing.T) {
	e := tiny(t, Options{FeatureBytes: -1, Parallel: 2})
	reqs := make([]Request, 6)
	for i := range reqs { // methods inside the decoder: no keys of the picture are shared
		reqs[i] = mixed(t, e, 3)[2]
		reqs[i].NoCache = false
	}
	hold := e.hold()
	var wg sync.WaitGroup
	var mu sync.Mutex
	from := map[string]int{}
	for i := range reqs {
		wg.Go(func() {
			a, err := e.Ask(context.Background(), reqs[i])
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			from[a.Report.Images[0].Cache]++
		})
	}
	e.prepared(6)
	e.mu.Lock()
	for _, p := range e.shared {
		if p.users != len(reqs) || len(e.shared) != 1 {
			t.Errorf("%d preparations, one for %d requests, want one for %d", len(e.shared),
				p.users, len(reqs))
		}
	}
	e.mu.Unlock()
	close(hold)
	wg.Wait()
	if from[FromNothing] != 1 || from[FromFeatures] != 5 {
		t.Errorf("pictures from %v, want one encoded", from)
	}
	if s := e.Stats().Features; s.Bytes != 0 || s.Entries != 0 {
		t.Errorf("at the end %+v, want nothing kept", s)
	}
}

// Ensure that a picture that cannot be prepared fails each request about it, also concurrent ones,
// and that a request whose context ends takes nothing from another.
func TestSharedFailure(t *testing.T) {
	e := opened(t, Options{})
	broken, whole := scene.New(1).PNG(), scene.New(2).PNG()
	broken = broken[:len(broken)/2]
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			data := whole
			if i%2 == 0 {
				data = broken
			}
			if i == 1 {
				cancel()
			}
			a, err := e.Ask(ctx, Request{MaxTokens: 2, Messages: []Message{
				user(Part{Image: &Image{File: data, Name: "x"}}, Part{Text: "?"}),
			}})
			var fault *errs.PictureError
			switch {
			case i == 1 && !errors.Is(err, context.Canceled):
				t.Errorf("request %d: got %v, want the cause of its context", i, err)
			case i%2 == 0 && !errors.As(err, &fault):
				t.Errorf("request %d: got %v, want a fault of its picture", i, err)
			case i%2 == 1 && i > 1 && (err != nil || len(a.Tokens) == 0):
				t.Errorf("request %d: got %v", i, err)
			}
		})
	}
	wg.Wait()
}

// eachToken is a constraint that calls a function for each token. The device's goroutine makes the
// call or waits for it.
type eachToken func()

func (f eachToken) Mask() []uint64     { return nil }
func (f eachToken) Done() bool         { return false }
func (f eachToken) Accept(int32) error { f(); return nil }

// Ensure that with Throughput a running sequence waits until the prompts of others are read.
func TestThroughput(t *testing.T) {
	e := opened(t, Options{Parallel: 4, Throughput: true})
	n, at, on := 0, make(chan struct{}), make(chan struct{})
	j, err := e.Submit(context.Background(), Request{
		Prompt: "Count.", MaxTokens: 100, IgnoreEnd: true, Constraint: eachToken(func() {
			if n++; n == 2 {
				close(at)
				<-on
			}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-at
	var others []*Job
	for i := range int64(3) {
		other, err := e.Submit(context.Background(), Request{
			Images: Pictures(drawn(t, i)), Prompt: "?", MaxTokens: 1, IgnoreEnd: true,
			Constraint: eachToken(func() {
				if n != 2 {
					t.Errorf("%d tokens when prompt %d was read, want none after 2", n, i)
				}
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, other)
	}
	close(on)
	for _, other := range others {
		if _, err := other.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := j.Answer(); err != nil || len(a.Tokens) != 100 {
		t.Errorf("got %+v, %v, want 100 tokens", a, err)
	}
}

// Ensure that cancelling one of eight requests, at any stage, does not change the answers of the
// others, and that it returns its answer so far and the cause.
func TestOneCancelledOfEight(t *testing.T) {
	e := tiny(t, Options{})
	reqs := mixed(t, e, 8)
	want, failed := together(e, reqs, background)
	for _, err := range failed {
		if err != nil {
			t.Fatal(err)
		}
	}
	cause := errors.New("changed my mind")
	// calls of ctx.Err: while encoding, reading, decoding
	for _, after := range []int{0, 1, 9, 25, 100, 300, 700} {
		ctx := &pollContext{Context: context.Background(), cause: cause, after: after}
		ctx.left.Store(int64(after))
		got, failed := together(e, reqs, func(i int) context.Context {
			if i == 2 {
				return ctx
			}
			return context.Background()
		})
		for i := range got {
			switch {
			case i == 2 &&
				(!errors.Is(failed[i], cause) || got[i] == nil ||
					got[i].Finish != FinishCancelled ||
					!slices.Equal(got[i].Tokens, want[i].Tokens[:len(got[i].Tokens)])):
				t.Errorf("after %d polls: cancelled: %+v, %v", after, got[i], failed[i])
			case i != 2 && (failed[i] != nil || !slices.Equal(got[i].Tokens, want[i].Tokens)):
				t.Errorf("after %d polls: request %d: %v, want %v", after, i, failed[i],
					want[i].Tokens)
			}
		}
	}
}

// pollContext ends after a number of calls to Err.
type pollContext struct {
	context.Context
	cause error
	after int
	left  atomic.Int64
}

func (c *pollContext) Err() error {
	if c.left.Add(-1) < 0 {
		return c.cause
	}
	return nil
}

// Ensure that a request whose activations are not finite fails alone.
func TestNaNInOneOfEight(t *testing.T) {
	e := tiny(t, Options{})
	reqs := mixed(t, e, 8)
	want, _ := together(e, reqs, background)
	var bad [2]*sequence
	for i, r := range []Request{reqs[0], reqs[2]} { // before the decoder and inside it
		s, err := e.sequence(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		p := s.pics[0]
		p.prepared = spoilt{p.prepared}
		bad[i] = s
	}
	e.m = spoiling{e.m}
	var wg sync.WaitGroup
	for _, s := range bad {
		if err := e.queue(s); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if _, err := (&Job{s}).Answer(); err == nil ||
				!strings.Contains(err.Error(), "finite") && !strings.Contains(err.Error(), "NaN") {
				t.Errorf("with NaN: %v", err)
			}
		})
	}
	got, failed := together(e, reqs, background)
	wg.Wait()
	for i := range got {
		if failed[i] != nil || !slices.Equal(got[i].Tokens, want[i].Tokens) {
			t.Errorf("request %d next to one with NaN: %v", i, failed[i])
		}
	}
}

// spoiling encodes spoilt pictures to NaN.
type spoiling struct{ model.Multimodal }

type spoilt struct{ model.Picture }

func (m spoiling) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	bad, ok := pics[0].(spoilt)
	if ok {
		pics = []model.Picture{bad.Picture}
	}
	v, err := m.Multimodal.Encode(r, pics, need)
	if ok && err == nil {
		for i := range v[0].X {
			v[0].X[i] = float32(math.NaN())
		}
	}
	return v, err
}

// Ensure that a panic ends one request only: a panic in a constraint, which runs in parallel with
// other sequences, and in an encoder.
func TestPanicCostsOneRequest(t *testing.T) {
	var told []any
	e := tiny(t, Options{Panicked: func(v any, stack []byte) { told = append(told, v) }})
	reqs := mixed(t, e, 5)
	want, _ := together(e, reqs, background)
	run := append(slices.Clone(reqs), reqs[0])
	run[5].Constraint = &faulty{at: 3}
	got, failed := together(e, run, background)
	for i := range want {
		if failed[i] != nil || !slices.Equal(got[i].Tokens, want[i].Tokens) {
			t.Errorf("request %d next to a panic: %v", i, failed[i])
		}
	}
	if !errors.Is(failed[5], errs.ErrInternal) || len(told) != 1 {
		t.Errorf("panic: %v, told %v", failed[5], told)
	}
	err := e.Do(context.Background(), func(*model.Run) error { panic("again") })
	if !errors.Is(err, errs.ErrInternal) || strings.Contains(err.Error(), "again") {
		t.Errorf("a job's panic: %v", err)
	}
}

type faulty struct{ at, n int }

func (f *faulty) Mask() []uint64 {
	if f.n++; f.n > f.at {
		panic("fault")
	}
	return slices.Repeat([]uint64{math.MaxUint64}, 1<<12)
}
func (f *faulty) Accept(int32) error { return nil }
func (f *faulty) Done() bool         { return false }

// Ensure that Close ends running and waiting requests, that calls after it return an error, and
// that it may be called again.
func TestCloseDuringRequests(t *testing.T) {
	for _, wait := range []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond} {
		e := opened(t, Options{Parallel: 3})
		var wg sync.WaitGroup
		reqs := make([]Request, 8)
		for i := range reqs {
			reqs[i] = Request{
				Prompt: "Describe the image.", IgnoreEnd: true,
				Images: Pictures(drawn(t, int64(i))),
				Reduce: methods.Options{Base: "holov", NVis: 64, Restore: true},
			}
			wg.Go(func() {
				if _, err := e.Ask(context.Background(), reqs[i]); !errors.Is(err, errs.ErrClosed) {
					t.Errorf("closed after %v: request %d: %v", wait, i, err)
				}
			})
		}
		time.Sleep(wait)
		for range 2 {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if _, err := e.Ask(context.Background(), reqs[0]); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := e.NewPrompt(context.Background(), Request{
			Prompt: "?",
		}); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("NewPrompt after Close: %v", err)
		}
		_, err := e.Encode(context.Background(), Pictures(drawn(t, 0)))
		if !errors.Is(err, errs.ErrClosed) {
			t.Errorf("encoding after Close: %v", err)
		}
		if _, err := e.NewConversation(methods.Options{}).Ask(context.Background(), Request{
			Prompt: "?",
		}); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("a conversation after Close: %v", err)
		}
	}
}

// Ensure that a model with mapped files may be closed at any time.
func TestCloseMapped(t *testing.T) {
	for wait := range 6 {
		e := tiny(t, Options{})
		reqs := mixed(t, e, 8)
		var closed sync.WaitGroup
		closed.Go(func() {
			time.Sleep(time.Duration(wait*wait) * time.Millisecond)
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		_, failed := together(e, reqs, background)
		closed.Wait()
		for i, err := range failed {
			if err != nil && !errors.Is(err, errs.ErrClosed) {
				t.Errorf("closed after %d² ms: request %d: %v", wait, i, err)
			}
		}
		e.Info()
		if _, err := e.Count(context.Background(), reqs[0]); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("Count after Close: %v", err)
		}
	}
}

// Ensure that a full queue refuses at once, that an invalid request gets its own error first, and
// that a cancelled request frees its place.
func TestQueue(t *testing.T) {
	e := opened(t, Options{Parallel: 1, Queue: 2})
	hold := e.hold()
	ctx, cancel := context.WithCancel(context.Background())
	var jobs []*Job
	for i := range 3 {
		c := context.Background()
		if i == 1 {
			c = ctx
		}
		j, err := e.Submit(c, Request{Prompt: "What is there?", MaxTokens: 2})
		if err != nil {
			t.Fatal(i, err)
		}
		jobs = append(jobs, j)
	}
	if _, err := e.Submit(ctx, Request{Prompt: "?"}); !errors.Is(err, errs.ErrQueueFull) {
		t.Errorf("a fourth: %v", err)
	}
	var option *errs.OptionError
	if _, err := e.Submit(ctx, Request{Prompt: "?", MaxTokens: -1}); !errors.As(err, &option) {
		t.Errorf("an invalid request: %v", err)
	}
	cancel()
	close(hold)
	for i, j := range jobs {
		if _, err := j.Answer(); (i == 1) != errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// Ensure that little memory for keys and values makes requests wait and changes no answer, and that
// a request that can never fit is refused.
func TestMemoryOfKeys(t *testing.T) {
	plain := tiny(t, Options{})
	reqs := mixed(t, plain, 8)
	for i := range reqs {
		reqs[i].NoCache = i%2 == 0
		reqs[i].MaxTokens = 90
	}
	want, failed := together(plain, reqs, background)
	for _, err := range failed {
		if err != nil {
			t.Fatal(err)
		}
	}
	layers := int64(plain.shape.Layers)
	small := tiny(t, Options{KVBytes: 6 * layers * plain.pages.PageBytes()})
	got, failed := together(small, reqs, background)
	for i := range got {
		if failed[i] != nil || !slices.Equal(got[i].Tokens, want[i].Tokens) {
			t.Errorf("request %d with little memory: %v", i, failed[i])
		}
	}
	if s := small.Stats(); s.KVBytes > s.KVLimit {
		t.Errorf("%d bytes in use, want at most %d", s.KVBytes, s.KVLimit)
	}
	least := tiny(t, Options{KVBytes: 2 * layers * plain.pages.PageBytes()})
	var memory *errs.MemoryError
	long := Request{Tokens: words(least, 1, 20), MaxTokens: 2*64 - 20 + 2, IgnoreEnd: true}
	if _, err := least.Ask(context.Background(), long); !errors.As(err, &memory) ||
		memory.Need != 3*layers*plain.pages.PageBytes() {
		t.Errorf("a request that can never fit: %v", err)
	}
	long.MaxTokens--
	if a, err := least.Ask(context.Background(), long); err != nil ||
		len(a.Tokens) != long.MaxTokens {
		t.Errorf("a request that just fits: %v", err)
	}
	long.MaxTokens = 0
	if a, err := least.Ask(context.Background(), long); err != nil || a.Finish != FinishLength ||
		len(a.Tokens) > 2*64-20+1 {
		t.Errorf("up to the end of memory: %v", err)
	}
	boundless := tiny(t, Options{KVBytes: math.MaxInt64})
	if _, err := boundless.Ask(context.Background(), long); err != nil {
		t.Errorf("more memory than there can be: %v", err)
	}
}

// Ensure that a smaller context ends answers and refuses prompts.
func TestContextOption(t *testing.T) {
	e := opened(t, Options{Context: 64})
	a, err := e.Ask(context.Background(), Request{Prompt: "What?", IgnoreEnd: true})
	if err != nil || a.Finish != FinishLength || a.Report.PromptTokens+len(a.Tokens) != 65 {
		t.Errorf("%+v, %v", a, err)
	}
	var full *errs.ContextError
	if _, err := e.Ask(context.Background(), Request{
		Prompt: "What?", Images: Pictures(drawn(t, 1)),
	}); !errors.As(err, &full) || full.Context != 64 {
		t.Errorf("a picture: %v", err)
	}
}

// Ensure that a model whose file is cut short while open returns an error or the same answer as
// before, that Close then works, and that opening the short file returns an error.
func TestShortenedFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile("testdata/inmodel-tiny/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "model.safetensors")
	for _, keep := range []int64{0, 100 << 10} {
		data, err := os.ReadFile("testdata/inmodel-tiny/model.safetensors")
		if err == nil {
			err = os.WriteFile(file, data, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		e := openedTiny(t, dir, Options{})
		reqs := mixed(t, e, 8)
		want, _ := together(e, reqs, background)
		if err := os.Truncate(file, keep); err != nil {
			t.Fatal(err)
		}
		got, failed := together(e, reqs, background)
		damaged := 0
		for i := range got {
			switch {
			case errors.Is(failed[i], errs.ErrDamaged):
				damaged++
			case failed[i] != nil || !slices.Equal(got[i].Tokens, want[i].Tokens):
				t.Errorf("%d bytes left: request %d: %v", keep, i, failed[i])
			}
		}
		t.Logf("%d bytes left: %d of %d requests fail", keep, damaged, len(reqs))
		e.Info()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if ck, err := formats.Open(dir); err == nil {
			if _, err = New(ck, Options{Threads: 2}, Hooks{}); err == nil {
				t.Errorf("%d bytes were opened as a model", keep)
			}
			ck.Close()
		}
	}
}
