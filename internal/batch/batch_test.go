package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// echo answers with its prompt; the line "slow" waits.
type echo struct {
	mu    sync.Mutex
	asked map[string]int
	stop  func(asked int)
}

func newEcho() *echo {
	return &echo{asked: map[string]int{}}
}

func (e *echo) Do(ctx context.Context, r *Request) (*Response, error) {
	e.mu.Lock()
	e.asked[r.CustomID]++
	n := len(e.asked)
	e.mu.Unlock()
	if e.stop != nil {
		e.stop(n)
	}
	time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return &Response{Status: 200, RequestID: newID("req_"),
		Body: []byte(fmt.Sprintf(`{"said":%q,"usage":{"prompt_tokens":2,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens":1}}`, r.CustomID, n))}, nil
}

// asker is a backend that calls a function and gives an empty answer.
type asker func(r *Request)

func (a asker) Do(_ context.Context, r *Request) (*Response, error) {
	a(r)
	return &Response{Status: 200, Body: []byte("{}")}, nil
}

// held is an input that signals when it has been read to its end.
type held struct {
	io.Reader
	read chan struct{}
}

func newHeld(r io.Reader) *held { return &held{r, make(chan struct{})} }

func (h *held) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n == 0 && err == io.EOF {
		close(h.read)
	}
	return n, err
}

// input returns n lines about pictures of five questions each, some of them bad.
func input(n int) string {
	var b strings.Builder
	for i := range n {
		switch {
		case i%17 == 5:
			fmt.Fprintf(&b, "{\"custom_id\": broken %d\n", i)
		case i%3 == 0:
			fmt.Fprintf(&b, `{"custom_id":"q%d","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"?"}]}}`+"\n", i)
		default:
			fmt.Fprintf(&b, `{"custom_id":"q%d","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"p%d"}}]}]}}`+"\n", i, i/5)
		}
	}
	return b.String()
}

// free removes the fields that may differ between runs.
func free(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		var r Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r.ID == "" || (r.Response == nil) == (r.Error == nil) {
			t.Fatalf("%q: want an id, and a response or an error", line)
		}
		r.ID = ""
		if r.Response != nil {
			r.Response.RequestID = ""
		}
		data, err := wire.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(data, '\n'))
	}
	return out.String()
}

// begun opens the journal of dir and begins a run with settings.
func begun(dir, settings string) (*Journal, error) {
	j, err := OpenJournal(filepath.Join(dir, "j"), filepath.Join(dir, "out"))
	if err != nil {
		return nil, err
	}
	if err := j.Begin(Settings{"model": settings}); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func answer(
	t *testing.T, ctx context.Context, dir, in string, b Backend, o Options,
) (Summary, error) {
	t.Helper()
	return answerFrom(t, ctx, dir, strings.NewReader(in), b, o)
}

func answerFrom(
	t *testing.T, ctx context.Context, dir string, in io.Reader, b Backend, o Options,
) (Summary, error) {
	t.Helper()
	j, err := begun(dir, "settings")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	if o.MaxLine == 0 {
		o.MaxLine = 1 << 20
	}
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	return Run(ctx, in, j, b, o)
}

// Ensure that results come in the input's order, and that a bad line is one bad result.
func TestRun(t *testing.T) {
	dir, e := t.TempDir(), newEcho()
	s, err := answer(t, t.Context(), dir, input(200), e, Options{})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(free(t, filepath.Join(dir, "out"))), "\n")
	if len(lines) != 200 || s.Lines != 200 || s.Answers+s.Unread["invalid_json"] != 200 {
		t.Fatalf("got %d results and summary %+v, want 200", len(lines), s)
	}
	for i, l := range lines {
		want := fmt.Sprintf(`"custom_id":"q%d"`, i)
		if i%17 == 5 {
			want = fmt.Sprintf(`"message":"line %d: invalid JSON at byte 15`, i+1)
		}
		if !strings.Contains(l, want) {
			t.Fatalf("result %d: got %s, want %s", i, l, want)
		}
		if strings.Contains(l, `"cached_tokens"`) && !strings.Contains(l, `"cached_tokens":0`) {
			t.Fatalf("result %d: %s tells what was cached", i, l)
		}
	}
}

