package server

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/wire"
)

// smallBody is the largest body, in bytes, that needs no share of the memory for bodies.
const smallBody = 1 << 20

// bodyMemory is how many bodies of the largest size may be in memory at once.
const bodyMemory = 8

// setReadDeadline limits the time in which the rest of a request must arrive. Without a limit, a
// body that nobody reads would hold its connection.
func setReadDeadline(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t) // an in-process request has no deadline
}

// readBody reads and unpacks a request's body of at most --max-body-mb. A large body waits for
// memory; done frees that memory.
func (s *Server) readBody(
	w http.ResponseWriter,
	r *http.Request,
) (body []byte, done func(), err error) {
	limit := s.o.MaxBodyBytes
	if r.ContentLength > limit {
		return nil, nil, s.bodyTooLarge(w)
	}
	plain := http.MaxBytesReader(w, r.Body, limit)
	var in io.Reader = plain
	switch encoding := strings.ToLower(
		strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, nil, s.bodyError(w, r, err)
		}
		in = z
	default:
		w.Header().Set("Accept-Encoding", "gzip")
		return nil, nil, wire.New(http.StatusUnsupportedMediaType, "unsupported_encoding", "",
			"Content-Encoding: got %s, want gzip or none", wire.Quote(encoding))
	}
	var held int64 // reserved all at once: partial reservations could deadlock
	done = func() { s.bodies.Release(held) }
	most := limit
	if r.ContentLength > 0 && in == io.Reader(plain) {
		most = r.ContentLength
	}
	body = make([]byte, 0, min(max(r.ContentLength, 512)+1, smallBody))
	for {
		if len(body) == cap(body) {
			if held == 0 && cap(body) >= smallBody {
				if err := s.bodies.Acquire(r.Context(), most); err != nil {
					return nil, nil, errGone
				}
				held = most
			}
			grown := make([]byte, len(body), min(2*int64(cap(body)), max(most, smallBody)+1))
			copy(grown, body)
			body = grown
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			err = &http.MaxBytesError{Limit: limit}
		case errors.Is(err, io.EOF):
			setReadDeadline(w, time.Time{})
			return body, done, nil
		}
		if err != nil {
			done()
			return nil, nil, s.bodyError(w, r, err)
		}
	}
}

// bodyTooLarge refuses a body without reading the rest of it.
func (s *Server) bodyTooLarge(w http.ResponseWriter) *wire.Error {
	w.Header().Set("Connection", "close")
	s.metrics().rejected("too_large")
	return wire.New(http.StatusRequestEntityTooLarge, "request_too_large", "",
		"the body has more than %d bytes, want at most that (--max-body-mb)", s.o.MaxBodyBytes)
}

// bodyError words an error from reading a body.
func (s *Server) bodyError(w http.ResponseWriter, r *http.Request, err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return s.bodyTooLarge(w)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return wire.New(http.StatusRequestTimeout, "request_timeout", "",
			"the body did not arrive within %v (--read-timeout)", s.o.ReadTimeout)
	case errors.Is(err, gzip.ErrHeader),
		errors.Is(err, gzip.ErrChecksum),
		r.Header.Get("Content-Encoding") != "" && errors.Is(err, io.ErrUnexpectedEOF):
		return wire.Bad("invalid_value", "", "the body is not gzip, as Content-Encoding says")
	case context.Cause(r.Context()) != nil:
		return errGone
	}
	w.Header().Set("Connection", "close")
	return wire.Bad("invalid_value", "", "the body could not be read")
}
