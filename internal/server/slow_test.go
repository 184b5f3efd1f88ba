package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/restore-vlm/restore"
)

// hang is how long a test waits for something that must happen.
const hang = 2 * time.Minute

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// narrow is a listener whose connections hold little that was not read.
type narrow struct{ net.Listener }

// bufferBytes is the size of the buffers of both ends of a connection.
const bufferBytes = 4096

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(bufferBytes)
	}
	return c, err
}

// serveNarrow is serve with narrow connections.
func serveNarrow(t *testing.T, b restore.Service, change func(*Options)) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, narrow{l}, b, change)
}

// deaf sends a request and never reads.
func (r *rig) deaf(t *testing.T, path, body string) net.Conn {
	t.Helper()
	conn := r.raw(t)
	if err := conn.(*net.TCPConn).SetReadBuffer(bufferBytes); err != nil {
		t.Fatal(err)
	}
	_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// raw connects to the server.
func (r *rig) raw(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(hang))
	return conn
}

// manyBytes are more than the buffers of a connection hold.
const manyBytes = 1 << 20

// many are n words of manyBytes together.
func many(n int) []string {
	words := make([]string, n)
	for i := range words {
		words[i] = strings.Repeat("x", manyBytes/n)
	}
	return words
}

// Ensure that the answers of clients that do not read are made, and that their places are then
// free: others get theirs.
func TestAnswersNobodyReads(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions": question, "/v1/completions": `{"prompt":"a"}`,
		"/v1/responses": `{"input":"a"}`, "/api/chat": question, "/api/generate": `{"prompt":"a"}`,
	} {
		for _, stream := range []bool{true, false} {
			f := newFake()
			f.words, f.parallel, f.queue = many(64), 4, 0
			r := serveNarrow(t, f, func(o *Options) { o.ReadTimeout, o.RequestTimeout = 0, 0 })
			sent := strings.Replace(body, "{", fmt.Sprintf(`{"stream":%t,`, stream), 1)
			for range f.parallel {
				r.deaf(t, path, sent)
			}
			until(t, "the answers", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return len(f.requests) == f.parallel && f.running == 0
			})
			if status, _, body := r.do(t, "POST", path, sent); status != http.StatusOK ||
				strings.Count(body, "x") < manyBytes {
				t.Errorf("%s: got %d and %d bytes", path, status, len(body))
			}
		}
	}
}

// Ensure that a client that never reads loses its connection, whatever it asked for.
func TestConnectionNobodyReads(t *testing.T) {
	for _, stream := range []bool{true, false} {
		f := newFake()
		f.words = many(2)
		r := serveNarrow(t, f, func(o *Options) { o.ReadTimeout, o.RequestTimeout = 0, 0 })
		r.unread = 100 * time.Millisecond
		conn := r.deaf(t, "/v1/chat/completions",
			strings.Replace(question, "{", fmt.Sprintf(`{"stream":%t,`, stream), 1))
		until(t, "the end of the request", func() bool {
			_, _, text := r.do(t, "GET", "/metrics", "")
			return strings.Contains(text, `route="/v1/chat/completions"} 1`)
		})
		if n, _ := io.Copy(io.Discard, conn); n >= manyBytes {
			t.Errorf("stream %t: got the whole answer, %d bytes", stream, n)
		}
	}
}

// large is a question with a body of n bytes.
func large(n int) string {
	return strings.Replace(question, "where?", strings.Repeat("a", n-len(question)+6), 1)
}

// Ensure that the bodies of clients that do not read their answers leave no one without memory.
func TestBodiesOfUnreadAnswers(t *testing.T) {
	f := newFake()
	f.words, f.parallel = many(1), 2*bodyMemory
	r := serveNarrow(t, f, func(o *Options) {
		o.MaxBodyBytes, o.ReadTimeout, o.RequestTimeout = 2<<20, 0, 0
	})
	body := large(2 << 20)
	for range 2 * bodyMemory {
		r.deaf(t, "/v1/chat/completions", body)
	}
	until(t, "the answers", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.requests) == 2*bodyMemory && f.running == 0
	})
	if status, _, reply := r.do(t, "POST", "/v1/chat/completions", body); status != http.StatusOK {
		t.Errorf("another large body: got %d %.200s", status, reply)
	}
}

// Ensure that bodies that stop in the middle take only the memory of what has arrived.
func TestStalledBodies(t *testing.T) {
	f := newFake()
	r := serve(t, f, func(o *Options) {
		o.MaxBodyBytes, o.ReadTimeout, o.RequestTimeout = 16<<20, 24*time.Hour, 0
	})
	for range 2 * bodyMemory {
		conn := r.raw(t)
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"+
			"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", 2<<20, strings.Repeat(" ", 2<<20))
	}
	until(t, "the bodies", func() bool {
		r.bodies.mu.Lock()
		defer r.bodies.mu.Unlock()
		return r.bodies.free <= bodyMemory*(16<<20)-2*bodyMemory*(2<<20)
	})
	body := large(16 << 20)
	if status, _, reply := r.do(t, "POST", "/v1/chat/completions", body); status != http.StatusOK {
		t.Errorf("another large body: got %d %.200s", status, reply)
	}
}

