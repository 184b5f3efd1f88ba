package server

import (
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/wire"
)

// Sizes of bodies, in bytes: firstBytes is allocated before anything has arrived, and a small body
// needs no share of the memory for bodies.
const (
	firstBytes = 32 << 10
	smallBody  = 1 << 20
)

// bodyMemory is how many bodies of the largest size may be in memory at once, copies included.
const bodyMemory = 8

// bodyShare is the part of Options.MemoryBytes that bodies may take.
const bodyShare = 4

// newBodies returns the memory for bodies. A body may need twice its size: a copy is made as it
// grows, and its texts and pictures are copies.
func newBodies(o *Options) *memory {
	largest := max(o.MaxBodyBytes, smallBody) + 1
	size := bodyMemory * largest
	if o.MemoryBytes > 0 {
		size = max(2*largest, min(size, o.MemoryBytes/bodyShare))
	}
	return newMemory(size, 2*largest)
}

// leastRate is how many bytes of a body must arrive per second. Each part of the time for a body
// (paceParts) must bring that many, or the rest of the body.
const (
	leastRate = 2048
	paceParts = 6
)

// pace demands that a body arrives in time and at the least rate. Only the time counts in which the
// server waits for bytes, not that in which it waits for memory or writes to a disk.
type pace struct {
	limit  time.Duration // for the whole body; 0: no limit
	whole  time.Duration // left for the whole body
	window time.Duration // left for the missing bytes
	missed int64         // bytes of this window that have not arrived
	long   bool          // the whole body has no limit
}

func newPace(limit time.Duration) *pace {
	p := &pace{limit: limit, whole: limit}
	p.next()
	return p
}

// part is the time in which quota bytes must arrive.
func (p *pace) part() time.Duration { return p.limit / paceParts }

func (p *pace) quota() int64 { return max(1, int64(leastRate*p.part().Seconds())) }

// next begins a window.
func (p *pace) next() { p.window, p.missed = p.part(), p.quota() }

// got counts n bytes that have arrived within a time of waiting for them.
func (p *pace) got(n int, within time.Duration) {
	p.whole -= within
	p.window -= within
	if p.missed -= int64(n); p.missed <= 0 {
		p.next()
	}
}

// left is the time for the next byte to arrive.
func (p *pace) left() time.Duration {
	if p.over() {
		return p.whole
	}
	return p.window
}

// over reports whether the time for the whole body ends before the window.
func (p *pace) over() bool { return !p.long && p.whole < p.window }

// late says what is wrong with a body whose next byte did not arrive in the time left.
func (p *pace) late() string {
	if p.over() {
		return fmt.Sprintf("the body did not arrive within %v (--read-timeout)", p.limit)
	}
	return fmt.Sprintf("the body arrives too slowly: got %d bytes in %v, want at least %d, or "+
		"the rest, in each such time (a sixth of --read-timeout)",
		p.quota()-p.missed, p.part(), p.quota())
}

// setReadDeadline limits the time in which the rest of a request must arrive. Without a limit, a
// body that nobody reads would hold its connection.
func setReadDeadline(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t) // an in-process request has no deadline
}

// arriving reads a body from the connection, at its pace.
type arriving struct {
	io.Reader
	*pace
	w http.ResponseWriter
}

// Read implements io.Reader.
func (a *arriving) Read(b []byte) (int, error) {
	start := time.Now()
	if a.limit > 0 {
		setReadDeadline(a.w, start.Add(a.left()))
	}
	n, err := a.Reader.Read(b)
	a.got(n, time.Since(start))
	return n, err
}

// readBody reads and unpacks the body, of at most --max-body-mb. Where it grows beyond a small body
// it waits for memory.
func (x *exchange) readBody() ([]byte, error) {
	limit := x.s.o.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, x.bodyTooLarge()
	}
	plain := &arriving{
		http.MaxBytesReader(x.w, x.r.Body, limit), newPace(x.s.o.ReadTimeout), x.w,
	}
	in, err := x.unpacked(plain)
	if err != nil {
		return nil, err
	}
	most := limit
	if x.r.ContentLength > 0 && in == io.Reader(plain) {
		most = x.r.ContentLength
	}
	body := make([]byte, 0, min(max(x.r.ContentLength, 512)+1, firstBytes))
	for {
		if len(body) == cap(body) {
			size := min(2*int64(cap(body)), most+1)
			if err := x.growBody(size, int64(cap(body))); err != nil {
				return nil, err
			}
			grown := make([]byte, len(body), size)
			copy(grown, body)
			body = grown
			x.share.drop(size)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			err = &http.MaxBytesError{Limit: limit}
		case errors.Is(err, io.EOF):
			setReadDeadline(x.w, time.Time{})
			if err := x.growBody(int64(cap(body)), int64(len(body))); err != nil {
				return nil, err
			}
			return body, nil
		}
		if err != nil {
			return nil, x.bodyError(err, plain.pace)
		}
	}
}

// growBody waits until a body of size bytes may be in memory, and copies of some bytes. Meanwhile
// the body has no deadline, after which HTTP/2 would read no more of it.
func (x *exchange) growBody(size, copies int64) error {
	if size <= smallBody {
		return nil
	}
	setReadDeadline(x.w, time.Time{})
	err := x.share.grow(x.ctx, size+copies)
	if err != nil {
		x.w.Header().Set("Connection", "close")
		setReadDeadline(x.w, time.Now()) // the rest is not read
	}
	return err
}

// unpacked returns the reader of the body without its encoding.
func (x *exchange) unpacked(plain *arriving) (io.Reader, error) {
	switch encoding := strings.ToLower(strings.TrimSpace(
		x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return plain, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, x.bodyError(err, plain.pace)
		}
		return z, nil
	default:
		x.w.Header().Set("Accept-Encoding", "gzip")
		return nil, wire.New(http.StatusUnsupportedMediaType, "unsupported_encoding", "",
			"Content-Encoding: got %s, want gzip or none", wire.Quote(encoding))
	}
}

// bodyTooLarge refuses a body without reading the rest of it.
func (x *exchange) bodyTooLarge() *wire.Error {
	x.w.Header().Set("Connection", "close")
	x.s.metrics().rejected("too_large")
	return wire.New(http.StatusRequestEntityTooLarge, "request_too_large", "",
		"the body has more than %d bytes, want at most that (--max-body-mb)", x.s.o.MaxBodyBytes)
}

// bodyError words an error from reading a body at a pace.
func (x *exchange) bodyError(err error, p *pace) error {
	var large *http.MaxBytesError
	var corrupt flate.CorruptInputError
	zipped := x.r.Header.Get("Content-Encoding") != ""
	switch {
	case errors.As(err, &large):
		return x.bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.w.Header().Set("Connection", "close")
		return wire.New(http.StatusRequestTimeout, "request_timeout", "", "%s", p.late())
	case errors.Is(err, gzip.ErrHeader),
		errors.Is(err, gzip.ErrChecksum),
		errors.As(err, &corrupt),
		zipped && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return wire.Bad("invalid_value", "", "the body is not gzip, as Content-Encoding says")
	case context.Cause(x.r.Context()) != nil:
		return errGone
	}
	x.w.Header().Set("Connection", "close")
	return wire.Bad("invalid_value", "", "the body could not be read")
}
