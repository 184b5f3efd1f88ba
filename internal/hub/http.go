package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/version"
)

const (
	maxRedirects = 10
	maxTries     = 5                      // without a byte of progress
	firstPause   = 100 * time.Millisecond // each pause is four times the previous one
	// maxPause is the longest wait that the hub may request. The hub counts requests in windows of
	// five minutes.
	maxPause = 5 * time.Minute
	// silence is how long an answer may send nothing before it counts as broken.
	silence = 60 * time.Second
)

// newHTTP is a client that follows no redirect, because this package decides where the token is
// sent.
func newHTTP() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{
		Timeout: 15 * time.Second, KeepAlive: 30 * time.Second,
	}).DialContext
	t.TLSHandshakeTimeout = 15 * time.Second
	t.ResponseHeaderTimeout = silence
	t.DisableCompression = true // lengths and ranges count the bytes of the file
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// statusError is an unsuccessful answer.
type statusError struct {
	code    int
	text    string        // why and what to do, without the subject
	pause   time.Duration // wait that the hub requests; 0 if none
	missing bool          // the requested object does not exist
}

func (e *statusError) Error() string { return e.text }

// Is makes a missing repository, revision or file an errs.ErrNotFound.
func (e *statusError) Is(target error) bool { return e.missing && target == errs.ErrNotFound }

// temporary says whether another attempt may succeed.
func (e *statusError) temporary() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return e.code >= 500 && e.code != http.StatusNotImplemented
}

// permanentError is an error that another attempt would not avoid.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// permanentf formats a permanentError.
func permanentf(format string, args ...any) error {
	return &permanentError{fmt.Errorf(format, args...)}
}

// request is one HTTP request, with the names for its errors.
type request struct {
	method, address string
	offset          int64 // first requested byte
	repo, revision  string
	file            string
	anyHost         bool // follow redirects to other hosts, without the token
}

// send sends the request once and returns the first answer that is not a redirect or, unless
// anyHost is set, the first redirect away from the hub. The caller closes its body. Errors contain
// no address, because a signed address is a secret.
func (c *Client) send(ctx context.Context, r *request) (*http.Response, error) {
	if c.offline != "" {
		return nil, permanentf("%s forbids requests", c.offline)
	}
	u, err := url.Parse(r.address)
	if err != nil {
		return nil, permanentf("no address, got %q", r.address)
	}
	for range maxRedirects {
		req, err := http.NewRequestWithContext(ctx, r.method, u.String(), nil)
		if err != nil {
			return nil, permanentf("%s: cannot be asked", u.Host)
		}
		req.Header.Set("User-Agent", version.UserAgent())
		req.Header.Set("Accept-Encoding", "identity")
		if r.offset > 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", r.offset))
		}
		if c.token != "" && c.isHub(u) {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			return nil, transportError(ctx, u, err)
		}
		if !isRedirect(resp.StatusCode) {
			return resp, c.checkStatus(r, u, resp)
		}
		next, err := redirectTarget(u, resp)
		if err == nil && !r.anyHost && !c.isHub(next) {
			return resp, nil
		}
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
		u = next
	}
	return nil, permanentf("more than %d redirects", maxRedirects)
}

func isRedirect(code int) bool {
	switch code {
	case 301, 302, 303, 307, 308:
		return true
	}
	return false
}

// redirectTarget is the target of a redirect from u.
func redirectTarget(u *url.URL, resp *http.Response) (*url.URL, error) {
	location := resp.Header.Get("Location")
	next, err := u.Parse(location)
	switch {
	case location == "" || err != nil || next.Host == "":
		return nil, permanentf("%s: redirect without an address", u.Host)
	case next.Scheme != "http" && next.Scheme != "https":
		return nil, permanentf("%s: redirect to a %s address, want https", u.Host, next.Scheme)
	case u.Scheme == "https" && next.Scheme == "http":
		return nil, permanentf("%s: redirect from https to http", u.Host)
	}
	next.User = nil
	return next, nil
}

// transportError words a connection error.
func transportError(ctx context.Context, u *url.URL, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return permanentf("%s: no such host", u.Host)
	}
	return fmt.Errorf("%s: %w", u.Host, err)
}