// Ensure that requests about one picture follow each other, wherever they are in the input.
func TestOrder(t *testing.T) {
	var in strings.Builder
	const pictures, questions = 6, 5
	for q := range questions {
		for p := range pictures {
			fmt.Fprintf(&in, `{"custom_id":"%d %d","url":"/v1/chat/completions","body":`+
				`{"messages":[{"role":"user","content":[{"image_url":"p%d"}]}]}}`+"\n", p, q, p)
		}
	}
	all := newHeld(strings.NewReader(in.String()))
	var order []string
	_, err := answerFrom(t, t.Context(), t.TempDir(), all, asker(func(r *Request) {
		<-all.read
		order = append(order, r.CustomID)
	}), Options{Parallel: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range order {
		if want := fmt.Sprint(i/questions, " ", i%questions); got != want {
			t.Fatalf("request %d: got %s, want %s", i, got, want)
		}
	}
	if len(order) != pictures*questions {
		t.Fatalf("got %d requests, want %d", len(order), pictures*questions)
	}
}

// Ensure that a run that is ended at random points, with log and output then truncated at random
// bytes as after a crash, ends like an undisturbed one, and that no logged request is asked again.
func TestKilled(t *testing.T) {
	in := input(300)
	whole := t.TempDir()
	if _, err := answer(t, t.Context(), whole, in, newEcho(), Options{}); err != nil {
		t.Fatal(err)
	}
	want := free(t, filepath.Join(whole, "out"))
	for seed := range 20 {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		dir := t.TempDir()
		for round := 0; ; round++ {
			e := newEcho()
			ctx, cancel := context.WithCancel(t.Context())
			limit := 1 + rng.IntN(120)
			if round > 20 {
				limit = 1 << 20
			}
			e.stop = func(n int) {
				if n > limit {
					cancel()
				}
			}
			if round > 0 && round%2 == 0 {
				// results after the last checkpoint may be lost
				cut(t, rng, filepath.Join(dir, "j", "log"), 1)
				tear(t, dir)
			}
			_, err := answer(t, ctx, dir, in, e, Options{})
			cancel()
			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if got := free(t, filepath.Join(dir, "out")); got != want {
			t.Fatalf("seed %d: the output of a run that was ended differs", seed)
		}
		e := newEcho()
		if _, err := answer(t, t.Context(), dir, in, e, Options{}); err != nil ||
			len(e.asked) != 0 {
			t.Fatalf("a finished run again: %d requests asked, error %v", len(e.asked), err)
		}
	}
}

// tear appends half of a result that waits in the journal to the output, as a kill may leave it.
func tear(t *testing.T, dir string) {
	t.Helper()
	out := filepath.Join(dir, "out")
	j, err := OpenJournal(filepath.Join(dir, "j"), out)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, r := range j.earlier {
		grow(t, out, string(r.text[:len(r.text)/2]))
		return
	}
}

// grow appends text to a file.
func grow(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// cut removes up to n·100 bytes from the end of a file.
func cut(t *testing.T, rng *rand.Rand, path string, n int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, max(0, info.Size()-int64(rng.IntN(n*100)))); err != nil {
		t.Fatal(err)
	}
}

// Ensure that answered requests are not asked again after a kill that lost nothing.
func TestAskedOnce(t *testing.T) {
	in, dir := input(200), t.TempDir()
	total := map[string]int{}
	for limit := 20; ; limit += 20 {
		e := newEcho()
		ctx, cancel := context.WithCancel(t.Context())
		e.stop = func(n int) {
			if n > 20 {
				cancel()
			}
		}
		before := answered(t, dir)
		_, err := answer(t, ctx, dir, in, e, Options{})
		cancel()
		for id := range e.asked {
			total[id]++
			if before[id] {
				t.Fatalf("%s was asked again", id)
			}
		}
		if err == nil {
			break
		}
	}
	if len(total) < 150 {
		t.Fatalf("only %d requests asked", len(total))
	}
}

// answered lists the results in a journal and its output.
func answered(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	log, _ := os.ReadFile(filepath.Join(dir, "j", "log"))
	done, _ := os.ReadFile(filepath.Join(dir, "out"))
	for _, line := range bytes.SplitAfter(append(log, done...), []byte(`{"id":"batch_req_`)) {
		var id string
		if _, rest, ok := bytes.Cut(line, []byte(`"custom_id":"`)); ok {
			id, _, _ = strings.Cut(string(rest), `"`)
			out[id] = true
		}
	}
	return out
}

// Ensure that journals, inputs and outputs that do not belong together are refused.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := answer(t, t.Context(), dir, input(20), newEcho(), Options{}); err != nil {
		t.Fatal(err)
	}
	j, err := begun(dir, "settings")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begun(dir, "settings"); !errors.Is(err, ErrInUse) {
		t.Errorf("a journal in use: got %v, want ErrInUse", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := begun(dir, "others"); err == nil ||
		!strings.Contains(err.Error(), `model was "settings", now "others"`) {
		t.Errorf("other settings: got %v, want an error", err)
	}
	if _, err := OpenJournal(filepath.Join(dir, "k"), filepath.Join(dir, "out")); err == nil ||
		!strings.Contains(err.Error(), "did not write it") {
		t.Errorf("an output of another journal: got %v, want an error", err)
	}
	for name, in := range map[string]string{"shorter": input(10), "another": "x" + input(20)} {
		if _, err := answer(t, t.Context(), dir, in, newEcho(), Options{}); err == nil ||
			!strings.Contains(err.Error(), "another input") {
			t.Errorf("%s: got %v, want an error about the input", name, err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "out"), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := begun(dir, "settings"); err == nil ||
		!strings.Contains(err.Error(), "bring the file back") {
		t.Errorf("an output that was cut: got %v, want an error", err)
	}
}

// Ensure that lines that were added to an answered input are answered, and only those.
func TestLonger(t *testing.T) {
	dir := t.TempDir()
	if _, err := answer(t, t.Context(), dir, input(20), newEcho(), Options{}); err != nil {
		t.Fatal(err)
	}
	e := newEcho()
	s, err := answer(t, t.Context(), dir, input(30), e, Options{})
	if err != nil || s.Before != 20 || len(e.asked) > 10 {
		t.Fatalf("got %+v after %d requests, error %v, want the 10 new lines alone", s,
			len(e.asked), err)
	}
}

// Ensure that unordered results are complete, also after an interruption.
func TestUnordered(t *testing.T) {
	dir, in := t.TempDir(), input(200)
	for limit := 50; ; limit = 1000 {
		e := newEcho()
		ctx, cancel := context.WithCancel(t.Context())
		e.stop = func(n int) {
			if n > limit {
				cancel()
			}
		}
		_, err := answer(t, ctx, dir, in, e, Options{Unordered: true})
		cancel()
		if err == nil {
			break
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(free(t, filepath.Join(dir, "out"))) {
		if seen[line] {
			t.Fatalf("twice: %s", line)
		}
		seen[line] = true
	}
	if len(seen) != 200 {
		t.Fatalf("got %d results, want 200", len(seen))
	}
}

// Ensure that each kind of bad line says what is wrong, and that a strict run ends there.
func TestLines(t *testing.T) {
	for line, want := range map[string]string{
		`[]`: "no object",
		`{"`: "invalid JSON at byte",
		`{"custom_id":"a","url":"/v1/chat/completions"}`:                         "body: got nothing, want an object",
		`{"custom_id":3,"url":"/v1/chat/completions","body":{}}`:                 "custom_id: got 3, want a string",
		`{"url":"/v1/chat/completions","body":{}}`:                               "custom_id: missing",
		`{"custom_id":"a","body":{}}`:                                            "url: missing",
		`{"custom_id":"a","url":"/x","body":[1]}`:                                "body: got a list, want an object",
		`{"custom_id":"` + strings.Repeat("a", 2000) + `","url":"/x","body":{}}`: "got more than 1000 bytes",
	} {
		dir := t.TempDir()
		in := line + "\n" + `{"custom_id":"b","url":"/x","body":{}}`
		s, err := answer(t, t.Context(), dir, in, newEcho(), Options{MaxLine: 1000})
		if err != nil || s.Answers != 1 {
			t.Fatalf("%.60q: got %+v, error %v", line, s, err)
		}
		first, _, _ := strings.Cut(free(t, filepath.Join(dir, "out")), "\n")
		if !strings.Contains(first, "line 1: ") || !strings.Contains(first, want) ||
			!strings.Contains(first, `"custom_id":null,"response":null`) {
			t.Errorf("%.60q: got %s, want %q", line, first, want)
		}
		if _, err := answer(t, t.Context(), t.TempDir(), in, newEcho(), Options{
			MaxLine: 1000, Strict: true,
		}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q, strict: got %v, want %q", line, err, want)
		}
	}
}

// Ensure that requests with the same pictures have the same key on every route, and others do not.
func TestPictures(t *testing.T) {
	chat := func(url string) string {
		return `{"messages":[{"role":"user","content":[{"type":"text","text":"?"},{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`
	}
	pictures := func(body []byte) [32]byte { return sumOf(pictures(body)) }
	a := pictures([]byte(chat("a")))
	if a == ([32]byte{}) {
		t.Fatal("no picture found")
	}
	if b := pictures([]byte(`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"a"}]}]}`)); b != a {
		t.Error("responses: another key for the same picture")
	}
	if b := pictures([]byte(`{"messages":[{"role":"user","content":"?","images":["a"]}]}`)); b != a {
		t.Error("Ollama's chat: another key for the same picture")
	}
	for _, source := range []string{`{"type":"url","url":"a"}`, `{"type":"base64","data":"a"}`} {
		body := `{"messages":[{"role":"user","content":[{"type":"image","source":` + source + `}]}]}`
		if b := pictures([]byte(body)); b != a {
			t.Errorf("%s: another key for the same picture", body)
		}
	}
	if pictures([]byte(chat("b"))) == a || pictures([]byte(`{"messages":[{"role":"user","content":"a"}]}`)) != ([32]byte{}) {
		t.Error("another picture, or none, has the same key")
	}
}

// busy is a service that is full once and answers "a".
type busy struct {
	restore.Service
	full atomic.Int32
}

func (*busy) Info() *restore.Info { return &restore.Info{ID: "tiny", Vocab: 9, Context: 99} }

func (b *busy) Submit(_ context.Context, r *restore.Request) (restore.Job, error) {
	if b.full.Add(-1) >= 0 {
		return nil, &errs.FullError{RetryAfter: 1}
	}
	if r.MaxTokens == 7 {
		return nil, errors.New("secret")
	}
	return said{}, nil
}

// said is the answer "a".
type said struct{ restore.Job }

func (said) Answer() (*restore.Answer, error) {
	return &restore.Answer{Text: "a\n", Finish: restore.FinishStop}, nil
}

// Ensure that each kind of request has an answer or a refusal in the server's words, on one line,
// that a service that is full is asked again, and that the service's own fault is no answer.
func TestService(t *testing.T) {
	b := new(busy)
	b.full.Store(1)
	s := Service{Front: api.NewFront(b, api.Settings{MaxImages: 1}),
		Log: slog.New(slog.DiscardHandler)}
	const chat = "/v1/chat/completions"
	for _, c := range []struct {
		name   string
		r      Request
		status int
		body   string
	}{
		{"busy", Request{Method: "POST", URL: chat, Body: []byte(hello)}, 200, `"content":"a\n"`},
		{"slash", Request{Method: "POST", URL: chat + "/", Body: []byte(hello)}, 200, "a"},
		{"refused", Request{Method: "PUT", URL: chat, Body: []byte(hello)}, 405, "method_not_allowed"},
		{"stream", Request{Method: "POST", URL: chat, Body: []byte(`{"stream":true,` + hello[1:])}, 400, "stream: got true, want false"},
		{"model", Request{Method: "POST", URL: chat, Body: []byte(`{"model":"x",` + hello[1:])}, 404, "model_not_found"},
		{"fault", Request{Method: "POST", URL: chat, Body: []byte(`{"max_tokens":7,` + hello[1:])}, 500, "internal_error"},
		{"field", Request{Method: "POST", URL: chat, Body: []byte(`{"messages":1}`)}, 400, "messages: got 1"},
		{"ollama", Request{Method: "POST", URL: "/api/chat", Body: []byte(hello)}, 200, `"done":true`},
		{"its error", Request{Method: "POST", URL: "/api/chat", Body: []byte(`{"messages":1}`)}, 400, `{"error":"messages`},
		{"address", Request{Method: "POST", URL: "http://example.com" + chat, Body: []byte(hello)}, 400, "url: got"},
		{"path", Request{Method: "POST", URL: "/v1/models", Body: []byte(`{}`)}, 400, "want /api/chat, "},
		{"nothing", Request{Method: "POST", URL: "", Body: []byte(`{}`)}, 400, "url: got"},
	} {
		got, err := s.Do(t.Context(), &c.r)
		if err != nil || got.Status != c.status || !strings.Contains(string(got.Body), c.body) ||
			strings.Contains(string(got.Body), "secret") || bytes.ContainsRune(got.Body, '\n') {
			t.Errorf("%s: got %+v (%s), error %v, want %d and %s on one line", c.name, got,
				got.Body, err, c.status, c.body)
		}
	}
	if b.full.Load() >= 0 {
		t.Error("the service was not asked again")
	}
	s.Unable = func(err error) bool { return err.Error() == "secret" }
	q := &Request{Method: "POST", URL: chat, Body: []byte(`{"max_tokens":7,` + hello[1:])}
	if got, err := s.Do(t.Context(), q); err == nil || got != nil {
		t.Errorf("the service's own fault: got %+v, error %v, want only the error", got, err)
	}
}

// Ensure that a line without a seed has one of its own, the same in every run, and that the seed of
// a line stays.
func TestSeed(t *testing.T) {
	s := Service{Front: api.NewFront(new(busy), api.Settings{MaxImages: 1})}
	seed := func(key Key, fields string) string {
		r, err := s.Do(t.Context(), &Request{Method: "POST", URL: "/v1/chat/completions", Key: key,
			Body: []byte(`{` + fields + hello[1:])})
		var body struct{ Restore struct{ Seed json.Number } }
		if err == nil {
			err = json.Unmarshal(r.Body, &body)
		}
		if err != nil {
			t.Fatal(err)
		}
		return body.Restore.Seed.String()
	}
	one := seed(Key{1}, `"temperature":1,`)
	if one == "" || one != seed(Key{1}, `"temperature":1,`) || one == seed(Key{2}, `"temperature":1,`) {
		t.Errorf("got %q, want one for each line", one)
	}
	if got := seed(Key{1}, `"temperature":1,"seed":7,`); got != "7" {
		t.Errorf("got %q, want the line's", got)
	}
	if got := seed(Key{1}, ``); got != "" {
		t.Errorf("at temperature 0: got %q", got)
	}
}

// Ensure that usage tells no cached tokens, on any route.
func TestSettled(t *testing.T) {
	for in, want := range map[string]string{
		`{"usage":{"prompt_tokens_details":{"cached_tokens":5}},"cached_tokens":5}`: `{"usage":{"prompt_tokens_details":{"cached_tokens":0}},"cached_tokens":5}`,
		`{"usage":{"cached_tokens":5,"cache_write_tokens": 6}}`:                     `{"usage":{"cached_tokens":0,"cache_write_tokens":0}}`,
		`{"usage":{"input_tokens":4,"cache_read_input_tokens":125}}`:                `{"usage":{"input_tokens":129,"cache_read_input_tokens":0}}`,
		`{"usage":{"input_tokens":4,"cached_tokens":2}}`:                            `{"usage":{"input_tokens":4,"cached_tokens":0}}`,
		`{"error":"x"}`: `{"error":"x"}`,
	} {
		if got := string(settled([]byte(in))); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// paused is a backend whose answers wait for a signal.
type paused struct {
	begun atomic.Int32
	over  chan struct{}
}

func (w *paused) Do(context.Context, *Request) (*Response, error) {
	w.begun.Add(1)
	<-w.over
	return &Response{Status: 200, Body: []byte("{}")}, nil
}

// Ensure that a run asks as many requests at once as there are places now, and more when more come.
func TestPlaces(t *testing.T) {
	b := &paused{over: make(chan struct{})}
	var places atomic.Int32
	places.Store(2)
	done := make(chan error, 1)
	go func() {
		s, err := answer(t, t.Context(), t.TempDir(), input(20), b, Options{Parallel: 9,
			Places: func() int { return int(places.Load()) }})
		if err == nil && s.Answers == 0 {
			err = errors.New("no line has an answer")
		}
		done <- err
	}()
	for _, n := range []int32{2, 5} {
		places.Store(n)
		for wait := 0; b.begun.Load() < n && wait < 2000; wait++ {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * flushEvery)
		if got := b.begun.Load(); got != n {
			t.Errorf("%d places: %d requests are asked", n, got)
		}
	}
	close(b.over)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// measured is a service whose answers have counts and times.
type measured struct{ busy }

func (*measured) Submit(context.Context, *restore.Request) (restore.Job, error) {
	return measuredJob{}, nil
}

type measuredJob struct{ restore.Job }

func (measuredJob) Answer() (*restore.Answer, error) {
	return &restore.Answer{Text: "a", Finish: restore.FinishStop,
		Usage:   restore.Usage{Prompt: 30, Generated: 4},
		Timings: restore.Timings{Prefill: 2 * time.Second, Decode: 3 * time.Second}}, nil
}

// Ensure that the summary counts tokens, times and refusals alike on all routes. Ollama's errors
// have no code of their own.
func TestSummaryRoutes(t *testing.T) {
	s := Service{Front: api.NewFront(new(measured), api.Settings{}),
		Log: slog.New(slog.DiscardHandler)}
	for _, route := range []string{"/v1/chat/completions", "/api/chat"} {
		in := fmt.Sprintf(`{"custom_id":"a","url":%q,"body":%s}`+"\n"+
			`{"custom_id":"b","url":%[1]q,"body":{"model":"x",%[3]s}`, route, hello, hello[1:])
		sum, err := answer(t, t.Context(), t.TempDir(), in, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if sum.Answers != 1 || len(sum.Refused) != 1 || sum.Refused["model_not_found"] != 1 ||
			sum.Tokens.Prompt != 30 || sum.Tokens.Completion != 4 ||
			sum.Stages["prefill"] != 2 || sum.Stages["decode"] != 3 {
			t.Errorf("%s: got %+v", route, sum)
		}
	}
}

// hello is the body of a question.
const hello = `{"messages":[{"role":"user","content":"hello"}]}`

// FuzzJournal opens journals and outputs of any content: no panic, and memory in proportion to the
// files' sizes. A journal that is accepted can be continued. Each content is a log as it is, and
// the payloads of a log's records, a line each.
func FuzzJournal(f *testing.F) {
	dir := f.TempDir()
	j, err := begun(dir, "s")
	if err != nil {
		f.Fatal(err)
	}
	if err := j.Add(3, Key{1}, []byte(`{"id":"x"}`)); err != nil {
		f.Fatal(err)
	}
	if err := j.Emit(false, func(int) (sums, bool) { return sums{}, true }); err != nil {
		f.Fatal(err)
	}
	if err := j.Add(1, Key{1}, []byte(`{"id":"y"}`)); err != nil {
		f.Fatal(err)
	}
	if err := j.Close(); err != nil {
		f.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "j", "log"))
	if err != nil {
		f.Fatal(err)
	}
	var payloads [][]byte
	for r := bytes.NewReader(log); ; {
		payload, err := readRecord(r)
		if err != nil {
			break
		}
		payloads = append(payloads, payload)
	}
	written := []byte(`{"id":"x"}` + "\n")
	f.Add(log, written)
	f.Add(log[:len(log)-3], written)
	f.Add(bytes.Join(payloads, []byte("\n")), append(written, `{"id":`...))
	f.Add([]byte{0xff, 0xff, 0xff, 0x3f, 0, 0, 0, 0, 'R'}, []byte("x"))
	f.Fuzz(func(t *testing.T, data, out []byte) {
		var framed []byte
		for payload := range bytes.SplitSeq(data, []byte("\n")) {
			data, err := record(payload)
			if err != nil {
				t.Fatal(err)
			}
			framed = append(framed, data...)
		}
		for _, log := range [][]byte{data, framed} {
			dir := t.TempDir()
			err := errors.Join(os.Mkdir(filepath.Join(dir, "j"), 0o700),
				os.WriteFile(filepath.Join(dir, "j", "log"), log, 0o600),
				os.WriteFile(filepath.Join(dir, "out"), out, 0o600))
			if err != nil {
				t.Fatal(err)
			}
			if j, err := begun(dir, "s"); err == nil {
				continued(t, dir, j)
			}
		}
	})
}

// continued writes the results that wait in a journal, and opens it again.
func continued(t *testing.T, dir string, j *Journal) {
	t.Helper()
	for line := range 5 {
		if _, _, err := j.has(line, Key{1}); err != nil {
			t.Log(err)
		}
	}
	err := j.Emit(false, func(int) (sums, bool) { return sums{}, true })
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
	if j, err = begun(dir, "s"); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// Ensure that a line takes little more memory than it has bytes, whatever its values.
func TestLineMemory(t *testing.T) {
	for before, after := range map[string]string{
		`{"custom_id":"a","url":"/x","body":{"messages":[`:             `0]}}`,
		`{"custom_id":"a","url":"/x","body":{"input":[[{"images":[0,[`: `0]]}]]}}`,
	} {
		line := []byte(before + strings.Repeat("0,", 1e6) + after)
		var start, end runtime.MemStats
		runtime.ReadMemStats(&start)
		r, fault := parse(line, 1)
		runtime.ReadMemStats(&end)
		all := end.TotalAlloc - start.TotalAlloc
		if fault != nil || r.Pictures != ([32]byte{}) || all > uint64(2*len(line)) {
			t.Errorf("%s: got %v, allocated %d bytes for %d", before, fault, all, len(line))
		}
	}
}

// FuzzParse reads any line as a request.
func FuzzParse(f *testing.F) {
	for line := range strings.Lines(input(20)) {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"custom_id":"a","url":"/x","body":{"content":` + strings.Repeat("[", 900) +
		strings.Repeat("]", 900) + `,"images":["a",1],"image_url":{"url":"b"}}}`))
	f.Add([]byte(`{` + strings.Repeat(`"a":0,`, 1025) + `"custom_id":"a","url":"/x","body":{}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parse(line, 0)
		if (r == nil) == (err == nil) {
			t.Fatalf("got %v and %v", r, err)
		}
	})
}
