package media

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/version"
)

// maxRedirects is the most redirects of one fetch.
const maxRedirects = 3

// pattern is one entry of Options.Domains.
type pattern struct {
	any   bool
	name  string     // lower case; for *.NAME it begins with a dot
	addr  netip.Addr // of an address literal
	port  string     // "" means any
	below bool
}

func parsePattern(s string) (pattern, error) {
	p := pattern{}
	wrong := fmt.Errorf("media: domain: got %q, want a host, no URL: a name, *.NAME, an address "+
		"or *, with :PORT (1 to 65535) or without", s)
	host := strings.ToLower(strings.TrimSpace(s))
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		p.addr = a
		return p, nil
	}
	if h, port, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return p, wrong
		}
		host, p.port = h, port
	}
	if a, err := netip.ParseAddr(host); err == nil {
		p.addr = a
		return p, nil
	}
	if host == "*" {
		p.any = true
		return p, nil
	}
	host, p.below = strings.CutPrefix(host, "*")
	name := strings.TrimPrefix(host, ".")
	if p.below != strings.HasPrefix(host, ".") || !isName(name) {
		return p, wrong
	}
	p.name = host
	return p, nil
}

// matches reports whether the entry includes the host.
func (p *pattern) matches(name string, addr netip.Addr, port string) bool {
	switch {
	case p.port != "" && p.port != port:
		return false
	case p.any:
		return true
	case p.addr.IsValid() || addr.IsValid():
		return p.addr == addr
	case p.below:
		return strings.HasSuffix(name, p.name)
	}
	return name == p.name
}

// isName reports whether s is a host name: labels of letters, digits, hyphens and underscores, the
// last of which is not a number. "127.1" and "0x7f.1" are not names.
func isName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range []byte(label) {
			if !(c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	last := strings.ToLower(labels[len(labels)-1])
	digits, hex := strings.CutPrefix(last, "0x")
	return strings.Trim(last, "0123456789") != "" &&
		!(hex && strings.Trim(digits, "0123456789abcdef") == "")
}

// target is the destination of a checked fetch.
type target struct {
	addrs []netip.Addr
	port  string
}

type targetKey struct{}

// fetch loads an http or https URL.
func (l *Loader) fetch(ctx context.Context, raw string) ([]byte, error) {
	if len(l.allowed) == 0 {
		return nil, fail(NotAllowed,
			"got an http URL, want another: no hosts are named from which pictures are fetched")
	}
	if l.o.Timeout > 0 {
		var cancel context.CancelFunc
		late := fail(DownloadFailed, "could not be downloaded within %v", l.o.Timeout)
		late.Late = true
		ctx, cancel = context.WithTimeoutCause(ctx, l.o.Timeout, late)
		defer cancel()
	}
	at, err := url.Parse(raw)
	if err != nil {
		return nil, fail(InvalidURL, "got %q, which is no URL", clip(raw))
	}
	for range maxRedirects + 1 {
		to, err := l.check(ctx, at)
		if err != nil {
			return nil, cause(ctx, err)
		}
		resp, err := l.get(ctx, at, to)
		if err != nil {
			return nil, cause(ctx,
				fail(DownloadFailed, "could not be downloaded from %q", clip(at.Host)))
		}
		data, next, err := l.answer(resp)
		if err != nil || next == "" {
			return data, cause(ctx, err)
		}
		if at, err = at.Parse(next); err != nil {
			return nil, fail(DownloadFailed, "was redirected to what is no URL")
		}
	}
	return nil, fail(DownloadFailed, "was redirected more than %d times, want at most %d",
		maxRedirects, maxRedirects)
}

// answer reads a response: the picture, or the target of a redirect.
func (l *Loader) answer(resp *http.Response) (data []byte, next string, err error) {
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		data, err = l.all(resp.Body, resp.ContentLength, DownloadFailed)
		return data, "", err
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		if next = resp.Header.Get("Location"); next != "" {
			return nil, next, nil
		}
	}
	return nil, "", fail(DownloadFailed,
		"could not be downloaded: the host did not answer with a picture")
}

// check decides whether u may be fetched, and at which addresses.
func (l *Loader) check(ctx context.Context, u *url.URL) (*target, error) {
	port := u.Port()
	switch scheme := strings.ToLower(u.Scheme); {
	case scheme != "http" && scheme != "https":
		return nil, fail(NotAllowed, "got the scheme %q after a redirect, want http or https",
			clip(scheme))
	case port == "" && scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	if u.User != nil {
		return nil, fail(NotAllowed, "got a URL with a user name, want one without")
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	addr, err := netip.ParseAddr(host)
	if err != nil {
		addr = netip.Addr{}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || host == "" {
		return nil, fail(InvalidURL, "got %q, want a URL with a host and a port up to 65535",
			clip(u.String()))
	}
	if !addr.IsValid() && !isName(host) || addr.Zone() != "" {
		return nil, fail(NotAllowed, "got the host %q, want a name or an address in the usual form",
			clip(host))
	}
	ok, literal := false, false
	for _, p := range l.allowed {
		if p.matches(host, addr, port) {
			ok, literal = true, literal || p.addr.IsValid()
		}
	}
	if !ok {
		return nil, fail(NotAllowed,
			"got the host %q, which is not among those that pictures are fetched from", clip(host))
	}
	to := &target{addrs: []netip.Addr{addr}, port: port}
	if !addr.IsValid() {
		if to.addrs, err = l.lookup(ctx, host); err != nil || len(to.addrs) == 0 {
			return nil, fail(DownloadFailed, "the host %q could not be found", clip(host))
		}
	}
	for _, a := range to.addrs {
		if !literal && !public(a) {
			return nil, fail(NotAllowed, "got the host %q, which has an address that is not public",
				clip(host))
		}
	}
	return to, nil
}

func (l *Loader) get(ctx context.Context, u *url.URL, to *target) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, targetKey{}, to), http.MethodGet,
		u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", version.UserAgent())
	req.Header.Set("Accept", "image/*")
	return l.client.Do(req)
}

// dialChecked connects to one of the addresses that check found.
func (l *Loader) dialChecked(ctx context.Context, network, _ string) (net.Conn, error) {
	to, ok := ctx.Value(targetKey{}).(*target)
	if !ok {
		return nil, errors.New("media: no address was checked")
	}
	var err error
	for _, a := range to.addrs {
		var conn net.Conn
		if conn, err = l.dial(ctx, network, net.JoinHostPort(a.String(), to.port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}
