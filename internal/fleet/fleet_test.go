package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/fleet/fleettest"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
)

// echo is a service that answers with its question.
type echo struct {
	info   restore.Info
	takes  time.Duration
	gate   chan struct{} // when not nil, answers wait until it is closed
	asked  atomic.Int64
	mu     sync.Mutex
	seen   map[string]int // pictures' files, by content
	last   *restore.Request
	trying func(text string) error
}

func newEcho(parallel int) *echo {
	return &echo{
		info: restore.Info{ID: "echo", Fingerprint: "fp_1", Parallel: parallel},
		seen: map[string]int{},
	}
}

func (e *echo) Info() *restore.Info { return &e.info }

// read returns the text of a request, or the error that trying has for it.
func (e *echo) read(r *restore.Request) (text string, err error) {
	e.mu.Lock()
	e.last = r
	e.mu.Unlock()
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			text += p.Text
			if p.Picture == nil {
				continue
			}
			file, err := p.Picture.File()
			if err != nil {
				return "", err
			}
			e.mu.Lock()
			e.seen[string(file)]++
			e.mu.Unlock()
		}
	}
	if e.trying != nil {
		err = e.trying(text)
	}
	return text, err
}

func (e *echo) Submit(ctx context.Context, r *restore.Request) (restore.Job, error) {
	e.asked.Add(1)
	text, err := e.read(r)
	if err != nil {
		return nil, err
	}
	return &echoJob{e, ctx, strings.Fields(text), text}, nil
}

type echoJob struct {
	e     *echo
	ctx   context.Context
	words []string
	text  string
}

func (j *echoJob) Next() (*restore.Piece, bool) {
	if len(j.words) == 0 {
		return nil, false
	}
	w := j.words[0]
	if j.words = j.words[1:]; len(j.words) > 0 {
		w += " "
	}
	return &restore.Piece{Text: w}, true
}

func (j *echoJob) Ready() bool { return len(j.words) > 0 }

func (j *echoJob) Answer() (*restore.Answer, error) {
	select {
	case <-time.After(j.e.takes):
	case <-j.ctx.Done():
		return nil, context.Cause(j.ctx)
	}
	if j.e.gate != nil {
		select {
		case <-j.e.gate:
		case <-j.ctx.Done():
			return nil, context.Cause(j.ctx)
		}
	}
	return &restore.Answer{
		Text:   strings.Join(strings.Fields(j.text), " "),
		Finish: restore.FinishStop,
		Usage:  restore.Usage{Generated: 1},
	}, nil
}

func (e *echo) Count(_ context.Context, r *restore.Request) (*restore.Answer, error) {
	if _, err := e.read(r); err != nil {
		return nil, err
	}
	return &restore.Answer{Usage: restore.Usage{Prompt: 7}}, nil
}

func (e *echo) Tokenize(text string, special, parse bool) ([]restore.Token, error) {
	return []restore.Token{{ID: 3, Bytes: fmt.Appendf(nil, "%s %t %t", text, special, parse)}}, nil
}

func (e *echo) Detokenize(ids []int32) string { return fmt.Sprint(ids) }

// quick is a layout with short times for tests, and room on a small disk.
var quick = Layout{AckWait: time.Second, Bytes: 32 << 20}

