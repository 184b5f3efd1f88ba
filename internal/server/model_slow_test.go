package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/server"
)

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// Sizes of a large picture, and how many of them are prepared at once.
const (
	largeWidth, largeHeight = 1100, 1000
	largeTogether           = (16 << 20) / (largeWidth * largeHeight)
)

// gate is a picture processor that holds large pictures until it is opened.
type gate struct {
	imageproc.Processor
	inside, most atomic.Int64
	opened       chan struct{}
}

func (g *gate) Process(pics []*imageproc.Picture) (*imageproc.Pixels, error) {
	if pics[0].Width == largeWidth {
		g.most.Store(max(g.most.Load(), g.inside.Add(1)))
		<-g.opened
		g.inside.Add(-1)
	}
	return g.Processor.Process(pics)
}

// startGate is start with a gate.
func startGate(t *testing.T) (*host, *gate) {
	t.Helper()
	g := &gate{opened: make(chan struct{})}
	return startOn(t, nil, func(p imageproc.Processor) imageproc.Processor {
		g.Processor = p
		return g
	}, nil), g
}

// largePicture is a picture of one colour.
func largePicture(t *testing.T, shade uint8) []byte {
	t.Helper()
	m := image.NewPaletted(image.Rect(0, 0, largeWidth, largeHeight),
		color.Palette{color.RGBA{shade, shade, 40, 255}})
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// short is a question whose answer is one token.
func short(pics ...any) map[string]any {
	return body("?", map[string]any{"max_tokens": 1}, pics...)
}

// Ensure that a small picture does not wait for large ones, and that only so many large ones are
// prepared at once.
func TestSmallPicturesPass(t *testing.T) {
	h, g := startGate(t)
	var all sync.WaitGroup
	for i := range largeTogether + 5 {
		all.Go(func() {
			r := h.post(t, "/v1/chat/completions", short(largePicture(t, uint8(i))))
			if r.status != http.StatusOK {
				t.Errorf("large picture %d: got %d %s", i, r.status, r.raw)
			}
		})
	}
	until(t, "large pictures", func() bool { return g.inside.Load() == largeTogether })
	h.chat(t, short(scene(t)))
	if n := g.inside.Load(); n != largeTogether {
		t.Errorf("%d large pictures are being prepared, want still %d", n, largeTogether)
	}
	close(g.opened)
	all.Wait()
	if n := g.most.Load(); n != largeTogether {
		t.Errorf("%d large pictures were prepared at once, want %d", n, largeTogether)
	}
}

// Ensure that pictures that are being prepared for clients that are gone leave no room for others.
func TestRoomOfTheGone(t *testing.T) {
	h, g := startGate(t)
	for i := range largeTogether {
		data, err := json.Marshal(short(largePicture(t, uint8(i))))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, "POST", h.url+"/v1/chat/completions",
			bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := http.DefaultClient.Do(q)
			done <- err
		}()
		until(t, "a large picture", func() bool { return g.inside.Load() == int64(i+1) })
		cancel()
		if err := <-done; err == nil {
			t.Error("got an answer")
		}
		until(t, "the end of the request", func() bool { return h.e.Stats().Waiting == 0 })
	}
	last := make(chan *reply)
	one := short(largePicture(t, 200))
	go func() { last <- h.post(t, "/v1/chat/completions", one) }()
	until(t, "one more", func() bool { return h.e.Stats().Waiting == 1 })
	h.chat(t, short(scene(t)))
	close(g.opened)
	if r := <-last; r.status != http.StatusOK {
		t.Errorf("one more: got %d %s", r.status, r.raw)
	}
	if n := g.most.Load(); n != largeTogether {
		t.Errorf("%d large pictures were prepared at once, want %d", n, largeTogether)
	}
}

// holding is a constraint that holds the device until it is released.
type holding struct {
	engine.Constraint
	begun, over chan struct{}
}

func (*holding) Mask() []uint64 { return nil }
func (*holding) Done() bool     { return false }

func (c *holding) Accept(int32) error {
	close(c.begun)
	<-c.over
	return nil
}

