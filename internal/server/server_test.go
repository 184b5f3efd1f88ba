package server

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/media"
)

// rig is a server on its own port.
type rig struct {
	*Server
	url  string
	stop context.CancelFunc
	done chan bool // the result of Serve
	log  *bytes.Buffer
}

func serve(t *testing.T, b restore.Service, change func(*Options)) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, b, change)
}

func serveOn(t *testing.T, l net.Listener, b restore.Service, change func(*Options)) *rig {
	t.Helper()
	loader, err := media.New(media.Options{MaxBytes: 1 << 20, Timeout: time.Minute,
		Domains: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{done: make(chan bool, 1), log: new(bytes.Buffer)}
	o := Options{
		Version:           "v1",
		Kernel:            "go",
		Loopback:          true,
		MaxBodyBytes:      10_000,
		ReadHeaderTimeout: time.Minute,
		ReadTimeout:       time.Minute,
		RequestTimeout:    time.Minute,
		DrainTimeout:      time.Minute,
		Log:               slog.New(slog.NewTextHandler(r.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	r.Server = New(o)
	if b != nil {
		r.Ready(b, settings(loader))
	}
	r.url = "http://" + l.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() {
		clean, _ := r.Serve(ctx, l)
		r.done <- clean
	}()
	t.Cleanup(func() {
		stop()
		r.Close()
	})
	return r
}

// wait waits until so many requests run and wait.
func (f *fake) wait(t *testing.T, running, queued int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s := f.Stats()
		if s.Running == running && s.Queued == queued {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %d running, %d queued, want %d, %d", s.Running, s.Queued, running, queued)
		}
	}
}

func newFake() *fake { return &fake{words: []string{"bottom", " right"}, parallel: 2, queue: 1} }

// do sends a request and returns the status, the head and the body. header is "Name: value".
func (r *rig) do(
	t *testing.T,
	method, path, body string,
	header ...string,
) (int, http.Header, string) {
	t.Helper()
	q, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		if h == "" {
			continue
		}
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			q.Host = value
		} else {
			q.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(r.document())
	if err != nil {
		t.Fatal(err)
	}
	newChecker(t, document).check(t, method, path, resp, string(data))
	return resp.StatusCode, resp.Header, string(data)
}

const question = `{"messages":[{"role":"user","content":"where?"}]}`

func code(body string) string {
	var e struct {
		Error struct{ Code string }
	}
	_ = json.Unmarshal([]byte(body), &e)
	return e.Error.Code
}

// Ensure that paths, methods and the headers of every reply follow the contract.
func TestRoutes(t *testing.T) {
	r := serve(t, newFake(), nil)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/live", 200, ""}, {"GET", "/health", 200, ""}, {"GET", "/v1/health", 200, ""}, {"GET", "/version", 200, ""}, {"GET", "/live/", 200, ""},
		{"HEAD", "/health", 200, ""}, {"GET", "/v1/models", 200, ""}, {"GET", "/v1/models/builtin", 200, ""}, {"GET", "/v1/models/tiny:latest", 200, ""},
		{"GET", "/v1/models/other", 404, "model_not_found"}, {"GET", "/v1/models/a/b", 404, "model_not_found"}, {"GET", "/metrics", 200, ""},
		{"GET", "/api/tags", 200, ""}, {"GET", "/api/ps", 200, ""}, {"GET", "/api/version", 200, ""}, {"GET", "/", 200, ""}, {"GET", "/assets/app.js", 200, ""},
		{"OPTIONS", "/v1/models", 204, ""}, {"DELETE", "/v1/models", 405, "method_not_allowed"}, {"GET", "/v1/chat/completions", 405, "method_not_allowed"},
		{"PUT", "/health", 405, "method_not_allowed"}, {"GET", "/nowhere", 404, "unknown_path"}, {"GET", "/models", 404, "unknown_path"},
		{"GET", "/live//", 404, "unknown_path"}, {"GET", "/v1/../live", 404, "unknown_path"},
		{"GET", "/v1/%2e%2e/live", 404, "unknown_path"}, {"GET", "/assets/index.html", 404, "unknown_path"}, {"GET", "/assets/", 404, "unknown_path"},
		{"GET", "/LIVE", 404, "unknown_path"}, {"POST", "/v1/embeddings", 404, "unknown_path"},
	} {
		q, err := http.NewRequest(c.method, r.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.URL.Opaque = c.path // as it is
		resp, err := http.DefaultTransport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || code(string(body)) != c.code {
			t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.path, resp.StatusCode, body,
				c.status, c.code)
		}
		h := resp.Header
		if !strings.HasPrefix(h.Get("X-Request-Id"), "req_") || len(h.Get("X-Request-Id")) != 28 ||
			h.Get("Request-Id") != h.Get("X-Request-Id") ||
			h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: head %v", c.method, c.path, h)
		}
		if (c.status == 405 || c.method == "OPTIONS") && h.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
		if c.method == "HEAD" && len(body) > 0 {
			t.Errorf("%s %s: has a body", c.method, c.path)
		}
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET //live HTTP/1.0\r\n\r\n")
	if reply, err := io.ReadAll(conn); err != nil ||
		!strings.HasPrefix(string(reply), "HTTP/1.0 404") {
		t.Errorf("//live: got %q, %v", reply, err)
	}
	_, _, body := r.do(t, "GET", "/models", "")
	if _, _, list := r.do(t, "GET", "/v1/models", ""); !strings.Contains(list,
		`"encoder":{"type":"q8","why":"it is fast"}`) {
		t.Errorf("/v1/models does not tell the encoder's type: %s", list)
	}
	if _, _, one := r.do(t, "GET", "/v1/models/builtin", ""); !strings.Contains(one,
		`"type":"model","display_name":"builtin","created_at":"`) ||
		!strings.Contains(one, `Z","lifecycle":"active"`) {
		t.Errorf("/v1/models/builtin lacks what Anthropic's clients require: %s", one)
	}
	if !strings.Contains(body, "/v1/models") {
		t.Errorf("/models: got %s, want the path that was meant", body)
	}
	status, h, body := r.do(t, "GET", "/api/embed", "")
	if status != 404 || !strings.HasPrefix(body, `{"error":"`) ||
		h.Get("Content-Type") != "application/json" {
		t.Errorf("/api/embed: got %d %s", status, body)
	}
	if _, h, _ := r.do(t, "GET", "/live", "",
		"X-Request-Id: my.id-1"); h.Get("X-Request-Id") != "my.id-1" {
		t.Errorf("own request id: got %q", h.Get("X-Request-Id"))
	}
	if _, h, _ := r.do(t, "GET", "/live", "", "X-Request-Id: a b"); h.Get("X-Request-Id") == "a b" {
		t.Error("a bad request id is taken")
	}
	if _, h, _ := r.do(t, "GET", "/", ""); h.Get("Content-Security-Policy") != pagePolicy {
		t.Errorf("page: head %v", h)
	}
	off := serve(t, newFake(), func(o *Options) { o.NoPage, o.NoMetrics = true, true })
	for _, path := range []string{"/", "/assets/app.js", "/metrics"} {
		if status, _, _ := off.do(t, "GET", path, ""); status != 404 {
			t.Errorf("%s: got %d, want 404 where it is off", path, status)
		}
	}
}

// Ensure that keys, hosts and origins decide who may ask.
func TestWhoMayAsk(t *testing.T) {
	r := serve(t, newFake(), func(o *Options) {
		o.Keys = []string{"k1", "k2"}
		o.AllowedHosts = []string{"box.lan"}
		o.IsolateKeys = true
	})
	for _, c := range []struct {
		path   string
		header []string
		status int
		code   string
	}{
		{"/v1/models", nil, 401, "invalid_api_key"}, {"/v1/models", []string{"Authorization: Bearer wrong"}, 401, "invalid_api_key"},
		{"/v1/models", []string{"Authorization: Bearer k1"}, 200, ""}, {"/v1/models", []string{"Authorization: bearer k2"}, 200, ""},
		{"/v1/models", []string{"X-Api-Key: k2"}, 200, ""}, {"/v1/models", []string{"Authorization: k1"}, 401, "invalid_api_key"},
		{"/metrics", nil, 401, "invalid_api_key"}, {"/health", nil, 200, ""}, {"/live", nil, 200, ""}, {"/version", nil, 200, ""}, {"/", nil, 200, ""},
		{"/live", []string{"Host: evil.example"}, 403, "host_not_allowed"}, {"/live", []string{"Host: localhost:1"}, 200, ""},
		{"/live", []string{"Host: a.localhost"}, 200, ""}, {"/live", []string{"Host: box.lan:80"}, 200, ""}, {"/live", []string{"Host: [::1]:5"}, 200, ""},
		{"/live", []string{"Host: 192.168.0.7"}, 200, ""}, {"/", []string{"Host: evil.example"}, 403, "host_not_allowed"},
		{"/live", []string{"Origin: http://localhost:3000"}, 200, ""}, {"/live", []string{"Origin: https://127.0.0.1"}, 200, ""},
		{"/live", []string{"Origin: http://[::1]:8"}, 200, ""}, {"/live", []string{"Origin: https://evil.example"}, 403, "origin_not_allowed"},
		{"/live", []string{"Origin: null"}, 403, "origin_not_allowed"}, {"/live", []string{"Origin: file://localhost"}, 200, ""},
		{"/live", []string{"Origin: app://obsidian.md"}, 200, ""}, {"/live", []string{"Origin: tauri://localhost"}, 200, ""},
		{"/live", []string{"Origin: vscode-webview://1a2b"}, 200, ""}, {"/live", []string{"Origin: vscode-file://vscode-app"}, 200, ""},
		{"/live", []string{"Origin: chrome-extension://a"}, 403, "origin_not_allowed"},
		{"/live", []string{"Host: box.lan", "Origin: http://box.lan"}, 200, ""},
	} {
		status, h, body := r.do(t, "GET", c.path, "", c.header...)
		if status != c.status || code(body) != c.code {
			t.Errorf("%s %q: got %d %s, want %d %s", c.path, c.header, status, body,
				c.status, c.code)
		}
		if status == 401 && h.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: no WWW-Authenticate", c.path)
		}
	}
	status, h, _ := r.do(t, "OPTIONS", "/v1/models", "", "Origin: http://localhost:3000",
		"Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
	if status != 204 || h.Get("Access-Control-Allow-Origin") != "http://localhost:3000" ||
		h.Get("Access-Control-Allow-Methods") != "GET, POST, DELETE, OPTIONS" ||
		h.Get("Access-Control-Allow-Headers") != "authorization" ||
		h.Get("Access-Control-Max-Age") != "600" ||
		h.Get("Vary") != "Origin" ||
		h.Get("Access-Control-Allow-Credentials") != "" ||
		h.Get("Access-Control-Expose-Headers") != "X-Request-Id, Request-Id, Retry-After" {
		t.Errorf("preflight: got %d %v", status, h)
	}
	named := serve(t, newFake(), func(o *Options) { o.Origins = []string{"https://app.example"} })
	for origin, want := range map[string]int{"https://app.example": 200, "http://localhost:3000": 403} {
		if status, _, _ := named.do(t, "GET", "/live", "", "Origin: "+origin); status != want {
			t.Errorf("%s: got %d, want %d", origin, status, want)
		}
	}
	// The body of a request without a key is not read.
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(
		conn,
		"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\nExpect: 100-continue\r\n\r\n",
	)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, "401") {
		t.Errorf("without a key: got %q, %v, want 401 before the body", line, err)
	}
}

// Ensure that a server with names answers only to them, at any address, and that one without names
// that is not on loopback answers to any.
func TestHosts(t *testing.T) {
	for _, c := range []struct {
		names []string
		host  string
		want  int
	}{
		{nil, "evil.example", 200}, {[]string{"box.lan"}, "evil.example", 403},
		{[]string{"box.lan"}, "box.lan:80", 200}, {[]string{"box.lan"}, "192.168.0.7", 200},
		{[]string{"box.lan"}, "localhost", 200}, {[]string{"*"}, "evil.example", 200},
	} {
		r := serve(t, newFake(), func(o *Options) { o.Loopback, o.AllowedHosts = false, c.names })
		if status, _, body := r.do(t, "GET", "/live", "", "Host: "+c.host); status != c.want {
			t.Errorf("names %q, %s: got %d %s, want %d", c.names, c.host, status, body, c.want)
		}
	}
}

// Ensure that an entry of the allowed origins is accepted only if a browser can send it, and that
// each that is accepted is served.
func TestOrigins(t *testing.T) {
	for entry, sent := range map[string]string{ // "": none
		"https://app.example": "https://app.example", "https://App.Example/": "https://app.example",
		"http://10.0.0.7:8080": "http://10.0.0.7:8080", "http://[::1]:3": "http://[::1]:3",
		"app://obsidian.md": "app://obsidian.md", "file://": "file://", "null": "null",
		"vscode-webview://1a2b": "vscode-webview://1a2b", "*": "https://any.example",
		"": "", "app.example": "", "localhost:3000": "", "https://": "", "https:app.example": "",
		"https://app.example/chat": "", "https://app.example?x": "", "https://app.example#x": "",
		"https://*.example": "", "*.example": "", "https://a@app.example": "",
		"https://app.example:443": "", "http://app.example:80/": "", "http://app.example:": "",
		"http://app.example:0080": "", "http://app.example:70000": "", " https://app.example": "",
		"https://bücher.example": "", "http://[0:0::1]:3": "", "http://[::g]": "", "http://[.]": "",
	} {
		err := CheckOrigin(entry)
		if (err == nil) != (sent != "") {
			t.Errorf("%q: got error %v, want %q to be served", entry, err, sent)
		}
		if err != nil {
			continue
		}
		r := serve(t, newFake(), func(o *Options) { o.Origins = []string{entry} })
		if status, _, body := r.do(t, "GET", "/live", "", "Origin: "+sent); status != 200 {
			t.Errorf("%q: %s: got %d %s, want 200", entry, sent, status, body)
		}
	}
	for entry, want := range map[string]bool{
		"box.lan": true, "box.lan:8642": true, "*": true, "::1": true, "[::1]": true, "10.0.0.7": true,
		"": false, "http://box.lan": false, "box.lan/": false, "*.lan": false, " box.lan": false,
		"bücher.lan": false, "box.lan:x": false,
	} {
		if err := CheckHost(entry); (err == nil) != want {
			t.Errorf("host %q: got error %v, want accepted %t", entry, err, want)
		}
	}
}

// Ensure that HEAD has the status and the head of GET on every route, and no body.
func TestHead(t *testing.T) {
	r := serve(t, newFake(), nil)
	paths := []string{"/v1/models/builtin", "/v1/models/none", "/v1/chat/completions", "/none"}
	for path := range r.routes {
		paths = append(paths, path)
	}
	for _, path := range paths {
		ask := func(method string) (*http.Response, int) {
			q, err := http.NewRequest(method, r.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultTransport.RoundTrip(q)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"Date", "X-Request-Id", "Request-Id"} {
				resp.Header.Del(name)
			}
			if resp.StatusCode == 405 || path == "/api/ps" { // which tells the method, or the time
				resp.Header.Del("Content-Length")
			}
			return resp, len(body)
		}
		get, _ := ask("GET")
		head, n := ask("HEAD")
		if head.StatusCode != get.StatusCode || !maps.EqualFunc(head.Header, get.Header,
			slices.Equal) || n > 0 {
			t.Errorf("HEAD %s: got %d %v and %d bytes, want %d %v", path, head.StatusCode,
				head.Header, n, get.StatusCode, get.Header)
		}
		if path == "/" && (head.StatusCode != 200 || head.Header.Get("Content-Length") == "") {
			t.Errorf("HEAD /: got %d %v, want 200 with the length", head.StatusCode, head.Header)
		}
	}
}

// Ensure that Ollama's clients get a semantic version from every build.
func TestOllamaVersion(t *testing.T) {
	for build, want := range map[string]string{
		"(devel)": "0.0.0", "": "0.0.0", "v1": "0.0.0", "v1.2.3": "1.2.3",
		"v0.0.0-20261123120000-c98381a0c1d2+dirty": "0.0.0-20261123120000-c98381a0c1d2+dirty",
	} {
		r := serve(t, newFake(), func(o *Options) { o.Version = build })
		if _, _, body := r.do(t, "GET", "/api/version", ""); body != `{"version":"`+want+`"}` {
			t.Errorf("%q: got %s, want %s", build, body, want)
		}
	}
}

// Ensure that bodies are limited, unpacked, and refused with the right status.
func TestBodies(t *testing.T) {
	r := serve(t, newFake(), nil)
	zip := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write([]byte(s))
		z.Close()
		return b.String()
	}
	big := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 10_000) + `"}]}`
	for _, c := range []struct {
		body, header string
		status       int
		code         string
	}{
		{question, "", 200, ""}, {question, "Content-Type: text/plain", 200, ""}, {zip(question), "Content-Encoding: gzip", 200, ""},
		{question, "Content-Encoding: identity", 200, ""}, {question, "Content-Encoding: br", 415, "unsupported_encoding"},
		{big, "", 413, "request_too_large"}, {zip(big), "Content-Encoding: gzip", 413, "request_too_large"}, {"", "", 400, "invalid_json"},
		{"[]", "", 400, "invalid_type"}, {question + "x", "", 400, "invalid_json"}, {`{"messages":[],"model":"gpt"}`, "", 400, "invalid_value"},
		{strings.Replace(question, "{", `{"model":"gpt",`, 1), "", 404, "model_not_found"}, {strings.Replace(question, "{", `{"model":"tiny:latest",`, 1), "", 200, ""},
	} {
		status, _, body := r.do(t, "POST", "/v1/chat/completions", c.body, c.header)
		if status != c.status || code(body) != c.code {
			t.Errorf("%.60q %s: got %d %s, want %d %s", c.body, c.header, status, body,
				c.status, c.code)
		}
	}
	for _, b := range []string{
		"not gzip at all", zip(question)[:30], zip(question)[:10] + "\xff", "",
	} {
		status, _, body := r.do(t, "POST", "/v1/chat/completions", b, "Content-Encoding: gzip")
		if status != 400 || code(body) != "invalid_value" || !strings.Contains(body, "not gzip") {
			t.Errorf("%q in gzip: got %d %s", b, status, body)
		}
	}
	// Chunked, without a length.
	q, _ := http.NewRequest("POST", r.url+"/v1/chat/completions",
		io.MultiReader(strings.NewReader(big)))
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 || !resp.Close {
		t.Errorf("chunked: got %d, close %t, want 413 and the end of the connection",
			resp.StatusCode, resp.Close)
	}
	// A body that never arrives.
	soon := serve(t, newFake(), func(o *Options) { o.ReadTimeout = 100 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(soon.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn,
		"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
	reply, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(reply), "408") ||
		!strings.Contains(string(reply), "request_timeout") {
		t.Errorf("slow body: got %q, %v", reply, err)
	}
}

// Ensure that refusals of the backend name field, value and limit.
func TestErrorsOfBackend(t *testing.T) {
	for _, c := range []struct {
		err     error
		status  int
		message string
	}{
		{errPicture, 400, `{"error":{"message":"messages[0].content[0].image_url.url: got 9000 x 9000 = 81000000 pixels, want at most 64000000 (--max-image-pixels)","type":"invalid_request_error","param":"messages[0].content[0].image_url.url","code":"image_too_large"}}`},
		{&errs.ContextError{PromptTokens: 500, Positions: 5000, Context: 4096}, 400, `"code":"context_length_exceeded","n_prompt_tokens":500,"n_positions":5000,"n_ctx":4096}}`},
		{&api.FieldError{Path: "restore", Err: fmt.Errorf("x: %w", &errs.OptionError{Name: "n-vis", Got: "577", Want: "at most 576", Why: "the picture's tokens", Fault: errs.TooLarge})}, 400,
			`{"error":{"message":"restore.n_vis: got 577, want at most 576 (the picture's tokens)","type":"invalid_request_error","param":"restore.n_vis","code":"integer_above_max_value"}}`},
		{&errs.MemoryError{What: "keys and values", Need: 2e6, Have: 1e6}, 400, "--kv-mb"},
		{fmt.Errorf("engine: secret inside"), 500, `"code":"internal_error"`},
		{errs.ErrClosed, 503, `"code":"shutting_down"`},
	} {
		f := newFake()
		f.prepare = func(*restore.Request) error { return c.err }
		r := serve(t, f, nil)
		status, _, body := r.do(t, "POST", "/v1/chat/completions", question)
		if status != c.status || !strings.Contains(body, c.message) ||
			strings.Contains(body, "secret") {
			t.Errorf("%v: got %d %s, want %d %s", c.err, status, body, c.status, c.message)
		}
	}
	f := newFake()
	f.prepare = func(*restore.Request) error { panic("of a backend") }
	r := serve(t, f, nil)
	status, h, body := r.do(t, "POST", "/v1/chat/completions", question)
	if status != 500 || !strings.Contains(body, h.Get("X-Request-Id")) ||
		strings.Contains(body, "of a backend") {
		t.Errorf("panic: got %d %s", status, body)
	}
	f.prepare = nil
	if status, _, _ := r.do(t, "POST", "/v1/chat/completions", question); status != 200 {
		t.Errorf("after panics: got %d", status)
	}
}

// Ensure that a full queue is a 429 before the first byte, streamed or not, and that the slot of a
// client that disconnected is free within a second.
func TestQueueAndClients(t *testing.T) {
	f := newFake()
	f.words, f.pause = make([]string, 1000), 10*time.Millisecond
	for i := range f.words {
		f.words[i] = "x"
	}
	r := serve(t, f, nil)
	stream := strings.Replace(question, "{", `{"stream":true,`, 1)
	var conns []net.Conn
	send := func(body string, more string) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(
			conn,
			"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s%s",
			len(body),
			body,
			more,
		)
		conns = append(conns, conn)
	}
	send(stream, "")
	send(question, "")
	f.wait(t, 2, 0)
	send(stream, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n") // pipelined
	f.wait(t, 2, 1)
	for _, body := range []string{question, stream} {
		status, h, reply := r.do(t, "POST", "/v1/chat/completions", body)
		if status != 429 || code(reply) != "queue_full" || h.Get("Retry-After") != "3" {
			t.Errorf("full: got %d %s %s", status, h.Get("Retry-After"), reply)
		}
	}
	if status, _, reply := r.do(t, "POST", "/v1/chat/completions", `{"messages":[]}`); status != 400 {
		t.Errorf("bad request at a full queue: got %d %s, want 400", status, reply)
	}
	conns[2].Close() // the queued one, whose pipelined request nobody reads
	f.wait(t, 2, 0)
	conns[0].(*net.TCPConn).SetLinger(0) // a reset
	conns[0].Close()
	f.wait(t, 1, 0)
	send(question, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
	f.wait(t, 2, 0)
	conns[3].Close()
	f.wait(t, 1, 0)
	conns[1].Close()
	f.wait(t, 0, 0)
	if _, _, body := r.do(t, "GET", "/metrics", ""); !strings.Contains(body,
		`restore_rejected_total{model="builtin",reason="queue_full"} 2`) {
		t.Error("rejections are not counted")
	}
}

// Ensure that a request's time is limited, before and after the first byte.
func TestDeadline(t *testing.T) {
	f := newFake()
	f.fail = func(i int) error {
		f.pause = time.Duration(i) * time.Hour // the first word comes at once, the second never
		return nil
	}
	r := serve(t, f, func(o *Options) { o.RequestTimeout = time.Second })
	status, _, body := r.do(t, "POST", "/v1/chat/completions", question)
	if status != 504 || code(body) != "deadline_exceeded" || !strings.Contains(body, "1s") {
		t.Errorf("got %d %s", status, body)
	}
	status, _, body = r.do(t, "POST", "/v1/chat/completions", strings.Replace(question, "{",
		`{"stream":true,`, 1))
	if status != 200 || !strings.Contains(body, `"code":"deadline_exceeded"`) ||
		strings.Contains(body, "[DONE]") {
		t.Errorf("stream: got %d %s", status, body)
	}
}

// Ensure that every API reports a failure in mid-stream, without the end marker of a whole answer.
func TestFailureInStream(t *testing.T) {
	f := newFake()
	f.fail = func(i int) error {
		if i == 1 {
			return fmt.Errorf("broken inside")
		}
		return nil
	}
	r := serve(t, f, nil)
	for path, c := range map[string]struct{ body, want, never string }{
		"/v1/chat/completions": {question, `data: {"error":{"message":"internal error`, "[DONE]"},
		"/v1/completions":      {`{"prompt":"a"}`, `data: {"error":{`, "[DONE]"},
		"/v1/responses":        {`{"input":"a"}`, "event: response.failed\n", "response.completed"},
		"/api/chat":            {question, `{"error":"internal error`, `"done":true`},
		"/api/generate":        {`{"prompt":"a"}`, `{"error":"internal error`, `"done":true`},
		"/v1/messages": {`{"max_tokens":9,"messages":[{"role":"user","content":"?"}]}`,
			"event: error\ndata: {\"type\":\"error\"", "message_stop"},
	} {
		q, _ := http.NewRequest("POST", r.url+path, strings.NewReader(strings.Replace(c.body, "{",
			`{"stream":true,`, 1)))
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), c.want) ||
			!strings.Contains(string(body), "bottom") ||
			strings.Contains(string(body), c.never) ||
			strings.Contains(string(body), "broken inside") {
			t.Errorf("%s: got %s, %v", path, body, err)
		}
	}
}

// Ensure that a stream sends each piece at once: the next one is made when the client has read it.
func TestPiecesAtOnce(t *testing.T) {
	for path, field := range map[string]string{
		"/v1/chat/completions": `"content":"word `, "/v1/responses": `"delta":"word `,
		"/api/chat": `"content":"word `,
	} {
		f, read := newFake(), make(chan bool)
		f.words = []string{"word 0", "word 1", "word 2"}
		f.fail = func(piece int) error {
			if piece > 0 {
				<-read
			}
			return nil
		}
		r := serve(t, f, nil)
		body := `{"messages":[{"role":"user","content":"?"}],"stream":true}`
		if path == "/v1/responses" {
			body = `{"input":"?","stream":true}`
		}
		resp, err := http.Post(r.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if strings.Contains(lines.Text(), field+strconv.Itoa(seen)) {
				if seen++; seen < len(f.words) {
					read <- true
				}
			}
		}
		_ = resp.Body.Close()
		if seen != len(f.words) || lines.Err() != nil {
			t.Errorf("%s: got %d pieces and %v, want %d", path, seen, lines.Err(), len(f.words))
		}
	}
}

// Ensure that a silent stream gets comments: the answer begins when four have come.
func TestPing(t *testing.T) {
	f, hold := newFake(), make(chan struct{})
	f.fail = func(int) error {
		<-hold
		return nil
	}
	r := serve(t, f, func(o *Options) { o.Ping = 10 * time.Millisecond })
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json",
		strings.NewReader(strings.Replace(question, "{", `{"stream":true,`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	for pings := 0; pings < 4; {
		line, err := stream.ReadString('\n')
		if err != nil || strings.Contains(line, "bottom") {
			t.Fatalf("got %q, %v after %d pings, want four before the first word", line, err, pings)
		}
		if line == ": ping\n" {
			pings++
		}
	}
	close(hold)
	body, err := io.ReadAll(stream)
	if h := resp.Header; err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") ||
		h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" ||
		h.Get("Cache-Control") != "no-store" {
		t.Errorf("got %v, %v\n%s", h, err, body)
	}
}

// Ensure that loading and shutting down have their own errors, and that accepted requests finish.
func TestLifecycle(t *testing.T) {
	f, hold := newFake(), make(chan struct{})
	f.fail = func(int) error {
		<-hold
		return nil
	}
	r := serve(t, nil, nil)
	for path, want := range map[string]int{
		"/live": 200, "/version": 200, "/health": 503, "/v1/models": 503, "/": 503, "/metrics": 503, "/api/tags": 503,
	} {
		status, h, body := r.do(t, "GET", path, "")
		if status != want ||
			want == 503 && (h.Get("Retry-After") == "" || !strings.Contains(body, "loaded")) {
			t.Errorf("loading %s: got %d %s", path, status, body)
		}
	}
	r.Ready(f, settings(nil))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	one := fmt.Sprintf(
		"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
		len(question), question)
	fmt.Fprint(conn, one)
	f.wait(t, 1, 0)
	r.stop()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			break
		}
		if c.Close(); time.Now().After(end) {
			t.Fatal("new connections are taken while the server ends")
		}
	}
	close(hold)
	reply, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(reply), "bottom right") {
		t.Errorf("accepted: got %q, %v", reply, err)
	}
	if clean := <-r.done; !clean {
		t.Error("the end was not clean")
	}

	f.pause = time.Hour
	cut := serve(t, f, func(o *Options) { o.DrainTimeout = 100 * time.Millisecond })
	got := make(chan string)
	go func() {
		_, _, body := cut.do(t, "POST", "/v1/chat/completions", question)
		got <- body
	}()
	f.wait(t, 1, 0)
	cut.stop()
	if body := <-got; code(body) != "shutting_down" {
		t.Errorf("cut off: got %s", body)
	}
	if clean := <-cut.done; clean {
		t.Error("the end was clean, though a request was cut off")
	}
}

