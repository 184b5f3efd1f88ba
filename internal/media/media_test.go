package media

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func loader(tb testing.TB, o Options) *Loader {
	tb.Helper()
	if o.MaxBytes == 0 {
		o.MaxBytes = 1000
	}
	l, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// want checks what Load returns: bytes, or a code.
func want(t *testing.T, l *Loader, url, text string, code Code) {
	t.Helper()
	data, _, err := l.Load(t.Context(), []byte(url))
	var e *Error
	switch {
	case code == "" && (err != nil || string(data) != text):
		t.Errorf("%.80q: got %q and %v, want %q", url, data, err, text)
	case code != "" && (!errors.As(err, &e) || e.Code != code):
		t.Errorf("%.80q: got %q and %v, want %s", url, data, err, code)
	}
}

// Ensure that base64 of all lengths is decoded as in the standard library, errors included.
func TestBase64(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	for i := range 4000 {
		data := make([]byte, draw.IntN(100))
		for i := range data {
			data[i] = byte(draw.Uint32())
		}
		a := standard
		if i%2 == 1 {
			a = urlSafe
		}
		text := []byte(a.encoding.EncodeToString(data))
		for range draw.IntN(3) {
			if len(text) > 0 {
				text[draw.IntN(len(text))] = "\n-_+/=! \x00\xff"[draw.IntN(10)]
			}
		}
		want := make([]byte, a.encoding.DecodedLen(len(text)))
		n, wantErr := a.encoding.Decode(want, text)
		got := make([]byte, len(want))
		m, err := a.decode(got, text)
		if !reflect.DeepEqual(err, wantErr) || err == nil && !bytes.Equal(got[:m], want[:n]) {
			t.Fatalf("%q: got %x and %v, want %x and %v", text, got[:m], err, want[:n], wantErr)
		}
	}
}

// Ensure that base64 is taken in every usual form, and nothing else.
func TestData(t *testing.T) {
	l := loader(t, Options{})
	bytes := "\xff\xfe\xfd?picture"
	std, url := base64.StdEncoding.EncodeToString([]byte(bytes)),
		base64.RawURLEncoding.EncodeToString([]byte(bytes))
	for _, u := range []string{
		"data:image/png;base64," + std, "DATA:;BASE64," + url, "data:;base64," + strings.TrimRight(std, "="),
		"data:text/html;charset=utf-8;base64," + std, "data:image/jpeg;base64," + std[:4] + "\r\n" + std[4:], std, url,
		"data:nonsense;base64,\n" + std + "\n",
	} {
		want(t, l, u, bytes, "")
	}
	for u, code := range map[string]Code{
		"data:image/png," + std:       InvalidURL,
		"data:image/png;base64":       InvalidURL,
		"data:":                       InvalidURL,
		"data:;base64,":               Empty,
		"data:;base64,\n":             Empty,
		"data:;base64,!!!!":           InvalidBase64,
		"data:;base64,abcde":          InvalidBase64,
		"data:;base64,abcd=":          InvalidBase64,
		"data:;base64,ab=cd":          InvalidBase64,
		"data:;base64,ab cd":          InvalidBase64,
		"":                            InvalidURL,
		"\n":                          InvalidURL,
		"cat.jpg":                     InvalidURL,
		"ftp://host/a.png":            InvalidURL,
		"javascript:alert(1)":         InvalidURL,
		"://x":                        InvalidURL,
		"http://host/a.png":           NotAllowed,
		"HTTPS://host/a.png":          NotAllowed,
		"file:///etc/passwd":          NotAllowed,
		strings.Repeat("AAAA", 400):   TooLarge,
		strings.Repeat("AAAA", 333):   "",
		strings.Repeat("AAAA\n", 333): "",
	} {
		if code == "" {
			if _, _, err := l.Load(t.Context(), []byte(u)); err != nil {
				t.Error(err)
			}
			continue
		}
		want(t, l, u, "", code)
	}
	want(t, l, base64.RawStdEncoding.EncodeToString(make([]byte, 1000)), string(make([]byte, 1000)),
		"")
	want(t, l, base64.RawStdEncoding.EncodeToString(make([]byte, 1001)), "", TooLarge)
}

// network is a network of names and of one server at all public addresses.
func network(l *Loader, names map[string][]string, server string) *[]string {
	dialed := new([]string)
	l.lookup = func(_ context.Context, host string) (all []netip.Addr, err error) {
		for _, a := range names[host] {
			all = append(all, netip.MustParseAddr(a))
		}
		if all == nil {
			return nil, &net.DNSError{Name: host, IsNotFound: true}
		}
		return all, nil
	}
	l.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		*dialed = append(*dialed, address)
		return new(net.Dialer).DialContext(ctx, network, server)
	}
	return dialed
}