// hold keeps the device and a place busy until release is called.
func (h *host) hold(t *testing.T) (release func()) {
	t.Helper()
	c := &holding{begun: make(chan struct{}), over: make(chan struct{})}
	j, err := h.e.Submit(t.Context(), engine.Request{
		Prompt: "?", MaxTokens: 1, Constraint: c, NoCache: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-c.begun
	return func() {
		close(c.over)
		if _, err := j.Answer(); err != nil {
			t.Error(err)
		}
	}
}

// metrics is the text of /metrics.
func (h *host) metrics(t *testing.T) string {
	t.Helper()
	resp, err := http.Get(h.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// album serves a picture; each request for it takes a time.
func album(t *testing.T, takes time.Duration) (url string, fetched *atomic.Int64) {
	data := scene(t)
	fetched = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(takes)
		fetched.Add(1)
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s.URL, fetched
}

// remote is a picture at an address.
func remote(url string) map[string]any { return map[string]any{"url": url} }

// Ensure that a request fetches its pictures after it has its place in the queue and before its
// place to run, and that its times have all of that in them.
func TestFetchedInQueue(t *testing.T) {
	h := startOn(t, nil, nil, func(o *restore.Options, l *api.Settings, _ *server.Options) {
		o.Parallel, o.Queue = 1, 1
	})
	const takes = 60 * time.Millisecond
	url, fetched := album(t, takes)
	release := h.hold(t)
	waits := make(chan *reply, 1)
	go func() { waits <- h.post(t, "/v1/chat/completions", short(remote(url))) }()
	until(t, "the picture", func() bool { return fetched.Load() == 1 })
	since := time.Now()
	if r := h.post(t, "/v1/chat/completions", short(remote(url))); r.status != 429 ||
		fetched.Load() != 1 {
		t.Errorf("a full queue: got %d %s, and %d fetched", r.status, r.raw, fetched.Load())
	}
	time.Sleep(takes)
	held := time.Since(since)
	release()
	r := <-waits
	if r.status != http.StatusOK {
		t.Fatalf("got %d %s", r.status, r.raw)
	}
	checkTimes(t, r.Timings, takes, held)
	var o struct{ Total, Load, Prompt, Eval int64 }
	raw := h.post(t, "/api/generate", map[string]any{
		"prompt": "?", "images": []string{url}, "stream": false, "options": map[string]any{"num_predict": 1},
	}).raw
	for name, v := range map[string]*int64{
		"total_duration": &o.Total, "load_duration": &o.Load, "prompt_eval_duration": &o.Prompt, "eval_duration": &o.Eval,
	} {
		m := regexp.MustCompile(`"` + name + `":([0-9]+)`).FindStringSubmatch(raw)
		if m == nil {
			t.Fatalf("got %s, want %s", raw, name)
		}
		*v, _ = strconv.ParseInt(m[1], 10, 64)
	}
	if o.Load != 0 || o.Total < int64(takes)+o.Prompt+o.Eval {
		t.Errorf("Ollama: got %+v, want a total that has fetching in it", o)
	}
	m := regexp.MustCompile(`restore_ttft_seconds_sum\S* (\S+)`).FindStringSubmatch(h.metrics(t))
	if m == nil {
		t.Fatal("no restore_ttft_seconds")
	}
	least := 2*takes + held // Ollama's request fetched too
	if sum, err := strconv.ParseFloat(m[1], 64); err != nil || sum < least.Seconds() {
		t.Errorf("restore_ttft_seconds: got %v in all, want at least %v, %v", m[1], least, err)
	}
}

// checkTimes checks the times of an answer. Its picture took a time to fetch; then the request was
// prepared and waited, which took another time at least.
func checkTimes(t *testing.T, x timings, fetch, wait time.Duration) {
	t.Helper()
	ms := func(d time.Duration) float64 { return float64(d)/1e6 - 0.01 } // each is rounded
	if x.Prepare < ms(fetch) || x.Prepare+x.Queue < ms(fetch+wait) || x.TTFT < ms(fetch+wait) {
		t.Errorf("got %+v, want %v of fetching and %v of waiting in them", x, fetch, wait)
	}
	sum := x.Queue + x.Prepare + x.Encode + x.Select + x.Merge + x.Prompt
	if sum > x.TTFT+0.01 {
		t.Errorf("got %+v: %v ms in all, more than ttft_ms", x, sum)
	}
}

// narrow is a listener whose connections hold little that was not read.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// Ensure that answers that nobody reads are made and leave their places and all memory of keys and
// values to others.
func TestStreamsNobodyReads(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := startOn(t, narrow{l}, nil, func(o *restore.Options, l *api.Settings, _ *server.Options) {
		o.Queue = 2
	})
	release := h.hold(t)
	for i := range 4 {
		path := []string{"/v1/chat/completions", "/api/chat"}[i%2]
		b := body("Describe the image.", map[string]any{
			"stream": true, "logprobs": true, "top_logprobs": 20, "restore": map[string]any{"cache": false},
		}, scene(t))
		if path == "/api/chat" {
			b["messages"] = []any{map[string]any{
				"role": "user", "content": "Describe the image.", "images": []any{scene(t)},
			}}
		} else {
			b["max_tokens"], b["ignore_eos"] = 100, true
		}
		data, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
			path, len(data), data)
	}
	until(t, "the requests", func() bool { return h.e.Stats().Waiting == 4 })
	release()
	until(t, "the answers", func() bool {
		s := h.e.Stats()
		return s.Running+s.Waiting == 0
	})
	if s := h.e.Stats(); s.KVBytes != 0 {
		t.Errorf("%d bytes of keys and values are in use", s.KVBytes)
	}
	if text := h.metrics(t); strings.Contains(text, `restore_requests_total{code="200"`) {
		t.Error("a stream ended although nobody reads it: its answer is too short for this test")
	}
	h.chat(t, short(scene(t)))
}