// natsServer starts a server inside the test.
func natsServer(t testing.TB) *natsserver.Server {
	t.Helper()
	s, err := natsserver.Start(natsserver.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t testing.TB, s *natsserver.Server, l Layout) *Conn {
	t.Helper()
	c, err := Connect(t.Context(), Options{URL: s.URL(), Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// runWorker runs a worker until the returned function drains it.
func runWorker(t testing.TB, c *Conn, b restore.Service, key string) (*Worker, func()) {
	t.Helper()
	w, err := c.NewWorker(t.Context(), WorkerOptions{Key: key, Service: b})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

// hear waits until n workers have sent heartbeats.
func hear(t testing.TB, c *Conn, n int) {
	t.Helper()
	m, err := c.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !fleettest.Eventually(func() bool { return len(m.List()) == n }) {
		t.Fatalf("got %d workers, want %d", len(m.List()), n)
	}
}

// meet waits until each worker knows that all of them live.
func meet(t testing.TB, list ...*Worker) {
	t.Helper()
	if !fleettest.Eventually(func() bool {
		return !slices.ContainsFunc(list, func(w *Worker) bool { return w.met() != len(list) })
	}) {
		t.Fatalf("%d workers do not know of each other", len(list))
	}
}

func newClient(t testing.TB, c *Conn, o ClientOptions) *Client {
	t.Helper()
	k, err := c.Client(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// pixel is the file of a small picture.
var pixel = sync.OnceValue(func() []byte {
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		panic(err)
	}
	return out.Bytes()
})

// pictureOf returns a picture's file with content behind its end.
func pictureOf(content []byte) []byte { return slices.Concat(pixel(), content) }

// question asks about a picture with a content, or without one.
func question(text string, content []byte) *restore.Request {
	if content == nil {
		return &restore.Request{Prompt: text}
	}
	load := func(context.Context) ([]byte, error) { return pictureOf(content), nil }
	return loading(text, load)
}

// loading asks about a picture that load loads.
func loading(text string, load func(context.Context) ([]byte, error)) *restore.Request {
	picture := restore.PictureFrom(load, nil)
	return &restore.Request{Prompt: text, Pictures: []*restore.Picture{picture}}
}

// asking asks a text without a picture.
func asking(ctx context.Context, k *Client, text string) (*restore.Answer, error) {
	return answerOf(ctx, k, question(text, nil))
}

func answerOf(ctx context.Context, k *Client, r *restore.Request) (*restore.Answer, error) {
	j, err := k.Submit(ctx, r)
	if err != nil {
		return nil, err
	}
	return j.Answer()
}

// Ensure that requests are answered, streamed and counted over a fleet.
func TestFleet(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(4)
	w, _ := runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	j, err := k.Submit(t.Context(), question("a few words", nil))
	if err != nil {
		t.Fatal(err)
	}
	var text string
	for e, ok := j.Next(); ok; e, ok = j.Next() {
		text += e.Text
	}
	a, err := j.Answer()
	if err != nil || a.Text != "a few words" || text != a.Text || a.Worker != w.ID() {
		t.Fatalf("got %+v, streamed %q, %v", a, text, err)
	}
	large := []byte(strings.Repeat("picture", 1<<20))
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			q := question(fmt.Sprint("q", i), large)
			if a, err := answerOf(t.Context(), k, q); err != nil || a.Text != fmt.Sprint("q", i) {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	all.Wait()
	if n := b.seen[string(pictureOf(large))]; n != 10 || len(b.seen) != 1 {
		t.Errorf("the picture was seen %d times, and %d pictures, want 10 and 1", n, len(b.seen))
	}
	if n, err := k.Count(t.Context(), question("x", large)); err != nil || n.Usage.Prompt != 7 {
		t.Errorf("count: got %+v, %v", n, err)
	}
	if n, err := k.Tokenize("x", true, false); err != nil || len(n) != 1 ||
		string(n[0].Bytes) != "x true false" {
		t.Errorf("tokens: got %+v, %v", n, err)
	}
	if got := k.Detokenize([]int32{1, 2}); got != "[1 2]" {
		t.Errorf("text: got %q", got)
	}
	k.measure(t.Context())
	if st := k.Stats(); st.Queued != 0 || st.Fleet.Workers != 1 {
		t.Errorf("state: got %+v", st)
	}
}

// Ensure that a worker whose context has ended ends without an error, as one that drains.
func TestEndedBeforeItBegan(t *testing.T) {
	t.Parallel()
	w, err := connect(t, natsServer(t), quick).NewWorker(t.Context(), WorkerOptions{Key: "m1",
		Service: newEcho(1)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
}

// Ensure that a worker that ends finishes the requests that it has begun, and gives back the others
// at once: with this layout the queue itself would give them to another worker only after an hour.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	c := connect(t, s, Layout{AckWait: time.Hour, Bytes: quick.Bytes})
	slow := newEcho(1)
	slow.gate = make(chan struct{})
	first, stop := runWorker(t, c, slow, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	jobs := make([]restore.Job, 4)
	for i := range jobs {
		var err error
		q := question(fmt.Sprint("q", i), []byte("one picture"))
		if jobs[i], err = k.Submit(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	if !fleettest.Eventually(func() bool {
		m := first.member()
		return m.Busy == 1 && m.Held == 1
	}) {
		t.Fatal("the worker did not begin a request and take another")
	}
	by := make(chan string, len(jobs))
	for _, j := range jobs {
		go func() {
			a, err := j.Answer()
			if err != nil {
				t.Error(err)
				a = new(restore.Answer)
			}
			by <- a.Worker
		}()
	}
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	second, _ := runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	for range len(jobs) - 1 {
		if w := <-by; w != second.ID() {
			t.Errorf("answered by %q, want the second worker", w)
		}
	}
	close(slow.gate)
	if w := <-by; w != first.ID() {
		t.Errorf("the request that had begun was answered by %q, want the first worker", w)
	}
	<-stopped
}

// Ensure that a request that one worker after another begins and gives back, because it ends, is
// answered by the next one: with this layout it would be given up after three attempts.
func TestDrainAgain(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	l := Layout{AckWait: time.Hour, Bytes: quick.Bytes}
	good := newEcho(1)
	_, stop := runWorker(t, connect(t, s, l), good, "m1")
	k := newClient(t, connect(t, s, l), ClientOptions{})
	stop()
	j, err := k.Submit(t.Context(), question("word", nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		slow := newEcho(1)
		slow.gate = make(chan struct{})
		w, err := connect(t, s, l).NewWorker(t.Context(),
			WorkerOptions{Key: "m1", Service: slow, Drain: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		begun := fleettest.Eventually(func() bool { return w.Busy() == 1 })
		if err := w.Ready(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; err != nil || !begun {
			t.Fatalf("begun %t, %v", begun, err)
		}
		if err := w.Ready(); err == nil {
			t.Error("a worker that has ended is ready")
		}
	}
	runWorker(t, connect(t, s, l), good, "m1")
	if a, err := j.Answer(); err != nil || a.Text != "word" {
		t.Errorf("got %+v, %v", a, err)
	}
}

// watched is a context that lives long. It counts the functions and contexts that wait for its end.
type watched struct {
	context.Context
	waiting atomic.Int64
}

func (*watched) Done() <-chan struct{} { return make(chan struct{}) }

// AfterFunc is called by package context.
func (w *watched) AfterFunc(func()) (stop func() bool) {
	w.waiting.Add(1)
	return sync.OnceValue(func() bool { w.waiting.Add(-1); return true })
}

// Ensure that an answered request leaves nothing that waits for the end of its context, which may
// live as long as the program.
func TestLongContext(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	ctx := &watched{Context: context.Background()}
	for range 3 {
		if _, err := asking(ctx, k, "a few words"); err != nil {
			t.Fatal(err)
		}
	}
	if n := ctx.waiting.Load(); n != 0 {
		t.Errorf("%d functions still wait for the context's end", n)
	}
}

// Ensure that a request that nobody waits for is no longer computed.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	b.takes = time.Minute
	runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	running, err := k.Submit(ctx, question("runs", nil))
	if err != nil {
		t.Fatal(err)
	}
	for b.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	waitsCtx, cancelWaits := context.WithCancel(t.Context())
	waits, err := k.Submit(waitsCtx, question("waits", nil))
	if err != nil {
		t.Fatal(err)
	}
	// The one that waits ends first: with the other's place free, a worker may take it in time.
	cancelWaits()
	if _, err := waits.Answer(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it cancelled", err)
	}
	left := func(want uint64) bool {
		return fleettest.Eventually(func() bool {
			info, err := k.work.Info(t.Context())
			return err == nil && info.State.Msgs == want && b.asked.Load() == 1
		})
	}
	if !left(1) {
		t.Fatalf("the queue holds more than the running one, %d asked", b.asked.Load())
	}
	cancel()
	if _, err := running.Answer(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it cancelled", err)
	}
	if !left(0) {
		t.Errorf("the queue is not empty, %d asked", b.asked.Load())
	}
}

// Ensure that all questions about a picture go to one worker, and that another takes them when that
// one has left.
func TestAffinity(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	backs := []*echo{newEcho(4), newEcho(4), newEcho(4)}
	var stops []func()
	var workers []*Worker
	for _, b := range backs {
		b.takes = 2 * time.Millisecond
		w, stop := runWorker(t, connect(t, s, quick), b, "m1")
		workers, stops = append(workers, w), append(stops, stop)
	}
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	meet(t, workers...)
	time.Sleep(quick.pullFor()) // pulls from partitions that another worker prefers now end
	ask := func(from, to int) {
		var all sync.WaitGroup
		slots := make(chan struct{}, 6)
		for i := from; i < to; i++ {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				for q := range 5 {
					r := question(fmt.Sprint(q), []byte(fmt.Sprint("p", i)))
					if _, err := answerOf(t.Context(), k, r); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	ask(0, 60)
	encoded := 0
	for i, b := range backs {
		if len(b.seen) < 6 {
			t.Errorf("worker %d saw %d of 60 pictures", i, len(b.seen))
		}
		encoded += len(b.seen)
	}
	if encoded > 66 {
		t.Errorf("60 pictures were seen by %d workers in all, want one each", encoded)
	}
	stops[0]()
	ask(100, 120)
	if n := backs[0].asked.Load() + backs[1].asked.Load() + backs[2].asked.Load(); n < 400 {
		t.Errorf("%d requests asked, want 400", n)
	}
}

// Ensure that results of a client with an ID are found by a later one, without being asked again,
// also for several requests with one name.
func TestNamed(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(2)
	runWorker(t, connect(t, s, quick), b, "m1")
	for range 2 {
		k := newClient(t, connect(t, s, quick), ClientOptions{ID: "journal"})
		for i := range 20 {
			ctx := Named(t.Context(), fmt.Sprint(i))
			var jobs [3]restore.Job
			for n := range jobs {
				var err error
				jobs[n], err = k.Submit(ctx, question(fmt.Sprintf("q%d-%d", i, n), nil))
				if err != nil {
					t.Fatal(err)
				}
			}
			for n, j := range jobs {
				want := fmt.Sprintf("q%d-%d", i, n)
				if a, err := j.Answer(); err != nil || a.Text != want {
					t.Fatalf("got %+v, %v, want %s", a, err, want)
				}
			}
		}
		k.Close()
	}
	if n := b.asked.Load(); n != 60 {
		t.Errorf("%d asked, want 60", n)
	}
}

// Ensure that the wait for a named request ends with its context, that the request stays in the
// queue, and that a later client finds its result.
func TestNamedLeft(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	begun, hold := make(chan struct{}), make(chan struct{})
	b.trying = func(string) error {
		close(begun)
		<-hold
		return nil
	}
	runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{ID: "journal"})
	ctx, cancel := context.WithCancelCause(t.Context())
	over := make(chan error)
	go func() {
		_, err := asking(Named(ctx, "1"), k, "word")
		over <- err
	}()
	<-begun
	end := errors.New("the end")
	cancel(end)
	select {
	case err := <-over:
		if !errors.Is(err, end) {
			t.Errorf("got %v, want %v", err, end)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it still waits")
	}
	close(hold)
	k.Close()
	k = newClient(t, connect(t, s, quick), ClientOptions{ID: "journal"})
	if a, err := asking(Named(t.Context(), "1"), k, "word"); err != nil || a.Text != "word" {
		t.Errorf("got %+v, %v", a, err)
	}
	if n := b.asked.Load(); n != 1 {
		t.Errorf("%d asked, want 1", n)
	}
}

// Ensure that a message that cannot have a result is dropped, and does not keep a worker busy.
func TestNoID(t *testing.T) {
	t.Parallel()
	c := connect(t, natsServer(t), quick)
	b := newEcho(1)
	runWorker(t, c, b, "m1")
	for _, id := range []string{"", "name", "a client.name", "client.", "a.b.c"} {
		m := nats.NewMsg(askSubject + "m1.key")
		m.Header.Set(idHeader, id)
		if _, err := c.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if !fleettest.Eventually(func() bool {
		info, err := c.work.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}) {
		t.Error("the messages stay in the queue")
	}
	k := newClient(t, c, ClientOptions{})
	if a, err := asking(t.Context(), k, "word"); err != nil || a.Text != "word" ||
		b.asked.Load() != 1 {
		t.Errorf("got %+v, %v, and %d asked, want 1", a, err, b.asked.Load())
	}
}

// Ensure that a result that comes when nobody waits for it any longer is removed, unless a later
// process may need it.
func TestResultTooLate(t *testing.T) {
	t.Parallel()
	c := connect(t, natsServer(t), quick)
	runWorker(t, c, newEcho(1), "m1")
	for _, id := range []string{"journal", ""} {
		k := newClient(t, c, ClientOptions{ID: id})
		key := k.id + ".left"
		if _, err := c.results.Create(t.Context(), key, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		stays := !fleettest.Eventually(func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			_, err := c.results.Get(t.Context(), key)
			return errors.Is(err, jetstream.ErrKeyNotFound) || k.early[key] != nil
		})
		if _, err := c.results.Get(t.Context(), key); stays || (err == nil) != (id != "") {
			t.Errorf("client %q: stays %t, %v", id, stays, err)
		}
	}
}

// Ensure that a model is found by its name or key, and that a worker with another one never
// takes its requests.
func TestModels(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	one, two := newEcho(1), newEcho(1)
	two.info.ID, two.info.Fingerprint = "other", "fp_2"
	runWorker(t, connect(t, s, quick), one, "m1")
	runWorker(t, connect(t, s, quick), two, "m2")
	c := connect(t, s, quick)
	hear(t, c, 2)
	if _, err := c.Client(t.Context(), ClientOptions{}); err == nil ||
		!strings.Contains(err.Error(), "workers hold 2 models") {
		t.Errorf("without a name: got %v", err)
	}
	k := newClient(t, c, ClientOptions{Model: "other"})
	for range 10 {
		if _, err := asking(t.Context(), k, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if one.asked.Load() != 0 || two.asked.Load() != 10 {
		t.Errorf("asked %d and %d, want 0 and 10", one.asked.Load(), two.asked.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	why := ""
	_, err := c.Client(ctx, ClientOptions{Model: "third", Waiting: func(s string) {
		why = s
		cancel()
	}})
	if !errors.Is(err, context.Canceled) ||
		!strings.Contains(why, "no worker holds third; there are workers with echo, other") {
		t.Errorf("got %v after %q", err, why)
	}
}

// Ensure that a client does not choose the model of a worker that ends, as during an upgrade.
func TestModelsOfTheEnding(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	runWorker(t, connect(t, s, quick), newEcho(1), "m2")
	c := connect(t, s, quick)
	old := Member{ID: "old", Model: "echo", Key: "m1", Draining: true}
	data, err := json.Marshal(old)
	if err == nil {
		_, err = c.workers.Put(t.Context(), old.heartbeat(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	hear(t, c, 2)
	if k := newClient(t, c, ClientOptions{}); k.Key() != "m2" {
		t.Errorf("got %s, want m2", k.Key())
	}
}

// Ensure that a client whose workers were all upgraded says that it must be started again.
func TestUpgraded(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	_, stop := runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{Queue: 1})
	stop()
	w, err := connect(t, s, quick).NewWorker(t.Context(), WorkerOptions{Key: "m2",
		Service: newEcho(1), Member: Member{Version: "v2", Types: "quant q4"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { end(); <-done })
	const want = "start it again to ask those with version v2 (quant q4)"
	if !fleettest.Eventually(func() bool {
		_, err = asking(t.Context(), k, "x")
		return err != nil && strings.Contains(err.Error(), want)
	}) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// Ensure that a fleet whose answers may differ is refused if Same is set, at the start and later.
func TestMixed(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	one, two := newEcho(1), newEcho(1)
	two.info.Fingerprint = "fp_2"
	_, stop := runWorker(t, connect(t, s, quick), one, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{Same: true})
	if _, err := asking(t.Context(), k, "x"); err != nil {
		t.Fatal(err)
	}
	runWorker(t, connect(t, s, quick), two, "m1")
	hear(t, connect(t, s, quick), 2)
	var mixed *MixedError
	if _, err := connect(t, s, quick).Client(t.Context(),
		ClientOptions{Same: true}); !errors.As(err, &mixed) {
		t.Errorf("got %v, want a mixed fleet refused", err)
	}
	stop()
	if _, err := asking(t.Context(), k, "x"); !errors.As(err, &mixed) {
		t.Errorf("got %v, want another fingerprint refused", err)
	}
	k = newClient(t, connect(t, s, quick), ClientOptions{})
	if _, err := asking(t.Context(), k, "x"); err != nil {
		t.Errorf("where it may: got %v", err)
	}
}

// Ensure that a full fleet refuses requests with the time after which to retry.
func TestFull(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	b.takes = time.Second
	runWorker(t, connect(t, s, quick), b, "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{Queue: 2})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 10 {
		_, err := k.Submit(ctx, question(fmt.Sprint(i), nil))
		var full *errs.FullError
		if errors.As(err, &full) {
			if i < 3 || full.RetryAfter < 1 {
				t.Errorf("request %d: got %+v", i, full)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("ten requests were taken, want at most four")
}

// stuck is a service that says the first word of an answer, and no other.
type stuck struct{ *echo }

func (b stuck) Submit(ctx context.Context, r *restore.Request) (restore.Job, error) {
	j, err := b.echo.Submit(ctx, r)
	if err != nil {
		return nil, err
	}
	return &stuckJob{Job: j, ctx: ctx}, nil
}

type stuckJob struct {
	restore.Job
	ctx  context.Context
	said bool
}

func (j *stuckJob) Next() (*restore.Piece, bool) {
	if j.said {
		<-j.ctx.Done()
		return nil, false
	}
	j.said = true
	return j.Job.Next()
}

func (j *stuckJob) Ready() bool { return false }

// runMortal runs a worker that ends as if it were killed when its connection is closed.
func runMortal(t testing.TB, s *natsserver.Server, b restore.Service) *Conn {
	t.Helper()
	c, err := Connect(t.Context(), Options{URL: s.URL(), Layout: quick})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.NewWorker(t.Context(), WorkerOptions{Key: "m1", Service: b})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); c.Close() })
	go func() { _ = w.Run(ctx) }() // its connection is cut
	return c
}

// Ensure that a worker that dies before the first piece of an answer is replaced.
func TestFailover(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	b := newEcho(1)
	b.takes = time.Hour
	dying := runMortal(t, s, b)
	k := newClient(t, connect(t, s, quick), ClientOptions{})
	silent, err := k.Submit(t.Context(), question(" ", nil)) // has no pieces
	if err != nil {
		t.Fatal(err)
	}
	for b.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	dying.nc.Close()
	live, _ := runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	if a, err := silent.Answer(); err != nil || a.Worker != live.ID() {
		t.Errorf("got %+v, %v", a, err)
	}
}

// Ensure that an answer whose worker dies after the first piece ends with an error, where
// another worker takes the request as where there is none, and that nobody computes it then.
func TestFailoverLate(t *testing.T) {
	for name, replaced := range map[string]bool{"replaced": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natsServer(t)
			dying := runMortal(t, s, stuck{newEcho(1)})
			k := newClient(t, connect(t, s, quick), ClientOptions{})
			j, err := k.Submit(t.Context(), question("a few words", nil))
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := j.Next(); !ok || e.Text != "a " {
				t.Fatalf("got %+v, %v", e, ok)
			}
			dying.nc.Close()
			if replaced {
				runWorker(t, connect(t, s, quick), newEcho(1), "m1")
			} else { // the time passes faster
				k.members.forget(time.Now().Add(2 * deadAfter))
				k.missed(time.Now())
				k.missed(time.Now().Add(2 * quick.AckWait))
			}
			if e, ok := j.Next(); ok {
				t.Errorf("got %+v after the worker was gone", e)
			}
			if a, err := j.Answer(); err == nil || !strings.Contains(err.Error(), "is gone") {
				t.Errorf("got %+v, %v", a, err)
			}
			if !fleettest.Eventually(func() bool {
				info, err := k.work.Info(t.Context())
				return err == nil && info.State.Msgs == 0
			}) {
				t.Fatal("the queue still holds the request")
			}
		})
	}
}

// Ensure that pieces that come late, twice or with a gap never make an answer that is not the
// result's.
func TestPieces(t *testing.T) {
	piece := func(try uint64, n int, text string) *event {
		return &event{ID: "c.x", Worker: fmt.Sprint("w", try), Try: try, N: n,
			Event: &restore.Piece{Text: text}}
	}
	of := func(try uint64, text string, pieces int) *result {
		return &result{Try: try, Answer: &restore.Answer{Text: text}, Pieces: pieces}
	}
	for name, c := range map[string]struct {
		events []any // before they are read; "" reads one
		text   string
		broken bool
	}{
		"all":                {[]any{piece(1, 0, "a"), piece(1, 1, "b"), of(1, "ab", 2)}, "ab", false},
		"result first":       {[]any{of(1, "ab", 2), piece(1, 0, "a"), piece(1, 1, "b")}, "ab", false},
		"twice":              {[]any{piece(1, 0, "a"), piece(1, 0, "a"), of(1, "a", 1)}, "a", false},
		"gap":                {[]any{piece(1, 0, "a"), piece(1, 2, "c"), of(1, "abc", 3)}, "abc", false},
		"begun again":        {[]any{piece(1, 0, "a"), piece(2, 0, "x"), of(2, "x", 1)}, "x", false},
		"begun again, late":  {[]any{piece(1, 0, "a"), "", piece(2, 0, "x"), of(2, "x", 1)}, "a", true},
		"late, no pieces":    {[]any{piece(1, 0, "a"), "", of(2, "x", 1)}, "a", true},
		"the first has won":  {[]any{piece(1, 0, "a"), "", of(1, "a", 1), piece(2, 0, "x")}, "a", false},
		"of a dead one":      {[]any{piece(2, 0, "a"), piece(1, 0, "x"), of(2, "a", 1)}, "a", false},
		"the dead one's won": {[]any{piece(2, 0, "a"), of(1, "xy", 2)}, "xy", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &Client{Conn: &Conn{}, jobs: map[string]*job{}, tail: map[string]*job{}}
			j := &job{id: "c.x", ctx: t.Context(), named: true, stream: true,
				change: make(chan struct{}), over: make(chan struct{})}
			k.tail[j.id] = j // none is to be taken out of a queue
			text := ""
			for _, e := range c.events {
				switch e := e.(type) {
				case *event:
					data, err := json.Marshal(e)
					if err != nil {
						t.Fatal(err)
					}
					k.replied(&nats.Msg{Data: data})
				case *result:
					k.resolve(j, e, nil)
				default:
					p, _ := j.Next()
					text += p.Text
				}
			}
			for e, ok := j.Next(); ok; e, ok = j.Next() {
				text += e.Text
			}
			a, err := j.Answer()
			if text != c.text || (err != nil) != c.broken || err == nil && a.Text != text {
				t.Errorf("got %q, %+v, %v", text, a, err)
			}
		})
	}
}

// Ensure that a full fleet says how long its queue takes.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	k := &Client{Conn: &Conn{}, o: ClientOptions{Queue: 10}, model: Model{Key: "m1"},
		members: &Members{byID: map[string]Member{
			"a": {ID: "a", Key: "m1", Capacity: 2, Rate: 0.5},
			"b": {ID: "b", Key: "m1", Capacity: 2, Rate: 1.5},
			"c": {ID: "c", Key: "m2", Capacity: 9, Rate: 100},
		}}}
	for queued, want := range map[int]int{10: 0, 11: 6, 40: 20, 5000: 600} {
		k.state.Store(&restore.Stats{Queued: queued})
		err := k.full()
		var full *errs.FullError
		if want == 0 && err == nil {
			continue
		}
		if !errors.As(err, &full) || full.RetryAfter != want || full.Waiting != queued {
			t.Errorf("%d wait: got %+v, want to ask again after %d s", queued, err, want)
		}
	}
	k.o.Queue = -1
	k.state.Store(&restore.Stats{Queued: 1})
	if err := k.full(); err == nil {
		t.Error("a request waits where none may")
	}
	w := &Worker{self: Member{ID: "a"}, active: map[*delivery]bool{{}: true}, rate: 2,
		last: time.Now().Add(-20 * time.Second)}
	if r := w.member().Rate; r < 0.03 || r > 0.06 {
		t.Errorf("an answer that takes 20 s: got %v a second", r)
	}
}

// Ensure that after a server was started again all hear of each other as before: who asks of
// the workers, and the workers, who share out the pictures.
func TestServerAgain(t *testing.T) {
	t.Parallel()
	o := natsserver.Options{Folder: t.TempDir(), Port: fleettest.FreePort(t)}
	s, err := natsserver.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // after all else
	one, _ := runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	two, _ := runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	k := newClient(t, connect(t, s, quick), ClientOptions{Queue: 10})
	meet(t, one, two)
	s.Close()
	if s, err = natsserver.Start(o); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if !fleettest.Eventually(func() bool {
		fresh := 0
		for _, w := range k.members.of("m1") {
			if w.Said.After(begun) {
				fresh++
			}
		}
		return fresh == 2
	}) {
		t.Fatal("the client does not hear of two workers that live")
	}
	meet(t, one, two)
	ours, _ := one.prefers()
	theirs, _ := two.prefers()
	if len(ours)+len(theirs) != one.c.lay.Partitions || len(ours) == 0 || len(theirs) == 0 {
		t.Errorf("got %d and %d partitions, want all of them shared", len(ours), len(theirs))
	}
	if _, err := asking(t.Context(), k, "x"); err != nil {
		t.Error(err)
	}
	if age := k.checkAge(); age != checkEvery {
		t.Errorf("results without a notification are looked for after %v, want %v", age, checkEvery)
	}
}

// Ensure that an object that arrived torn in the store is stored again by the next client that
// needs it: it cannot be read, and would be taken as stored for a day.
func TestTorn(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	c := connect(t, s, quick)
	k := &Client{Conn: c}
	data := bytes.Repeat([]byte("picture"), 100_000)
	name := hashOf(data)
	if _, err := c.pictures.PutBytes(t.Context(), name, data[:200_000]); err != nil {
		t.Fatal(err)
	}
	if _, err := c.objectNow(t.Context(), c.pictures, name); err == nil {
		t.Fatal("a torn object can be read")
	}
	if err := k.store(t.Context(), name, data); err != nil {
		t.Fatal(err)
	}
	got, err := c.objectNow(t.Context(), c.pictures, name)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(data))
	}
}

// Ensure that a client says so when the store or the queue will never take its request, and that a
// store of pictures that somebody deleted is made again.
func TestRefusedForGood(t *testing.T) {
	t.Parallel()
	large := []byte(strings.Repeat("picture", 1<<17))
	for name, c := range map[string]struct {
		stream string
		change func(c *jetstream.StreamConfig)
		want   string
	}{
		"a picture, its size":   {"OBJ_restore_pictures", small, "object store: "},
		"a picture, the bucket": {"OBJ_restore_pictures", seal, "object store: "},
		"a request, its size":   {workStream, small, "queue: "},
		"a request, the queue":  {workStream, seal, "queue: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natsServer(t)
			conn := connect(t, s, quick)
			runWorker(t, connect(t, s, quick), newEcho(1), "m1")
			k := newClient(t, conn, ClientOptions{})
			stream, err := conn.js.Stream(t.Context(), c.stream)
			if err != nil {
				t.Fatal(err)
			}
			cfg := stream.CachedInfo().Config
			c.change(&cfg)
			if _, err := conn.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err = answerOf(ctx, k, question("x", large))
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "refuses it for good") || ctx.Err() != nil {
				t.Errorf("got %v, want %q and that it is for good", err, c.want)
			}
		})
	}
	s := natsServer(t)
	conn := connect(t, s, quick)
	runWorker(t, connect(t, s, quick), newEcho(1), "m1")
	k := newClient(t, conn, ClientOptions{})
	if err := conn.js.DeleteObjectStore(t.Context(), "restore_pictures"); err != nil {
		t.Fatal(err)
	}
	if _, err := answerOf(t.Context(), k, question("x", large)); err != nil {
		t.Errorf("without a store: got %v", err)
	}
}

func small(c *jetstream.StreamConfig) { c.MaxMsgSize = 10 }

func seal(c *jetstream.StreamConfig) { c.Sealed = true }
