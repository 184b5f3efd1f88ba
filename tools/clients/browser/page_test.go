// Package browser tests the server's page in Chromium.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/restore-vlm/restore/tools/clients/program"
)

func TestMain(m *testing.M) { program.Main(m) }

// browser is a page in headless Chromium.
type browser struct {
	t      *testing.T
	ctx    context.Context
	mu     sync.Mutex
	errors []string // of the console
}

// open shows the page at url. RESTORE_SHOTS=DIR writes screenshots there.
func open(t *testing.T, url string, width, height int64, scheme string) *browser {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("left out: no chromium, which the page is tested in")
	}
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox,
		chromedp.ExecPath("chromium"))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx, chromedp.WithErrorf(log.New(os.Stderr, "", 0).Printf))
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(stop)
	b := &browser{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(e any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			b.errors = append(b.errors, e.ExceptionDetails.Error())
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.LevelError {
				b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
			}
		}
	})
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	b.do(emulation.SetDeviceMetricsOverride(width, height, 1, false),
		emulation.SetEmulatedMedia().WithFeatures(features), chromedp.Navigate(url))
	b.until("the model's name", `document.getElementById('model').textContent.includes('builtin')`)
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression as text.
func (b *browser) eval(js string) string {
	b.t.Helper()
	var out any
	b.do(chromedp.Evaluate(js, &out))
	return fmt.Sprint(out)
}

// until waits for an expression to be true.
func (b *browser) until(what, js string) {
	b.t.Helper()
	for range 1200 {
		if b.eval(js) == "true" {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	b.t.Fatalf("waited in vain for %s", what)
}

// find returns the element with a role and a name with that prefix; nil if there is none.
func (b *browser) find(role, name string) *accessibility.Node {
	b.t.Helper()
	if role == "img" {
		role = "image" // Chromium's name
	}
	var nodes []*accessibility.Node
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		root, err := dom.GetDocument().Do(ctx)
		if err == nil {
			nodes, err = accessibility.QueryAXTree().WithNodeID(root.NodeID).WithRole(role).Do(ctx)
		}
		return err
	}))
	for _, n := range nodes {
		var got string
		if n.Name != nil {
			_ = json.Unmarshal(n.Name.Value, &got)
		}
		if !n.Ignored && strings.HasPrefix(got, name) {
			return n
		}
	}
	return nil
}

// want is find that fails the test if there is no element.
func (b *browser) want(role, name string) cdp.BackendNodeID {
	b.t.Helper()
	n := b.find(role, name)
	if n == nil {
		b.t.Fatalf("no %s %q", role, name)
	}
	return n.BackendDOMNodeID
}

// call calls a function on the element with a role and a name.
func (b *browser) call(role, name, function string) string {
	b.t.Helper()
	id := b.want(role, name)
	var out string
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		object, err := dom.ResolveNode().WithBackendNodeID(id).Do(ctx)
		if err != nil {
			return err
		}
		result, thrown, err := runtime.CallFunctionOn(function).WithObjectID(
			object.ObjectID).WithReturnByValue(true).Do(ctx)
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

// center returns the middle of an element.
func (b *browser) center(role, name string) (x, y float64) {
	b.t.Helper()
	text := b.call(role, name, `function() { this.scrollIntoView({block: 'center'}); const r = this.getBoundingClientRect(); return (r.x + r.width / 2) + ' ' + (r.y + r.height / 2) }`)
	if _, err := fmt.Sscan(text, &x, &y); err != nil {
		b.t.Fatal(err)
	}
	return x, y
}

// click clicks with the mouse.
func (b *browser) click(role, name string) {
	b.t.Helper()
	x, y := b.center(role, name)
	b.do(chromedp.MouseClickXY(x, y))
}

// choose gives the labelled input a file.
func (b *browser) choose(file string) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		input, thrown, err := runtime.Evaluate(`document.querySelector('input[aria-label="Picture file"]')`).Do(ctx)
		if err == nil && thrown != nil {
			err = thrown
		}
		if err != nil {
			return err
		}
		return dom.SetFileInputFiles([]string{file}).WithObjectID(input.ObjectID).Do(ctx)
	}))
}

