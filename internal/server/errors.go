package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// The reasons why a request ends early.
var (
	errDeadline = errors.New("the time of a request is over")
	errShutdown = errors.New("the server is shutting down")
	errGone     = errors.New("the client is gone")
)

// toWire words an error for a client; nil means that the client is gone. c is nil if the body was
// not read.
func (s *Server) toWire(err error, c *api.Call, id string) *wire.Error {
	var e *wire.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errGone), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, errDeadline):
		return wire.New(http.StatusGatewayTimeout, "deadline_exceeded", "",
			"the request took longer than %v (--request-timeout)", s.o.RequestTimeout)
	case errors.Is(err, errShutdown), errors.Is(err, errs.ErrClosed):
		return shuttingDown()
	}
	if e = c.Error(err); e != nil {
		return e
	}
	s.log.Error("request failed", "id", id, "error", err)
	return wire.New(http.StatusInternalServerError, "internal_error", "",
		"internal error; the server's log says more under request id %s", id)
}

func shuttingDown() *wire.Error {
	e := wire.New(http.StatusServiceUnavailable, "shutting_down", "", "the server is shutting down")
	e.RetryAfter = 5
	return e
}

func loading() *wire.Error {
	e := wire.New(http.StatusServiceUnavailable, "loading", "", "the model is being loaded")
	e.RetryAfter = 1
	return e
}
