package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/restore-vlm/restore/tools/clients/program"
)

// Ensure that the page fits 320 pixels and everything between, follows the colour scheme, can be
// used by keyboard with visible focus, and reads well in every colour.
func TestLooks(t *testing.T) {
	url := program.Serve(t)
	grounds := map[string]string{}
	for name, l := range map[string]look{
		"narrow-light": {width: 320, height: 640, touch: true}, "narrow-dark": {width: 320, height: 640, scheme: "dark", still: true},
		"phone-light": {width: 390, height: 844, touch: true}, "phone-forced": {width: 390, height: 844, forced: true}, "tablet-light": {width: 820, height: 1180},
		"desk-light": desk, "desk-dark": {width: 1280, height: 900, scheme: "dark"}, "desk-forced": {width: 1280, height: 900, forced: true}, "low-light": {width: 1280, height: 480},
	} {
		b := open(t, url, l)
		b.fits(name + ", empty")
		b.reads(name + ", empty")
		b.shot(name + "-empty")
		b.choose(example(t))
		b.wait("img", "Picture 1: example.jpg")
		b.shot(name + "-picture")
		b.ask("Describe the image.")
		b.fits(name)
		b.shot(name + "-answer")
		b.click("switch", "Compare")
		b.ask("What number is written?")
		b.click("button", "Times")
		b.click("button", "Settings")
		b.fits(name + ", everything open")
		b.reads(name + ", everything open")
		b.shot(name + "-open")
		grounds[name] = b.eval(`getComputedStyle(document.body).backgroundColor`)
		b.quiet()
	}
	if grounds["desk-light"] == grounds["desk-dark"] ||
		grounds["narrow-light"] == grounds["narrow-dark"] {
		t.Errorf("the background does not follow the colour scheme: %v", grounds)
	}
}

// fits fails if the page is wider than its window, or a control sticks out of it.
func (b *tab) fits(what string) {
	b.t.Helper()
	got := b.eval(`[document.documentElement.scrollWidth > innerWidth ? 'the page' : '', ...[...document.querySelectorAll('button, input:not(.away), select, textarea, .overlay, article')]
		.filter(e => e.offsetParent && (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)).map(e => e.ariaLabel || e.textContent || e.id)].filter(Boolean).join('; ')`)
	if got != "" {
		b.t.Errorf("%s: sticks out of the window: %s", what, got)
	}
}

// reads fails if a text has less contrast to its background than 4.5, or is smaller than 13 pixels.
func (b *tab) reads(what string) {
	b.t.Helper()
	if got := b.eval(faint); got != "" {
		b.t.Errorf("%s: hard to read: %s", what, got)
	}
}

const faint = `(() => {
	const rgba = (s) => { const n = s.match(/[0-9.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n }
	const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1)
	const light = (c) => { const [r, g, b] = c.map(v => v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b }
	const ground = (e) => { const c = e ? rgba(getComputedStyle(e).backgroundColor) : [255, 255, 255, 1]; return c[3] === 1 ? c : over(c, ground(e.parentElement)) }
	const out = []
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
	for (let n; n = walk.nextNode();) {
		const e = n.parentElement, s = getComputedStyle(e)
		if (!n.data.trim() || !e.checkVisibility({ visibilityProperty: true }) || e.closest('.away, :disabled, .skip, .remove')) continue
		const back = ground(e), front = over(rgba(s.color), back)
		const [a, b] = [light(front), light(back)].sort((x, y) => y - x)
		const contrast = (a + .05) / (b + .05)
		if (contrast < 4.5 || parseFloat(s.fontSize) < 13) out.push(n.data.trim().slice(0, 30) + ' ' + contrast.toFixed(1) + ' ' + s.fontSize)
	}
	return out.join('; ')
})()`

// Ensure that all controls can be reached by Tab, with visible focus.
func TestKeyboard(t *testing.T) {
	b := open(t, program.Serve(t), desk)
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.ask("Describe the image.")
	b.do(chromedp.Evaluate(`document.activeElement.blur(); window.scrollTo(0, 0)`, nil))
	var stops []string
	for range 40 {
		b.do(chromedp.KeyEvent(kb.Tab))
		stops = append(stops, b.eval(`document.activeElement.ariaLabel || document.activeElement.labels?.[0]?.textContent || document.activeElement.textContent`))
		if got := b.eval(`(() => { const e = document.activeElement, s = getComputedStyle(e), box = e.closest('.box'); return e === document.body || s.outlineStyle !== 'none' || (box && getComputedStyle(box).outlineStyle !== 'none') })()`); got != "true" {
			t.Errorf("focus on %s cannot be seen", stops[len(stops)-1])
		}
	}
	all := "\n" + strings.Join(stops, "\n") + "\n"
	for _, name := range []string{
		"New conversation", "Describe the image.", "Delete Describe the image.", "Export this conversation", "Import a conversation", "Clear history", drawing + ": 32 kept, 32 merged of 576",
		"Remove picture 1", "Show tokens", "Choose pictures", "Use the example", "Conversation", "Edit question 1", "Copy answer 1", "Ask again 1", "Times", "Question", "Ask", "Visual tokens",
		"Method", "Compare", "Settings",
	} {
		if !strings.Contains(all, "\n"+name+"\n") {
			t.Errorf("Tab does not reach %s: %q", name, stops)
		}
	}
	b.quiet()
}