// shot writes a screenshot of the whole page.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("RESTORE_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	b.do(chromedp.Sleep(600*time.Millisecond), chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// quiet fails if the console has errors.
func (b *browser) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		b.t.Errorf("console: %s", e)
	}
}

// example is a picture of the page.
func example(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(program.Root, "internal/server/page/example.jpg"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ended is whether answer A is complete, as an expression.
const ended = `document.getElementById('answer-a').textContent && document.getElementById('answer-a').getAttribute('aria-busy') === 'false' && document.getElementById('ask').textContent === 'Ask'`

// Ensure that a picture and a question lead to an answer, a drawing and times, with real clicks on
// controls found by role and name.
func TestPage(t *testing.T) {
	b := open(t, program.Serve(t), 1280, 900, "light")
	b.shot("empty")
	for _, c := range [][2]string{
		{"region", "Picture"}, {"button", "Choose a picture"}, {"textbox", "Question"}, {"slider", "Visual tokens"},
		{"combobox", "Method"}, {"status", "Prediction"}, {"button", "Ask"}, {"log", "Answer"},
		{"switch", "Compare"}, {"list", "History"}, {"button", "Clear history"}, {"main", ""}} {
		b.want(c[0], c[1])
	}
	for _, c := range [][2]string{
		{"img", "Your picture"}, {"button", "Use camera"}, {"alert", ""}, {"textbox", "API key"}, {"slider", "Visual tokens B"}, {"table", "Stage times"},
	} {
		if b.find(c[0], c[1]) != nil {
			t.Errorf("%s %q is there from the start", c[0], c[1])
		}
	}
	if got := b.call("slider", "Visual tokens", `function() { return [this.min, this.max, this.value, this.getAttribute('aria-valuetext')].join() }`); got != "1,576,64,64 of 576" {
		t.Errorf("slider: got %s", got)
	}
	methods := b.call("combobox", "Method", `function() { return [...this.options].map(o => o.value).join() + ' ' + this.value }`)
	if !strings.HasPrefix(methods, "none,holov,") || !strings.HasSuffix(methods, " holov") {
		t.Errorf("method: got %s", methods)
	}
	before := b.call("status", "Prediction", `function() { return this.textContent }`)
	b.do(chromedp.Evaluate(`document.getElementById("tokens-a").focus()`, nil), chromedp.KeyEvent(kb.ArrowLeft))
	after := b.call("status", "Prediction", `function() { return this.textContent }`)
	if got := b.eval(`document.getElementById('tokens-a').getAttribute('aria-valuetext')`); got != "63 of 576" || before == after ||
		!strings.Contains(after, " ms") && !strings.Contains(after, " s") ||
		!strings.Contains(after, " MB") {
		t.Errorf("prediction: got %q, then %q at %s", before, after, got)
	}
	b.do(chromedp.KeyEvent(kb.ArrowRight))

	// The picture, by the labelled input.
	b.choose(example(t))
	b.until("the picture", `document.getElementById('facts').textContent.includes('576 visual tokens')`)
	b.want("img", "Your picture")

	// The question, by keyboard.
	b.do(chromedp.Evaluate(`document.getElementById("question").focus()`, nil),
		input.InsertText("Where"),
		chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(input.ModifierShift)),
		input.InsertText("is it?"))
	if got := b.eval(`document.getElementById('question').value`); got != "Where\nis it?" {
		t.Errorf("Shift+Enter: got %q", got)
	}
	b.do(chromedp.Evaluate(`{
		const fetch = window.fetch, seen = new Promise(resolve => window.seen = resolve)
		window.fetch = async (...request) => { await seen; return fetch(...request) }
	}`, nil), chromedp.KeyEvent(kb.Enter))
	b.until("a running answer", `document.getElementById('answer-a').getAttribute('aria-busy') === 'true'`)
	b.want("button", "Stop")
	b.do(chromedp.Evaluate(`window.seen()`, nil))
	b.until("the answer", ended)
	const drawing = "Kept and merged tokens: 32 kept, 32 merged of 576"
	b.want("img", drawing)
	if got := b.call("table", "Stage times",
		`function() { return [...this.querySelectorAll('th')].map(e => e.textContent).join() }`); got != "Prepare,Encode,Select,Merge,Prefill,First token,Decode" {
		t.Errorf("stage times: got %s", got)
	}
	// A group lights up under the mouse, and by keyboard.
	spot := b.eval(`(() => { const g = document.querySelectorAll('.group:not(.kept)')[3]; g.scrollIntoView({block: 'center'}); const r = g.getBoundingClientRect(); const p = g.firstChild.getPointAtLength(0); const m = g.firstChild.getScreenCTM(); return (p.x * m.a + m.e + 3) + ' ' + (p.y * m.d + m.f + 3) })()`)
	var x, y float64
	if _, err := fmt.Sscan(spot, &x, &y); err != nil {
		t.Fatal(err)
	}
	b.do(input.DispatchMouseEvent(input.MouseMoved, x, y))
	b.until("the tooltip", `!document.querySelector('[role=tooltip]').hidden`)
	if got := b.call("tooltip", "", `function() { return this.textContent }`); !strings.HasSuffix(got, ", one token") {
		t.Errorf("tooltip: got %q", got)
	}
	b.shot("answer-light")
	b.do(input.DispatchMouseEvent(input.MouseMoved, 2, 2))
	b.until("no tooltip", `document.querySelector('[role=tooltip]').hidden`)
	b.call("img", drawing, `function() { this.focus() }`)
	b.until("the tooltip by focus", `document.querySelector('[role=tooltip]').textContent.endsWith(', one token') && !document.querySelector('[role=tooltip]').hidden`)

	// Comparison.
	b.click("switch", "Compare")
	b.want("slider", "Visual tokens B")
	b.want("combobox", "Method B")
	b.click("button", "Ask")
	b.until("both answers", `document.getElementById('answer-b').textContent && `+ended)
	b.want("log", "Answer B")
	b.want("img", "Kept and merged tokens B: 576 kept, 0 merged of 576")
	b.shot("compare-light")

	// History, over a reload.
	if got := b.call("list", "History", `function() { return this.children.length }`); got != "2" {
		t.Errorf("history: got %s entries", got)
	}
	b.do(chromedp.Reload())
	b.until("the page again", `document.getElementById('history').children.length === 2`)
	b.click("button", "Clear history")
	if got := b.call("list", "History", `function() { return this.children.length }`); got != "0" {
		t.Errorf("cleared history: got %s entries", got)
	}
	b.quiet()
}

// Ensure that Stop ends an answer, also on the server.
func TestPageStop(t *testing.T) {
	url := program.Serve(t)
	b := open(t, url, 1280, 900, "light")
	b.do(chromedp.Evaluate(`{
		const fetch = window.fetch
		window.fetch = (path, o) => {
			if (o?.body) o.body = JSON.stringify({ ...JSON.parse(o.body), ignore_eos: true, max_tokens: 3000 })
			return fetch(path, o)
		}
	}`, nil))
	b.do(chromedp.Evaluate(`document.getElementById("question").focus()`, nil), input.InsertText("Where?"))
	b.click("button", "Ask")
	b.until("text", `document.getElementById('answer-a').textContent.length > 2`)
	b.click("button", "Stop")
	b.until("the end", `document.getElementById('ask').textContent === 'Ask'`)
	deadline := time.Now().Add(2 * time.Second)
	for !idle(t, url) {
		if time.Now().After(deadline) {
			t.Fatal("the place is still taken")
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.quiet()
}

// idle reports whether a server answers no request.
func idle(t *testing.T, url string) bool {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), `restore_running{model="builtin"} 0`)
}

// Ensure that the page shows errors in the server's words, and that a key can be entered.
func TestPageErrors(t *testing.T) {
	url := program.Serve(t, "--api-key", "sesame", "--max-image-mb", "1")
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("left out: no chromium, which the page is tested in")
	}
	b := openKey(t, url)
	if got := b.call("alert", "", `function() { return this.textContent }`); !strings.Contains(got, "missing or wrong key") {
		t.Errorf("alert: got %q", got)
	}
	b.click("textbox", "API key")
	b.do(input.InsertText("sesame"), chromedp.KeyEvent(kb.Enter))
	b.until("the model", `document.getElementById('model').textContent.includes('builtin')`)
	if b.find("textbox", "API key") != nil || b.find("alert", "") != nil {
		t.Error("key and alert are still there")
	}
	file := filepath.Join(t.TempDir(), "a.png")
	if err := os.WriteFile(file, make([]byte, 3_000_000), 0o644); err != nil {
		t.Fatal(err)
	}
	b.choose(file)
	b.until("an alert", `!document.getElementById('alert').hidden && document.getElementById('alert').textContent.includes('3000000 bytes')`)
	b.shot("alert-light")
}

