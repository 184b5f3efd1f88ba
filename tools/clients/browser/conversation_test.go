package browser

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/restore-vlm/restore/tools/clients/program"
)

const drawing = "Kept and merged tokens of picture 1"

// Ensure that a picture and a question lead to an answer, a drawing and times, and that the next
// question continues the conversation.
func TestConversation(t *testing.T) {
	b := open(t, program.Serve(t), desk)
	b.shot("empty")
	for _, c := range [][2]string{
		{"main", ""}, {"region", "Picture"}, {"button", "Choose pictures"}, {"button", "Use the example"},
		{"textbox", "Question"}, {"slider", "Visual tokens"}, {"combobox", "Method"}, {"status", "Prediction"}, {"button", "Ask"}, {"log", "Conversation"},
		{"group", "Settings"}, {"switch", "Compare"}, {"button", "New conversation"}, {"list", "History"}, {"button", "Clear history"},
	} {
		b.wait(c[0], c[1])
	}
	for _, c := range [][2]string{
		{"img", "Picture 1"}, {"img", drawing}, {"button", "Use camera"}, {"alert", ""}, {"textbox", "API key"}, {"slider", "Visual tokens B"},
		{"combobox", "Method B"}, {"table", "Stage times"}, {"article", ""}, {"status", "Server"}, {"switch", "Show tokens"}, {"button", "Stop"},
	} {
		b.absent(c[0], c[1])
	}
	checkControls(t, b)
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.wait("button", "Remove picture 1")
	b.focus("textbox", "Question")
	b.do(input.InsertText("Where"),
		chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(input.ModifierShift)),
		input.InsertText("is it?"))
	if got := b.value("textbox", "Question"); got != "Where\nis it?" {
		t.Errorf("Shift+Enter: got %q", got)
	}
	b.ask("Describe the image.")
	if got := b.value("textbox", "Question"); got != "" {
		t.Errorf("after asking the question is %q", got)
	}
	const sentence = drawing + ": 32 kept, 32 merged of 576"
	b.wait("img", sentence)
	if got := b.text("region", "Picture"); !strings.Contains(got, sentence) {
		t.Errorf("the drawing's sentence is not visible: %q", got)
	}
	b.says("article", "Answer 1", "A red cross", "64 of 576 visual tokens", "first token after",
		"tokens per second")
	if got := b.text("article", "Answer 1"); strings.Contains(got, "cache") {
		t.Errorf("answer 1: got %q, but nothing was cached", got)
	}
	checkTimes(t, b, false)
	b.shot("answer")

	b.ask("What number is written?")
	b.wait("article", "Question 2")
	b.says("article", "Answer 2", "picture from the cache, not read again")
	b.says("status", "Prediction", "already read")
	b.call("slider", "Visual tokens", `function() { this.value = 128; this.dispatchEvent(new Event('input')) }`)
	if got := b.text("status", "Prediction"); strings.Contains(got, "already read") {
		t.Errorf("prediction for another number of tokens: got %q", got)
	}
	checkTimes(t, b, true)
	b.quiet()
}

// checkControls checks slider, methods and prediction of a page without pictures.
func checkControls(t *testing.T, b *tab) {
	t.Helper()
	slider := func() string {
		return b.call("slider", "Visual tokens", `function() { return [this.min, this.max, this.value, this.getAttribute('aria-valuetext')].join() }`)
	}
	if got := slider(); got != "1,576,64,64 of 576" {
		t.Errorf("slider: got %s", got)
	}
	methods := b.call("combobox", "Method", `function() { return [...this.options].map(o => o.value).join() + ' ' + this.value }`)
	if !strings.HasPrefix(methods, "none,holov,") || !strings.HasSuffix(methods, " holov") {
		t.Errorf("method: got %s", methods)
	}
	if got := b.call("combobox", "Method", `function() { return [...this.options].every(o => o.title.length > 20) }`); got != "true" {
		t.Error("a method has no line that says what it does")
	}
	before := b.text("status", "Prediction")
	b.focus("slider", "Visual tokens")
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	after := b.text("status", "Prediction")
	predicted := regexp.MustCompile(`[0-9] m?s.*[0-9] MB`).MatchString(after)
	if got := slider(); !strings.HasSuffix(got, "63 of 576") || before == after || !predicted {
		t.Errorf("prediction: got %q, then %q at %s", before, after, got)
	}
	set := func(method string) {
		b.call("combobox", "Method", `function() { this.value = '`+method+`'; this.dispatchEvent(new Event('change')) }`)
	}
	for _, m := range [][2]string{{"tome", "36"}, {"fastv", "96"}, {"holov", "1"}} {
		method, least := m[0], m[1]
		set(method)
		if got := b.call("slider", "Visual tokens", `function() { return this.min }`); got != least {
			t.Errorf("%s: the least is %s, want %s", method, got, least)
		}
	}
	b.call("slider", "Visual tokens", `function() { this.value = 64; this.dispatchEvent(new Event('input')) }`)
}

