package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/wire"
)

// keys are the hashes of the accepted keys. All hashes have the same length, so the time of a
// comparison reveals nothing about a key.
type keys [][sha256.Size]byte

func newKeys(list []string) keys {
	var k keys
	for _, key := range list {
		k = append(k, sha256.Sum256([]byte(key)))
	}
	return k
}

// match returns a name for the request's key that does not reveal the key, and whether the key is
// accepted. Without keys everybody may ask.
func (k keys) match(r *http.Request) (tenant string, ok bool) {
	if len(k) == 0 {
		return "", true
	}
	given := r.Header.Get("X-Api-Key")
	if scheme, key, found := strings.Cut(r.Header.Get("Authorization"), " "); found &&
		strings.EqualFold(scheme, "Bearer") {
		given = strings.TrimSpace(key)
	}
	sum := sha256.Sum256([]byte(given))
	found := 0
	for i := range k {
		found |= subtle.ConstantTimeCompare(sum[:], k[i][:])
	}
	if found == 0 {
		return "", false
	}
	return hex.EncodeToString(sum[:]), true
}

func unauthorized() *wire.Error {
	return wire.New(http.StatusUnauthorized, "invalid_api_key", "",
		"missing or wrong key, want Authorization: Bearer KEY or X-Api-Key: KEY")
}

// hostForm is a host name with or without a port, as in a Host or an Origin.
var hostForm = regexp.MustCompile(`(?i)^[a-z0-9._-]+(:[0-9]+)?$`)

// CheckHost returns an error for an entry of Options.AllowedHosts that no Host can equal.
func CheckHost(h string) error {
	_, err := netip.ParseAddr(strings.Trim(h, "[]"))
	if err == nil || h == "*" || hostForm.MatchString(h) {
		return nil
	}
	return fmt.Errorf("got %q, which no client sends, want NAME, NAME:PORT or * (no URL, no "+
		"pattern, letters beyond ASCII as xn--)", h)
}

// allowHost checks the Host of a request to a loopback port, because a web page may choose a host
// name that resolves to this machine (DNS rebinding), and to any port if the server has names.
func (s *Server) allowHost(r *http.Request) *wire.Error {
	if !s.o.Loopback && len(s.o.AllowedHosts) == 0 {
		return nil
	}
	name := hostname(r.Host)
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	switch {
	case err == nil, name == "localhost", strings.HasSuffix(name, ".localhost"):
		return nil
	case r.Host == "" && r.ProtoMinor == 0 && r.ProtoMajor == 1: // HTTP/1.0 has no Host
		return nil
	}
	for _, h := range s.o.AllowedHosts {
		if h == "*" || strings.EqualFold(h, name) || strings.EqualFold(h, r.Host) {
			return nil
		}
	}
	return wire.New(http.StatusForbidden, "host_not_allowed", "",
		"Host: got %s, want an address, localhost, *.localhost or one of --allowed-hosts",
		wire.Quote(r.Host))
}

// hostname is a Host in lower case, without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// originForm splits an Origin into scheme, host and port.
var originForm = regexp.MustCompile(
	`(?i)^([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?/?$`)

// CheckOrigin returns an error for an entry of Options.Origins that no Origin can equal.
func CheckOrigin(o string) error {
	if o == "*" || o == "null" || strings.EqualFold(o, "file://") {
		return nil
	}
	m := originForm.FindStringSubmatch(strings.ToLower(o))
	if m == nil {
		return fmt.Errorf("got %q, which no browser sends, want SCHEME://HOST[:PORT], null or * "+
			"(no pattern, letters beyond ASCII as xn--)", o)
	}
	scheme, host, port := m[1], m[2], m[3]
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && a.Is6() {
		host = "[" + a.String() + "]"
	} else if host[0] == '[' {
		return fmt.Errorf("got %q, want an IPv6 address in its brackets", o)
	}
	if n, _ := strconv.Atoi(port); port != "" {
		if port = ":" + strconv.Itoa(n); n > math.MaxUint16 {
			return fmt.Errorf("got %q, want a port of at most %d", o, math.MaxUint16)
		}
	}
	if scheme == "http" && port == ":80" || scheme == "https" && port == ":443" {
		port = "" // browsers leave it out
	}
	if sent := scheme + "://" + host + port; !equalOrigin(o, sent) {
		return fmt.Errorf("got %q, which no browser sends, want %s", o, sent)
	}
	return nil
}

// equalOrigin reports whether an entry of Options.Origins, which may end with a slash, names an
// origin.
func equalOrigin(entry, origin string) bool {
	return strings.EqualFold(entry, origin) || strings.EqualFold(entry, origin+"/")
}

// appOrigins begin the origins of programs on this machine that show pages, which may ask by
// default, like pages from this machine.
var appOrigins = []string{
	"app://", "file://", "tauri://", "vscode-webview://", "vscode-file://",
}

// allowOrigin checks the Origin of a request, so that other web pages cannot use the server.
func (s *Server) allowOrigin(r *http.Request) *wire.Error {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(s.o.Origins, "*") ||
		slices.ContainsFunc(s.o.Origins, func(o string) bool { return equalOrigin(o, origin) }) {
		return nil
	}
	if len(s.o.Origins) == 0 && slices.ContainsFunc(appOrigins, func(scheme string) bool {
		return len(origin) >= len(scheme) && strings.EqualFold(origin[:len(scheme)], scheme)
	}) {
		return nil
	}
	u, err := url.Parse(origin)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		if strings.EqualFold(u.Host, r.Host) {
			return nil
		}
		switch strings.ToLower(u.Hostname()) {
		case "localhost", "127.0.0.1", "::1":
			if len(s.o.Origins) == 0 {
				return nil
			}
		}
	}
	return wire.New(http.StatusForbidden, "origin_not_allowed", "",
		"Origin: got %s, want one of --cors-origins", wire.Quote(origin))
}

// shareWith lets a page of an allowed origin read the reply.
func shareWith(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After")
	}
}

// preflight answers a browser's CORS preflight.
func preflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}
