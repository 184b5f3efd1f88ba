package address

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/restore-vlm/restore/errs"
)

// content returns n random bytes.
func content(seed uint64, n int) []byte {
	out := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	r.Read(out)
	return out
}

// faulty is a server that answers its first requests with faults.
type faulty struct {
	http.Handler
	mu     sync.Mutex
	faults []fault
	asked  []*http.Request
	sent   int // bytes of answers
}

// fault answers a request in place of the server, or changes the server's answer.
type fault func(w http.ResponseWriter, q *http.Request, next http.Handler)

// ServeHTTP implements http.Handler.
func (f *faulty) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, q)
	do := fault(func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		next.ServeHTTP(w, q)
	})
	if len(f.faults) > 0 {
		do, f.faults = f.faults[0], f.faults[1:]
	}
	f.mu.Unlock()
	do(&counting{w, f}, q, f.Handler)
}

// counting counts the bytes of answers.
type counting struct {
	http.ResponseWriter
	f *faulty
}

func (c *counting) Write(b []byte) (int, error) {
	c.f.mu.Lock()
	c.f.sent += len(b)
	c.f.mu.Unlock()
	return c.ResponseWriter.Write(b)
}

// cutAfter ends the connection after n bytes of the answer.
func cutAfter(n int) fault {
	return func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		next.ServeHTTP(&cutting{w, n}, q)
	}
}

type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(b []byte) (int, error) {
	if len(b) < c.left {
		c.left -= len(b)
		return c.ResponseWriter.Write(b)
	}
	_, _ = c.ResponseWriter.Write(b[:c.left])
	_ = http.NewResponseController(c.ResponseWriter.(*counting).ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// status answers with a status and header fields.
func status(code int, header ...string) fault {
	return func(w http.ResponseWriter, q *http.Request, _ http.Handler) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// cutBody ends the connection while the body of a request arrives.
func cutBody(w http.ResponseWriter, q *http.Request, _ http.Handler) {
	_, _ = io.CopyN(io.Discard, q.Body, 1000)
	panic(http.ErrAbortHandler)
}

// object is a server of one content that can be changed, and keeps the bytes that are put.
type object struct {
	mu   sync.Mutex
	data []byte
	tag  string
	put  []byte
}

func (o *object) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method == http.MethodPut {
		data, err := io.ReadAll(q.Body)
		if err != nil || int64(len(data)) != q.ContentLength {
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.put = data
		return
	}
	o.mu.Lock()
	data, tag := o.data, o.tag
	o.mu.Unlock()
	if tag != "" {
		w.Header().Set("Etag", tag)
	}
	http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(data))
}

// serve starts a server of HTTPS with faults, and a client that trusts it and does not wait.
func serve(t *testing.T, h http.Handler, faults ...fault) (*faulty, *Client, string, *[]string) {
	t.Helper()
	f := &faulty{Handler: h, faults: faults}
	s := httptest.NewTLSServer(f)
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	c := NewClient()
	c.http.Transport.(*http.Transport).TLSClientConfig =
		s.Client().Transport.(*http.Transport).TLSClientConfig
	waits := new([]string)
	c.wait = func(d time.Duration) <-chan time.Time {
		*waits = append(*waits, d.String())
		return time.After(0)
	}
	return f, c, s.URL, waits
}

// Ensure that a content arrives whole and once, whatever happens on the way.
func TestGet(t *testing.T) {
	const size = 3_000_000
	data, other := content(1, size), content(2, size-7)
	object1 := func() *object { return &object{data: data, tag: `"one"`} }
	change := func(o *object) fault {
		return func(w http.ResponseWriter, q *http.Request, next http.Handler) {
			o.mu.Lock()
			o.data, o.tag = other, `"two"`
			o.mu.Unlock()
			next.ServeHTTP(w, q)
		}
	}
	elsewhere := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 5-%d/%d", size-1, size))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data[5:])
	}
	changed, weak, same := object1(), object1(), object1()
	weak.tag = `W/"one"`
	for what, c := range map[string]struct {
		o      *object
		faults []fault
		want   []byte
		most   int // bytes sent
		wait   string
	}{
		"undisturbed":     {object1(), nil, data, size, ""},
		"cut connections": {object1(), []fault{cutAfter(900_000), cutAfter(900_000)}, data, size, "100ms"},
		"503 with Retry-After": {object1(), []fault{status(503, "Retry-After", "7"),
			cutAfter(900_000), status(503, "Retry-After", "9")}, data, size, "9s"},
		"other content after a cut": {changed, []fault{cutAfter(900_000), change(changed)}, other,
			900_000 + size, ""},
		"other content in the middle, same place": {same, []fault{cutAfter(900_000),
			func(w http.ResponseWriter, q *http.Request, next http.Handler) {
				q.Header.Del("If-Range") // a server that ignores it
				change(same)(w, q, next)
			}}, other, 900_000 + 2*size, ""},
		"a weak tag": {weak, []fault{cutAfter(900_000)}, data, 900_000 + size, ""},
		"no tag":     {&object{data: data}, []fault{cutAfter(900_000)}, data, 900_000 + size, ""},
		"shorter":    {object1(), []fault{cutAfter(900_000), status(416)}, data, 900_000 + size, ""},
		"another range": {object1(), []fault{cutAfter(900_000), elsewhere}, data,
			900_000 + 2*size, ""},
	} {
		t.Run(what, func(t *testing.T) {
			f, client, url, waits := serve(t, c.o, c.faults...)
			path := filepath.Join(t.TempDir(), "file")
			if err := client.Get(t.Context(), url+"/x?signature=secret", path); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("got %d bytes, %v, want %d others", len(got), err, len(c.want))
			}
			if f.sent > c.most {
				t.Errorf("%d bytes were sent, want at most %d", f.sent, c.most)
			}
			if c.wait != "" && !slices.Contains(*waits, c.wait) {
				t.Errorf("waited %v, want %s too", *waits, c.wait)
			}
			left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
			if len(left) != 1 {
				t.Errorf("got the files %v, want one", left)
			}
		})
	}
}

