// Package media fetches the bytes of pictures in requests: data URLs and bare base64, files below a
// folder, and http(s) URLs on hosts that the operator allows.
//
// Sizes are checked before memory is allocated. A fetch connects only to checked addresses, so that
// a request cannot reach hosts that only this machine can reach. Errors reveal nothing about the
// answer of such a host.
package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Source is the kind of a URL.
type Source string

// The sources of pictures.
const (
	Data Source = "data" // inside the URL
	File Source = "file"
	HTTP Source = "http" // and https
)

// Code names the fault of a picture's URL, as in OpenAI's API.
type Code string

// The codes.
const (
	InvalidURL     Code = "invalid_image_url"
	InvalidBase64  Code = "invalid_base64_image"
	Empty          Code = "empty_image_file"
	TooLarge       Code = "image_file_too_large"
	NotFound       Code = "image_file_not_found"
	DownloadFailed Code = "failed_to_download_image"
	NotAllowed     Code = "image_url_not_allowed"
)

// Error is returned when a picture cannot be loaded.
type Error struct {
	Code Code
	Text string
	Late bool // the time limit of a fetch was over
}

func (e *Error) Error() string { return e.Text }

func fail(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Options configure a Loader.
type Options struct {
	MaxBytes int64         // limit of a file
	Timeout  time.Duration // time limit of a fetch, redirects included
	Folder   string        // root of file URLs; empty: file URLs are refused
	// Domains are the hosts from which pictures may be fetched: names, *.names for all names below,
	// address literals, each with or without a port, or * for any public host. A literal may be a
	// non-public address.
	Domains []string
}

// Loader loads pictures. It is safe for concurrent use.
type Loader struct {
	o       Options
	root    *os.Root // nil: no files
	folders []string // allowed prefixes of an absolute path
	allowed []pattern
	client  *http.Client

	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// New checks o and opens its folder.
func New(o Options) (*Loader, error) {
	l := &Loader{o: o}
	l.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	l.dial = new(net.Dialer).DialContext
	for _, d := range o.Domains {
		p, err := parsePattern(d)
		if err != nil {
			return nil, err
		}
		l.allowed = append(l.allowed, p)
	}
	l.client = &http.Client{
		Transport: &http.Transport{
			DialContext:        l.dialChecked,
			DisableKeepAlives:  true, // a connection is only valid for its checked address
			DisableCompression: true,
			// Headers have a limit too.
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	if o.Folder == "" {
		return l, nil
	}
	abs, err := filepath.Abs(o.Folder)
	if err != nil {
		return nil, err
	}
	if l.root, err = os.OpenRoot(abs); err != nil {
		return nil, err
	}
	l.folders = []string{abs}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
		l.folders = append(l.folders, real)
	}
	return l, nil
}

// Close closes the folder.
func (l *Loader) Close() error {
	if l.root == nil {
		return nil
	}
	return l.root.Close()
}

// Load returns the bytes of a picture. An error is an *[Error], or the cause of ctx.
func (l *Loader) Load(ctx context.Context, url []byte) ([]byte, Source, error) {
	scheme, rest, found := bytes.Cut(url, []byte(":"))
	if !found || !isScheme(scheme) {
		data, err := l.bare(url)
		return data, Data, err
	}
	switch strings.ToLower(string(scheme)) {
	case "data":
		data, err := l.data(rest)
		return data, Data, err
	case "http", "https":
		data, err := l.fetch(ctx, string(url))
		return data, HTTP, err
	case "file":
		data, err := l.file(string(rest))
		return data, File, err
	}
	return nil, "", fail(InvalidURL, "got the scheme %q, want data, http, https or file",
		clip(string(scheme)))
}

// Fetched reports whether loading url takes the bytes from elsewhere: another machine or a file.
func Fetched(url []byte) bool {
	scheme, _, found := bytes.Cut(url, []byte(":"))
	return found && (bytes.EqualFold(scheme, []byte("http")) ||
		bytes.EqualFold(scheme, []byte("https")) || bytes.EqualFold(scheme, []byte("file")))
}

// IsFile reports whether url names a file.
func IsFile(url []byte) bool {
	scheme, _, found := bytes.Cut(url, []byte(":"))
	return found && bytes.EqualFold(scheme, []byte("file"))
}

func isScheme(s []byte) bool {
	for i, c := range s {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || !(c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')) {
			return false
		}
	}
	return len(s) > 0
}

// clip shortens a text that an error quotes.
func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}

// cause is why ctx ended if the caller ended it, otherwise err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.DeadlineExceeded) {
		return c
	}
	return err
}
