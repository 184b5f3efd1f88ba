// Package errs holds the errors that callers of restore branch on.
//
//	var bad *errs.OptionError
//	switch _, err := m.Ask(ctx, r); {
//	case errors.As(err, &bad):
//		log.Printf("set %s to %s", bad.Name, bad.Want)
//	case errors.Is(err, errs.ErrClosed):
//		return
//	}
//
// Compare a sentinel with [errors.Is] and find a type with [errors.As], because callers receive all
// of them wrapped. The text names the package and the subject; the type has the numbers. No text
// names a command-line flag or a JSON field: the command and the server add those from Name.
//
// Cancellation has no error of its own: a call whose context ends returns its result so
// far and [context.Cause] of that context.
package errs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/bytesize"
)

var (
	// ErrClosed is returned when a model is used after Close, and by requests that
	// Close ended.
	ErrClosed = errors.New("the model is closed")

	// ErrQueueFull is returned when a request would have to wait and the queue is full.
	ErrQueueFull = errors.New("the queue is full")

	// ErrYielded is the answer of a background request that made way for another one. It may be
	// asked again.
	ErrYielded = errors.New("made way for another request")

	// ErrInternal is returned when a request hits a bug in this program. The text has no details of
	// it; other requests continue.
	ErrInternal = errors.New("internal error")

	// ErrNotFinite is returned when weights, activations or logits hold NaN or an infinity, so that
	// there is no answer.
	ErrNotFinite = errors.New("not finite")

	// ErrNotFound is returned when a model, or one of its files, does not exist.
	ErrNotFound = errors.New("not found")

	// ErrUnsupported is returned when this program cannot read that kind of model or file. The text
	// names the kind and the supported ones.
	ErrUnsupported = errors.New("not supported")

	// ErrDamaged is returned when a file is cut short, fails its checksum, or
	// contradicts itself.
	ErrDamaged = errors.New("damaged")
)

// Fault says what is wrong with an option.
type Fault uint8

// What may be wrong with an option.
const (
	Invalid  Fault = iota // no such value
	TooSmall              // a number below the minimum
	TooLarge              // a number above the maximum
	Unknown               // no such option
	Useless               // a value that would change nothing
	Conflict              // a value that another option forbids
	Missing               // no value where one is needed
)

// OptionError is returned when an option of a model, a request or a reduction is
// refused. Nothing is clamped, and an option without effect is refused too.
type OptionError struct {
	Name  string // as in "n-vis": lower-case words joined by hyphens
	Got   string // the value as it was given
	Want  string // the values that are accepted, as in "at most 576"; empty for Useless
	Why   string // where a limit comes from, or why a value has no effect; may be empty
	Fault Fault
}

// Error returns "NAME: got GOT, want WANT (WHY)", or "NAME: got GOT, which has no effect WHY".
func (e *OptionError) Error() string { return e.Text(e.Name) }

// Text is Error with another name for the option, for example a flag.
func (e *OptionError) Text(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", name)
	switch {
	case e.Fault == Useless:
		fmt.Fprintf(&b, "got %s, which has no effect %s", e.Got, e.Why)
		return b.String()
	case e.Fault == Missing:
		fmt.Fprintf(&b, "missing, want %s", e.Want)
	default:
		fmt.Fprintf(&b, "got %s, want %s", e.Got, e.Want)
	}
	if e.Why != "" {
		fmt.Fprintf(&b, " (%s)", e.Why)
	}
	return b.String()
}

// ContextError is returned when a prompt does not fit into the model's context. The context is
// measured in positions: with original positions a reduced picture spans as many positions as it
// had tokens.
type ContextError struct {
	PromptTokens int // rows for the decoder
	Positions    int // positions that they span
	Context      int // the model's limit of positions

	// Bytes and MostBytes are the text's and their limit, if the text is so long that its tokens
	// were not counted; otherwise 0.
	Bytes, MostBytes int
}

// Error says both numbers and what to do.
func (e *ContextError) Error() string {
	if e.Bytes > 0 {
		return fmt.Sprintf("prompt: %d bytes of text, want at most %d for the model's context of "+
			"%d positions: ask less", e.Bytes, e.MostBytes, e.Context)
	}
	return fmt.Sprintf("prompt: %d positions, want at most the model's context of %d: ask "+
		"less, show fewer pictures, or renumber positions (sequential) with a smaller budget",
		e.Positions, e.Context)
}

// FullError is returned when the queue is full. It wraps ErrQueueFull.
type FullError struct {
	Running, Waiting int
	RetryAfter       int // seconds
}

// Error names the number of running and waiting requests.
func (e *FullError) Error() string {
	return fmt.Sprintf("the queue is full: %d run and %d wait", e.Running, e.Waiting)
}

// Unwrap returns ErrQueueFull.
func (e *FullError) Unwrap() error { return ErrQueueFull }

// MemoryError is returned when something does not fit into the allowed memory. It is returned
// before any of that memory is allocated.
type MemoryError struct {
	What       string // as in "keys and values of the request"
	Need, Have int64  // bytes
	Hint       string // what would fit; may be empty
	Weights    string // of a model's weights: the largest type that would fit; may be empty
}

// Error says both sizes.
func (e *MemoryError) Error() string {
	s := fmt.Sprintf("%s: %s, want at most %s", e.What, bytesize.MB(e.Need), bytesize.MB(e.Have))
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// PictureFault says what is wrong with a picture.
type PictureFault uint8

// What may be wrong with a picture.
const (
	Undecodable   PictureFault = iota // damaged, or no picture
	UnknownFormat                     // an unsupported format
	EmptyPicture                      // no bytes, or no pixels
	TooManyPixels                     // Got and Limit are pixels
	TooManyBytes                      // Got and Limit are bytes
	BadShape                          // sides that the model cannot take
)

// PictureError is returned when a picture is refused. If its header shows the fault, no memory for
// its pixels is allocated.
type PictureError struct {
	Index         int // of the picture in its request, from 0; -1 outside of a request
	Fault         PictureFault
	Width, Height int   // pixels; 0 where not known
	Got, Limit    int64 // with TooManyPixels and TooManyBytes
	Err           error // the text; never nil
}

// Error is Err's text, after the picture's number where it has one.
func (e *PictureError) Error() string {
	if e.Index < 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("picture %d: %v", e.Index+1, e.Err)
}

// Unwrap returns Err.
func (e *PictureError) Unwrap() error { return e.Err }

// ModelError is returned when the files of a model cannot be opened or read. Its cause wraps
// ErrNotFound, ErrUnsupported or ErrDamaged where one of them applies.
type ModelError struct {
	Path string // the given path, or the file's
	Err  error  // never nil
}

// Error returns "PATH: CAUSE".
func (e *ModelError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *ModelError) Unwrap() error { return e.Err }
