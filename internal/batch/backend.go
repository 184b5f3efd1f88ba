package batch

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/protocols"
	"github.com/restore-vlm/restore/internal/wire"
)

// Backend answers requests. It is safe for concurrent use.
type Backend interface {
	// Do answers r. An error means that there is no answer and that the request may be asked again;
	// a refusal is a Response.
	Do(ctx context.Context, r *Request) (*Response, error)
}

// Service is a backend that asks a service.
type Service struct {
	Front *api.Front
	Log   *slog.Logger
	// Background lets all requests of others go first.
	Background bool
	// Unable reports whether an error is the service's and would meet every request; nil: none is.
	Unable func(error) bool
	// Salt keeps the caches apart from those of other salts.
	Salt string
}

// Do implements [Backend]. While the service is full or has no worker, Do asks again after the time
// that it names.
func (s Service) Do(ctx context.Context, r *Request) (*Response, error) {
	out := &Response{Status: http.StatusOK, RequestID: api.NewID("req_")}
	body, err := s.answer(wire.WithRequestID(ctx, out.RequestID), r)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	var e *wire.Error
	switch {
	case errors.As(err, &e):
		out.Status, out.Code, body = e.Status, e.Code, protocols.Of(r.URL).Error(e)
	case err != nil:
		return nil, err
	}
	out.Body, err = wire.Marshal(body)
	return out, err
}

// answer returns the reply to r. An error of the request is a *[wire.Error].
func (s Service) answer(ctx context.Context, r *Request) (any, error) {
	parse, err := route(r)
	if err != nil {
		return nil, err
	}
	c, err := parse(r.Body, s.Front)
	switch {
	case err != nil:
		return nil, err
	case c.Stream && streams(r.Body):
		return nil, wire.Bad("invalid_value", "stream",
			"got true, want false: a line of a batch has one answer")
	case c.Idle:
		return c.Whole(nil), nil
	}
	c.Draw(binary.LittleEndian.Uint64(r.Key[:])) // the same after a kill
	a, err := s.ask(ctx, c)
	if err == nil {
		return c.Whole(a), nil
	}
	if e := c.Error(err); e != nil {
		return nil, e
	}
	if errors.Is(err, errs.ErrClosed) || context.Cause(ctx) != nil ||
		s.Unable != nil && s.Unable(err) {
		return nil, err
	}
	s.Log.Error("request failed", "line", r.Line+1, "error", err)
	return nil, wire.New(http.StatusInternalServerError, "internal_error", "",
		"internal error; the log says more about line %d", r.Line+1)
}

// route returns the parser of a request.
func route(r *Request) (api.Parse, error) {
	if u, err := url.Parse(r.URL); err == nil && u.Host == "" {
		path := strings.TrimSuffix(u.Path, "/")
		switch parse := protocols.Of(path).Calls[path]; {
		case parse == nil:
		case r.Method == http.MethodPost:
			return parse, nil
		default:
			return nil, wire.New(http.StatusMethodNotAllowed, "method_not_allowed", "method",
				"method: got %s, want POST", wire.Clip(r.Method))
		}
	}
	return nil, wire.Bad("invalid_value", "url", "got %s, want %s", wire.Quote(r.URL),
		strings.Join(slices.Sorted(maps.Keys(protocols.Calls())), ", "))
}

// ask asks the service until it has a place for the call.
func (s Service) ask(ctx context.Context, c *api.Call) (*restore.Answer, error) {
	defer c.Forget()
	if _, err := c.Load(ctx, s.Front); err != nil {
		return nil, err
	}
	if c.Background = s.Background; s.Salt+c.Salt != "" && !c.NoCache {
		c.Salt = s.Salt + "\x00" + c.Salt
	}
	for {
		j, err := s.Front.Submit(ctx, c)
		if err == nil {
			if !s.Background {
				c.Forget()
			}
			a, err := j.Answer()
			if !errors.Is(err, errs.ErrYielded) {
				return a, err
			}
			continue
		}
		e := c.Error(err)
		if e == nil || e.RetryAfter == 0 {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(e.RetryAfter) * time.Second):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// streams reports whether a body requests a stream of events; Ollama's calls stream unless they say
// otherwise, which does not count here.
func streams(body []byte) bool {
	var b struct {
		Stream json.RawMessage `json:"stream"`
	}
	return json.Unmarshal(bytes.TrimPrefix(body, []byte("\uFEFF")), &b) == nil &&
		string(b.Stream) == "true"
}
