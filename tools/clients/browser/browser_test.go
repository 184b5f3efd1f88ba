// Package browser tests the server's page in Chromium, as a person uses it: controls are found by
// role and accessible name, clicks and keys are real.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/restore-vlm/restore/tools/clients/program"
)

func TestMain(m *testing.M) { program.Main(m) }

// newTab returns the context of the only tab of a new browser: Chromium draws no other tab than the
// one in front, and knows no roles and names in what is not drawn.
func newTab(t *testing.T, camera bool) context.Context {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("left out: no chromium, which the page is tested in")
	}
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox,
		chromedp.ExecPath("chromium"), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("use-fake-device-for-media-stream", camera),
		chromedp.Flag("use-fake-ui-for-media-stream", camera))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(stop)
	// Events that it does not know are errors to chromedp.
	ctx, stop = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(stop)
	return ctx
}

// tab is a tab with the page.
type tab struct {
	t        *testing.T
	ctx      context.Context
	mu       sync.Mutex
	errors   []string // of the console
	requests []string // addresses
}

// look is how a page is looked at.
type look struct {
	width, height int64
	scheme        string // "light" if empty
	forced        bool   // colours
	still         bool   // reduced motion
	touch         bool
	camera        bool
}

var desk = look{width: 1280, height: 900}

// open shows the page at url and waits for the model's name. RESTORE_SHOTS=DIR writes screenshots
// there.
func open(t *testing.T, url string, l look) *tab {
	t.Helper()
	b := visit(t, url, l)
	b.until("the model's name", `document.getElementById('model').textContent === 'builtin'`)
	return b
}

// visit is open that does not wait.
func visit(t *testing.T, url string, l look) *tab {
	t.Helper()
	b := &tab{t: t, ctx: newTab(t, l.camera)}
	chromedp.ListenTarget(b.ctx, func(e any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			b.errors = append(b.errors, e.ExceptionDetails.Error())
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.LevelError {
				b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			b.requests = append(b.requests, e.Request.URL)
		}
	})
	if l.scheme == "" {
		l.scheme = "light"
	}
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}}
	if l.forced {
		features = append(features, &emulation.MediaFeature{Name: "forced-colors", Value: "active"})
	}
	if l.still {
		features = append(features,
			&emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"})
	}
	b.do(network.Enable(), cdplog.Enable(),
		emulation.SetDeviceMetricsOverride(l.width, l.height, 1, l.touch),
		emulation.SetTouchEmulationEnabled(l.touch),
		emulation.SetEmulatedMedia().WithFeatures(features), chromedp.Navigate(url))
	return b
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression as text. It waits for a promise.
func (b *tab) eval(js string) string {
	b.t.Helper()
	var out any
	await := func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true).WithReplMode(true)
	}
	b.do(chromedp.Evaluate(js, &out, await))
	return fmt.Sprint(out)
}

// until waits for an expression to be true.
func (b *tab) until(what, js string) {
	b.t.Helper()
	for range 1200 {
		if b.eval(js) == "true" {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	b.t.Fatalf("waited in vain for %s", what)
}

// find returns the element with a role and that name, or else one whose name begins so; nil if
// there is none. Hidden elements have no role.
func (b *tab) find(role, name string) *accessibility.Node {
	b.t.Helper()
	if role == "img" {
		role = "image" // Chromium's name
	}
	var nodes []*accessibility.Node
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		root, err := dom.GetDocument().Do(ctx)
		if err == nil {
			query := accessibility.QueryAXTree().WithBackendNodeID(root.BackendNodeID)
			nodes, err = query.WithRole(role).Do(ctx)
		}
		return err
	}))
	var begins *accessibility.Node
	for _, n := range nodes {
		if n.Ignored {
			continue
		}
		switch got := nameOf(n); {
		case got == name:
			return n
		case begins == nil && strings.HasPrefix(got, name):
			begins = n
		}
	}
	return begins
}

func nameOf(n *accessibility.Node) (name string) {
	if n.Name != nil {
		_ = json.Unmarshal(n.Name.Value, &name)
	}
	return name
}

