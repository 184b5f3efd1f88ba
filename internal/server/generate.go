package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/ollama"
	"github.com/restore-vlm/restore/internal/openai"
	"github.com/restore-vlm/restore/internal/wire"
)

// handle reads the body of a POST and serves it. An error of serve becomes the reply, unless a
// reply has begun.
func (x *exchange) handle(field string, serve func(b *served, body []byte) (*ask.Request, error)) {
	x.begin()
	defer x.leave()
	x.share = &share{m: x.s.bodies}
	defer x.share.shrink(0)
	body, err := x.readBody()
	x.arrived = time.Now()
	var r *ask.Request
	if err == nil {
		r, err = serve(x.s.backend.Load(), body)
	}
	if err != nil {
		x.fail(x.s.toWire(err, r, field, x.id))
	}
}

// watchEvery is how often the server checks whether a client is still connected.
const watchEvery = 250 * time.Millisecond

// begin sets the context of a request. It ends when the client disconnects, when the request's time
// is over, with the server, and when leave is called.
func (x *exchange) begin() {
	ctx, cancel := context.WithCancelCause(x.r.Context())
	stops := []func() bool{context.AfterFunc(x.s.cut, func() { cancel(errShutdown) })}
	if d := x.s.o.RequestTimeout; d > 0 {
		stops = append(
			stops,
			time.AfterFunc(time.Until(x.start.Add(d)), func() { cancel(errDeadline) }).Stop,
		)
	}
	if c := x.conn(); c != nil {
		go func() {
			t := time.NewTicker(watchEvery)
			defer t.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-t.C:
					if gone(c) {
						cancel(errGone)
					}
				}
			}
		}()
	}
	x.ctx, x.leave = ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(context.Canceled)
	}
}

// load decodes the pictures that are part of the body, so that their errors are reported at once.
// The others are fetched by the backend's call of r.Load. It frees the memory of the body except
// the pictures' part: the request keeps no other part of the body.
func (x *exchange) load(r *ask.Request) error {
	var remote []*ask.Picture
	size := int64(0)
	for p := range r.Pictures() {
		if media.Fetched(p.URL) {
			p.URL = bytes.Clone(p.URL)
			remote = append(remote, p)
			continue
		}
		if err := x.s.loadOne(x.ctx, p); err != nil {
			return err
		}
		size += int64(len(p.Data))
	}
	if len(remote) > 0 {
		r.Load = func(ctx context.Context) error { return x.s.fetch(ctx, remote) }
	}
	r.Format.Schema = bytes.Clone(r.Format.Schema)
	x.share.shrink(size)
	return nil
}

