package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	nats "github.com/nats-io/nats-server/v2/server"
	natsio "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/restore-vlm/restore/internal/fleet/fleettest"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
)

// configured starts a NATS server in the test with a configuration.
func configured(t *testing.T, config string) (port int) {
	t.Helper()
	s := started(t, options(t, t.TempDir(), -1, config))
	return s.Addr().(*net.TCPAddr).Port
}

// options are a NATS server's, from a configuration. It listens on port, -1 is any, and keeps its
// streams in dir.
func options(t *testing.T, dir string, port int, config string) *nats.Options {
	t.Helper()
	file := filepath.Join(dir, "nats.conf")
	config = fmt.Sprintf("listen: 127.0.0.1:%d\njetstream {store_dir: %q}\n%s", port, dir, config)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := nats.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	return o
}

// started starts a NATS server in the test.
func started(t *testing.T, o *nats.Options) *nats.Server {
	t.Helper()
	s, err := nats.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server is not ready")
	}
	return s
}

// documented returns the subjects that docs/scaling.md lists, to publish to and to subscribe to.
func documented(t *testing.T) (publish, subscribe string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "A worker needs to publish to")
	list, _, _ = strings.Cut(list, ";")
	first, last, _ := strings.Cut(list, "subscribe")
	subjects := func(text string) string {
		var out []string
		for _, found := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
			out = append(out, strconv.Quote(found[1]))
		}
		return strings.Join(out, ", ")
	}
	return subjects(first), subjects(last)
}