// wait waits for an element with a role and a name.
func (b *tab) wait(role, name string) cdp.BackendNodeID {
	b.t.Helper()
	for range 600 {
		if n := b.find(role, name); n != nil {
			return n.BackendDOMNodeID
		}
		time.Sleep(25 * time.Millisecond)
	}
	b.shot("missing")
	b.t.Fatalf("no %s %q", role, name)
	return 0
}

// gone waits until there is no element with a role and a name.
func (b *tab) gone(role, name string) {
	b.t.Helper()
	for range 600 {
		if b.find(role, name) == nil {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	b.t.Fatalf("%s %q is still there", role, name)
}

// call calls a function on the element with a role and a name.
func (b *tab) call(role, name, function string) string {
	b.t.Helper()
	id := b.wait(role, name)
	var out string
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		object, err := dom.ResolveNode().WithBackendNodeID(id).Do(ctx)
		if err != nil {
			return err
		}
		result, thrown, err := runtime.CallFunctionOn(function).WithObjectID(
			object.ObjectID).WithReturnByValue(true).WithAwaitPromise(true).Do(ctx)
		if err == nil && thrown != nil {
			err = thrown
		}
		if err == nil {
			var v any
			if result.Value != nil {
				err = json.Unmarshal(result.Value, &v)
			}
			out = fmt.Sprint(v)
		}
		return err
	}))
	return out
}

// text is the text of an element.
func (b *tab) text(role, name string) string {
	b.t.Helper()
	return b.call(role, name, `function() { return this.textContent }`)
}

// says fails if the text of an element lacks one of some pieces.
func (b *tab) says(role, name string, pieces ...string) {
	b.t.Helper()
	got := b.text(role, name)
	for _, p := range pieces {
		if !strings.Contains(got, p) {
			b.t.Errorf("%s %q says %q, want %q", role, name, got, p)
		}
	}
}

// absent fails if there is an element with a role and a name.
func (b *tab) absent(role, name string) {
	b.t.Helper()
	if b.find(role, name) != nil {
		b.t.Errorf("%s %q is there", role, name)
	}
}

// value is the value of a control.
func (b *tab) value(role, name string) string {
	b.t.Helper()
	return b.call(role, name, `function() { return this.value }`)
}

// focus moves the focus to an element.
func (b *tab) focus(role, name string) {
	b.t.Helper()
	b.call(role, name, `function() { this.focus() }`)
}

// click clicks with the mouse in the middle of an element.
func (b *tab) click(role, name string) {
	b.t.Helper()
	const middle = `function() { this.scrollIntoView({block: 'nearest'}); const r = this.getBoundingClientRect(); return (r.x + r.width / 2) + ' ' + (r.y + r.height / 2) }`
	var x, y float64
	if _, err := fmt.Sscan(b.call(role, name, middle), &x, &y); err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.MouseClickXY(x, y))
}

// write types into a textbox, in place of what is there.
func (b *tab) write(name, text string) {
	b.t.Helper()
	b.call("textbox", name, `function() { this.focus(); this.select() }`)
	b.do(input.InsertText(text))
}

// choose gives the labelled input files.
func (b *tab) choose(files ...string) { b.chooseIn("Picture files", files...) }

func (b *tab) chooseIn(label string, files ...string) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		input, thrown, err := runtime.Evaluate(
			`document.querySelector('input[aria-label="` + label + `"]')`).Do(ctx)
		if err == nil && thrown != nil {
			err = thrown
		}
		if err != nil {
			return err
		}
		return dom.SetFileInputFiles(files).WithObjectID(input.ObjectID).Do(ctx)
	}))
}

// ask types a question, presses Enter and waits for the answer.
func (b *tab) ask(question string) {
	b.t.Helper()
	b.write("Question", question)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.answered()
}

// answered waits until no answer is being made.
func (b *tab) answered() {
	b.t.Helper()
	b.until("the answer", `document.querySelector('article') !== null && !document.querySelector('[aria-busy=true]') && document.getElementById('ask').textContent === 'Ask'`)
}