// Ensure that another process continues what one has got.
func TestGetContinued(t *testing.T) {
	data := content(1, 3_000_000)
	f, c, url, _ := serve(t, &object{data: data, tag: `"one"`}, cutAfter(1_000_000))
	path := filepath.Join(t.TempDir(), "file")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped")
	c.wait = func(time.Duration) <-chan time.Time { cancel(stop); return nil }
	if err := c.Get(ctx, url, path); !errors.Is(err, stop) {
		t.Fatalf("got %v, want %v", err, stop)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("a part has the whole's name")
	}
	if err := c.Get(t.Context(), url, path); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, data) || f.sent != len(data) {
		t.Errorf("got %d bytes, %v, of %d sent, want %d", len(got), err, f.sent, len(data))
	}
	if r := f.asked[1].Header.Get("Range"); r == "" || r == "bytes=0-" {
		t.Errorf("asked for the range %q, want the rest", r)
	}
}

// Ensure that errors that do not go away are returned at once, name the address without its
// signature, and say what the server said.
func TestRefused(t *testing.T) {
	hour := func(by time.Duration) string {
		return time.Now().Add(by).UTC().Format(http.TimeFormat)
	}
	denied := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(403)
		_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code>"+
			"<Message>no\nway</Message></Error>")
	}
	for _, c := range []struct {
		f    fault
		want string
	}{
		{status(404), "404 Not Found"},
		{status(403, "Date", hour(time.Hour)), "behind the server's"},
		{status(403, "Date", hour(-time.Hour)), "ahead of the server's"},
		{denied, "(AccessDenied: no way)"},
		{status(501), "501 Not Implemented"},
		{status(503, "Retry-After", "86400"), "503 Service Unavailable"},
		{status(302, "Location", "http://127.0.0.1:1/"), "redirect from https to http"},
	} {
		for _, put := range []bool{false, true} {
			f, client, url, _ := serve(t, &object{}, c.f)
			path := filepath.Join(t.TempDir(), "file")
			err := client.Get(t.Context(), url+"/a/b?X-Amz-Signature=secret", path)
			if put {
				f.faults = []fault{c.f}
				if werr := os.WriteFile(path, content(1, 100_000), 0o600); werr != nil {
					t.Fatal(werr)
				}
				f.asked = nil
				err = client.Put(t.Context(), path, url+"/a/b?X-Amz-Signature=secret")
			}
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "/a/b") || strings.Contains(err.Error(), "secret") ||
				len(f.asked) != 1 {
				t.Errorf("put %t: got %v after %d requests, want %q after one", put, err,
					len(f.asked), c.want)
			}
			if strings.HasPrefix(c.want, "404") && !errors.Is(err, errs.ErrNotFound) {
				t.Errorf("got %v, want ErrNotFound", err)
			}
		}
	}
}