// checkStatus returns nil for a success; otherwise it closes the body.
func (c *Client) checkStatus(r *request, u *url.URL, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return nil
	}
	resp.Body.Close()
	e := &statusError{code: resp.StatusCode, pause: pause(resp.Header)}
	said := clean(resp.Header.Get("X-Error-Message"))
	code := resp.Header.Get("X-Error-Code")
	page := c.endpoint.String() + "/" + r.repo
	switch {
	case !c.isHub(u):
		e.text = fmt.Sprintf("%s: %s", u.Host, status(resp.StatusCode))
		return e
	case code == "GatedRepo" && c.token == "":
		e.text = fmt.Sprintf(
			"gated: accept the conditions at %s and set HF_TOKEN to a token of that account", page)
	case code == "GatedRepo":
		e.text = fmt.Sprintf("gated: accept the conditions at %s with the account of the token",
			page)
	case code == "RevisionNotFound":
		e.text, e.missing = fmt.Sprintf("no revision %q", r.revision), true
	case code == "EntryNotFound" && r.file != "":
		e.text, e.missing = fmt.Sprintf("no file %q in revision %q", r.file, r.revision), true
	case e.code == http.StatusUnauthorized && c.token == "":
		e.text, e.missing = "no such repository, or a private one (set HF_TOKEN)", true
	case e.code == http.StatusUnauthorized:
		e.text = "the token is not accepted, or the repository does not exist"
	case e.code == http.StatusForbidden:
		e.text = fmt.Sprintf("the token gives no access: look at %s", page)
	case e.code == http.StatusNotFound:
		e.text, e.missing = "no such repository", true
		if r.file != "" {
			e.text = fmt.Sprintf("no file %q in revision %q", r.file, r.revision)
		}
	case e.code == http.StatusTooManyRequests:
		e.text = "too many requests"
		if e.pause > 0 {
			e.text += fmt.Sprintf(", try again in %v", e.pause)
		}
	default:
		e.text = status(e.code)
	}
	e.text = fmt.Sprintf("%d: %s", e.code, strings.TrimPrefix(e.text, strconv.Itoa(e.code)+" "))
	if said != "" {
		e.text += fmt.Sprintf(" (the hub says: %s)", said)
	}
	return e
}

// status is a code with its name.
func status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// maxSaid is how many bytes of a server's message an error repeats.
const maxSaid = 200

// clean makes a server's message fit on one line of an error.
func clean(s string) string {
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

// pause is the wait that the hub requests: Retry-After in seconds or as a date, or the t of
// RateLimit, as in `"api";r=0;t=120`.
func pause(h http.Header) time.Duration {
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

// tries counts the failures since the last progress.
type tries struct {
	client *Client
	notice func(string) // receives the reason for a long wait
	failed int
}

// again waits before the next attempt after err. It returns an error if there must be none.
func (t *tries) again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var fixed *permanentError
	if errors.As(err, &fixed) {
		return err
	}
	wait := firstPause << (2 * t.failed)
	var s *statusError
	if errors.As(err, &s) {
		switch {
		case !s.temporary() || s.pause > maxPause:
			return err
		case s.pause > 0:
			wait = s.pause
		}
	}
	t.failed++
	if t.failed >= maxTries {
		return fmt.Errorf("%w (%d tries)", err, maxTries)
	}
	if wait > 5*time.Second && t.notice != nil {
		t.notice(fmt.Sprintf("waiting %v: %v", wait, err))
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.client.wait(wait):
		return nil
	}
}

// read retries until there is an answer and returns its header and its body, of at most limit
// bytes.
func (c *Client) read(ctx context.Context, r *request, limit int64, notice func(string)) ([]byte,
	http.Header, error) {
	t := tries{client: c, notice: notice}
	for {
		body, header, err := c.readOnce(ctx, r, limit)
		if err == nil {
			return body, header, nil
		}
		if err := t.again(ctx, err); err != nil {
			return nil, nil, err
		}
	}
}

func (c *Client) readOnce(
	ctx context.Context, r *request, limit int64,
) ([]byte, http.Header, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if isRedirect(resp.StatusCode) && r.method != http.MethodHead {
		return nil, nil, permanentf(
			"redirect to another host, where a list of files is not trusted")
	}
	body, err := decoded(resp, newWatched(resp.Body, cancel))
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("the answer was cut: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, nil, permanentf("an answer of more than %d bytes", limit)
	}
	return data, resp.Header, nil
}

// errSilent is the cause of a request that was cancelled because nothing came.
var errSilent = fmt.Errorf("nothing came for %v", silence)

// watched cancels a request whose body sends nothing for a long time.
type watched struct {
	body  io.Reader
	timer *time.Timer
}

func newWatched(body io.Reader, cancel context.CancelCauseFunc) *watched {
	return &watched{body, time.AfterFunc(silence, func() { cancel(errSilent) })}
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(silence)
	n, err := w.body.Read(p)
	w.timer.Stop()
	return n, err
}
