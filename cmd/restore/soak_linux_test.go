package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// soakRequests is how many requests TestSoak sends by default; RESTORE_SOAK sets another number.
const soakRequests = 200

// Parameters of the soak test.
const (
	soakClients = 8
	soakRounds  = 6 // lives of the process; it is killed after each
	soakTokens  = 12
	soakTime    = 30 * time.Second // for a request
)

// soaker sends questions with faults to a server, and knows the right answers.
type soaker struct {
	t      *testing.T
	bodies []string // bodies of requests
	want   []string // their answers, from a server without a cache
	url    atomic.Pointer[string]

	sent, answered, cut, slow, refused, busy, wrong atomic.Int64
}

// Ensure that broken connections, slow readers, bad bodies, a process that is killed and restarted
// on its folder of pictures, a full disk and damaged files cause no wrong answer, and that the
// process does not grow.
func TestSoak(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	total := soakRequests
	if v := os.Getenv("RESTORE_SOAK"); v != "" {
		var err error
		if total, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		t.Skip("takes half a minute")
	}
	s := &soaker{t: t}
	s.prepare(6)
	dir := filepath.Join(t.TempDir(), "cache")
	full := fullDisk(t)
	start := time.Now()
	for round := range soakRounds {
		folder := dir
		if round == soakRounds/2 && full != "" {
			folder = full
		}
		p := startServer(t, "--cache-dir", folder, "--queue", "16", "--cache-mb", "1")
		s.url.Store(&p.url)
		s.ask(total/soakRounds/3, uint64(round))
		before := s.numbers()
		s.ask(total/soakRounds-total/soakRounds/3, uint64(100+round))
		after := s.numbers()
		if after["goroutines"] > before["goroutines"]+5 || after["fds"] > before["fds"]+5 ||
			after["rss"] > 1.5*before["rss"]+50e6 {
			t.Errorf("round %d: got %v, before %v", round, after, before)
		}
		t.Logf("round %d: %v, before %v", round, after, before)
		p.stop(syscall.SIGKILL)
		if strings.Contains(p.log.String(), "panic") {
			t.Errorf("round %d: %s", round, p.log)
		}
		damage(t, dir, uint64(round))
	}
	t.Logf("%d requests in %v: %d answered, %d cut, %d read slowly, %d refused, %d told to "+
		"come back, %d wrong", s.sent.Load(),
		time.Since(start).Round(time.Second), s.answered.Load(), s.cut.Load(), s.slow.Load(),
		s.refused.Load(), s.busy.Load(), s.wrong.Load())
	if s.wrong.Load() > 0 || s.answered.Load() == 0 {
		t.Error("answers were wrong or missing")
	}
}

// fullDisk returns a folder on a small disk, "" if the test cannot make one.
func fullDisk(t *testing.T) string {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Logf("no full disk: %v", err)
		return ""
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	return dir
}

// prepare makes requests about a number of scenes and asks each one alone.
func (s *soaker) prepare(scenes int) {
	alone := startServer(s.t)
	for seed := range scenes {
		data, err := os.ReadFile(clitest.Drawn(s.t, int64(seed)))
		if err != nil {
			s.t.Fatal(err)
		}
		for i, question := range []string{
			"Describe the image.", "What number is written?", "Is there a red square in the image?",
		} {
			for _, budget := range []int{64, 16} {
				body, err := json.Marshal(map[string]any{"max_tokens": soakTokens, "stream": i < 2,
					"restore": map[string]any{"n_vis": budget},
					"messages": []any{map[string]any{"role": "user", "content": []any{
						map[string]any{
							"type": "image_url", "image_url": "data:;base64," + base64.StdEncoding.EncodeToString(data),
						},
						map[string]any{"type": "text", "text": question}}}}})
				if err != nil {
					s.t.Fatal(err)
				}
				s.bodies = append(s.bodies, string(body))
				text, err := send(alone.url,
					strings.Replace(string(body), `"n_vis"`, `"cache":false,"n_vis"`, 1))
				if err != nil {
					s.t.Fatal(err)
				}
				s.want = append(s.want, text)
			}
		}
	}
	if code := alone.stop(syscall.SIGTERM); code != cli.ExitOK {
		s.t.Errorf("exit %d", code)
	}
}

// errBusy means that the server asked the client to retry.
var errBusy = errors.New("status 429")

// send returns the text of an answer.
func send(url, body string) (string, error) { return sendWithin(soakTime, url, body) }

// sendWithin is send with another time limit.
func sendWithin(most time.Duration, url, body string) (string, error) {
	c := http.Client{Timeout: most}
	resp, err := c.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	return answerOf(resp, body)
}

// answerOf returns the text of the answer to body.
func answerOf(resp *http.Response, body string) (string, error) {
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		return "", errBusy
	default:
		return "", fmt.Errorf("status %s", resp.Status)
	}
	if strings.Contains(body, `"stream":true`) {
		return streamed(resp.Body)
	}
	var whole struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&whole); err != nil || len(whole.Choices) != 1 {
		return "", fmt.Errorf("an answer that is none: %v", err)
	}
	return whole.Choices[0].Message.Content, nil
}

