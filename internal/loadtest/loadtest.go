// Package loadtest asks a server many questions at once and checks every answer.
//
// Each client draws its questions from its own seed: a picture, a question and a budget, streamed
// or not, alone or as a follow-up. Some clients disconnect in the middle, some send requests that
// must be refused. Afterwards every answered question is asked once more, alone, and the answers
// must be the same.
package loadtest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/internal/web"
)

// Options say what to ask.
type Options struct {
	URL string // of the server
	Key string

	Clients  int           // concurrent clients
	Requests int           // in total; 0: until Time is over
	Time     time.Duration // 0: until Requests are done
	Seed     uint64

	Pictures  [][]byte // files; none: only text
	Questions []string
	Budgets   []int // visual tokens of a picture; 0 reads all of them
	MaxTokens int
	IgnoreEOS bool // every answer has MaxTokens

	FollowUp float64 // share of questions that follow an answer about the same picture
	Cancel   float64 // share of clients that disconnect in the middle
	Bad      float64 // share of requests that must be refused
	Whole    float64 // share of requests that are not streamed
	Fresh    bool    // bypass caches, so that every picture is encoded

	Compare bool // ask every question again, alone and without caches
}

// Result counts answers, refusals and errors, and has times.
type Result struct {
	Clients, Budget          int
	Answers, Refused, Full   int // answered; correctly refused; refused by a full queue
	Cancelled, Wrong, Failed int // by the client; unlike the answer alone; failed
	Tokens                   int
	Elapsed                  time.Duration
	First, Gap               Quantiles // time to the first token; between tokens of one stream
	New, Again               Quantiles // First for new pictures and for cached ones
	// encoded pictures; questions whose picture was in memory
	Encoded, Prefixes int
	Errors            []string // the first few of Wrong and Failed
}

// Quantiles summarize durations.
type Quantiles struct{ P50, P99, Max time.Duration }

func quantiles(t []time.Duration) Quantiles {
	if len(t) == 0 {
		return Quantiles{}
	}
	return Quantiles{stats.Upper(t, .5), stats.Upper(t, .99), slices.Max(t)}
}

// question is a question that a client may ask.
type question struct {
	picture, text, budget int
	earlier               string // the answer that it follows; "" if none
}

// runner is the state of a run.
type runner struct {
	o      Options
	client *http.Client
	urls   []string // the pictures

	mu      sync.Mutex
	left    int
	r       Result
	first   []time.Duration
	fresh   []time.Duration // times to the first token of new pictures
	again   []time.Duration // and of cached ones
	gaps    []time.Duration
	answers map[question]string
}

// errorsKept limits Result.Errors.
const errorsKept = 10

// Run asks until the limits in o are reached or ctx ends.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Clients < 1 || len(o.Questions) == 0 || len(o.Budgets) == 0 ||
		o.Requests == 0 && o.Time == 0 {
		return nil, errors.New(
			"load: want clients, questions, budgets, and a bound in requests or time")
	}
	x := &runner{o: o, left: o.Requests, answers: map[question]string{}}
	transport := &http.Transport{MaxIdleConnsPerHost: o.Clients, MaxConnsPerHost: 0}
	defer transport.CloseIdleConnections()
	x.client = &http.Client{Transport: transport}
	for _, p := range o.Pictures {
		x.urls = append(x.urls, "data:image/png;base64,"+base64.StdEncoding.EncodeToString(p))
	}
	if o.Time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Time)
		defer cancel()
	}
	start := time.Now()
	var wait sync.WaitGroup
	for i := range o.Clients {
		wait.Go(func() { x.one(ctx, rand.New(rand.NewPCG(o.Seed, uint64(i)))) })
	}
	wait.Wait()
	x.r.Elapsed = time.Since(start)
	x.r.Clients, x.r.Budget = o.Clients, o.Budgets[0]
	x.r.First, x.r.Gap = quantiles(x.first), quantiles(x.gaps)
	x.r.New, x.r.Again = quantiles(x.fresh), quantiles(x.again)
	if o.Compare {
		if err := x.compare(context.WithoutCancel(ctx)); err != nil {
			return nil, err
		}
	}
	return &x.r, nil
}

// next reports whether one more request may be sent.
func (x *runner) next() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.o.Requests == 0 {
		return true
	}
	x.left--
	return x.left >= 0
}

