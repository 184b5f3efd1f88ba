// Package client asks a server of this program over HTTP. It needs the server's extensions of
// OpenAI's API.
package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/web"
)

// Client is a [restore.Service] at a URL.
type Client struct {
	url, key string
	info     restore.Info
}

// New returns a client of the server at url, which may end in /v1. key may be empty.
func New(ctx context.Context, url, key string) (*Client, error) {
	c := &Client{url: url, key: key}
	resp, err := c.send(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var models struct {
		Data []struct{ ID string }
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(&models); err != nil ||
		len(models.Data) == 0 {
		return nil, c.strange("models")
	}
	c.info.ID = models.Data[0].ID
	c.info.Name = c.info.ID
	return c, nil
}

// Info implements [restore.Service]. It has the model's name alone.
func (c *Client) Info() *restore.Info { return &c.info }

// maxReply is the length in bytes of the longest reply, or event of one.
const maxReply = 64 << 20

type object = map[string]any

// body returns the fields of a request that OpenAI's API has.
func body(r *restore.Request) (object, error) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"raw", r.Raw}, {"tokens", r.Tokens != nil}, {"logprobs", r.Logprobs},
		{"format", r.Format.Object || r.Format.Schema != nil}, {"groups", r.Groups},
		{"ctx-size", r.Context > 0},
	} {
		if f.given {
			return nil, &errs.OptionError{Name: f.name, Got: "a value", Fault: errs.Useless,
				Why: "for a server"}
		}
	}
	said, err := r.Dialogue()
	if err != nil {
		return nil, err
	}
	own := object{}
	if r.Reduction != nil {
		data, err := json.Marshal(r.Reduction)
		if err == nil {
			err = json.Unmarshal(data, &own)
		}
		if err != nil {
			return nil, err
		}
	}
	if r.NoCache {
		own["cache"] = false
	}
	if r.Salt != "" {
		own["cache_salt"] = r.Salt
	}
	b := object{"restore": own, "temperature": r.Sampling.Temperature}
	if s := &r.Sampling; s.Temperature > 0 {
		b["top_k"], b["top_p"], b["min_p"], b["seed"] = s.TopK, s.TopP, s.MinP, s.Seed
	}
	penalties(b, &r.Sampling.Penalties)
	if r.MaxTokens > 0 {
		b["max_tokens"] = r.MaxTokens
	}
	if r.Stop != nil {
		b["stop"] = r.Stop
	}
	if r.IgnoreEnd {
		b["ignore_eos"] = true
	}
	b["messages"], err = messages(said)
	return b, err
}

// penalties adds the fields of penalties to a body.
func penalties(b object, p *restore.Penalties) {
	b["frequency_penalty"], b["presence_penalty"] = p.Frequency, p.Presence
	if p.Repeat != 0 {
		b["repeat_penalty"] = p.Repeat
	}
	if p.RepeatLast != 0 {
		b["repeat_last_n"] = p.RepeatLast
	}
	if len(p.Bias) > 0 {
		var pairs [][2]any
		for _, id := range slices.Sorted(maps.Keys(p.Bias)) {
			if v := p.Bias[id]; v == restore.Forbidden {
				pairs = append(pairs, [2]any{id, false})
			} else {
				pairs = append(pairs, [2]any{id, v})
			}
		}
		b["logit_bias"] = pairs
	}
}

// messages are the messages of a body.
func messages(said []restore.Message) (out []object, err error) {
	for _, m := range said {
		var parts []object
		for _, p := range m.Parts {
			if p.Picture == nil {
				parts = append(parts, object{"type": "text", "text": p.Text})
				continue
			}
			file, err := p.Picture.File()
			if err != nil {
				return nil, err
			}
			u := object{"url": "data:;base64," + base64.StdEncoding.EncodeToString(file)}
			if p.Reduction != nil {
				u["restore"] = p.Reduction
			}
			parts = append(parts, object{"type": "image_url", "image_url": u})
		}
		out = append(out, object{"role": m.Role, "content": parts})
	}
	return out, nil
}

// Count implements [restore.Service].
func (c *Client) Count(ctx context.Context, r *restore.Request) (*restore.Answer, error) {
	if err := r.Load(ctx); err != nil {
		return nil, err
	}
	b, err := body(r)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, http.MethodPost, "/tokenize",
		object{"messages": b["messages"], "restore": b["restore"]})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var counted struct {
		Count   int
		Image   int `json:"image_tokens"`
		Restore *api.Extension
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(&counted)
	if err != nil || counted.Restore == nil {
		return nil, c.strange("count of tokens")
	}
	a := api.Report(counted.Restore, nil)
	a.Usage.Prompt, a.Usage.Image = counted.Count, counted.Image
	return a, nil
}

