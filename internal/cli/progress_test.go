package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// newDisplayApp returns an app whose stdout and stderr are a display of the given width.
func newDisplayApp(columns int) (*App, *clitest.Display, *clitest.Clock) {
	p, c := new(clitest.Display), &clitest.Clock{At: time.Unix(1e9, 0)}
	s := &Screen{to: p, Clock: Clock{Now: c.Now, After: c.After}}
	s.width = func() int { return columns }
	return &App{program: thisProgram, Out: s.writer(p), Err: s.writer(p), Screen: s}, p, c
}

// Ensure that a task's progress appears after a second, that text never mixes with it, and that
// nothing is drawn next to unfinished text or after the task's end.
func TestProgressAndText(t *testing.T) {
	a, p, c := newDisplayApp(60)
	m := a.Meter("reading")
	c.Turn(progressFrom - 1)
	a.Screen.draw()
	if p.Shown() != "" {
		t.Errorf("before a second: %q", p.Shown())
	}
	p.Until(t, c, "reading, 1s so far")
	a.Note("a message")
	if got, want := p.Shown(), "restore: note: a message\n"; got != want {
		t.Errorf("a message: %q, want %q", got, want)
	}
	p.Until(t, c, "message\nreading, ")
	a.Out.Write([]byte("\x1b[1mhalf"))
	c.Turn(time.Minute)
	a.Screen.draw()
	if got, want := p.Shown(), "restore: note: a message\nhalf"; got != want {
		t.Errorf("half a line: %q, want %q", got, want)
	}
	a.Err.Write([]byte(" a line\r\n\x1b[0m"))
	p.Until(t, c, "half a line\nreading, ")
	a.Err.Write([]byte("> "))
	a.Screen.Entered() // with the terminal's own line break, which the terminal shows
	p.Write([]byte("\n"))
	p.Until(t, c, ">\nreading, ")
	m.End()
	m.End()
	c.Turn(time.Minute)
	if got, want := p.Shown(), "restore: note: a message\nhalf a line\n>\n"; got != want {
		t.Errorf("at the end: %q, want %q", got, want)
	}
	if n := c.Waits(); n != 0 {
		t.Errorf("%d goroutines wait to draw after the end", n)
	}
}

// Ensure that of two tasks the newer one is shown, when it is old enough, and then the older one
// again, and that nothing is drawn when the process ends.
func TestProgressOfTwoTasks(t *testing.T) {
	a, p, c := newDisplayApp(60)
	outer := a.Meter("pictures")
	outer.Set(1, 4)
	p.Until(t, c, "pictures, ")
	inner := a.Meter("loading").bytes()
	inner.Set(250e6, 1e9)
	a.Screen.draw()
	if got := p.Shown(); !strings.HasPrefix(got, "pictures, ") {
		t.Errorf("the newer task is too young, but %q", got)
	}
	p.Until(t, c, "loading, 3s left  25% [")
	if got := p.Shown(); !strings.HasSuffix(got, "] 0.2 GB/1.0 GB") ||
		strings.Contains(got, "pictures") {
		t.Errorf("got %q", got)
	}
	inner.End()
	p.Until(t, c, "pictures, ")
	a.Screen.leave()
	c.Turn(time.Minute)
	a.Screen.draw()
	if p.Shown() != "" {
		t.Errorf("after the end of the process: %q", p.Shown())
	}
	outer.End()
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
		m := &Meter{what: c.what, done: c.done, total: c.total, size: c.size}
		got := m.text(c.columns, 10*time.Second)
		if got != c.want || cells(got) > c.columns {
			t.Errorf("%+v:\ngot  %q\nwant %q", c, got, c.want)
		}
	}
}

// Ensure that a download without a terminal says every so often how far it is, and nothing after
// its end.
func TestProgressLines(t *testing.T) {
	var out strings.Builder
	a := NewApp(&Program{Name: "restore"}, nil, nil, &out, func(string) string { return "" })
	set, end := a.progressLines("me/model", time.Millisecond)
	set(5_000_000, 20_000_000)
	time.Sleep(50 * time.Millisecond)
	end()
	lines := out.String()
	time.Sleep(10 * time.Millisecond)
	want := "restore: note: me/model: 5.0 MB of 20.0 MB\n"
	if !strings.Contains(lines, want+want) || out.String() != lines {
		t.Errorf("got %q, want lines %q", lines, want)
	}
}

// Ensure that the last column of a table is wrapped where a terminal would break it.
func TestTableIsWrapped(t *testing.T) {
	var out strings.Builder
	long := strings.Repeat("word ", 20)
	rows := [][]string{{"name", "meaning"}, {"a", long}, {"b", "short"}}
	if err := Table(&out, rows); err != nil {
		t.Fatal(err)
	}
	want := "name  meaning\na     " + strings.Repeat("word ", 14) + "word\n" +
		"      " + strings.Repeat("word ", 4) + "word\nb     short\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}