// Ensure that a content that a server has compressed is refused, whether or not its length is
// known.
func TestEncodedContent(t *testing.T) {
	for _, size := range []int{100, 100_000} { // net/http sends the second one in chunks
		_, client, url, _ := serve(t, http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(content(1, size))
			}))
		path := filepath.Join(t.TempDir(), "file")
		err := client.Get(t.Context(), url+"/a", path)
		if err == nil || !strings.Contains(err.Error(), `the encoding "gzip"`) {
			t.Errorf("%d bytes: got %v", size, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%d bytes: the compressed content has the file's name", size)
		}
	}
}

// Ensure that a server that never answers well is given up.
func TestGivenUp(t *testing.T) {
	var faults []fault
	for range 10 {
		faults = append(faults, status(503))
	}
	f, c, url, _ := serve(t, &object{}, faults...)
	err := c.Get(t.Context(), url, filepath.Join(t.TempDir(), "file"))
	if err == nil || !strings.Contains(err.Error(), "(5 tries)") || len(f.asked) != 5 {
		t.Errorf("got %v after %d requests", err, len(f.asked))
	}
}

// Ensure that a file is put in one request that is repeated after a fault.
func TestPut(t *testing.T) {
	for what, c := range map[string]struct {
		data   []byte
		faults []fault
		wait   string
	}{
		"undisturbed":          {content(1, 5_000_000), nil, ""},
		"empty":                {nil, nil, ""},
		"503 with Retry-After": {content(1, 5_000_000), []fault{status(503, "Retry-After", "7")}, "7s"},
		"cut":                  {content(1, 5_000_000), []fault{cutBody, cutBody}, "100ms"},
		"moved":                {content(1, 5_000_000), []fault{status(307, "Location", "/there")}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			o := new(object)
			_, client, url, waits := serve(t, o, c.faults...)
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := client.Put(t.Context(), path, url+"/x?signature=secret"); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(o.put, c.data) {
				t.Errorf("%d bytes were put, want %d", len(o.put), len(c.data))
			}
			if c.wait != "" && !slices.Contains(*waits, c.wait) {
				t.Errorf("waited %v, want %s too", *waits, c.wait)
			}
		})
	}
}

// s3 starts a server of S3 with faults, whose clock is ahead by skew.
func s3(t *testing.T, skew time.Duration, faults ...fault) (*faulty, *Client, *[]string) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	h := gofakes3.New(backend, gofakes3.WithTimeSource(
		gofakes3.FixedTimeSource(time.Now().Add(skew)))).Server()
	f, c, url, waits := serve(t, h, faults...)
	for name, v := range map[string]string{"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "id",
		"AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": ""} {
		t.Setenv(name, v)
	}
	return f, c, waits
}

// Ensure that objects of S3 are put and got whole, also in parts and with faults.
func TestS3(t *testing.T) {
	for what, c := range map[string]struct {
		size     int
		put, get []fault
		waits    []string
	}{
		"small":    {100_000, nil, nil, nil},
		"in parts": {17_000_000, nil, []fault{cutAfter(10_000_000)}, nil}, // of 16 MiB
		"503 with Retry-After": {100_000, []fault{status(503, "Retry-After", "7")},
			[]fault{status(503, "Retry-After", "9")}, []string{"7s", "9s"}},
		"cut": {3_000_000, []fault{cutBody}, []fault{cutAfter(1_000_000)}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			f, client, waits := s3(t, 0, c.put...)
			from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
			data := content(1, c.size)
			if err := os.WriteFile(from, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := client.Put(t.Context(), from, "s3://bucket/a folder/key"); err != nil {
				t.Fatal(err)
			}
			f.faults = c.get
			if err := client.Get(t.Context(), "s3://bucket/a folder/key", to); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
				t.Errorf("got %d bytes, %v, want %d", len(got), err, len(data))
			}
			for _, w := range c.waits {
				if !slices.Contains(*waits, w) {
					t.Errorf("waited %v, want %s too", *waits, w)
				}
			}
		})
	}
}