// pipes is a listener whose connections are in memory. In a bubble of synctest the time then passes
// only while all wait.
type pipes chan net.Conn

// Accept implements net.Listener.
func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close implements net.Listener.
func (p pipes) Close() error { close(p); return nil }

// Addr implements net.Listener.
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial connects to the listener.
func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p <- far
	return near, nil
}

// servePipes is serve in a bubble.
func servePipes(t *testing.T, change func(*Options)) (pipes, *rig) {
	t.Helper()
	p := make(pipes)
	r := serveOn(t, p, newFake(), change)
	t.Cleanup(func() { // all goroutines of a bubble must end with it
		r.stop()
		<-r.done
	})
	return p, r
}

// post sends a body on a connection of its own.
func (p pipes) post(t *testing.T, path, kind string, body io.Reader) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true}}
	resp, err := c.Post("http://localhost"+path, kind, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(reply)
}

// Ensure that a body that stops is refused by what it lacks: it is too slow, or it takes too long.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := servePipes(t, func(o *Options) { o.ReadTimeout = 6 * time.Second })
		in, out := io.Pipe()
		defer out.Close()
		go fmt.Fprint(out, "     ")
		status, reply := p.post(t, "/v1/chat/completions", "", in)
		if status != http.StatusRequestTimeout || !strings.Contains(reply, "the body arrives too "+
			"slowly: got 5 bytes in 1s, want at least 2048, or the rest, in each such time (a "+
			"sixth of --read-timeout)") {
			t.Errorf("got %d %s", status, reply)
		}
	})
}

// Ensure that a body that comes at the least rate may take its whole time, and no longer.
func TestPace(t *testing.T) {
	p := newPace(time.Minute)
	if p.left() != 10*time.Second ||
		!strings.Contains(p.late(), "got 0 bytes in 10s, want at least 20480") {
		t.Errorf("at the start: %v, %s", p.left(), p.late())
	}
	p.got(20479, 9*time.Second)
	if p.left() != time.Second || !strings.Contains(p.late(), "got 20479 bytes") {
		t.Errorf("after 9 s: %v, %s", p.left(), p.late())
	}
	for range 5 {
		p.got(1, 0)
		if p.left() != 10*time.Second {
			t.Errorf("in a new window: %v left", p.left())
		}
		p.got(20479, 9*time.Second)
	}
	p.got(1, 0) // after 54 s
	if p.left() != 6*time.Second ||
		p.late() != "the body did not arrive within 1m0s (--read-timeout)" {
		t.Errorf("at the end: %v, %s", p.left(), p.late())
	}
}

// Ensure that a body that waits for memory is not told that it did not arrive.
func TestBodyWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := servePipes(t, func(o *Options) {
			o.MaxBodyBytes, o.ReadTimeout, o.RequestTimeout = 2<<20, time.Minute, 0
		})
		all := &share{m: r.bodies}
		if err := all.grow(t.Context(), r.bodies.free); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(100*time.Hour, func() {
			r.bodies.mu.Lock()
			waiting := len(r.bodies.waiting)
			r.bodies.mu.Unlock()
			if waiting != 1 {
				t.Errorf("%d bodies wait for memory, want 1", waiting)
			}
			all.shrink(0)
		})
		status, reply := p.post(t, "/v1/chat/completions", "", strings.NewReader(large(2<<20)))
		if status != http.StatusOK {
			t.Errorf("got %d %s", status, reply)
		}
	})
}

// Ensure that bodies take their part of the process's memory, also for copies of them and for texts
// of requests that wait, and give it back.
func TestMemoryOfBodies(t *testing.T) {
	const size, body = 6 << 20, 2 << 20 // a quarter of the process's
	f := newFake()
	r := serve(t, f, func(o *Options) { o.MaxBodyBytes, o.MemoryBytes = body, 4*size })
	f.prepare = func(*restore.Request) error {
		r.bodies.mu.Lock()
		defer r.bodies.mu.Unlock()
		if b := r.bodies; b.free > size-body+100 || b.used < 2*body {
			t.Errorf("a body of 2 MiB: %d bytes are free, %d were taken", b.free, b.used)
		}
		return nil
	}
	for range 3 {
		if status, _, reply := r.do(t, "POST", "/v1/chat/completions",
			large(body)); status != http.StatusOK {
			t.Fatalf("got %d %.200s", status, reply)
		}
	}
	r.bodies.mu.Lock()
	defer r.bodies.mu.Unlock()
	if b := r.bodies; b.free+b.dead != size || b.dead == 0 {
		t.Errorf("at the end: %d bytes are free, %d dead", b.free, b.dead)
	}
}