// Ensure that tokens and counts are reported.
func TestTokenize(t *testing.T) {
	r := serve(t, newFake(), nil)
	for _, c := range [][3]string{
		{"/tokenize", `{"content":"hé"}`, `{"tokens":[104,195,169],"count":3,"max_model_len":4096}`},
		{"/tokenize", `{"prompt":"h\u00e9","with_pieces":true}`, `{"tokens":[{"id":104,"piece":"h"},{"id":195,"piece":[195]},{"id":169,"piece":[169]}],"count":3,"max_model_len":4096}`},
		{"/tokenize", `{"content":"a","restore":{"n_vis":5}}`, `{"error":{"message":"restore: got an object, want nothing: it is not supported with a text alone","type":"invalid_request_error","param":"restore","code":"unsupported_parameter"}}`},
		{"/tokenize", `{"content":""}`, `{"tokens":[],"count":0,"max_model_len":4096}`},
		{"/detokenize", `{"tokens":[104,105]}`, `{"content":"hi"}`},
		{"/tokenize", question, `{"count":10,"image_tokens":0,"max_model_len":4096,"restore":{"images":[],"visual_tokens":{"before":0,"kept":0,"merged":0}}}`},
		{"/tokenize", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"` + tiny + `"}]}]}`, `"count":74,"image_tokens":64`},
		{"/tokenize", `{}`, `"param":"content"`}, {"/tokenize", `{"content":5}`, `got 5, want a string`}, {"/detokenize", `{}`, `missing_required_parameter`},
		{"/detokenize", `{"tokens":[640]}`, `tokens[0]: got 640, want at most 639`}, {"/detokenize", `{"tokens":"a"}`, `want a list`},
		{"/tokenize", `{"messages":[]}`, `got 0 messages`}, {"/tokenize", `{"content":"a","model":"b"}`, `model_not_found`},
		{"/tokenize", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"!"}]}]}`, `"code":"invalid_image_url"`},
		{"/v1/messages/count_tokens", `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"` + tiny + `"}}]}]}`, `{"input_tokens":74,"restore":{"images":[{`},
		{"/v1/messages/count_tokens", `{"messages":[]}`, `{"type":"error","error":{"type":"invalid_request_error","message":"messages: got 0 messages`},
		{"/v1/messages/nothing", `{}`, `{"type":"error","error":{"type":"not_found_error"`},
		{"/api/show", `{"model":"builtin"}`, `"capabilities":["completion","vision"]`}, {"/api/show", `{"model":"x"}`, `{"error":"model \"x\" not found"}`},
	} {
		if _, _, body := r.do(t, "POST", c[0], c[1]); !strings.Contains(body, c[2]) {
			t.Errorf("%s %s: got %s, want %s", c[0], c[1], body, c[2])
		}
	}
}