// streamed returns the text of a stream, which must be whole.
func streamed(r io.Reader) (string, error) {
	var text strings.Builder
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	reported := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if !reported {
				return "", errors.New("a stream without a report")
			}
			return text.String(), nil
		}
		var e struct {
			Choices          []struct{ Delta struct{ Content string } }
			Timings, Restore json.RawMessage
			Error            json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil || e.Error != nil {
			return "", fmt.Errorf("got the event %s, %v", data, err)
		}
		for _, c := range e.Choices {
			text.WriteString(c.Delta.Content)
		}
		reported = e.Timings != nil && e.Restore != nil
	}
	return "", fmt.Errorf("the stream ended too early: %v", lines.Err())
}

// ask sends n requests with several clients.
func (s *soaker) ask(n int, seed uint64) {
	var wait sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	for i := range soakClients {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for left.Add(-1) >= 0 {
				s.one(r)
			}
		})
	}
	wait.Wait()
}

// one sends a request, with or without a fault.
func (s *soaker) one(r *rand.Rand) {
	s.sent.Add(1)
	i, url := r.IntN(len(s.bodies)), *s.url.Load()
	switch x := r.IntN(10); x {
	case 0, 1: // cut
		s.raw(url, s.bodies[i], time.Duration(r.IntN(60))*time.Millisecond, r.IntN(3) == 0)
		s.cut.Add(1)
	case 2: // refused
		text, err := send(url, s.bodies[i][:r.IntN(len(s.bodies[i]))])
		if err == nil || !strings.Contains(err.Error(), "status 400") {
			s.t.Errorf("half a body: got %q, %v", text, err)
		}
		s.refused.Add(1)
	default:
		ask := send
		if x == 3 {
			ask = slowly
			s.slow.Add(1)
		}
		text, err := ask(url, s.bodies[i])
		switch {
		case err == errBusy:
			s.busy.Add(1)
		case err != nil:
			s.t.Errorf("request %d: %v", i, err)
		case text != s.want[i]:
			s.wrong.Add(1)
			s.t.Errorf("request %d: got %q, want %q", i, text, s.want[i])
		default:
			s.answered.Add(1)
		}
	}
}

// dial sends a request over a connection of its own.
func dial(url, body string) (net.Conn, error) {
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil, err
	}
	// the effects of a broken connection show later
	_ = c.SetDeadline(time.Now().Add(soakTime))
	_, err = fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: "+
		"localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
	return c, err
}

// raw disconnects after a while; if half is set it sends only half of the body.
func (s *soaker) raw(url, body string, after time.Duration, half bool) {
	if half {
		body = body[:len(body)/2] + strings.Repeat(" ", len(body)-len(body)/2-1) // and no more
	}
	c, err := dial(url, body)
	if err != nil {
		s.t.Error(err)
		return
	}
	time.Sleep(after)
	if t, ok := c.(*net.TCPConn); ok && after%2 == 0 {
		_ = t.SetLinger(0) // a reset
	}
	c.Close()
}

// slowly reads an answer some bytes at a time.
func slowly(url, body string) (string, error) {
	c, err := dial(url, body)
	if err != nil {
		return "", err
	}
	defer c.Close()
	var all bytes.Buffer
	for {
		_, err := io.CopyN(&all, c, 256)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
		time.Sleep(2 * time.Millisecond)
	}
	resp, err := http.ReadResponse(bufio.NewReader(&all), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	return answerOf(resp, body)
}

var soakNumber = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|` +
	`process_resident_memory_bytes) (\S+)$`)

// numbers are the process's numbers once it is idle.
func (s *soaker) numbers() map[string]float64 {
	time.Sleep(time.Second)
	http.DefaultClient.CloseIdleConnections()
	resp, err := http.Get(*s.url.Load() + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]float64{}
	names := map[string]string{
		"go_goroutines": "goroutines", "process_open_fds": "fds", "process_resident_memory_bytes": "rss",
	}
	for _, m := range soakNumber.FindAllStringSubmatch(string(text), -1) {
		out[names[m[1]]], _ = strconv.ParseFloat(m[2], 64) // Prometheus writes numbers
	}
	if len(out) != len(names) {
		s.t.Fatalf("got %v of %s", out, text)
	}
	return out
}

// damage truncates, changes and extends some of the files in a folder.
func damage(t *testing.T, dir string, seed uint64) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || len(data) == 0 || r.IntN(2) == 0 {
			continue
		}
		switch r.IntN(3) {
		case 0:
			data = data[:r.IntN(len(data))]
		case 1:
			data[r.IntN(len(data))] ^= 1 << r.IntN(8)
		default:
			data = append(data, 'x')
		}
		if err := os.WriteFile(f, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
