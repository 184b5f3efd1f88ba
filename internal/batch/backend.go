package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Backend answers requests. It is safe for concurrent use.
type Backend interface {
	// Do answers r. An error means that there is no answer and that the request may be asked again;
	// a refusal is a Response.
	Do(ctx context.Context, r *Request) (*Response, error)
}

// Handler is a backend that calls an HTTP handler in this process.
type Handler struct {
	http.Handler
}

// Do implements [Backend]. If the handler is full or shutting down (429, 503), Do asks again after
// the time that it names. When ctx ends, whatever the cause, the handler sees a client that is
// gone.
func (h Handler) Do(ctx context.Context, r *Request) (*Response, error) {
	if streams(r.Body) {
		return refuse(http.StatusBadRequest, "stream",
			"stream: got true, want false: a line of a batch has one answer"), nil
	}
	client, gone := context.WithCancel(context.WithoutCancel(ctx))
	defer gone()
	defer context.AfterFunc(ctx, gone)()
	for {
		q, err := http.NewRequestWithContext(client, r.Method, r.URL, bytes.NewReader(r.Body))
		if err != nil || q.URL.Host != "" || q.URL.Path == "" || q.URL.Path[0] != '/' {
			return refuse(http.StatusBadRequest, "url",
				fmt.Sprintf("url: got %.80q, want a path, as in /v1/chat/completions", r.URL)), nil
		}
		q.Host, q.RemoteAddr = "localhost", "127.0.0.1:0"
		q.Header.Set("Content-Type", "application/json")
		w := recorder{header: http.Header{}}
		h.serve(&w, q)
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if w.status == http.StatusTooManyRequests || w.status == http.StatusServiceUnavailable {
			seconds, _ := strconv.Atoi(w.header.Get("Retry-After"))
			select {
			case <-time.After(time.Duration(max(1, seconds)) * time.Second):
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		body := bytes.TrimSpace(w.body.Bytes())
		if !json.Valid(body) {
			return refuse(http.StatusBadRequest, "url",
				fmt.Sprintf("url: got %.80q, whose answers are no JSON", r.URL)), nil
		}
		var line bytes.Buffer // one line
		if err := json.Compact(&line, body); err != nil {
			return nil, err
		}
		return &Response{
			Status: w.status, RequestID: w.header.Get("X-Request-Id"), Body: line.Bytes(),
		}, nil
	}
}

// serve calls the handler, which panics when nobody is left to answer.
func (h Handler) serve(w *recorder, q *http.Request) {
	defer func() {
		if fault := recover(); fault != nil && fault != http.ErrAbortHandler {
			panic(fault)
		}
	}()
	h.ServeHTTP(w, q)
}

// streams reports whether a body requests a stream of events.
func streams(body []byte) bool {
	var b struct {
		Stream json.RawMessage `json:"stream"`
	}
	return json.Unmarshal(body, &b) == nil && string(b.Stream) == "true"
}

// refuse returns a refusal in the server's wording.
func refuse(status int, param, message string) *Response {
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"message": message, "type": "invalid_request_error", "param": param,
		"code": "invalid_value"}})
	if err != nil {
		panic("batch: " + err.Error()) // strings only
	}
	return &Response{Status: status, RequestID: newID("req_"), Body: body}
}

// recorder is a ResponseWriter in memory.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}