// Ensure that requests use the region, endpoint and credentials of a profile in AWS's files, unless
// the environment has others.
func TestS3Profile(t *testing.T) {
	f, c, _ := s3(t, 0)
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("[default]\nregion = us-west-2\n[profile eu]\n"+
		"region = eu-west-1\nendpoint_url = "+os.Getenv("AWS_ENDPOINT_URL")+"\n"+
		"s3 =\n    addressing_style = path\n"+
		"aws_access_key_id = EU\naws_secret_access_key = secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"AWS_CONFIG_FILE": config, "AWS_PROFILE": "eu",
		"AWS_SHARED_CREDENTIALS_FILE": config + ".none", "AWS_ENDPOINT_URL": "", "AWS_REGION": "",
		"AWS_DEFAULT_REGION": "", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""} {
		t.Setenv(name, v)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content(1, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	signed := func(want string) {
		t.Helper()
		f.asked = nil
		if err := c.Put(t.Context(), path, "s3://bucket/key"); err != nil {
			t.Fatal(err)
		}
		for _, q := range f.asked {
			if got := q.Header.Get("Authorization"); !strings.Contains(got, "Credential=EU/") ||
				!strings.Contains(got, "/"+want+"/s3/aws4_request") {
				t.Errorf("%s %s: got the signature %q, want one of EU for %s", q.Method,
					q.RequestURI, got, want)
			}
		}
	}
	signed("eu-west-1")
	t.Setenv("AWS_DEFAULT_REGION", "ap-south-1")
	signed("ap-south-1")
	if err := os.WriteFile(config, []byte("[profile"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Put(t.Context(), path, "s3://bucket/key"); err == nil ||
		!strings.Contains(err.Error(), config) {
		t.Errorf("a file that is none: got %v", err)
	}
}

// Ensure that a key is the text after the bucket, as in AWS's tools: it is neither decoded nor cut.
func TestS3Key(t *testing.T) {
	f, c, _ := s3(t, 0)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content(1, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html:
	// every byte but letters, digits, - . _ ~ and the / of a key is encoded.
	for key, want := range map[string]string{
		"a#b": "a%23b", "100%.jsonl": "100%25.jsonl", "a%20b": "a%2520b", "a%2Fb": "a%252Fb",
		"ü": "%C3%BC", "a+b": "a%2Bb",
	} {
		f.asked = nil
		if err := c.Put(t.Context(), path, "s3://bucket/"+key); err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if err := c.Get(t.Context(), "s3://bucket/"+key, path+".got"); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		for _, q := range f.asked {
			if got, _, _ := strings.Cut(q.RequestURI, "?"); got != "/bucket/"+want {
				t.Errorf("%s: %s %s, want /bucket/%s", key, q.Method, got, want)
			}
		}
		if got := Name("s3://bucket/" + key); got != "s3://bucket/"+key {
			t.Errorf("%s: got the name %s", key, got)
		}
	}
}

// Ensure that what S3 refuses is an error that says why.
func TestS3Refused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content(1, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		w.Header().Set("X-Amz-Request-Id", "1")
		w.Header().Set("Etag", fmt.Sprintf(`"%x"`, md5.Sum(nil)))
		_, _ = w.Write(content(1, 1000))
	}
	f, c, _ := s3(t, 0)
	err := c.Get(t.Context(), "s3://bucket/none", filepath.Join(t.TempDir(), "x"))
	if !errors.Is(err, errs.ErrNotFound) || !strings.Contains(err.Error(), "NoSuchKey") {
		t.Errorf("a missing key: got %v", err)
	}
	f.asked, f.faults = nil, []fault{wrong, wrong}
	to := filepath.Join(t.TempDir(), "to")
	err = c.Get(t.Context(), "s3://bucket/key", to)
	if err == nil || !errors.Is(err, errContent) || len(f.asked) != 2 {
		t.Errorf("a wrong ETag: got %v after %d requests", err, len(f.asked))
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("a content with a wrong hash has its name")
	}
	if err := c.Put(t.Context(), path, "s3://nowhere/key"); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("a missing bucket: got %v", err)
	}
	_, c, _ = s3(t, time.Hour)
	err = c.Put(t.Context(), path, "s3://bucket/key")
	if err == nil || !strings.Contains(err.Error(), "RequestTimeTooSkewed") {
		t.Errorf("clocks that differ: got %v", err)
	}
}

// Ensure that names of files are no addresses, and that wrong addresses are refused.
func TestCheck(t *testing.T) {
	for name, want := range map[string]bool{"https://h/p": true, "HTTP://h": true, "s3://b/k": true,
		"file": false, "C:\\file": false, "ftp://h/p": false, "s3:/x": false} {
		if Is(name) != want {
			t.Errorf("%s: got %t", name, !want)
		}
	}
	for _, a := range []string{"https://", "https:///p", "s3://bucket", "s3://bucket/", "s3:///k",
		"https://u:secret@h:x/p?secret", "s3://bucket/k?secret"} {
		if err := Check(a); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", a, err)
		}
	}
	for _, a := range []string{"https://h/p?signature=x", "s3://bucket/a/b c"} {
		if err := Check(a); err != nil {
			t.Error(err)
		}
	}
	if got := Name("https://u:secret@h/p?q#f"); got != "https://h/p" {
		t.Errorf("got %s", got)
	}
}