var milliseconds = regexp.MustCompile(`([0-9.]+) ms$`)

// checkTimes opens the last answer's times and adds them up.
func checkTimes(t *testing.T, b *tab, cached bool) {
	t.Helper()
	if b.find("table", "Stage times") == nil {
		b.click("button", "Times")
	}
	rows := strings.Split(b.eval(`[...[...document.querySelectorAll('table[aria-label="Stage times"]')].at(-1).rows].map(r => r.cells[0].textContent + '=' + r.cells[r.cells.length - 1].textContent).join('|')`), "|")
	var names []string
	sum, first := 0.0, 0.0
	for _, row := range rows {
		name, value, _ := strings.Cut(row, "=")
		names = append(names, name)
		ms := 0.0
		if m := milliseconds.FindStringSubmatch(value); m != nil {
			ms, _ = strconv.ParseFloat(m[1], 64)
		} else if value != "cached" {
			t.Errorf("%s: got %q, want milliseconds or cached", name, value)
		}
		switch name {
		case "First token":
			first = ms
		case "Decode":
		default:
			sum += ms
		}
		encode := name == "Encode" || name == "Select" || name == "Merge"
		if encode && cached != (value == "cached") {
			t.Errorf("%s: got %q, cached %v", name, value, cached)
		}
	}
	const want = "Wait,Prepare,Encode,Select,Merge,Prefill,First token,Decode"
	if got := strings.Join(names, ","); got != want {
		t.Errorf("rows: got %s", got)
	}
	// Each of six rows is rounded to 0.1, or to 1 from 100 milliseconds on.
	if bound := 6 * 0.5; !(math.Abs(sum-first) <= bound) || first <= 0 {
		t.Errorf("the stages add up to %.1f ms, the first token came after %.1f", sum, first)
	}
}

// Ensure that a group of patches lights up under the mouse, on focus and by arrow keys, that groups
// that touch have different colours, that tints let the picture through, and that the switch takes
// the drawing away.
func TestOverlay(t *testing.T) {
	b := open(t, program.Serve(t), desk)
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.ask("Describe the image.")
	tip := func() string { return b.text("tooltip", "") }
	// A point inside of a merged group, from the path of its patches.
	spot := b.eval(`(() => { const f = document.querySelector('.overlay .merged .fill'), m = f.getScreenCTM(), p = f.getPointAtLength(0); return (m.a * (p.x + .5) + m.e) + ' ' + (m.d * (p.y + .5) + m.f) })()`)
	var x, y float64
	if _, err := fmt.Sscan(spot, &x, &y); err != nil {
		t.Fatal(err)
	}
	b.do(input.DispatchMouseEvent(input.MouseMoved, x, y))
	if got := tip(); !regexp.MustCompile(`^[0-9]+ patch(es)?, one token$`).MatchString(got) {
		t.Errorf("tooltip: got %q", got)
	}
	if got := b.eval(`document.querySelectorAll('.overlay .on').length`); got != "1" {
		t.Errorf("%s groups light up, want 1", got)
	}
	b.shot("tooltip")
	b.do(input.DispatchMouseEvent(input.MouseMoved, 2, 2))
	b.gone("tooltip", "")
	b.focus("img", drawing)
	by := tip()
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	if tip(); b.eval(`document.querySelectorAll('.overlay .on').length`) != "1" || by == "" {
		t.Error("the keyboard lights nothing")
	}
	b.do(chromedp.KeyEvent(kb.Escape))
	b.gone("tooltip", "")

	if got := b.eval(neighbours); got != "true" {
		t.Errorf("groups that touch: %s", got)
	}
	if got := b.eval(`Math.max(...[...document.querySelectorAll('.overlay .group .fill')].map(e => Number(getComputedStyle(e).fillOpacity))) <= .2`); got != "true" {
		t.Error("a tint hides what is below it")
	}
	// The drawing covers the picture exactly.
	if got := b.eval(`(() => { const a = document.querySelector('#pictures img').getBoundingClientRect(), b = document.querySelector('#pictures .overlay').getBoundingClientRect(); return ['x', 'y', 'width', 'height'].every(k => Math.abs(a[k] - b[k]) < .5) })()`); got != "true" {
		t.Error("the drawing does not lie on the picture")
	}
	b.click("switch", "Show tokens")
	b.gone("img", drawing)
	b.wait("img", "Picture 1: example.jpg")
	b.click("switch", "Show tokens")
	b.wait("img", drawing)
	b.quiet()
}

