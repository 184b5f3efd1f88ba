package hub

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/version"
	"github.com/restore-vlm/restore/internal/web"
)

const maxRedirects = 10

// newHTTP is a client that follows no redirect, because this package decides where the token is
// sent.
func newHTTP() *http.Client {
	return &http.Client{Transport: web.Transport(web.Silence),
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
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
		return nil, web.Permanentf("%s forbids requests", c.offline)
	}
	u, err := url.Parse(r.address)
	if err != nil {
		return nil, web.Permanentf("no address, got %q", r.address)
	}
	for range maxRedirects {
		req, err := http.NewRequestWithContext(ctx, r.method, u.String(), nil)
		if err != nil {
			return nil, web.Permanentf("%s: cannot be asked", u.Host)
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
			return nil, web.TransportError(ctx, u.Host, err)
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
	return nil, web.Permanentf("more than %d redirects", maxRedirects)
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
		return nil, web.Permanentf("%s: redirect without an address", u.Host)
	case next.Scheme != "http" && next.Scheme != "https":
		return nil, web.Permanentf("%s: redirect to a %s address, want https", u.Host, next.Scheme)
	case u.Scheme == "https" && next.Scheme == "http":
		return nil, web.Permanentf("%s: redirect from https to http", u.Host)
	}
	next.User = nil
	return next, nil
}

// checkStatus returns nil for a success; otherwise it closes the body.
func (c *Client) checkStatus(r *request, u *url.URL, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return nil
	}
	resp.Body.Close()
	e := &web.StatusError{Code: resp.StatusCode, Pause: web.Pause(resp.Header)}
	said := web.Clean(resp.Header.Get("X-Error-Message"))
	code := resp.Header.Get("X-Error-Code")
	page := c.endpoint.String() + "/" + r.repo
	switch {
	case !c.isHub(u):
		e.Text = fmt.Sprintf("%s: %s", u.Host, web.Status(resp.StatusCode))
		return e
	case code == "GatedRepo" && c.token == "":
		e.Text = fmt.Sprintf("gated: accept the conditions at %s and %s", page,
			c.giveToken(" to a token of that account"))
	case code == "GatedRepo":
		e.Text = fmt.Sprintf("gated: accept the conditions at %s with the account of the token",
			page)
	case code == "RevisionNotFound":
		e.Text, e.Missing = fmt.Sprintf("no revision %q", r.revision), true
	case code == "EntryNotFound" && r.file != "":
		e.Text, e.Missing = fmt.Sprintf("no file %q in revision %q", r.file, r.revision), true
	case e.Code == http.StatusUnauthorized && c.token == "":
		e.Text = fmt.Sprintf("no such repository, or a private one (%s)", c.giveToken(""))
		e.Missing = true
	case e.Code == http.StatusUnauthorized:
		e.Text = "the token is not accepted, or the repository does not exist"
	case e.Code == http.StatusForbidden:
		e.Text = fmt.Sprintf("the token gives no access: look at %s", page)
	case e.Code == http.StatusNotFound:
		e.Text, e.Missing = "no such repository", true
		if r.file != "" {
			e.Text = fmt.Sprintf("no file %q in revision %q", r.file, r.revision)
		}
	case e.Code == http.StatusTooManyRequests:
		e.Text = "too many requests"
		if e.Pause > 0 {
			e.Text += fmt.Sprintf(", try again in %v", e.Pause)
		}
	default:
		e.Text = web.Status(e.Code)
	}
	e.Text = fmt.Sprintf("%d: %s", e.Code, strings.TrimPrefix(e.Text, strconv.Itoa(e.Code)+" "))
	if said != "" {
		e.Text += fmt.Sprintf(" (the hub says: %s)", said)
	}
	return e
}

// giveToken says how the user gives the hub a token; what says which one.
func (c *Client) giveToken(what string) string {
	if c.noToken != "" {
		return "unset " + c.noToken + ", which keeps the token back"
	}
	return "set HF_TOKEN" + what
}

// read retries until there is an answer and returns its header and its body, of at most limit
// bytes.
func (c *Client) read(
	ctx context.Context, r *request, limit int64, notice func(string),
) (body []byte, header http.Header, err error) {
	t := web.Tries{Wait: c.wait, Notice: notice}
	err = t.Do(ctx, func() (err error) {
		body, header, err = c.readOnce(ctx, r, limit)
		return err
	})
	return body, header, err
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
		return nil, nil, web.Permanentf(
			"redirect to another host, where a list of files is not trusted")
	}
	body, err := decoded(resp, web.Watch(resp.Body, cancel))
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("the answer was cut: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, nil, web.Permanentf("an answer of more than %d bytes", limit)
	}
	return data, resp.Header, nil
}