// shot writes a screenshot of the visible part.
func (b *tab) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("RESTORE_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	b.do(chromedp.Sleep(300*time.Millisecond), chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// quiet fails if the console has errors other than those that the test causes.
func (b *tab) quiet(caused ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, e := range b.errors {
		for _, c := range caused {
			if strings.Contains(e, c) {
				continue next
			}
		}
		b.t.Errorf("console: %s", e)
	}
}

// downloads lets the tab save files in a folder, which it returns.
func (b *tab) downloads() string {
	b.t.Helper()
	dir := b.t.TempDir()
	allow := browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorAllow)
	b.do(allow.WithDownloadPath(dir))
	return dir
}

// file is a file of the repository.
func file(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(program.Root, path))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func example(t *testing.T) string { return file(t, "internal/server/page/example.jpg") }

// proxy stands between the page and a server, below a path. It records the questions and can answer
// in the server's place.
type proxy struct {
	url    string
	server string // its address

	mu       sync.Mutex
	instead  replier // in the server's place
	requests []request
}

// request is the body of a question, as far as tests read it.
type request struct {
	Messages []struct {
		Role    string
		Content json.RawMessage
	}
	Restore     reading
	Temperature *float64
	Seed        *int64
	Longest     *int `json:"max_completion_tokens"`
}

// reading is how pictures are read.
type reading struct {
	Base string
	NVis int `json:"n_vis"`
}

func between(t *testing.T, path string, flags ...string) *proxy {
	t.Helper()
	target, err := url.Parse(program.Serve(t, flags...))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{server: target.String()}
	to := httputil.NewSingleHostReverseProxy(target)
	to.FlushInterval = -1
	to.ErrorLog = nil
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/chat/completions" {
			data, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			var q request
			if err := json.Unmarshal(data, &q); err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(strings.NewReader(string(data)))
			p.mu.Lock()
			p.requests = append(p.requests, q)
			p.mu.Unlock()
		}
		p.mu.Lock()
		instead := p.instead
		p.mu.Unlock()
		if instead == nil || !instead(w, r) {
			to.ServeHTTP(w, r)
		}
	})
	s := httptest.NewServer(http.StripPrefix(strings.TrimSuffix(path, "/"), handler))
	t.Cleanup(s.Close)
	p.url = s.URL + path
	return p
}

// answers sets what answers in the server's place; nil: nothing.
func (p *proxy) answers(f replier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instead = f
}

// asked are the questions so far.
func (p *proxy) asked() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// replier answers a request, or returns false.
type replier func(http.ResponseWriter, *http.Request) bool

// stream answers questions with a text in pieces, each sent after every one of gate; a nil gate
// waits for nothing. Without end the connection breaks after the text, and one more of gate.
func stream(text string, gate <-chan struct{}, end bool) replier {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/chat/completions" {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(data string) {
			fmt.Fprintf(w, "data: %s\n\n", data)
			_ = http.NewResponseController(w).Flush()
		}
		send(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
		wait := func() {
			select {
			case <-gate:
			case <-r.Context().Done():
			}
		}
		for piece := range pieces(text) {
			if gate != nil {
				wait()
			}
			data, _ := json.Marshal(piece)
			send(`{"choices":[{"index":0,"delta":{"content":` + string(data) + `},"finish_reason":null}]}`)
		}
		if !end {
			if gate != nil {
				wait()
			}
			panic(http.ErrAbortHandler)
		}
		send(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
		send(`{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}},` +
			`"timings":{"queue_ms":1,"prepare_ms":0,"encode_ms":0,"select_ms":0,"merge_ms":0,"prompt_n":9,"cache_n":0,"prompt_ms":4,` +
			`"prompt_per_token_ms":0.5,"ttft_ms":5,"predicted_n":3,"predicted_ms":6,"predicted_per_second":500},"restore":{"images":[]}}`)
		send("[DONE]")
		return true
	}
}

// pieces yields a text 9 bytes at a time, runes whole.
func pieces(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for text != "" {
			n := min(9, len(text))
			for n < len(text) && text[n]&0xc0 == 0x80 {
				n++
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// refuse answers questions with an error of the server.
func refuse(status int, code, message string) replier {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/chat/completions" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"error": map[string]any{"message": message, "type": "t", "param": nil, "code": code},
		})
		return true
	}
}

// cut breaks every connection, as a server that is away.
func cut(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