// one runs one client.
func (x *runner) one(ctx context.Context, r *rand.Rand) {
	var last *question
	var text string
	for ctx.Err() == nil && x.next() {
		if r.Float64() < x.o.Bad {
			x.bad(ctx, r)
			continue
		}
		q := question{
			picture: -1, text: r.IntN(len(x.o.Questions)), budget: r.IntN(len(x.o.Budgets)),
		}
		if len(x.urls) > 0 {
			q.picture = r.IntN(len(x.urls))
		}
		if last != nil && text != "" && r.Float64() < x.o.FollowUp {
			q.picture, q.budget, q.earlier = last.picture, last.budget, text
		}
		stream := r.Float64() >= x.o.Whole
		leave := -1
		if r.Float64() < x.o.Cancel {
			leave = r.IntN(4)
		}
		answer, ok := x.ask(ctx, &q, stream, leave, true)
		if last, text = nil, ""; ok && q.earlier == "" {
			last, text = &q, answer
		}
	}
}

// body encodes the request of a question; fresh reads no cache.
func (x *runner) body(q *question, stream, fresh bool) []byte {
	var content []any
	if q.picture >= 0 {
		content = append(content, map[string]any{
			"type": "image_url", "image_url": map[string]any{"url": x.urls[q.picture]},
		})
	}
	content = append(content, map[string]any{"type": "text", "text": x.o.Questions[q.text]})
	messages := []any{map[string]any{"role": "user", "content": content}}
	if q.earlier != "" {
		messages = append(messages, map[string]any{"role": "assistant", "content": q.earlier},
			map[string]any{"role": "user", "content": x.o.Questions[q.text]})
	}
	restore := map[string]any{"cache": !fresh}
	if n := x.o.Budgets[q.budget]; n == 0 {
		restore["base"] = "none"
	} else {
		restore["n_vis"] = n
	}
	b := map[string]any{
		"messages": messages, "restore": restore, "stream": stream, "ignore_eos": x.o.IgnoreEOS,
	}
	if x.o.MaxTokens > 0 {
		b["max_tokens"] = x.o.MaxTokens
	}
	data, err := json.Marshal(b)
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	return data
}

// chunk has the fields read from an answer or one of its pieces.
type chunk struct {
	Choices []struct {
		Delta   struct{ Content string }
		Message struct{ Content string }
	}
	Usage *struct {
		Completion int `json:"completion_tokens"`
	}
	Timings *struct {
		Encode    float64 `json:"encode_ms"`
		Predicted int     `json:"predicted_n"`
		TTFT      float64 `json:"ttft_ms"`
	}
	Restore *struct {
		Images []struct{ Cache string }
	}
	Error *struct{ Message string }
}

// errLeft is the cause of a request whose client disconnected.
var errLeft = errors.New("load: the client left")

// ask asks one question. The client disconnects after leave pieces, -1 for never. count says that
// the times count. ok reports a whole answer.
func (x *runner) ask(
	ctx context.Context, q *question, stream bool, leave int, count bool,
) (answer string, ok bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	resp, err := x.send(ctx, "/v1/chat/completions", x.body(q, stream, x.o.Fresh || !count))
	if err != nil {
		x.fail(ctx, err)
		return "", false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		if resp.StatusCode == http.StatusTooManyRequests {
			x.full(ctx, resp.Header.Get("Retry-After"))
			return "", false
		}
		x.fail(ctx, fmt.Errorf("status %d: %s", resp.StatusCode, text))
		return "", false
	}
	var r *reply
	if stream {
		r, err = readStream(resp.Body, start, leave, func() { cancel(errLeft) })
	} else {
		r, err = readWhole(resp.Body)
	}
	if err != nil {
		x.fail(ctx, err)
		return "", false
	}
	x.done(q, r.answer, &r.last, r.first, r.gaps, count)
	return r.answer, true
}

// reply is a whole answer with its times.
type reply struct {
	answer string
	last   chunk           // the one with the timings
	first  time.Duration   // to the first token
	gaps   []time.Duration // between pieces
}

func readWhole(body io.Reader) (*reply, error) {
	r := new(reply)
	if err := json.NewDecoder(body).Decode(&r.last); err != nil {
		return nil, fmt.Errorf("an answer that is none: %w", err)
	}
	if len(r.last.Choices) == 0 || r.last.Timings == nil {
		return nil, errors.New("an answer without choices or timings")
	}
	r.answer = r.last.Choices[0].Message.Content
	r.first = time.Duration(r.last.Timings.TTFT * 1e6)
	return r, nil
}

