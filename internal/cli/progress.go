package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/clipperhouse/displaywidth"

	"github.com/restore-vlm/restore/internal/bytesize"
)

// Meter is the progress of a task that a terminal shows if the task takes longer than a second: how
// much is done, and the remaining time. Without a known total it shows the elapsed time. A nil
// meter shows nothing.
type Meter struct {
	screen *Screen
	start  time.Time // set by the screen

	lock        sync.Mutex
	what        string
	size        bool // counts bytes
	done, total int64
}

// Meter returns a meter for a task, which is shown until its end is called; nil if a.err is not a
// terminal.
func (a *App) Meter(what string) *Meter {
	if a.Screen == nil {
		return nil
	}
	m := &Meter{screen: a.Screen, what: what}
	a.Screen.begin(m)
	return m
}

// bytes makes the meter count bytes.
func (m *Meter) bytes() *Meter {
	m.update(func() { m.size = true })
	return m
}

// Set sets the progress; a total of 0 means that it is not known.
func (m *Meter) Set(done, total int64) { m.update(func() { m.done, m.total = done, total }) }

// Label names the task.
func (m *Meter) Label(what string) { m.update(func() { m.what = what }) }

func (m *Meter) update(do func()) {
	if m == nil {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	do()
}

// End removes the display. It may be called more than once.
func (m *Meter) End() {
	if m != nil {
		m.screen.end(m)
	}
}

// Limits of a progress line.
const (
	mostBar  = 30 // columns
	leastBar = 5
	// longer times are not shown: they are guesses from the first bytes of a large file
	mostLeft = 1000 * time.Hour
)

// text is the progress in at most the given columns.
func (m *Meter) text(columns int, since time.Duration) string {
	m.lock.Lock()
	defer m.lock.Unlock()
	what, done, total := OneLine(m.what), m.done, m.total
	if total <= 0 {
		return fitted(what, fmt.Sprintf(", %s so far", since.Round(time.Second)), columns)
	}
	done = max(0, min(done, total))
	share := float64(done) / float64(total)
	numbers := ""
	if left := since.Seconds() * (1/share - 1); done > 0 && left < mostLeft.Seconds() {
		wait := time.Duration(left * float64(time.Second))
		numbers = fmt.Sprintf(", %s left", wait.Round(time.Second))
	}
	numbers += fmt.Sprintf(" %3d%%", int(100*share))
	count := fmt.Sprintf(" %d/%d", done, total)
	if m.size {
		count = fmt.Sprintf(" %s/%s", bytesize.Of(done), bytesize.Of(total))
	}
	bar := min(mostBar, columns-cells(what)-cells(numbers)-cells(count)-len(" []"))
	if bar >= leastBar {
		full := int(share * float64(bar))
		numbers += " [" + strings.Repeat("=", full) + strings.Repeat(" ", bar-full) + "]"
	}
	return fitted(what, numbers+count, columns)
}

// fitted joins two texts in at most the given columns. If they do not fit, it shortens the first.
func fitted(what, rest string, columns int) string {
	what = displaywidth.TruncateString(what, max(1, columns-cells(rest)), "…")
	return displaywidth.TruncateString(what+rest, columns, "")
}

// cells returns the columns that a terminal uses for text.
func cells(text string) int { return displaywidth.String(text) }