// neighbours is true if any two merged groups with patches next to each other differ by 25 degrees
// of hue at least. It reads the patches from the paths: runs of cells, M x y h w.
const neighbours = `(() => {
	const at = {}
	for (const f of document.querySelectorAll('#pictures .overlay .merged .fill')) {
		const hue = Number(/hsl\(([0-9.]+)/.exec(f.getAttribute('fill'))[1])
		for (const [, x, y, w] of f.getAttribute('d').matchAll(/M(\d+) (\d+)h(\d+)/g)) {
			for (let i = 0; i < w; i++) at[[Number(x) + i, Number(y)]] = { f, hue }
		}
	}
	let pairs = 0
	for (const [place, here] of Object.entries(at)) {
		const [x, y] = place.split(',').map(Number)
		for (const [dx, dy] of [[1, 0], [0, 1], [1, 1], [-1, 1]]) {
			const there = at[[x + dx, y + dy]]
			if (!there || there.f === here.f) continue
			const d = Math.abs(here.hue - there.hue)
			pairs++
			if (Math.min(d, 360 - d) < 25) return 'hues ' + here.hue + ' and ' + there.hue + ' meet at ' + place
		}
	}
	return pairs > 50 || pairs + ' pairs'
})()`

// Ensure that Compare asks a second time, that B is shown next to A with its own drawing, and that
// A continues the conversation.
func TestCompare(t *testing.T) {
	p := between(t, "/")
	b := open(t, p.url, desk)
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.click("switch", "Compare")
	b.wait("slider", "Visual tokens B")
	b.wait("combobox", "Method B")
	b.call("combobox", "Method B", `function() { this.value = 'random'; this.dispatchEvent(new Event('change')) }`)
	b.call("slider", "Visual tokens B", `function() { this.value = 8; this.dispatchEvent(new Event('input')) }`)
	b.says("status", "Prediction", "A: ", "B: ")
	b.ask("Describe the image.")
	b.wait("article", "Answer 1, B")
	b.wait("img", drawing+": 32 kept, 32 merged of 576")
	b.wait("img", drawing+": 0 kept, 8 merged of 576")
	place := func(name string) (x, y float64) {
		if _, err := fmt.Sscan(b.call("article", name, `function() { const r = this.getBoundingClientRect(); return r.x + ' ' + r.y }`), &x, &y); err != nil {
			t.Fatal(err)
		}
		return x, y
	}
	ax, ay := place("Answer 1")
	bx, by := place("Answer 1, B")
	if ay != by || bx <= ax {
		t.Errorf("A is at %v %v, B at %v %v", ax, ay, bx, by)
	}
	b.shot("compare")
	said := b.eval(`document.querySelector('[aria-label="Answer 1"] .text').textContent`)
	b.click("switch", "Compare")
	b.ask("What number is written?")
	b.absent("article", "Answer 2, B")
	b.absent("slider", "Visual tokens B")
	asked := p.asked()
	if len(asked) != 3 || asked[0].Restore != (reading{"holov", 64}) ||
		asked[1].Restore != (reading{"random", 8}) {
		t.Fatalf("got %d questions: %+v", len(asked), asked)
	}
	m := asked[2].Messages
	if len(m) != 3 || m[1].Role != "assistant" || string(m[1].Content) != strconv.Quote(said) {
		t.Errorf("the conversation continues with %s, want %q", m[1].Content, said)
	}
	b.quiet()
}