// Ensure that only what the list names and what is public is fetched, redirects
// included.
func TestFetch(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, hops := r.URL.Query().Get("to"), 0
		switch _, _ = fmt.Sscan(r.URL.Query().Get("hops"), &hops); {
		case hops > 0:
			http.Redirect(w, r, fmt.Sprintf("/a?hops=%d", hops-1), http.StatusFound)
		case to != "":
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		case r.URL.Path == "/missing":
			http.Error(w, "internal words", http.StatusNotFound)
		case r.URL.Path == "/empty":
		case r.URL.Path == "/big":
			w.Write(make([]byte, 2000))
		case r.URL.Path == "/endless":
			for range 100 {
				w.Write(make([]byte, 100))
				w.(http.Flusher).Flush()
			}
		case r.URL.Path == "/stuck":
			<-r.Context().Done() // only the client's limit ends it
		case r.URL.Path == "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write([]byte("not unpacked"))
		default:
			w.Write([]byte("picture"))
		}
	}))
	defer s.Close()
	addr := strings.TrimPrefix(s.URL, "http://")
	names := map[string][]string{
		"pictures.example": {
			"93.184.216.34",
		}, "a.pictures.example": {"2606:2800::1"}, "inside.pictures.example": {"10.0.0.1"},
		"half.pictures.example": {
			"93.184.216.34",
			"127.0.0.1",
		}, "other.example": {"93.184.216.35"}, "localhost": {"127.0.0.1"},
		"metadata.pictures.example": {
			"169.254.169.254",
		}, "mapped.pictures.example": {"::ffff:10.0.0.1"},
	}
	l := loader(
		t,
		Options{
			Domains: []string{
				"pictures.example",
				"*.pictures.example",
				"only.example:8080",
				"localhost",
			},
		},
	)
	dialed := network(l, names, addr)
	for _, u := range []string{
		"http://pictures.example/a", "HTTP://Pictures.Example./a", "http://a.pictures.example:1234/a", "http://pictures.example/a?hops=3",
		"http://pictures.example/a?to=http://a.pictures.example/b",
	} {
		want(t, l, u, "picture", "")
	}
	if got := (*dialed)[2]; got != "[2606:2800::1]:1234" {
		t.Errorf("dialed %q, want the address that was checked", got)
	}
	want(t, l, "http://pictures.example/gzip", "not unpacked", "")
	*dialed = nil
	for u, code := range map[string]Code{
		"http://other.example/a": NotAllowed, "http://inside.pictures.example/a": NotAllowed, "http://half.pictures.example/a": NotAllowed,
		"http://metadata.pictures.example/": NotAllowed, "http://mapped.pictures.example/": NotAllowed, "http://localhost/a": NotAllowed,
		"http://127.0.0.1/a": NotAllowed, "http://[::1]/a": NotAllowed, "http://[fe80::1%25eth0]/a": NotAllowed,
		"http://0x7f.1/a": NotAllowed, "http://2130706433/a": NotAllowed, "http://127.1/a": NotAllowed, "http://0177.0.0.1/": NotAllowed,
		"http://93.184.216.34/a": NotAllowed, "http://user:pw@pictures.example/a": NotAllowed, "http://pictures.example.evil/a": NotAllowed,
		"http://evilpictures.example/a": NotAllowed, "http://only.example/a": NotAllowed, "http://gone.pictures.example/a": DownloadFailed,
		"http:///a": InvalidURL, "http://[/a": InvalidURL, "http://pictures.example:99999999/": InvalidURL, "http://a b/": InvalidURL,
	} {
		want(t, l, u, "", code)
	}
	if len(*dialed) > 1 {
		t.Errorf("dialed %v for what is refused", *dialed)
	}
	for u, code := range map[string]Code{
		"http://pictures.example/a?to=http://other.example/": NotAllowed, "http://pictures.example/a?to=http://inside.pictures.example/": NotAllowed,
		"http://pictures.example/a?to=file:///etc/passwd": NotAllowed, "http://pictures.example/a?to=http://127.0.0.1/": NotAllowed,
		"http://pictures.example/a?hops=4": DownloadFailed, "http://pictures.example/missing": DownloadFailed,
		"http://pictures.example/empty": DownloadFailed, "http://pictures.example/big": TooLarge, "http://pictures.example/endless": TooLarge,
	} {
		want(t, l, u, "", code)
	}
	if _, _, err := l.Load(t.Context(), []byte(
		"http://pictures.example/missing")); strings.Contains(err.Error(), "404") ||
		strings.Contains(err.Error(), "words") {
		t.Errorf("%v: tells what the host answered", err)
	}
	l.o.Timeout = 50 * time.Millisecond
	want(t, l, "http://pictures.example/stuck", "", DownloadFailed)
	var late *Error
	if _, _, err := l.Load(t.Context(), []byte("http://pictures.example/stuck")); !errors.As(err,
		&late) || !late.Late || late.Text != "could not be downloaded within 50ms" {
		t.Errorf("got %v, want the time limit", err)
	}
	l.o.Timeout = 0
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if _, _, err := l.Load(ctx, []byte("http://pictures.example/a")); !errors.Is(err, gone) {
		t.Errorf("got %v, want the context's cause", err)
	}

	any := loader(t, Options{Domains: []string{"*"}})
	network(any, names, addr)
	want(t, any, "http://other.example/a", "picture", "")
	want(t, any, "http://93.184.216.34/a", "picture", "")
	for _, u := range []string{"http://127.0.0.1/a", "http://localhost/a", "http://inside.pictures.example/", "http://[::ffff:127.0.0.1]/", "http://2130706433/"} {
		want(t, any, u, "", NotAllowed)
	}
	own := loader(t, Options{Domains: []string{"127.0.0.1", "[::1]:80"}})
	network(own, names, addr)
	want(t, own, "http://127.0.0.1:8080/a", "picture", "")
	want(t, own, "http://[::1]/a", "picture", "")
	for _, u := range []string{"http://[::1]:81/a", "http://localhost/a", "http://[::ffff:127.0.0.1]/a", "http://127.0.0.2/"} {
		want(t, own, u, "", NotAllowed)
	}
}

