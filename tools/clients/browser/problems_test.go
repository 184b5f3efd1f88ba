package browser

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/restore-vlm/restore/tools/clients/program"
)

// Ensure that a server with a key asks for it, and answers once it is typed.
func TestKey(t *testing.T) {
	b := visit(t, program.Serve(t, "--api-key", "sesame"), desk)
	b.says("alert", "", "wants an API key")
	b.write("API key", "wrong")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the refusal", `document.getElementById('alert').textContent.includes('does not know this API key')`)
	b.shot("key")
	b.write("API key", "sesame")
	b.write("Question", "Where?")
	b.click("button", "Ask")
	b.answered()
	b.absent("textbox", "API key")
	b.absent("alert", "")
	b.quiet("401")
}

// Ensure that errors of the server are words for a person, with the server's own in Details, and
// that what was typed stays.
func TestRefused(t *testing.T) {
	p := between(t, "/")
	b := open(t, p.url, desk)
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	for code, want := range map[string]string{
		"queue_full": "busy", "context_length_exceeded": "longer than the model can read", "internal_error": "went wrong in the server", "something_new": "refused the question",
	} {
		p.answers(refuse(400, code, "the server's words about "+code))
		b.write("Question", "kept "+code)
		b.click("button", "Ask")
		b.until("the alert about "+code, `document.getElementById('alert').textContent.includes('about `+code+`')`)
		b.says("alert", "", want)
		if got := b.value("textbox", "Question"); got != "kept "+code {
			t.Errorf("%s: the question became %q", code, got)
		}
		b.absent("article", "Question 1")
		b.wait("img", "Picture 1: example.jpg")
	}
	b.click("button", "Details")
	b.shot("refused")
	b.click("button", "Close the message")
	b.gone("alert", "")
	b.quiet("400")
}

// Ensure that a lost connection keeps what there is, says so, and that Try again answers.
func TestLost(t *testing.T) {
	p := between(t, "/")
	b := open(t, p.url, desk)
	gate := make(chan struct{})
	p.answers(stream("the first words of", gate, false))
	b.write("Question", "Where?")
	b.click("button", "Ask")
	gate <- struct{}{}
	gate <- struct{}{}
	b.until("text", `document.querySelector('.text')?.textContent === 'the first words of'`)
	close(gate)
	b.wait("button", "Try again")
	b.says("article", "Answer 1", "the first words of", "cut off")
	p.answers(cut)
	b.click("button", "Try again")
	b.wait("status", "Server")
	b.says("status", "Server", "cannot be reached. This page tries again")
	b.shot("away")
	p.answers(nil)
	b.gone("status", "Server")
	b.wait("article", "Question 1")
	b.click("button", "Ask again 1")
	b.answered()
	b.says("article", "Answer 1", "tokens per second")
	b.quiet("ERR_", "Failed to load")
}

// Ensure that the page waits for a model that is being loaded, and goes on by itself.
func TestLoading(t *testing.T) {
	p := between(t, "/")
	p.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/health" && !strings.HasPrefix(r.URL.Path, "/v1/") {
			return false
		}
		w.WriteHeader(503)
		_, _ = io.WriteString(w, `{"error":{"message":"loading","code":"loading"}}`)
		return true
	})
	b := visit(t, p.url, desk)
	b.says("status", "Server", "being loaded")
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	p.answers(nil)
	b.gone("status", "Server")
	b.until("the model", `document.getElementById('model').textContent === 'builtin'`)
	b.ask("Describe the image.")
	b.wait("img", drawing)
	b.quiet("503")
}

// hostile is an answer, with ' for `.
const hostile = `# Title

One *two* **three** 'four'.

- a
- b

| x | y |
|---|--:|
| 1 | 2 |

'''go
func()
'''

<script>window.bad = 1</script><img src=https://example.com/a.png onerror=alert(1)>

![p](https://example.com/b.png) [l](https://example.com/) [j](javascript:alert(1))
`

// Ensure that answers are Markdown as it comes, that nothing in them runs, loads or leads elsewhere
// unseen, and that the page asks its own server alone.
func TestMarkdown(t *testing.T) {
	p := between(t, "/below/a/path/")
	b := open(t, p.url, desk)
	answer := strings.ReplaceAll(hostile, "'", "`")
	gate := make(chan struct{})
	p.answers(stream(answer, gate, true))
	b.write("Question", "Where?")
	b.do(chromedp.KeyEvent(kb.Enter))
	gate <- struct{}{}
	b.until("the heading", `document.querySelector('article h3')?.textContent.startsWith('Title')`)
	if got := b.call("article", "Answer 1", `function() { return this.getAttribute('aria-busy') }`); got != "true" {
		t.Errorf("aria-busy: got %s while the answer comes", got)
	}
	close(gate)
	b.answered()
	got := b.eval(`(() => { const t = document.querySelector('.text'); return ['h3', 'em', 'strong', 'p code', 'ul > li', 'table td.right', 'pre code', 'script', 'img', 'a'].map(s => s + ' ' + t.querySelectorAll(s).length).join(', ') })()`)
	const want = "h3 1, em 1, strong 1, p code 1, ul > li 2, table td.right 1, pre code 1, " +
		"script 0, img 0, a 3"
	if got != want {
		t.Errorf("got %s", got)
	}
	if got := b.eval(`[...document.querySelectorAll('.text a')].every(a => a.relList.contains('noreferrer') && a.protocol === 'https:') && window.bad === undefined`); got != "true" {
		t.Error("a link tells where it comes from, leads to a script, or a script ran")
	}
	b.shot("markdown")
	b.mu.Lock()
	for _, url := range b.requests {
		scheme, _, _ := strings.Cut(url, ":")
		if !strings.HasPrefix(url, p.url) && scheme != "blob" && scheme != "data" {
			t.Errorf("the page asks %s", url)
		}
	}
	b.mu.Unlock()
	b.quiet()
}