// fetch loads pictures in parallel.
func (s *Server) fetch(ctx context.Context, pics []*ask.Picture) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make([]error, len(pics))
	var wait sync.WaitGroup
	for i, p := range pics {
		wait.Go(func() {
			if failed[i] = s.loadOne(ctx, p); failed[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	var fetched *media.Error
	for _, err := range failed { // a failure cancels the other loads: report it alone
		if errors.As(err, &fetched) {
			return err
		}
	}
	return errors.Join(failed...)
}

func (s *Server) loadOne(ctx context.Context, p *ask.Picture) error {
	data, source, err := s.o.Media.Load(ctx, p.URL)
	if err != nil {
		return &FieldError{Path: p.Path, Err: err}
	}
	p.Data, p.URL = data, nil
	s.metrics().images[source].Inc()
	return nil
}

// loaded loads the pictures of a request and calls f, which passes it to the backend and returns
// when the pictures are prepared. The server then forgets them.
func (x *exchange) loaded(r *ask.Request, f func() error) error {
	err := x.load(r)
	if err == nil {
		r.Tenant, r.Arrived = x.tenant, x.arrived
		err = f()
	}
	for p := range r.Pictures() {
		p.URL, p.Data = nil, nil
	}
	x.share.shrink(0)
	if err != nil {
		return cause(x.ctx, err)
	}
	return nil
}

// cause is why a request's context ended, or err if it did not.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// wait waits for the job's whole answer.
func (x *exchange) wait(j Job) (*ask.Answer, error) {
	a, err := j.Answer()
	if err != nil {
		return nil, cause(x.ctx, err)
	}
	return a, nil
}

// finished logs and counts an answer.
func (x *exchange) finished(r *ask.Request, a *ask.Answer) {
	x.s.metrics().count(a)
	x.s.learn(a)
	before, after, cache := 0, 0, ""
	for _, p := range a.Pictures {
		before += p.Tokens
		after += p.Kept + p.Merged
		if cache == "" || p.Cache == ask.CacheNone {
			cache = string(p.Cache)
		}
	}
	x.line = append(x.line, "prompt", a.Prompt, "cached", a.Cached, "tokens", a.Completion,
		"pictures", fmt.Sprintf("%d→%d", before, after), "cache", cache, "finish", string(a.Finish))
	if x.s.o.LogPrompts {
		x.line = append(x.line, "asked", text(r), "answered", a.Text)
	}
}

// text is the text of a request, without its pictures.
func text(r *ask.Request) string {
	if r.Prompt != nil {
		return r.Prompt.Text
	}
	var out string
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if p.Text != "" {
				out += string(m.Role) + ": " + p.Text + "\n"
			}
		}
	}
	return out
}

// reply says how an API writes an answer.
type reply struct {
	whole func(a *ask.Answer) any
	kind  string // Content-Type of a stream; "" means no stream
	// The following fields are for streams.
	ping  bool // send comments during silence
	begin func(s *stream)
	piece func(s *stream, e *ask.Event)
	end   func(s *stream, a *ask.Answer)
	fail  func(s *stream, e *wire.Error)
}

// answer runs a request and writes its answer or error.
func (x *exchange) answer(b *served, r *ask.Request, how *reply) error {
	var j Job
	err := x.loaded(r, func() (err error) {
		j, err = b.Submit(x.ctx, r)
		return err
	})
	if err != nil {
		return err
	}
	if how.kind != "" {
		return x.follow(j, r, how)
	}
	a, err := x.wait(j)
	if err != nil {
		return err
	}
	x.finished(r, a)
	x.json(http.StatusOK, how.whole(a))
	return nil
}

// follow writes an answer while it is generated, each piece at once; pieces that already wait share
// a write. The job does not wait for the client: it keeps the pieces that the client has not read.
// follow writes nothing before the first piece or the first ping, so that an earlier failure has
// its own status.
func (x *exchange) follow(j Job, r *ask.Request, how *reply) error {
	s := x.stream(how)
	if silence := x.s.o.Ping; silence > 0 && how.ping {
		stop := s.breakSilence(silence, x.leave)
		defer stop()
	}
	var held []ask.Token // tokens without text yet
	for {
		e, more := j.Next()
		if !more {
			break
		}
		if e.Text == "" {
			held = append(held, e.Tokens...)
		} else {
			e.Tokens, held = append(held, e.Tokens...), nil
		}
		if !s.piece(e, j.Ready) {
			break
		}
	}
	return x.finish(j, r, s)
}

// finish writes the end of a streamed answer.
func (x *exchange) finish(j Job, r *ask.Request, s *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		x.leave() // the client no longer reads
		_, _ = j.Answer()
		x.s.metrics().cancelled.Inc()
		return nil
	}
	a, err := x.wait(j)
	switch {
	case err != nil && !s.begun:
		return err
	case err != nil:
		x.broke(s, r, err)
	default:
		s.begin()
		s.how.end(s, a)
		s.write()
		x.finished(r, a)
	}
	return nil
}

// broke reports a failure in mid-stream; the connection ends with the stream.
func (x *exchange) broke(s *stream, r *ask.Request, err error) {
	e := x.s.toWire(err, r, "", x.id)
	if e == nil {
		x.s.metrics().cancelled.Inc()
		return
	}
	if e.Status == http.StatusGatewayTimeout {
		x.s.metrics().rejected("deadline")
	}
	x.line = append(x.line, "code", e.Code)
	s.how.fail(s, e)
	s.write()
}

// serverEvents returns a reply that writes server-sent events.
func serverEvents(o openai.Stream) *reply {
	return &reply{
		kind: "text/event-stream", ping: true,
		begin: func(s *stream) { s.events(o.Begin()) },
		piece: func(s *stream, e *ask.Event) { s.events(o.Piece(e)) },
		end:   func(s *stream, a *ask.Answer) { s.events(o.End(a)) },
		fail:  func(s *stream, e *wire.Error) { s.events(o.Fail(e)) },
	}
}