// Ensure that errors of Anthropic's API name the request, as its header does.
func TestRequestIDOfErrors(t *testing.T) {
	r := serve(t, newFake(), nil)
	_, h, body := r.do(t, "POST", "/v1/messages", `{}`)
	if want := `"request_id":"` + h.Get("Request-Id") + `"}`; !strings.HasSuffix(body, want) {
		t.Errorf("got %s, want it to end with %s", body, want)
	}
}

// Ensure that the log has one line per request, without the question unless that is requested.
func TestLog(t *testing.T) {
	for _, prompts := range []bool{false, true} {
		r := serve(
			t,
			newFake(),
			func(o *Options) { o.LogPrompts, o.Keys = prompts, []string{"sesame"} },
		)
		r.do(t, "POST", "/v1/chat/completions?key=sesame", question, "Authorization: Bearer sesame")
		r.stop()
		<-r.done
		log := r.log.String()
		if !strings.Contains(log, "method=POST path=/v1/chat/completions status=200") ||
			!strings.Contains(log, "tokens=2") ||
			!strings.Contains(log, "finish=stop") ||
			strings.Contains(log, "sesame") ||
			strings.Contains(log, "where?") != prompts ||
			strings.Contains(log, "bottom right") != prompts {
			t.Errorf("log-prompts %t: got %s", prompts, log)
		}
	}
}