// Ensure that bodies that together need more memory than there is do not wait for each other for
// ever, and that a small one passes those that wait.
func TestMemory(t *testing.T) {
	m := newMemory(200, 100)
	shares := make([]*share, 4)
	for i := range shares {
		shares[i] = &share{m: m}
		if err := shares[i].grow(t.Context(), 25); err != nil {
			t.Fatal(err)
		}
	} // 100 are left: the reserve
	grown := make([]chan error, len(shares))
	wait := func(n int) {
		until(t, fmt.Sprint(n, " shares that wait"), func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.waiting) == n
		})
	}
	for i, s := range shares {
		grown[i] = make(chan error, 1)
		if i == 0 { // it takes the reserve
			grown[i] <- s.grow(t.Context(), 100)
			continue
		}
		go func() { grown[i] <- s.grow(t.Context(), 100) }()
		wait(i)
	}
	for i, s := range shares { // each ends by itself, in turn
		if err := <-grown[i]; err != nil {
			t.Fatal(err)
		}
		s.shrink(0)
		if i < 2 {
			wait(2 - i)
		}
	}
	if m.free+m.dead != 200 || m.first != nil || len(m.waiting) != 0 {
		t.Errorf("at the end: %+v", m)
	}
	first, second := &share{m: m}, &share{m: m}
	if err := first.grow(t.Context(), 90); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := second.grow(ctx, 80); err != nil { // of the reserve
		t.Fatal(err)
	}
	third := &share{m: m}
	failed := make(chan error)
	go func() { failed <- third.grow(ctx, 10) }()
	wait(1)
	cancel(errGone)
	if err := <-failed; err != errGone {
		t.Errorf("a share whose request has ended: %v", err)
	}
	first.shrink(10) // which is enough for all
	if err := third.grow(t.Context(), 10); err != nil || m.free+m.dead != 100 {
		t.Errorf("%d left, %v", m.free+m.dead, err)
	}
	first.shrink(0)
	second.shrink(0)
	third.shrink(0)
	if m.free+m.dead != 200 || m.first != nil || len(m.waiting) != 0 {
		t.Errorf("at the end: %+v", m)
	}
}

// Ensure that memory goes back to the system when there was no request for a while, and not before.
func TestMemoryGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(8*worthGiving, 4*worthGiving)
		after := func(d time.Duration, want int64) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if m.used != want {
				t.Errorf("%d bytes since memory went back, want %d", m.used, want)
			}
		}
		use := func(size int64) *share {
			s := m.share()
			if err := s.grow(t.Context(), size); err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := use(2 * worthGiving)
		after(2*restAfter, 2*worthGiving) // the body is there
		s.shrink(0)
		after(2*restAfter, 2*worthGiving) // the request is
		s.end()
		after(restAfter-time.Second, 2*worthGiving)
		s = use(worthGiving)
		after(2*time.Second, 3*worthGiving)
		s.end()
		after(restAfter+time.Second, 0)
		use(1000).end()
		after(2*restAfter, 1000) // not worth it
	})
}

// Ensure that pictures are fetched when the request has its place in the queue, never before.
func TestFetchHasPlace(t *testing.T) {
	var fetched atomic.Int64
	pictures := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		fmt.Fprint(w, "\x89PNG\r\n\x1a\n")
	}))
	defer pictures.Close()
	body := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"` + pictures.URL + `"}]}]}`
	f := newFake()
	r := serve(t, f, nil)
	f.parallel, f.queue = 0, 0
	if status, _, reply := r.do(t, "POST", "/v1/chat/completions", body); status != 429 ||
		fetched.Load() != 0 {
		t.Errorf("a full queue: got %d %s, and %d pictures fetched", status, reply, fetched.Load())
	}
	f.parallel = 1
	f.prepare = func(r *restore.Request) error {
		if fetched.Load() != 0 {
			t.Error("pictures were fetched before there was a place")
		}
		return nil
	}
	if status, _, reply := r.do(t, "POST", "/v1/chat/completions", body); status != 200 ||
		fetched.Load() != 1 {
		t.Errorf("got %d %s, and %d pictures fetched", status, reply, fetched.Load())
	}
}

// Ensure that a request counts from the arrival of its last byte.
func TestArrival(t *testing.T) {
	f := newFake()
	r := serve(t, f, func(o *Options) { o.ReadTimeout, o.RequestTimeout = 0, 0 })
	conn := r.raw(t)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(question), question[:len(question)-1])
	time.Sleep(10 * time.Millisecond)
	before := time.Now()
	fmt.Fprint(conn, "}")
	until(t, "the request", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.requests) > 0
	})
	if at := f.requests[0].Arrived; !at.After(before) {
		t.Errorf("the request arrived at %v, before its last byte at %v", at, before)
	}
}