// Ensure that addresses of special use are not public, in every form.
func TestPublic(t *testing.T) {
	for _, a := range strings.Fields(`0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 127.0.0.1 127.255.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.168.0.1
		192.0.0.1 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 192.88.99.1
		:: ::1 fe80::1 fec0::1 fc00::1 fd12::1 ff02::1 2001:db8::1 2001::1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b:1::1
		2002:0a00:0001::1 2002:7f00:0001:: 100::1 3fff::1 5f00::1`) {
		if public(netip.MustParseAddr(a)) {
			t.Errorf("%s counts as public", a)
		}
	}
	for _, a := range strings.Fields(`8.8.8.8 93.184.216.34 172.32.0.1 100.128.0.1 192.169.0.1 2606:4700::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:0808:0808::1`) {
		if !public(netip.MustParseAddr(a)) {
			t.Errorf("%s does not count as public", a)
		}
	}
}

// Ensure that entries of no use are refused at the start.
func TestDomains(t *testing.T) {
	for _, d := range []string{"", "http://a", "http://a.example", "a.example/x", "*a.example", "*.", "a..b", "a:0", "a:x", "127.1", "*.*", "a b"} {
		_, err := New(Options{Domains: []string{d}})
		if err == nil || !strings.Contains(err.Error(), "want a host, no URL") {
			t.Errorf("%q: got %v", d, err)
		}
	}
	if _, err := New(Options{Folder: "no such folder"}); err == nil {
		t.Error("a missing folder is taken")
	}
}

// FuzzLoad loads any string, with a folder and hosts, without a network.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{"data:image/png;base64,iVBOR", "iVBOR", "file:///a%20b", "http://a.example:80/x?y#z", "http://[::1]", "https://127.1", "data:,", "::"} {
		f.Add(s)
	}
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("A"), 0o644); err != nil {
		f.Fatal(err)
	}
	l := loader(f, Options{Folder: dir, Domains: []string{"*"}, MaxBytes: 100})
	l.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	l.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil || !public(netip.MustParseAddr(host)) {
			f.Fatalf("dialed %q", address)
		}
		return nil, errors.New("no network")
	}
	f.Fuzz(func(t *testing.T, url string) {
		data, _, err := l.Load(t.Context(), []byte(url))
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("%q: got %v, want an Error", url, err)
		}
		if err == nil && (len(data) == 0 || len(data) > 100) {
			t.Fatalf("%q: got %d bytes", url, len(data))
		}
		if err != nil && bytes.ContainsAny([]byte(e.Text), "\n\r") {
			t.Fatalf("%q: the text has more than one line: %q", url, e.Text)
		}
	})
}