func openKey(t *testing.T, url string) *browser {
	t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox,
		chromedp.ExecPath("chromium"))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	b := &browser{t: t, ctx: ctx}
	b.do(chromedp.Navigate(url))
	b.until("an alert", `!document.getElementById('alert').hidden`)
	return b
}

// Ensure that the page fits 320 pixels, follows the colour scheme, and can be used by keyboard with
// visible focus.
func TestPageLooks(t *testing.T) {
	url := program.Serve(t)
	grounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		b := open(t, url, 320, 640, scheme)
		b.choose(example(t))
		b.until("the picture", `document.getElementById('facts').textContent.includes('576')`)
		b.do(chromedp.Evaluate(`document.getElementById("question").focus()`, nil), input.InsertText("Where?"), chromedp.KeyEvent(kb.Enter))
		b.until("the answer", ended)
		b.click("switch", "Compare")
		if got := b.eval(`document.documentElement.scrollWidth <= 320`); got != "true" {
			t.Errorf("%s: the page is %s pixels wide, want 320", scheme, b.eval(`document.documentElement.scrollWidth`))
		}
		grounds[scheme] = b.eval(`getComputedStyle(document.body).backgroundColor`)
		b.shot("narrow-" + scheme)
		b.do(chromedp.Evaluate(`document.activeElement.blur(); window.scrollTo(0, 0)`, nil))
		var stops []string
		for range 25 {
			b.do(chromedp.KeyEvent(kb.Tab))
			stops = append(stops, b.eval(`document.activeElement.id || document.activeElement.tagName`))
			if got := b.eval(`(() => { const e = document.activeElement, s = getComputedStyle(e); return e === document.body || s.outlineStyle !== 'none' })()`); got != "true" {
				t.Errorf("%s: focus on %s cannot be seen", scheme, stops[len(stops)-1])
			}
		}
		for _, id := range []string{
			"choose", "question", "tokens-a", "method-a", "compare", "ask", "answer-a", "clear",
		} {
			if !strings.Contains(strings.Join(stops, " "), id) {
				t.Errorf("%s: Tab does not reach %s: %v", scheme, id, stops)
			}
		}
		b.quiet()
	}
	if grounds["light"] == grounds["dark"] {
		t.Errorf("the background is %s in light and dark", grounds["light"])
	}
	wide := open(t, url, 1280, 900, "dark")
	wide.shot("empty-dark")
	wide.quiet()
}
