package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/api"
)

// writeCertificate writes a certificate for 127.0.0.1 with a serial number.
func writeCertificate(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial),
		Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, secret.Public(), secret)
	if err != nil {
		t.Fatal(err)
	}
	bits, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: bits},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Ensure that a server with a certificate speaks TLS 1.2 and later and HTTP/2, streams many answers
// over one connection, and uses a new certificate as soon as its files change.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := OpenCertificate(cert, key, nil); err == nil {
		t.Error("missing files are accepted")
	}
	writeCertificate(t, cert, key, 1)
	c, err := OpenCertificate(cert, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Certificate: c, Loopback: true, MaxBodyBytes: 1 << 20})
	s.Ready(newFake(), api.Settings{MaxImages: 1})
	ctx, end := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() { defer close(served); _, _ = s.Serve(ctx, l) }()
	defer func() { end(); <-served }()
	url := "https://" + l.Addr().String()
	connections := 0
	dial := func(most uint16) *http.Client {
		return &http.Client{Transport: &http.Transport{
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MaxVersion: most},
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				connections++
				return new(net.Dialer).DialContext(ctx, network, addr)
			},
		}}
	}
	client := dial(0)
	for range 3 {
		r, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(
			`{"messages":[{"role":"user","content":"a"}],"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.ProtoMajor != 2 || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
			t.Errorf("got %s, %v: %s", r.Proto, err, body)
		}
	}
	if connections != 1 {
		t.Errorf("three answers took %d connections, want 1", connections)
	}
	if _, err := dial(tls.VersionTLS11).Get(url + "/live"); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	serial := func() int64 {
		r, err := dial(0).Get(url + "/live")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Errorf("serial number: got %d, want 1", got)
	}
	if err := os.WriteFile(cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != 1 {
		t.Errorf("with a damaged file: got %d, want 1", got)
	}
	writeCertificate(t, cert, key, 2000) // also another size, where times are coarse
	if got := serial(); got != 2000 {
		t.Errorf("after a change: got %d, want 2000", got)
	}
}

// serveTLS is serve with a certificate, and a client that speaks HTTP/2.
func serveTLS(t *testing.T, b *fake, change func(*Options)) (*rig, *http.Client) {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, 1)
	c, err := OpenCertificate(cert, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, b, func(o *Options) {
		o.Certificate = c
		change(o)
	})
	r.url = strings.Replace(r.url, "http:", "https:", 1)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	return r, client
}

// ask asks over HTTP/2 and returns the whole reply.
func ask(t *testing.T, c *http.Client, url, body string) (int, string) {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(resp.Body)
	if err != nil || resp.ProtoMajor != 2 {
		t.Errorf("got %s, %v after %s", resp.Proto, err, reply)
	}
	return resp.StatusCode, string(reply)
}

// Ensure that a stream of HTTP/2 may be silent for longer than a client may take to read.
func TestSilentStream(t *testing.T) {
	f := newFake()
	f.pause = 200 * time.Millisecond
	r, client := serveTLS(t, f, func(*Options) {})
	r.unread = f.pause / 4
	for path, end := range map[string]string{
		"/v1/chat/completions": "data: [DONE]\n\n", "/api/chat": "}\n",
	} {
		_, reply := ask(t, client, r.url+path, strings.Replace(question, "{", `{"stream":true,`, 1))
		if !strings.Contains(reply, " right") || !strings.HasSuffix(reply, end) {
			t.Errorf("%s: got %s", path, reply)
		}
	}
}

// Ensure that a body of HTTP/2 that waits for memory is not told that it did not arrive.
func TestBodyWaitsForMemoryTLS(t *testing.T) {
	r, client := serveTLS(t, newFake(), func(o *Options) {
		o.MaxBodyBytes, o.ReadTimeout, o.RequestTimeout = 4<<20, 3*time.Second, 0
	})
	all := &share{m: r.bodies}
	if err := all.grow(t.Context(), r.bodies.free); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(4*time.Second, func() { all.shrink(0) })
	status, reply := ask(t, client, r.url+"/v1/chat/completions", large(4<<20))
	if status != http.StatusOK {
		t.Errorf("got %d %s", status, reply)
	}
}
