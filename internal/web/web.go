// Package web has what programs need to ask servers over HTTP: requests, when to try again, and how
// long to wait before.
package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
)

const (
	maxTries   = 5                      // without a byte of progress
	firstPause = 100 * time.Millisecond // each pause is four times the previous one
	// MaxPause is the longest wait that a server may request. The Hugging Face hub counts requests
	// in windows of five minutes.
	MaxPause = 5 * time.Minute
)

// Silence is how long an answer may send nothing before it counts as broken.
const Silence = 60 * time.Second

// Transport returns a transport for large files. An answer begins within a time after the request
// was sent.
func Transport(answer time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{
		Timeout: 15 * time.Second, KeepAlive: 30 * time.Second,
	}).DialContext
	t.TLSHandshakeTimeout = 15 * time.Second
	t.ResponseHeaderTimeout = answer
	t.DisableCompression = true // lengths and ranges count the bytes of the file
	return t
}

// JSON returns a request with a body of JSON, and with an API key unless it is empty.
func JSON(ctx context.Context, method, url, key string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req, nil
}

// Chat returns where a server of OpenAI's protocol completes chats. base is the address of the
// server, of its /v1, or of its /chat/completions.
func Chat(base string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("got %q, want an http or https address", base)
	}
	switch path := strings.TrimRight(u.Path, "/"); {
	case strings.HasSuffix(path, "/completions"):
	case path == "":
		u.Path = "/v1/chat/completions"
	default:
		u.Path = path + "/chat/completions"
	}
	return u.String(), nil
}

// StatusError is an unsuccessful answer.
type StatusError struct {
	Code    int
	Text    string        // why and what to do, without the subject
	Pause   time.Duration // wait that the server requests; 0 if none
	Missing bool          // the requested object does not exist
}

func (e *StatusError) Error() string { return e.Text }

// Is makes a missing object an errs.ErrNotFound.
func (e *StatusError) Is(target error) bool { return e.Missing && target == errs.ErrNotFound }

// Temporary says whether another attempt may succeed.
func (e *StatusError) Temporary() bool {
	switch e.Code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return e.Code >= 500 && e.Code != http.StatusNotImplemented
}

// PermanentError is an error that another attempt would not avoid.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanentf formats a PermanentError.
func Permanentf(format string, args ...any) error {
	return &PermanentError{fmt.Errorf(format, args...)}
}

// TransportError words an error of a connection to a host. It contains no address, because a signed
// address is a secret.
func TransportError(ctx context.Context, host string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return Permanentf("%s: no such host", host)
	}
	return fmt.Errorf("%s: %w", host, err)
}

// Status is a code with its name.
func Status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// maxSaid is how many bytes of a server's message an error repeats.
const maxSaid = 200

// Clean makes a server's message fit on one line of an error.
func Clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 || r == 0xfffd {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxSaid {
		s = strings.ToValidUTF8(s[:maxSaid], "") + "…"
	}
	return strings.TrimSpace(s)
}

// Pause is the wait that a server requests: Retry-After in seconds or as a date, or the t of
// RateLimit, as in `"api";r=0;t=120`.
func Pause(h http.Header) time.Duration {
	after := strings.TrimSpace(h.Get("Retry-After"))
	if after == "" {
		for _, part := range strings.Split(h.Get("RateLimit"), ";") {
			if t, ok := strings.CutPrefix(strings.TrimSpace(part), "t="); ok {
				after = t
			}
		}
	}
	if s, err := strconv.ParseUint(after, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(after); err == nil {
		return max(time.Until(at).Round(time.Second), 0)
	}
	return 0
}

// rangePattern matches a Content-Range with its first byte.
var rangePattern = regexp.MustCompile(`^bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)$`)

// RangeStart returns the first byte of a Content-Range; ok is false if there is none.
func RangeStart(h http.Header) (start int64, ok bool) {
	m := rangePattern.FindStringSubmatch(h.Get("Content-Range"))
	if m == nil {
		return 0, false
	}
	start, _ = strconv.ParseInt(m[1], 10, 64) // at most 18 digits
	return start, true
}

// Tries counts the failures since the last progress.
type Tries struct {
	Wait   func(time.Duration) <-chan time.Time // as time.After
	Notice func(string)                         // receives the reason for a long wait; may be nil
	Failed int                                  // 0 after progress
}

// Again waits before the next attempt after err. It returns an error if there must be none.
func (t *Tries) Again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var fixed *PermanentError
	if errors.As(err, &fixed) {
		return err
	}
	wait := firstPause << (2 * t.Failed)
	var s *StatusError
	if errors.As(err, &s) {
		switch {
		case !s.Temporary() || s.Pause > MaxPause:
			return err
		case s.Pause > 0:
			wait = s.Pause
		}
	}
	t.Failed++
	if t.Failed >= maxTries {
		return fmt.Errorf("%w (%d tries)", err, maxTries)
	}
	if wait > 5*time.Second && t.Notice != nil {
		t.Notice(fmt.Sprintf("waiting %v: %v", wait, err))
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.Wait(wait):
		return nil
	}
}

// Do calls do until it succeeds, or there must be no other attempt.
func (t *Tries) Do(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		if err := t.Again(ctx, err); err != nil {
			return err
		}
	}
}

// errSilent is the cause of a request that was cancelled because nothing came.
var errSilent = fmt.Errorf("nothing came for %v", Silence)

// watched cancels a request whose body sends nothing for a long time.
type watched struct {
	body  io.Reader
	timer *time.Timer
}

// Watch returns a body that cancels its request when it sends nothing for a long time.
func Watch(body io.Reader, cancel context.CancelCauseFunc) io.Reader {
	return &watched{body, time.AfterFunc(Silence, func() { cancel(errSilent) })}
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(Silence)
	n, err := w.body.Read(p)
	w.timer.Stop()
	return n, err
}