// Ensure that Stop ends an answer, also on the server, and that what there is of it stays.
func TestStop(t *testing.T) {
	url := program.Serve(t)
	b := open(t, url, desk)
	b.do(chromedp.Evaluate(`{
		const fetch = window.fetch
		window.fetch = (path, o) => {
			if (o?.body) o.body = JSON.stringify({ ...JSON.parse(o.body), ignore_eos: true, max_completion_tokens: 3000 })
			return fetch(path, o)
		}
	}`, nil))
	b.write("Question", "Where?")
	b.click("button", "Ask")
	b.until("text", `document.querySelector('[aria-busy=true] .text')?.textContent.length > 2`)
	b.wait("button", "Stop")
	b.absent("button", "Ask")
	b.click("button", "Stop")
	b.answered()
	b.says("article", "Answer 1", "stopped")
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

// Ensure that an answer can be asked again, a question changed and an answer copied: both replace
// what follows.
func TestAgainEditCopy(t *testing.T) {
	p := between(t, "/")
	b := open(t, p.url, desk)
	p.answers(stream("one **two**", nil, true))
	b.ask("first")
	b.ask("second")
	b.ask("third")
	p.answers(stream("other", nil, true))
	b.click("button", "Ask again 2")
	b.until("the new answer", `document.querySelector('[aria-label="Answer 2"] .text')?.textContent === 'other'`)
	b.answered()
	b.absent("article", "Question 3")
	b.click("button", "Edit question 1")
	if got := b.value("textbox", "Question"); got != "first" {
		t.Errorf("the question to change is %q", got)
	}
	b.ask("changed")
	b.absent("article", "Question 2")
	b.says("article", "Question 1", "changed")
	last := p.asked()[len(p.asked())-1]
	if len(last.Messages) != 1 || !strings.Contains(string(last.Messages[0].Content), "changed") {
		t.Errorf("asked %+v", last)
	}
	p.answers(stream("one **two**", nil, true))
	b.ask("again")
	b.eval(`navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve() }`)
	b.click("button", "Copy answer 2")
	if got := b.eval(`window.copied`); got != "one **two**" {
		t.Errorf("copied %q", got)
	}
	b.quiet()
}

// slow says that the server takes 5 seconds to encode a picture.
func (p *proxy) slow(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != "/v1/models" {
		return false
	}
	reply, err := http.Get(p.server + r.URL.Path)
	if err != nil {
		return false
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(reply.Body)
	if err != nil {
		return false
	}
	encode := regexp.MustCompile(`"encode_ms": ?[0-9.e+-]+`)
	_, err = w.Write(encode.ReplaceAll(data, []byte(`"encode_ms":5000`)))
	return err == nil
}

// Ensure that pictures which take long are read while the question is typed, and not before a
// method that chooses for each question.
func TestReadAhead(t *testing.T) {
	p := between(t, "/")
	p.answers(p.slow)
	b := open(t, p.url, desk)
	b.choose(example(t))
	b.until("the reading", `document.getElementById('prediction').textContent.includes('already read')`)
	asked := p.asked()
	if len(asked) != 1 || *asked[0].Longest != 1 ||
		strings.Contains(string(asked[0].Messages[0].Content), `"text"`) {
		t.Fatalf("before the question: asked %+v", asked)
	}
	b.ask("Describe the image.")
	b.says("article", "Answer 1", "A red cross", "picture from the cache, not read again")

	const choose = `function() { this.value = '%s'; this.dispatchEvent(new Event('change')) }`
	b.call("combobox", "Method", fmt.Sprintf(choose, "mmtok"))
	b.choose(paint(t, "red.png", 200, 100, color.RGBA{R: 255, A: 255}))
	b.wait("img", "Picture 2: red.png")
	time.Sleep(time.Second) // twice as long as nothing must change
	if got := len(p.asked()); got != 2 {
		t.Errorf("before a method that reads the question: %d were asked, want 2", got)
	}
	b.call("combobox", "Method", fmt.Sprintf(choose, "holov"))
	b.until("the second reading", `document.getElementById('prediction').textContent.includes('already read')`)
	b.ask("How many objects are there?")
	b.says("article", "Answer 2", "pictures from the cache, not read again")
	if got := len(p.asked()); got != 4 {
		t.Errorf("%d were asked, want 4", got)
	}
	b.quiet()
}

// Ensure that settings reach the server and stay in the browser, and that wrong ones are refused
// before anything is asked.
func TestSettings(t *testing.T) {
	p := between(t, "/")
	b := open(t, p.url, desk)
	b.click("button", "Settings")
	b.write("System text", "Be brief.")
	set := func(name, value string) {
		b.call("spinbutton", name, `function() { this.value = '`+value+`'; this.dispatchEvent(new Event('input')) }`)
	}
	set("Temperature", "0.25")
	set("Longest answer", "5")
	set("Seed", "7")
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.ask("Describe the image.")
	q := p.asked()[0]
	if q.Temperature == nil || *q.Temperature != 0.25 || *q.Seed != 7 || *q.Longest != 5 ||
		q.Messages[0].Role != "system" || string(q.Messages[0].Content) != `"Be brief."` {
		t.Errorf("asked %+v", q)
	}
	b.says("article", "Answer 1", "longest length")
	set("Temperature", "7")
	b.write("Question", "And now?")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.says("alert", "", "Temperature")
	if got := b.value("textbox", "Question"); got != "And now?" || len(p.asked()) != 1 {
		t.Errorf("a temperature of 7: the question is %q, %d were asked", got, len(p.asked()))
	}
	set("Temperature", "1")
	b.do(chromedp.Reload())
	b.wait("article", "Answer 1") // then nothing moves any more
	b.wait("img", drawing)
	b.click("button", "Settings")
	numbers := map[string]string{"Temperature": "1", "Longest answer": "5", "Seed": "7"}
	for name, want := range numbers {
		if got := b.value("spinbutton", name); got != want {
			t.Errorf("after a reload: %s is %q, want %q", name, got, want)
		}
	}
	if got := b.value("textbox", "System text"); got != "Be brief." {
		t.Errorf("after a reload: the system text is %q", got)
	}
	b.quiet()
}
