package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/anthropic"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/protocols"
	"github.com/restore-vlm/restore/internal/wire"
)

// route is a path and its handlers.
type route struct {
	name   string // its name in metrics
	get    func(*exchange)
	post   func(*exchange)
	delete func(*exchange)
	open   bool // needs no key
	always bool // answers while the model loads and while the server shuts down
	api    bool // replies must not be stored
}

// table returns the routes by path. A path may have one parameter, as /v1/models/{id}.
func (s *Server) table() map[string]*route {
	health := &route{name: "/health", get: s.health, open: true, always: true, api: true}
	t := map[string]*route{
		"/v1/models":        {get: s.listModels, api: true},
		modelPath:           {get: s.oneModel, api: true},
		"/tokenize":         {post: s.tokenize, api: true},
		"/detokenize":       {post: s.detokenize, api: true},
		anthropic.CountPath: {post: countTokens, api: true},
		"/api/tags":         {get: s.ollamaTags, api: true},
		"/api/show":         {post: s.ollamaShow, api: true},
		"/api/ps":           {get: s.ollamaPS, api: true},
		"/api/version":      {get: s.ollamaVersion, api: true},
		"/health":           health,
		"/v1/health":        health,
		"/live":             {get: s.live, open: true, always: true, api: true},
		"/version":          {get: s.version, open: true, always: true, api: true},
	}
	t["/openapi.json"] = &route{get: s.openAPI, open: true, always: true, api: true}
	for path, parse := range protocols.Calls() {
		t[path] = &route{post: answers(parse), api: true}
	}
	if !s.o.NoMetrics {
		t["/metrics"] = &route{
			get: func(x *exchange) { s.metrics().handler().ServeHTTP(x.w, x.r) },
			api: true,
		}
	}
	if !s.o.NoPage {
		page := func(x *exchange) { s.page.ServeHTTP(x.w, x.r) }
		t["/"] = &route{get: page, open: true}
		for _, name := range pageAssets() {
			t["/assets/"+name] = &route{name: "/assets/", get: page, open: true}
		}
	}
	if s.o.Jobs != nil {
		maps.Copy(t, jobRoutes())
	}
	for path, r := range t {
		if r.name == "" {
			r.name = path
		}
	}
	return t
}

// modelPath is the path of a model, whose id may have slashes.
const modelPath = "/v1/models/{id}"

// find returns the route of a path, and its parameter. It ignores one trailing slash.
func (s *Server) find(path string) (r *route, parameter string) {
	if strings.Contains(path, "//") || slices.Contains(strings.Split(path, "/"), "..") {
		return nil, ""
	}
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	if r := s.routes[path]; r != nil && !strings.Contains(path, "{") {
		return r, ""
	}
	for pattern, r := range s.routes {
		before, rest, _ := strings.Cut(pattern, "{")
		_, after, found := strings.Cut(rest, "}")
		if !found || len(path) <= len(before)+len(after) {
			continue
		}
		id, begins := strings.CutPrefix(path, before)
		id, ends := strings.CutSuffix(id, after)
		if begins && ends && (pattern == modelPath || !strings.Contains(id, "/")) {
			return r, id
		}
	}
	return nil, ""
}

// methods lists the methods of a route.
func (r *route) methods() string {
	var m []string
	if r.get != nil {
		m = append(m, "GET", "HEAD")
	}
	if r.post != nil {
		m = append(m, "POST")
	}
	if r.delete != nil {
		m = append(m, "DELETE")
	}
	return strings.Join(append(m, "OPTIONS"), ", ")
}

// exchange is one request and its reply.
type exchange struct {
	s      *Server
	w      *writer
	r      *http.Request
	id     string
	start  time.Time
	route  *route
	api    *api.Protocol
	param  string // of the path
	owner  string // the name of the key; "" without keys
	tenant string // the same if caches are apart, else ""
	line   []any  // additional fields of the log line

	// The following fields are for requests with a body.
	ctx     context.Context // of the request
	leave   func()          // ends ctx
	share   *share          // of the memory for bodies
	arrived time.Time       // when the last byte of the body arrived
}

// writeTimeout is the time in which a client must read one write, of at most writeBytes.
const (
	writeTimeout = 30 * time.Second
	writeBytes   = 64 << 10
)

// writer records the status and whether a reply was begun. A client that does not read its reply
// loses the connection.
type writer struct {
	http.ResponseWriter
	status int
	unread time.Duration // time limit of a write
	shared bool          // the connection has other requests: HTTP/2
}

// setDeadline limits the time of the next write.
func (w *writer) setDeadline() {
	t := time.Now().Add(w.unread)
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t) // see setReadDeadline
}

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	if w.shared { // or all its requests would end
		w.Header().Del("Connection")
	}
	w.setDeadline()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(b []byte) (n int, err error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	for {
		part := b[n:min(n+writeBytes, len(b))]
		w.setDeadline()
		done, err := w.ResponseWriter.Write(part)
		if n += done; err != nil || n == len(b) {
			return n, err
		}
	}
}

// flush sends what was written. Until the next write the client has nothing to read: the time limit
// of the last one would end a stream of HTTP/2.
func (w *writer) flush() error {
	c := http.NewResponseController(w.ResponseWriter)
	err := c.Flush()
	_ = c.SetWriteDeadline(time.Time{}) // see setReadDeadline
	return err
}

// Unwrap lets http.ResponseController find the wrapped writer.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