// Submit implements [restore.Service]. Errors that only the server finds may come with the answer.
func (c *Client) Submit(ctx context.Context, r *restore.Request) (restore.Job, error) {
	if err := r.Load(ctx); err != nil {
		return nil, err
	}
	b, err := body(r)
	if err != nil {
		return nil, err
	}
	b["stream"] = true
	resp, err := c.send(ctx, http.MethodPost, "/v1/chat/completions", b)
	if err != nil {
		return nil, err
	}
	j := &job{c: c, ctx: ctx, pieces: make(chan *restore.Piece, 1<<10), done: make(chan struct{})}
	go j.read(resp.Body)
	return j, nil
}

// job reads the answer to a request.
type job struct {
	c      *Client
	ctx    context.Context
	pieces chan *restore.Piece
	done   chan struct{}
	a      *restore.Answer
	err    error
}

// Next implements [restore.Job].
func (j *job) Next() (*restore.Piece, bool) {
	p, ok := <-j.pieces
	return p, ok
}

// Ready implements [restore.Job].
func (j *job) Ready() bool { return len(j.pieces) > 0 }

// Answer implements [restore.Job].
func (j *job) Answer() (*restore.Answer, error) {
	for range j.pieces {
	}
	<-j.done
	return j.a, j.err
}

// event is one event of a stream.
type event struct {
	Choices []struct {
		Delta  struct{ Content string }
		Finish *restore.Finish `json:"finish_reason"`
	}
	Timings *api.Timings
	Restore *api.Extension
	Error   *Error
}

// read reads the events of an answer.
func (j *job) read(body io.ReadCloser) {
	defer close(j.done)
	defer close(j.pieces)
	defer body.Close()
	var text strings.Builder
	var finish restore.Finish
	last := new(event)
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if last.Timings == nil || last.Restore == nil {
				j.err = j.c.strange("answer with timings")
				return
			}
			j.a = api.Report(last.Restore, last.Timings)
			j.a.Text, j.a.Finish = text.String(), finish
			return
		}
		last = new(event)
		if err := json.Unmarshal([]byte(data), last); err != nil {
			j.err = fmt.Errorf("%s: an event that is no JSON: %w", j.c.url, err)
			return
		}
		if last.Error != nil {
			last.Error.from, j.err = j.c.url, last.Error
			return
		}
		for _, c := range last.Choices {
			if c.Finish != nil {
				finish = *c.Finish
			}
			if c.Delta.Content == "" {
				continue
			}
			text.WriteString(c.Delta.Content)
			select {
			case j.pieces <- &restore.Piece{Text: c.Delta.Content}:
			case <-j.ctx.Done():
				j.err = context.Cause(j.ctx)
				return
			}
		}
	}
	if j.err = context.Cause(j.ctx); j.err == nil {
		j.err = fmt.Errorf("%s: the answer ended too early: %w", j.c.url,
			errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
}

// Error is an error that a server reported.
type Error struct {
	Message, Code string
	PromptTokens  int `json:"n_prompt_tokens"`
	Positions     int `json:"n_positions"`
	Context       int `json:"n_ctx"`

	from string
}

// Error names the server.
func (e *Error) Error() string { return e.from + ": " + e.Message }

// Unwrap returns the error of this program that the server met, if there is one.
func (e *Error) Unwrap() error {
	if e.Code != "context_length_exceeded" {
		return nil
	}
	return &errs.ContextError{
		PromptTokens: e.PromptTokens, Positions: e.Positions, Context: e.Context,
	}
}

// strange is the error for a reply of another server.
func (c *Client) strange(want string) error {
	return fmt.Errorf("%s: got no %s, want what restore serve gives", c.url, want)
}

// send sends a request. The reply is not an error.
func (c *Client) send(
	ctx context.Context, method, path string, body object,
) (*http.Response, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	at := strings.TrimSuffix(strings.TrimSuffix(c.url, "/"), "/v1")
	req, err := web.JSON(ctx, method, at+path, c.key, data)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("--server: %w", err)
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	defer resp.Body.Close()
	var failed event
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxReply)) // use the part that arrived
	if json.Unmarshal(text, &failed) != nil || failed.Error == nil {
		return nil, fmt.Errorf("%s: got status %s, want an answer as restore serve gives", c.url,
			resp.Status)
	}
	failed.Error.from = c.url
	return nil, failed.Error
}
