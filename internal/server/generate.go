package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// handle reads the body of a POST and serves it. An error of serve becomes the reply, unless a
// reply has begun.
func (x *exchange) handle(serve func(f *api.Front, body []byte) (*api.Call, error)) {
	x.begin()
	defer x.leave()
	x.share = x.s.bodies.share()
	defer x.share.end()
	body, err := x.readBody()
	x.arrived = time.Now()
	var c *api.Call
	if err == nil {
		c, err = serve(x.s.front.Load(), body)
	}
	if err != nil {
		x.fail(x.s.toWire(err, c, x.id))
	}
}

// answers answers the calls that parse reads.
func answers(parse api.Parse) func(*exchange) {
	return func(x *exchange) {
		x.handle(func(f *api.Front, body []byte) (*api.Call, error) {
			c, err := parse(body, f)
			switch {
			case err != nil:
				return c, err
			case c.Idle:
				x.json(http.StatusOK, c.Whole(nil))
				return c, nil
			}
			return c, x.answer(f, c)
		})
	}
}

// watchEvery is how often the server checks whether a client is still connected.
const watchEvery = 250 * time.Millisecond

// begin sets the context of a request. It ends when the client disconnects, when the request's time
// is over, with the server, and when leave is called.
func (x *exchange) begin() {
	ctx, cancel := context.WithCancelCause(wire.WithRequestID(x.r.Context(), x.id))
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

// loaded loads the pictures of a call and calls f, which passes it to the service and returns when
// the pictures are prepared. The server then forgets them. It frees the memory of the body, except
// what pictures and texts take: the call keeps no more of the body.
func (x *exchange) loaded(f *api.Front, c *api.Call, submit func() error) error {
	size, err := c.Load(x.ctx, f)
	if err == nil {
		x.share.shrink(size)
		if c.Arrived = x.arrived; x.tenant+c.Salt != "" && !c.NoCache {
			c.Salt = x.tenant + "\x00" + c.Salt
		}
		err = submit()
	}
	c.Forget()
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
func (x *exchange) wait(j restore.Job) (*restore.Answer, error) {
	a, err := j.Answer()
	if err != nil {
		return nil, cause(x.ctx, err)
	}
	return a, nil
}

// finished logs and counts an answer.
func (x *exchange) finished(c *api.Call, a *restore.Answer) {
	x.s.metrics().count(a)
	x.s.learn(a)
	before, after, cache := 0, 0, ""
	for _, p := range a.Pictures {
		before += p.Tokens
		after += p.Kept + p.Merged
		if cache == "" || p.Cache == restore.CacheNone {
			cache = string(p.Cache)
		}
	}
	x.line = append(x.line, "prompt", a.Usage.Prompt, "cached", a.Usage.Cached,
		"tokens", a.Usage.Generated, "pictures", fmt.Sprintf("%d→%d", before, after),
		"cache", cache, "finish", string(a.Finish))
	if a.Worker != "" {
		x.line = append(x.line, "worker", a.Worker)
	}
	if x.s.o.LogPrompts {
		x.line = append(x.line, "asked", text(c), "answered", a.Text)
	}
}

// text is the text of a request, without its pictures.
func text(c *api.Call) string {
	if c.Raw {
		return c.Prompt
	}
	var out string
	for _, m := range c.Messages {
		for _, p := range m.Parts {
			if p.Text != "" {
				out += string(m.Role) + ": " + p.Text + "\n"
			}
		}
	}
	return out
}

// answer runs a call and writes its answer or error.
func (x *exchange) answer(f *api.Front, c *api.Call) error {
	var j restore.Job
	err := x.loaded(f, c, func() (err error) {
		j, err = f.Submit(x.ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	if c.Stream {
		return x.follow(j, c)
	}
	a, err := x.wait(j)
	if err != nil {
		return err
	}
	x.finished(c, a)
	x.json(http.StatusOK, c.Whole(a))
	return nil
}

// follow writes an answer while it is generated, each piece at once; pieces that already wait share
// a write. The job does not wait for the client: it keeps the pieces that the client has not read.
// follow writes nothing before the first piece or the first ping, so that an earlier failure has
// its own status.
func (x *exchange) follow(j restore.Job, c *api.Call) error {
	s := x.stream(c)
	if silence := x.s.o.Ping; silence > 0 && x.api.Stream == api.EventStream {
		stop := s.breakSilence(silence, x.leave)
		defer stop()
	}
	for p, more := j.Next(); more && s.piece(p, j.Ready); p, more = j.Next() {
	}
	return x.finish(j, s)
}

// finish writes the end of a streamed answer.
func (x *exchange) finish(j restore.Job, s *stream) error {
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
		x.broke(s, err)
	default:
		s.begin()
		s.add(s.call.Events.End(a))
		s.write()
		x.finished(s.call, a)
	}
	return nil
}

// broke reports a failure in mid-stream; the connection ends with the stream.
func (x *exchange) broke(s *stream, err error) {
	e := x.s.toWire(err, s.call, x.id)
	if e == nil {
		x.s.metrics().cancelled.Inc()
		return
	}
	if e.Status == http.StatusGatewayTimeout {
		x.s.metrics().rejected("deadline")
	}
	x.line = append(x.line, "code", e.Code)
	e.RequestID = x.id
	s.add(s.call.Events.Fail(e))
	s.write()
}
