// Package address gets and puts files by address: https://HOST/PATH, also presigned, and
// s3://BUCKET/KEY.
package address

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/version"
	"github.com/restore-vlm/restore/internal/web"
)

// Client gets and puts files. Objects of S3 are reached with the credentials, profile, region and
// endpoint of AWS's own tools: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL and
// others, and their files.
type Client struct {
	Notice   func(string)            // receives the reason for a long wait; may be nil
	Progress func(done, total int64) // in bytes, a total of 0 is not known; may be nil

	http *http.Client
	wait func(time.Duration) <-chan time.Time
}

// NewClient returns a client.
func NewClient() *Client {
	return &Client{
		http: &http.Client{Transport: web.Transport(5 * web.Silence), CheckRedirect: redirect},
		wait: time.After,
	}
}

// maxRedirects is the most redirects of one request.
const maxRedirects = 10

// redirect refuses redirects that would send a secret in the open, or another method.
func redirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) > maxRedirects:
		return web.Permanentf("more than %d redirects", maxRedirects)
	case first.URL.Scheme == "https" && req.URL.Scheme != "https":
		return web.Permanentf("a redirect from https to %s", req.URL.Scheme)
	case first.Method != req.Method:
		return web.Permanentf("a redirect that turns %s into %s", first.Method, req.Method)
	}
	return nil
}

// Is reports whether a name is an address and not a path.
func Is(name string) bool {
	scheme, _, ok := strings.Cut(name, "://")
	switch strings.ToLower(scheme) {
	case "http", "https", "s3":
		return ok
	}
	return false
}

// Check returns why an address is none; nil if it is one.
func Check(address string) error {
	_, err := parse(address)
	return err
}

// parse reads an address. Its errors do not repeat it, because a signed one is a secret.
func parse(address string) (*url.URL, error) {
	if rest, ok := s3Rest(address); ok { // a key is text as it is, with % and #
		bucket, key, _ := strings.Cut(rest, "/")
		if bucket == "" || strings.Trim(key, "/") == "" || strings.Contains(rest, "?") {
			return nil, fmt.Errorf("address: got %q, want s3://BUCKET/KEY without ?", Name(address))
		}
		return &url.URL{Scheme: "s3", Host: bucket, Path: "/" + key}, nil
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("address: got %q, which is none", Name(address))
	case u.Host == "":
		return nil, fmt.Errorf("address: got %q, want https://HOST/PATH", Name(address))
	}
	return u, nil
}

// s3Rest returns what follows s3:// in an address.
func s3Rest(address string) (rest string, ok bool) {
	scheme, rest, ok := strings.Cut(address, "://")
	return rest, ok && strings.EqualFold(scheme, "s3")
}

// Name is an address without its secrets: signature and password.
func Name(address string) string {
	name, _, _ := strings.Cut(address, "?")
	if _, ok := s3Rest(address); !ok {
		name, _, _ = strings.Cut(name, "#")
	}
	scheme, rest, _ := strings.Cut(name, "://")
	if host, path, _ := strings.Cut(rest, "/"); strings.Contains(host, "@") {
		rest = host[strings.LastIndex(host, "@")+1:] + "/" + path
	}
	return scheme + "://" + rest
}

func (c *Client) tries() *web.Tries { return &web.Tries{Wait: c.wait, Notice: c.Notice} }

func (c *Client) progress(done, total int64) {
	if c.Progress != nil {
		c.Progress(done, max(total, 0))
	}
}

// header sets what all requests have.
func header(req *http.Request) {
	req.Header.Set("User-Agent", version.UserAgent())
	req.Header.Set("Accept-Encoding", "identity")
}
