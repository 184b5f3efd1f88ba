package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
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

// IsLoopback reports whether a port on host accepts only connections from this machine.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

// allowHost checks the Host of a request to a loopback port, because a web page may choose a host
// name that resolves to this machine (DNS rebinding).
func (s *Server) allowHost(r *http.Request) *wire.Error {
	if !s.o.Loopback {
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
	return wire.New(
		http.StatusForbidden,
		"host_not_allowed",
		"",
		"Host: got %s, want an address, localhost, *.localhost or one of --allowed-hosts",
		wire.Quote(r.Host),
	)
}

// hostname is a Host in lower case, without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// allowOrigin checks the Origin of a request, so that other web pages cannot use the server.
func (s *Server) allowOrigin(r *http.Request) *wire.Error {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(s.o.Origins, "*") ||
		slices.ContainsFunc(s.o.Origins, func(o string) bool {
			return strings.EqualFold(strings.TrimSuffix(o, "/"), origin)
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
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
	}
}

// preflight answers a browser's CORS preflight.
func preflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}