// Ensure that all series exist from the start, including the dashboard's.
func TestMetrics(t *testing.T) {
	r := serve(t, newFake(), nil)
	r.do(t, "GET", "/odd/path", "")
	_, h, body := r.do(t, "GET", "/metrics", "")
	var dash struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	golden.JSON(t, "../../docs/grafana.json", &dash)
	names := regexp.MustCompile(`\b([a-z_]+)\{([^}]*)\}`)
	shown := map[string]bool{}
	for _, p := range dash.Panels {
		for _, target := range p.Targets {
			found := names.FindAllStringSubmatch(target.Expr, -1)
			if len(found) == 0 {
				t.Errorf("panel %s: %s names no metric", p.Title, target.Expr)
			}
			for _, m := range found {
				name := strings.TrimSuffix(strings.TrimSuffix(m[1], "_bucket"), "_sum")
				shown[name] = true
				if !strings.Contains(body, "# TYPE "+name+" ") {
					t.Errorf("panel %s: %s is no metric", p.Title, m[1])
				}
				if !strings.Contains(m[2], `job=~"$job"`) {
					t.Errorf("panel %s: %s is not filtered by job", p.Title, m[1])
				}
			}
		}
	}
	for _, name := range []string{"images_total", "feature_cache_bytes", "feature_cache_entries",
		"feature_cache_evictions_total", "feature_cache_corrupt_total"} {
		if !shown["restore_"+name] {
			t.Errorf("the dashboard has no panel of restore_%s", name)
		}
	}
	if !strings.HasPrefix(h.Get("Content-Type"), "text/plain") {
		t.Errorf("Content-Type: got %q", h.Get("Content-Type"))
	}
	for _, want := range []string{
		`restore_requests_total{code="404",model="builtin",route="other"} 1`, `restore_stage_seconds_count{model="builtin",stage="encode"} 0`,
		`restore_running{model="builtin"} 0`, `restore_queue_depth{model="builtin"} 0`, `restore_images_total{model="builtin",source="http"} 0`,
		`restore_feature_cache_hits_total{model="builtin",tier="disk"} 0`, `restore_rejected_total{model="builtin",reason="too_large"} 0`,
		`restore_build_info{go="`, `restore_kv_limit_bytes{model="builtin"} 100`, `restore_feature_cache_unsaved_total{model="builtin"} 3`, `go_goroutines`, `process_open_fds`, `restore_cancelled_total{model="builtin"} 0`,
		`restore_prefix_cache_hits_total{model="builtin"} 0`, `restore_ttft_seconds_count{model="builtin"} 0`, "# HELP restore_inter_token_seconds ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// tiny is a PNG of one pixel.
const tiny = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ" +
	"AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
