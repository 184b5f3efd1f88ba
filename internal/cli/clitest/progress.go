package clitest

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clipperhouse/displaywidth"
)

// Clock is a clock that a test turns.
type Clock struct {
	lock    sync.Mutex
	At      time.Time
	waiting []waiter
}

type waiter struct {
	until time.Time
	ch    chan time.Time
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.At
}

// After returns a channel that gets the time when the clock has been turned by d.
func (c *Clock) After(d time.Duration) <-chan time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	w := waiter{c.At.Add(d), make(chan time.Time, 1)}
	c.waiting = append(c.waiting, w)
	return w.ch
}

// Turn turns the clock by d.
func (c *Clock) Turn(d time.Duration) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.At = c.At.Add(d)
	c.waiting = slices.DeleteFunc(c.waiting, func(w waiter) bool {
		if w.until.After(c.At) {
			return false
		}
		w.ch <- c.At
		return true
	})
}

// Waits is how many goroutines wait for the clock, or waited when they ended.
func (c *Clock) Waits() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.waiting)
}

// Display is a terminal that shows lines: text replaces what was there, and the cursor moves as
// sequences say. Characters may be wide or have accents.
type Display struct {
	Columns int // after which text goes on in the next line; 0: never

	lock     sync.Mutex
	lines    [][]string // a wide character is followed by ""
	row, col int
	pending  string // an incomplete sequence
}

func (p *Display) Write(text []byte) (int, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	all := p.pending + string(text)
	p.pending = ""
	for all != "" {
		if all[0] == 0x1b {
			end := strings.IndexFunc(all[min(len(all), 2):], func(r rune) bool { return r >= '@' })
			if end < 0 {
				p.pending = all
				break
			}
			p.obey(all[2:2+end], all[2+end])
			all = all[3+end:]
			continue
		}
		g := displaywidth.StringGraphemes(all)
		g.Next()
		p.show(g.Value(), g.Width())
		all = all[len(g.Value()):]
	}
	return len(text), nil
}

// show shows a character at the cursor.
func (p *Display) show(c string, width int) {
	switch c {
	case "\r":
		p.col = 0
		return
	case "\n", "\r\n":
		p.row, p.col = p.row+1, 0
		p.line()
		return
	}
	if c < " " || width == 0 {
		return
	}
	if p.Columns > 0 && p.col+width > p.Columns {
		p.row, p.col = p.row+1, 0
	}
	for range width {
		line := p.line()
		for len(*line) <= p.col {
			*line = append(*line, " ")
		}
		(*line)[p.col] = c
		p.col, c = p.col+1, ""
	}
}

// line is the cursor's line.
func (p *Display) line() *[]string {
	for len(p.lines) <= p.row {
		p.lines = append(p.lines, nil)
	}
	return &p.lines[p.row]
}

// obey moves the cursor or clears text.
func (p *Display) obey(number string, what byte) {
	n, err := strconv.Atoi(number)
	if err != nil {
		n = 1
	}
	switch what {
	case 'A':
		p.row = max(0, p.row-n)
	case 'B':
		p.row += n
	case 'C':
		p.col += n
	case 'D':
		p.col = max(0, p.col-n)
	case 'J':
		line := p.line()
		*line = (*line)[:min(len(*line), p.col)]
		p.lines = p.lines[:p.row+1]
	}
}

// Shown are the lines of the display.
func (p *Display) Shown() string {
	p.lock.Lock()
	defer p.lock.Unlock()
	var all []string
	for _, line := range p.lines {
		all = append(all, strings.TrimRight(strings.Join(line, ""), " "))
	}
	return strings.Join(all, "\n")
}

// Cursor is the place of the cursor.
func (p *Display) Cursor() (row, col int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.row, p.col
}

// Until turns the clock until the display shows text.
func (p *Display) Until(t *testing.T, c *Clock, text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(p.Shown(), text); {
		if time.Now().After(end) {
			t.Fatalf("never shown: %q, but %q", text, p.Shown())
		}
		c.Turn(100 * time.Millisecond)
		time.Sleep(time.Millisecond)
	}
}
