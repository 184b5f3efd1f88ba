package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/wire"
)

// The reasons why a request ends early.
var (
	errDeadline = errors.New("the time of a request is over")
	errShutdown = errors.New("the server is shutting down")
	errGone     = errors.New("the client is gone")
)

// FieldError is an error about a field of a request, under its path.
type FieldError struct {
	Path    string // of the object that holds the option, or of the field if Err is about no option
	Err     error
	Decimal bool // the option takes fractions
}

// Error returns the path and the cause.
func (e *FieldError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

// FullError is returned when the queue is full. It wraps [errs.ErrQueueFull].
type FullError struct {
	Running, Waiting int
	RetryAfter       int // seconds
}

// Error names the number of running and waiting requests.
func (e *FullError) Error() string {
	return fmt.Sprintf("the queue is full: %d run and %d wait", e.Running, e.Waiting)
}

// Unwrap returns errs.ErrQueueFull.
func (e *FullError) Unwrap() error { return errs.ErrQueueFull }

// toWire words an error for a client; nil means that the client is gone. r is the request, field
// the name of its question: messages, prompt or input.
func (s *Server) toWire(err error, r *ask.Request, field, id string) *wire.Error {
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
	case errors.Is(err, errs.ErrQueueFull):
		return queueFull(err)
	}
	if e = requestError(err, r, field); e != nil {
		return e
	}
	s.log.Error("request failed", "id", id, "error", err)
	return wire.New(http.StatusInternalServerError, "internal_error", "",
		"internal error; the server's log says more under request id %s", id)
}

// Refusal words the error with which a backend refuses a request. It returns nil if the error is
// not the request's fault.
func Refusal(err error, r *ask.Request) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return requestError(err, r, "")
}

// requestError words a fault of the request; it returns nil for any other error.
func requestError(err error, r *ask.Request, field string) *wire.Error {
	at := new(FieldError)
	errors.As(err, &at)
	path := at.Path
	var (
		fetched *media.Error
		picture *errs.PictureError
		option  *errs.OptionError
		context *errs.ContextError
		memory  *errs.MemoryError
		schema  *grammar.Error
	)
	switch {
	case errors.As(err, &fetched):
		return wire.Bad(string(fetched.Code), path, "%s%s", fetched.Text, limitFlag(fetched.Code))
	case errors.As(err, &schema):
		return wire.Bad("invalid_json_schema", r.Format.Path, "%v", schema)
	case errors.As(err, &picture):
		return pictureError(picture, path)
	case errors.As(err, &context):
		return contextError(context, field)
	case errors.As(err, &memory):
		e := wire.Bad("context_length_exceeded", field, "%v (--kv-mb)", memory)
		return e
	case errors.As(err, &option):
		return optionError(option, path, at.Decimal)
	}
	return nil
}

// limitFlag names the flag of the limit that a picture's file exceeds.
func limitFlag(code media.Code) string {
	switch code {
	case media.TooLarge:
		return " (--max-image-mb)"
	case media.NotAllowed:
		return " (--allowed-media-domains, --media-path)"
	}
	return ""
}

func pictureError(e *errs.PictureError, path string) *wire.Error {
	switch e.Fault {
	case errs.UnknownFormat:
		return wire.Bad("unsupported_image_media_type", path,
			"%s, want PNG, JPEG, WebP, GIF or BMP", said(e.Err))
	case errs.EmptyPicture:
		return wire.Bad("empty_image_file", path, "%s", said(e.Err))
	case errs.TooManyPixels:
		return wire.Bad("image_too_large",
			path, "got %d x %d = %d pixels, want at most %d (--max-image-pixels)", e.Width,
			e.Height, e.Got, e.Limit)
	case errs.TooManyBytes:
		return wire.Bad("image_file_too_large", path,
			"got %d bytes, want at most %d (--max-image-mb)", e.Got, e.Limit)
	case errs.BadShape:
		return wire.Bad("invalid_value", path, "%s", said(e.Err))
	}
	return wire.Bad("image_parse_error", path, "%s", said(e.Err))
}

// said is the text of an error of the package that decodes pictures, without the package's and the
// file's name and without the formats that commands read.
func said(err error) string {
	text := strings.TrimPrefix(err.Error(), "imageproc: picture: ")
	text, _, _ = strings.Cut(text, "; supported: ")
	return text
}

func contextError(e *errs.ContextError, field string) *wire.Error {
	if e.Bytes > 0 {
		w := wire.Bad("context_length_exceeded", field,
			"got %d bytes of text, want at most %d for the context of %d positions",
			e.Bytes, e.MostBytes, e.Context)
		w.Context = e.Context
		return w
	}
	hint := ""
	if e.Positions > e.PromptTokens {
		hint = "; with original positions a reduced picture still spans its own, " +
			"so fewer pictures or \"positions\": \"sequential\" in restore would do"
	}
	w := wire.Bad("context_length_exceeded", field,
		"the prompt spans %d positions in %d tokens, want at most the context's %d%s",
		e.Positions, e.PromptTokens, e.Context, hint)
	w.PromptTokens, w.Positions, w.Context = e.PromptTokens, e.Positions, e.Context
	return w
}

// optionError words an error about an option of a reduction or of sampling; path is the path of its
// object.
func optionError(e *errs.OptionError, path string, decimal bool) *wire.Error {
	name := strings.ReplaceAll(e.Name, "-", "_")
	if path != "" {
		name = path + "." + name
	}
	code := "invalid_value"
	kind := "integer"
	if decimal {
		kind = "decimal"
	}
	switch e.Fault {
	case errs.TooSmall:
		code = kind + "_below_min_value"
	case errs.TooLarge:
		code = kind + "_above_max_value"
	case errs.Unknown:
		code = "unknown_parameter"
	case errs.Missing:
		code = "missing_required_parameter"
	}
	return wire.New(http.StatusBadRequest, code, name, "%s", e.Text(name))
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

func queueFull(err error) *wire.Error {
	e := wire.New(http.StatusTooManyRequests, "queue_full", "", "%v (--queue)", err)
	e.RetryAfter = 1
	var full *FullError
	if errors.As(err, &full) {
		e.RetryAfter = max(1, full.RetryAfter)
	}
	return e
}