var ownID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{
		s:     s,
		w:     &writer{ResponseWriter: w, unread: s.unread, shared: r.ProtoMajor > 1},
		r:     r,
		id:    r.Header.Get("X-Request-Id"),
		start: time.Now(),
	}
	if !ownID.MatchString(x.id) {
		x.id = "req_" + rand.Text()[:24]
	}
	w.Header().Set("X-Request-Id", x.id)
	w.Header().Set("Request-Id", x.id) // which Anthropic's clients read
	w.Header().Set("X-Content-Type-Options", "nosniff")
	x.route, x.param = s.find(r.URL.Path)
	x.api = protocols.Of(r.URL.Path)
	if r.ContentLength != 0 && s.o.ReadTimeout > 0 {
		setReadDeadline(x.w, x.start.Add(s.o.ReadTimeout))
	}
	defer x.end()
	if e := x.admit(); e != nil {
		x.fail(e)
	}
}

// end logs and counts the request. A panic ends only this request.
func (x *exchange) end() {
	fault := recover()
	if fault != nil && fault != http.ErrAbortHandler {
		x.s.log.Error("panic", "id", x.id, "panic", fmt.Sprint(fault), "stack",
			string(debug.Stack()))
		if x.w.status == 0 {
			x.fail(internalError(x.id))
			fault = nil
		}
	}
	name := "other"
	if x.route != nil {
		name = x.route.name
	}
	status := x.w.status
	if status == 0 { // the client went away before there was an answer
		status, fault = 499, http.ErrAbortHandler
	}
	d := time.Since(x.start)
	x.s.metrics().answered(name, status, d)
	x.s.log.Info(
		"request",
		append(
			[]any{
				"id",
				x.id,
				"method",
				x.r.Method,
				"path",
				wire.Clip(x.r.URL.Path),
				"status",
				status,
				"ms",
				float64(d.Microseconds()) / 1000,
			},
			x.line...)...)
	if fault != nil {
		panic(http.ErrAbortHandler) // closes the connection
	}
}

func internalError(id string) *wire.Error {
	return wire.New(http.StatusInternalServerError, "internal_error", "",
		"internal error; the server's log says more under request id %s", id)
}

// admit checks access and runs the handler. It returns the error if access is denied.
func (x *exchange) admit() *wire.Error {
	s, w, r := x.s, x.w, x.r
	if e := s.allowHost(r); e != nil {
		return e
	}
	if e := s.allowOrigin(r); e != nil {
		return e
	}
	shareWith(w, r)
	if r.Method == http.MethodOptions && r.Header.Get("Origin") != "" &&
		r.Header.Get("Access-Control-Request-Method") != "" {
		preflight(w, r)
		return nil
	}
	at := x.route
	if at == nil {
		return s.unknownPath(r.URL.Path)
	}
	if at.api {
		w.Header().Set("Cache-Control", "no-store")
	}
	var serve func(*exchange)
	switch r.Method {
	case http.MethodOptions:
		w.Header().Set("Allow", at.methods())
		w.WriteHeader(http.StatusNoContent)
		return nil
	case http.MethodGet, http.MethodHead:
		serve = at.get
	case http.MethodPost:
		serve = at.post
	case http.MethodDelete:
		serve = at.delete
	}
	switch {
	case s.draining.Load() && !at.always:
		s.metrics().rejected("shutting_down")
		w.Header().Set("Connection", "close")
		return shuttingDown()
	case s.front.Load() == nil && !at.always:
		return loading()
	case serve == nil:
		e := wire.New(http.StatusMethodNotAllowed, "method_not_allowed", "",
			"got %s, want one of %s", wire.Clip(r.Method), at.methods())
		e.Allow = at.methods()
		return e
	}
	if !at.open {
		owner, ok := s.keys.match(r)
		if !ok {
			return unauthorized()
		}
		if x.owner = owner; s.o.IsolateKeys {
			x.tenant = owner
		}
	}
	serve(x)
	return nil
}

// unknownPath is the error for an unknown path; it suggests a similar one.
func (s *Server) unknownPath(path string) *wire.Error {
	e := wire.New(http.StatusNotFound, "unknown_path", "", "there is no %s", wire.Quote(path))
	if r, _ := s.find("/v1" + path); r != nil {
		e.Message += "; there is /v1" + wire.Clip(strings.TrimSuffix(path, "/"))
	}
	return e
}

// fail answers with an error; nil means that the client is gone.
func (x *exchange) fail(e *wire.Error) {
	if e == nil {
		x.s.metrics().cancelled.Inc()
		return
	}
	h := x.w.Header()
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	switch e.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests:
		x.s.metrics().rejected("queue_full")
	case http.StatusGatewayTimeout:
		x.s.metrics().rejected("deadline")
	}
	h.Set("Cache-Control", "no-store")
	x.line = append(x.line, "code", e.Code)
	e.RequestID = x.id
	x.json(e.Status, x.api.Error(e))
}

// json answers with a value. The request's body is no longer needed, however long the client takes
// to read the answer.
func (x *exchange) json(status int, v any) {
	if x.share != nil {
		x.share.shrink(0)
	}
	body, err := wire.Marshal(v)
	if err != nil {
		x.s.log.Error("reply", "id", x.id, "error", err)
		status, body = http.StatusInternalServerError, []byte(
			`{"error":{"message":"internal error","type":"api_error","param":null,"code":"internal_error"}}`,
		)
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // a client that is gone gets nothing
}
