package main

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeClock is a clock that a test turns.
type fakeClock struct {
	lock    sync.Mutex
	at      time.Time
	waiting []waiter
}

type waiter struct {
	until time.Time
	ch    chan time.Time
}

func (c *fakeClock) clock() clock { return clock{c.now, c.after} }

func (c *fakeClock) now() time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.at
}

func (c *fakeClock) after(d time.Duration) <-chan time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	w := waiter{c.at.Add(d), make(chan time.Time, 1)}
	c.waiting = append(c.waiting, w)
	return w.ch
}

func (c *fakeClock) turn(d time.Duration) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.at = c.at.Add(d)
	c.waiting = slices.DeleteFunc(c.waiting, func(w waiter) bool {
		if w.until.After(c.at) {
			return false
		}
		w.ch <- c.at
		return true
	})
}

// waits is how many goroutines wait for the clock, or waited when they ended.
func (c *fakeClock) waits() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.waiting)
}

// display is a terminal that shows lines: a return goes back, and text replaces what was there.
type display struct {
	lock  sync.Mutex
	lines []string
	col   int
}

func (p *display) Write(text []byte) (int, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.lines == nil {
		p.lines = []string{""}
	}
	sequence := false
	for _, r := range string(text) {
		last := len(p.lines) - 1
		switch {
		case sequence:
			sequence = r == '[' || r < '@' || r > '~'
		case r == 0x1b:
			sequence = true
		case r == '\r':
			p.col = 0
		case r == '\n':
			p.lines, p.col = append(p.lines, ""), 0
		case r >= ' ':
			line := []rune(p.lines[last] + strings.Repeat(" ", p.col+1))
			line[p.col] = r
			p.lines[last] = strings.TrimRight(string(line), " ")
			p.col++
		}
	}
	return len(text), nil
}

// shown are the lines of the display.
func (p *display) shown() string {
	p.lock.Lock()
	defer p.lock.Unlock()
	return strings.Join(p.lines, "\n")
}

// newDisplayApp returns an app whose stdout and stderr are a display of the given width.
func newDisplayApp(columns int) (*app, *display, *fakeClock) {
	p, c := new(display), &fakeClock{at: time.Unix(1e9, 0)}
	s := &screen{to: p, width: func() int { return columns }, clock: c.clock()}
	return &app{out: s.writer(p), err: s.writer(p), screen: s}, p, c
}

// until turns the clock until the display shows text.
func (p *display) until(t *testing.T, c *fakeClock, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(p.shown(), text); {
		if time.Now().After(end) {
			t.Fatalf("never shown: %q, but %q", text, p.shown())
		}
		c.turn(progressEvery)
		time.Sleep(time.Millisecond)
	}
}

// Ensure that a task's progress appears after a second, that text never mixes with it, and that
// nothing is drawn next to unfinished text or after the task's end.
func TestProgressAndText(t *testing.T) {
	a, p, c := newDisplayApp(60)
	m := a.meter("reading")
	c.turn(progressFrom - 1)
	a.screen.draw()
	if p.shown() != "" {
		t.Errorf("before a second: %q", p.shown())
	}
	p.until(t, c, "reading, 1s so far")
	a.note("a message")
	if got, want := p.shown(), "restore: note: a message\n"; got != want {
		t.Errorf("a message: %q, want %q", got, want)
	}
	p.until(t, c, "message\nreading, ")
	a.out.Write([]byte("\x1b[1mhalf"))
	c.turn(time.Minute)
	a.screen.draw()
	if got, want := p.shown(), "restore: note: a message\nhalf"; got != want {
		t.Errorf("half a line: %q, want %q", got, want)
	}
	a.err.Write([]byte(" a line\r\n\x1b[0m"))
	p.until(t, c, "half a line\nreading, ")
	a.err.Write([]byte("> "))
	a.screen.entered() // with the terminal's own line break, which the terminal shows
	p.Write([]byte("\n"))
	p.until(t, c, ">\nreading, ")
	m.end()
	m.end()
	c.turn(time.Minute)
	if got, want := p.shown(), "restore: note: a message\nhalf a line\n>\n"; got != want {
		t.Errorf("at the end: %q, want %q", got, want)
	}
	if n := c.waits(); n != 0 {
		t.Errorf("%d goroutines wait to draw after the end", n)
	}
}

// Ensure that of two tasks the newer one is shown, when it is old enough, and then the older one
// again, and that nothing is drawn when the process ends.
func TestProgressOfTwoTasks(t *testing.T) {
	a, p, c := newDisplayApp(60)
	outer := a.meter("pictures")
	outer.set(1, 4)
	p.until(t, c, "pictures, ")
	inner := a.meter("loading").bytes()
	inner.set(250e6, 1e9)
	a.screen.draw()
	if got := p.shown(); !strings.HasPrefix(got, "pictures, ") {
		t.Errorf("the newer task is too young, but %q", got)
	}
	p.until(t, c, "loading, 3s left  25% [")
	if got := p.shown(); !strings.HasSuffix(got, "] 0.2 GB/1.0 GB") ||
		strings.Contains(got, "pictures") {
		t.Errorf("got %q", got)
	}
	inner.end()
	p.until(t, c, "pictures, ")
	a.screen.leave()
	c.turn(time.Minute)
	a.screen.draw()
	if p.shown() != "" {
		t.Errorf("after the end of the process: %q", p.shown())
	}
	outer.end()
}

// Ensure that a progress line fits the terminal, and holds what a file's name may hold.
func TestProgressText(t *testing.T) {
	for _, c := range []struct {
		what        string
		done, total int64
		size        bool
		columns     int
		want        string
	}{
		{"reading", 0, 0, false, 79, "reading, 10s so far"},
		{"reading", 0, 0, false, 15, "re…, 10s so far"},
		{"reading", 0, 0, false, 5, "…, 10"},
		{"reading", 0, 0, false, 0, ""},
		{"a\nb\x1b[2Jc", 0, 0, false, 79, "a; b?[2Jc, 10s so far"},
		{"图片", 0, 0, false, 15, "图…, 10s so far"},
		{"pictures", 0, 4, false, 79, "pictures   0% [                              ] 0/4"},
		{"pictures", 1, 4, false, 79,
			"pictures, 30s left  25% [=======                       ] 1/4"},
		{"pictures", 1, 4, false, 40, "pictures, 30s left  25% [==        ] 1/4"},
		{"pictures", 1, 4, false, 28, "pictures, 30s left  25% 1/4"},
		{"pictures", 1, 4, false, 20, "…, 30s left  25% 1/4"},
		{"pictures", 4, 4, false, 79,
			"pictures, 0s left 100% [==============================] 4/4"},
		{"pictures", 9, 4, false, 27, "pictures, 0s left 100% 4/4"},
		{"file", 1, 13e9, true, 30, "file   0% 0.0 MB/13.0 GB"},
		{"file", 1e6, 2e6, true, 40, "file, 10s left  50% 1.0 MB/2.0 MB"},
	} {
		m := &meter{what: c.what, done: c.done, total: c.total, size: c.size}
		got := m.text(c.columns, 10*time.Second)
		if got != c.want || cells(got) > c.columns {
			t.Errorf("%+v:\ngot  %q\nwant %q", c, got, c.want)
		}
	}
}