// Ensure that the permissions listed in docs/scaling.md are enough, also for a picture that the
// server sends with flow control, and that a worker without them gets an error at once, not at the
// time limit of a call.
func TestPermissions(t *testing.T) {
	t.Parallel()
	publish, subscribe := documented(t)
	port := configured(t, fmt.Sprintf(`
authorization {
  users = [
    {user: good, password: pw, permissions: {publish: [%s], subscribe: [%s]}}
    {user: reads, password: pw, permissions: {
      publish: ["$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>"], subscribe: ["_INBOX.>"]}}
    {user: nothing, password: pw, permissions: {publish: ["x"], subscribe: ["_INBOX.>"]}}
  ]
}`, publish, subscribe))
	url := func(user string) Options {
		return Options{URL: fmt.Sprintf("nats://%s:pw@127.0.0.1:%d", user, port), Layout: quick,
			callTime: time.Hour}
	}
	c, err := Connect(t.Context(), url("good"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	runWorker(t, c, newEcho(1), "m1")
	k := newClient(t, c, ClientOptions{})
	large := []byte(strings.Repeat("picture", 1_000_000))
	if _, err := answerOf(t.Context(), k, question("x", large)); err != nil {
		t.Errorf("with all permissions: %v", err)
	}
	for _, user := range []string{"reads", "nothing"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var forbidden *PermissionError
		c, err := Connect(ctx, url(user))
		if err == nil {
			_, err = c.NewWorker(ctx, WorkerOptions{Key: "m1", Service: newEcho(1)})
			c.Close()
		}
		if !errors.As(err, &forbidden) || ctx.Err() != nil {
			t.Errorf("%s: got %v, %v", user, err, ctx.Err())
		}
		cancel()
	}
	_, err = Connect(t.Context(), url("who"))
	if err == nil || !strings.Contains(err.Error(), "does not know this user") ||
		strings.Contains(err.Error(), "pw") {
		t.Errorf("another user: got %v", err)
	}
}

// Ensure that a connection returns when its server knows the user again, after it was reloaded with
// another password.
func TestPasswordReturns(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), fleettest.FreePort(t)
	configure := func(password string) *nats.Options {
		return options(t, dir, port,
			fmt.Sprintf("authorization {user: u, password: %q}\n", password))
	}
	s := started(t, configure("first"))
	c, err := Connect(t.Context(), Options{URL: fmt.Sprintf("nats://u:first@127.0.0.1:%d", port),
		Layout: quick})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := s.ReloadOptions(configure("second")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // for several attempts
	if c.nc.IsConnected() {
		t.Error("connected with the first password")
	}
	if err := s.ReloadOptions(configure("first")); err != nil {
		t.Fatal(err)
	}
	for wait := 0; !c.nc.IsConnected(); wait++ {
		if wait > 2000 {
			t.Fatal("the connection does not return")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Ensure that TLS works with a private CA certificate, and is refused without it.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for kind, der := range map[string][]byte{"CERTIFICATE": cert, "PRIVATE KEY": private} {
		names[kind] = filepath.Join(dir, kind)
		data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(names[kind], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := configured(t, fmt.Sprintf("tls {cert_file: %q, key_file: %q}",
		names["CERTIFICATE"], names["PRIVATE KEY"]))
	o := Options{URL: fmt.Sprintf("tls://127.0.0.1:%d", port), Layout: quick}
	_, err = Connect(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: got %v", err)
	}
	o.CA = names["CERTIFICATE"]
	c, err := Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// Ensure that a file of credentials signs in at a server of an operator, that a user whose
// credentials do not suffice is refused, and that none is.
func TestCredentials(t *testing.T) {
	t.Parallel()
	pair := func(make func() (nkeys.KeyPair, error)) (k nkeys.KeyPair, public string) {
		t.Helper()
		k, err := make()
		if err == nil {
			public, err = k.PublicKey()
		}
		if err != nil {
			t.Fatal(err)
		}
		return k, public
	}
	encode := func(c jwt.Claims, k nkeys.KeyPair) string {
		t.Helper()
		text, err := c.Encode(k)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	operator, operatorID := pair(nkeys.CreateOperator)
	account, accountID := pair(nkeys.CreateAccount)
	_, systemID := pair(nkeys.CreateAccount)
	owner := jwt.NewOperatorClaims(operatorID)
	owner.SystemAccount = systemID
	ours := jwt.NewAccountClaims(accountID)
	ours.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1,
		Streams: -1, Consumer: -1, MaxAckPending: -1}
	port := configured(t, fmt.Sprintf(
		"operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {%s: %s, %s: %s}\n",
		encode(owner, operator), systemID, accountID, encode(ours, operator), systemID,
		encode(jwt.NewAccountClaims(systemID), operator)))
	credentials := func(allowed ...string) string {
		t.Helper()
		user, userID := pair(nkeys.CreateUser)
		claims := jwt.NewUserClaims(userID)
		claims.Pub.Allow.Add(allowed...)
		seed, err := user.Seed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.FormatUserConfig(encode(claims, account), seed)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "user.creds")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	o := Options{URL: fmt.Sprintf("nats://127.0.0.1:%d", port), Layout: quick}
	_, err := Connect(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "does not know this user") {
		t.Errorf("without credentials: got %v", err)
	}
	o.Credentials = credentials("x")
	var forbidden *PermissionError
	if _, err := Connect(t.Context(), o); !errors.As(err, &forbidden) {
		t.Errorf("without permission: got %v", err)
	}
	o.Credentials = credentials()
	c, err := Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	runWorker(t, c, newEcho(1), "m1")
	if _, err := asking(t.Context(), newClient(t, c, ClientOptions{}), "x"); err != nil {
		t.Error(err)
	}
}

// Ensure that who waits for a server connects as soon as there is one, and that a server that
// refuses the user is an error at once.
func TestWait(t *testing.T) {
	t.Parallel()
	o := natsserver.Options{Folder: t.TempDir(), Port: fleettest.FreePort(t), Token: "t"}
	url := fmt.Sprintf("nats://127.0.0.1:%d", o.Port)
	if c, err := Connect(t.Context(), Options{URL: url}); err == nil {
		c.Close()
		t.Fatal("without a server: no error")
	}
	told := make(chan struct{})
	log := slog.New(slog.NewTextHandler(signalling(func() { close(told) }), nil))
	token := func(s string) func() string { return func() string { return s } }
	connected := make(chan error, 1)
	go func() {
		c, err := Connect(t.Context(), Options{URL: url, Wait: true, Log: log, Token: token("t")})
		if err == nil {
			c.Close()
		}
		connected <- err
	}()
	<-told // once: a second time would panic
	time.Sleep(time.Second)
	s, err := natsserver.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	_, err = Connect(t.Context(), Options{URL: url, Wait: true, Token: token("other")})
	if err == nil || !strings.Contains(err.Error(), "does not know this user") {
		t.Errorf("with another token: got %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Connect(gone, Options{URL: "nats://127.0.0.1:1", Wait: true})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// signalling is a writer that calls a function instead.
type signalling func()

func (s signalling) Write(p []byte) (int, error) { s(); return len(p), nil }

// Ensure that a server with a token admits nobody without it, and that a connection survives a
// restart of the server with another token.
func TestToken(t *testing.T) {
	t.Parallel()
	start := func(port int, token string) (url string, end func()) {
		t.Helper()
		s, err := natsserver.Start(natsserver.Options{
			Folder: t.TempDir(), Port: port, Token: token,
		})
		if err != nil {
			t.Fatal(err)
		}
		end = sync.OnceFunc(s.Close)
		t.Cleanup(end)
		return s.URL(), end
	}
	port := fleettest.FreePort(t)
	url, end := start(port, "first")
	var known atomic.Pointer[string]
	var asked atomic.Int64
	know := func(s string) { known.Store(&s) }
	token := func() string { asked.Add(1); return *known.Load() }
	for _, wrong := range []string{"", "second"} {
		know(wrong)
		_, err := Connect(t.Context(), Options{URL: url, Layout: quick, Token: token})
		if !errors.Is(err, natsio.ErrAuthorization) || strings.Contains(err.Error(), "first") {
			t.Errorf("token %q: got %v, want it refused", wrong, err)
		}
	}
	know("first")
	c, err := Connect(t.Context(), Options{URL: url, Layout: quick, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	end()
	start(port, "second")
	until := func(what string, done func() bool) {
		t.Helper()
		for wait := 0; !done(); wait++ {
			if wait > 6000 {
				t.Fatal(what)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	before := asked.Load()
	until("it tries no more", func() bool { return asked.Load() > before+3 })
	if c.nc.IsConnected() {
		t.Error("connected with the first token")
	}
	know("second")
	until("the connection does not return", c.nc.IsConnected)
}