func (x *exchange) meta(b *served, prefix string) *openai.Meta {
	return &openai.Meta{
		ID:          newID(prefix),
		Created:     x.start.Unix(),
		Model:       b.info.ID,
		Fingerprint: b.info.Fingerprint,
	}
}

func (s *Server) chat(x *exchange) {
	x.handle("messages", func(b *served, body []byte) (*ask.Request, error) {
		q, err := openai.ParseChat(body, s.env(b))
		if err != nil {
			return nil, err
		}
		if e := b.check(q.Model); e != nil {
			return nil, e
		}
		m := x.meta(b, "chatcmpl-")
		how := &reply{whole: func(a *ask.Answer) any { return openai.Chat(m, q.Ask, a) }}
		if q.Stream {
			how = serverEvents(openai.ChatChunks(m, q))
		}
		return q.Ask, x.answer(b, q.Ask, how)
	})
}

func (s *Server) completion(x *exchange) {
	x.handle("prompt", func(b *served, body []byte) (*ask.Request, error) {
		q, err := openai.ParseCompletion(body, s.env(b))
		if err != nil {
			return nil, err
		}
		if e := b.check(q.Model); e != nil {
			return nil, e
		}
		m := x.meta(b, "cmpl-")
		how := &reply{whole: func(a *ask.Answer) any { return openai.Completion(m, q.Ask, a) }}
		if q.Stream {
			how = serverEvents(openai.CompletionChunks(m, q))
		}
		return q.Ask, x.answer(b, q.Ask, how)
	})
}

func (s *Server) response(x *exchange) {
	x.handle("input", func(b *served, body []byte) (*ask.Request, error) {
		q, err := openai.ParseResponse(body, s.env(b))
		if err != nil {
			return nil, err
		}
		if e := b.check(q.Model); e != nil {
			return nil, e
		}
		d := &b.info.Defaults
		m := &openai.ResponseMeta{
			ID:          newID("resp_"),
			MessageID:   newID("msg_"),
			Created:     x.start.Unix(),
			Model:       b.info.ID,
			Temperature: or(q.Ask.Sampling.Temperature, d.Temperature),
			TopP:        or(q.Ask.Sampling.TopP, d.TopP),
		}
		now := func() int64 { return time.Now().Unix() }
		how := &reply{whole: func(a *ask.Answer) any { return openai.Response(m, q, a, now()) }}
		if q.Stream {
			how = serverEvents(openai.ResponseEvents(m, q, now))
		}
		return q.Ask, x.answer(b, q.Ask, how)
	})
}

func or(p *float64, v float64) float64 {
	if p != nil {
		return *p
	}
	return v
}

func (s *Server) ollamaChat(x *exchange)     { s.ollama(x, "messages", ollama.ParseChat) }
func (s *Server) ollamaGenerate(x *exchange) { s.ollama(x, "prompt", ollama.ParseGenerate) }

// ollama answers Ollama's routes.
func (s *Server) ollama(
	x *exchange,
	field string,
	parse func([]byte, *ollama.Env) (*ollama.Request, error),
) {
	x.handle(field, func(b *served, body []byte) (*ask.Request, error) {
		q, err := parse(body, &ollama.Env{Env: *s.env(b), Context: b.info.Context})
		if err != nil {
			return nil, err
		}
		if e := b.ollamaCheck(q.Model); e != nil {
			return nil, e
		}
		p := &ollama.Reply{
			Model:    b.info.ID,
			Generate: field == "prompt",
			Now:      time.Now,
		}
		if q.Load {
			x.json(http.StatusOK, p.Loaded())
			return nil, nil
		}
		how := &reply{whole: func(a *ask.Answer) any { return p.Whole(q.Ask, a) }}
		if q.Stream {
			how = &reply{kind: "application/x-ndjson",
				begin: func(*stream) {},
				piece: func(s *stream, e *ask.Event) { s.pending.WriteString(p.Piece(e) + "\n") },
				end:   func(s *stream, a *ask.Answer) { s.line(p.End(q.Ask, a)) },
				fail:  func(s *stream, e *wire.Error) { s.line(ollama.Error(e)) },
			}
		}
		return q.Ask, x.answer(b, q.Ask, how)
	})
}