// readStream reads an answer in pieces. It calls left before it reads piece number leave.
func readStream(body io.Reader, start time.Time, leave int, left func()) (*reply, error) {
	r := new(reply)
	at, pieces := start, 0
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !isData:
			continue
		case data == "[DONE]":
			return r, nil
		case pieces == leave:
			left()
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return nil, err
		}
		if c.Error != nil {
			return nil, errors.New(c.Error.Message)
		}
		if c.Timings != nil {
			r.last = c
		}
		if len(c.Choices) == 0 || c.Choices[0].Delta.Content == "" {
			continue
		}
		now := time.Now()
		if pieces == 0 {
			r.first = now.Sub(start)
		} else {
			r.gaps = append(r.gaps, now.Sub(at))
		}
		r.answer += c.Choices[0].Delta.Content
		at = now
		pieces++
	}
	return nil, fmt.Errorf("a stream without its end: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

func (x *runner) send(ctx context.Context, path string, body []byte) (*http.Response, error) {
	req, err := web.JSON(ctx, http.MethodPost, x.o.URL+path, x.o.Key, body)
	if err != nil {
		return nil, err
	}
	return x.client.Do(req)
}

// full waits as long as the server's Retry-After says.
func (x *runner) full(ctx context.Context, after string) {
	x.mu.Lock()
	x.r.Full++
	x.mu.Unlock()
	seconds, err := strconv.Atoi(after)
	if err != nil || seconds < 1 {
		x.fail(ctx, fmt.Errorf("status 429 with Retry-After %q, want whole seconds", after))
		return
	}
	select {
	case <-time.After(time.Duration(seconds) * time.Second):
	case <-ctx.Done():
	}
}

// fail records an error, unless the client or the run caused it.
func (x *runner) fail(ctx context.Context, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errLeft):
		x.r.Cancelled++
	case cause != nil:
	default:
		x.r.Failed++
		x.note("failed: %v", err)
	}
}

func (x *runner) note(format string, args ...any) {
	if len(x.r.Errors) < errorsKept {
		x.r.Errors = append(x.r.Errors, fmt.Sprintf(format, args...))
	}
}

// done records an answer. The same question must always have the same answer.
func (x *runner) done(
	q *question, answer string, last *chunk, first time.Duration, gaps []time.Duration, count bool,
) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, asked := x.answers[*q]; asked && before != answer {
		x.r.Wrong++
		x.note("wrong: question %+v: got %q, before %q", *q, answer, before)
	}
	if !count {
		return
	}
	x.answers[*q] = answer
	x.r.Answers++
	x.first = append(x.first, first)
	x.gaps = append(x.gaps, gaps...)
	if last.Timings == nil {
		return
	}
	x.r.Tokens += last.Timings.Predicted
	if last.Timings.Encode > 0 {
		x.r.Encoded++
		x.fresh = append(x.fresh, first)
	} else {
		x.again = append(x.again, first)
	}
	if last.Restore != nil && len(last.Restore.Images) > 0 &&
		last.Restore.Images[0].Cache == "prefix" {
		x.r.Prefixes++
	}
}

// refusals are bodies that the server must refuse, by path.
var refusals = []struct{ path, body string }{
	{"/v1/chat/completions", `{`}, {"/v1/chat/completions", `{"messages":[]}`}, {"/v1/chat/completions", `[]`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"temperature":9}`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]}`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"restore":{"nvis":3}}`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"pattern":"x"}}}}`},
	{"/v1/responses", `{"input":[]}`}, {"/api/chat", `{"messages":[{"role":"robot","content":"a"}]}`}, {"/nowhere", `{}`},
}

// bad sends a request that must be refused.
func (x *runner) bad(ctx context.Context, r *rand.Rand) {
	c := refusals[r.IntN(len(refusals))]
	resp, err := x.send(ctx, c.path, []byte(c.body))
	if err != nil {
		x.fail(ctx, err)
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode < 400 || resp.StatusCode >= 500 {
		x.fail(ctx, fmt.Errorf("%s %s: status %d, want a refusal", c.path, c.body, resp.StatusCode))
		return
	}
	x.mu.Lock()
	x.r.Refused++
	x.mu.Unlock()
}

// attempts is how often compare tries to get an answer to one question.
const attempts = 5

// compare asks every answered question once more, alone and without caches.
func (x *runner) compare(ctx context.Context) error {
	for _, q := range slices.Collect(maps.Keys(x.answers)) {
		ok := false
		for n := 0; !ok && n < attempts; n++ { // the queue may still be full
			if err := ctx.Err(); err != nil {
				return err
			}
			_, ok = x.ask(ctx, &q, false, -1, false)
		}
		if !ok {
			return fmt.Errorf("load: a question alone was not answered: %v", x.r.Errors)
		}
	}
	return nil
}
