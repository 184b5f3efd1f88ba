package clitest

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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

// Display is a terminal that shows lines: a return goes back, and text replaces what was there.
type Display struct {
	lock  sync.Mutex
	lines []string
	col   int
}

func (p *Display) Write(text []byte) (int, error) {
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

// Shown are the lines of the display.
func (p *Display) Shown() string {
	p.lock.Lock()
	defer p.lock.Unlock()
	return strings.Join(p.lines, "\n")
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
