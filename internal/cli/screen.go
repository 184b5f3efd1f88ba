package cli

import (
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// When the progress of a task first appears, and how often it is drawn again.
const (
	progressFrom  = time.Second
	ProgressEvery = 200 * time.Millisecond
)

// Screen is the terminal of stderr, and of stdout if it is a terminal too. All text passes through
// it, and it alone draws the progress of tasks: one line, which it erases before any text. It draws
// only on an empty line, never next to a prompt or a piece of an answer.
type Screen struct {
	to    io.Writer
	width func() int // columns
	Clock Clock

	lock  sync.Mutex
	tasks []*Meter // running, the newest last
	drawn int      // columns of the progress line on the screen; 0: there is none
	line  cursorLine
	left  bool          // the process ends: nothing is drawn any more
	idle  chan struct{} // closed when the last task ends
	done  chan struct{} // closed when nothing more is drawn after it
}

// Clock tells the time; tests set their own.
type Clock struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

// newScreen returns the screen of a terminal, nil for other writers.
func newScreen(w io.Writer) *Screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	width := func() int {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
		return 80
	}
	return &Screen{to: f, width: width, Clock: Clock{time.Now, time.After}}
}

// writer returns a writer of w, which is this terminal.
func (s *Screen) writer(w io.Writer) io.Writer { return &screenWriter{s, w} }

type screenWriter struct {
	s *Screen
	w io.Writer
}

// Write implements io.Writer.
func (x *screenWriter) Write(p []byte) (int, error) {
	x.s.lock.Lock()
	defer x.s.lock.Unlock()
	x.s.erase()
	n, err := x.w.Write(p)
	x.s.line.follow(p[:n])
	return n, err
}

// Entered tells the screen that the user ended the cursor's line, which the terminal showed.
func (s *Screen) Entered() {
	if s == nil {
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.line = cursorLine{}
}

// leave ends all drawing, for a process that ends while tasks run.
func (s *Screen) leave() {
	if s == nil {
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.erase()
	s.left = true
}

// begin adds a task.
func (s *Screen) begin(m *Meter) {
	s.lock.Lock()
	defer s.lock.Unlock()
	m.start = s.Clock.Now()
	s.tasks = append(s.tasks, m)
	if len(s.tasks) == 1 {
		s.idle, s.done = make(chan struct{}), make(chan struct{})
		go s.redraw(s.idle, s.done)
	}
}

// end removes a task and the progress line. It may be called more than once.
func (s *Screen) end(m *Meter) {
	if done := s.remove(m); done != nil {
		<-done
	}
}

// remove returns a channel to wait for if m was the last task.
func (s *Screen) remove(m *Meter) (done <-chan struct{}) {
	s.lock.Lock()
	defer s.lock.Unlock()
	i := slices.Index(s.tasks, m)
	if i < 0 {
		return nil
	}
	s.tasks = slices.Delete(s.tasks, i, i+1)
	s.erase()
	if len(s.tasks) > 0 {
		return nil
	}
	close(s.idle)
	return s.done
}

// redraw draws the progress until no task is left.
func (s *Screen) redraw(idle <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case <-idle:
			return
		case <-s.Clock.After(ProgressEvery):
			s.draw()
		}
	}
}

// draw shows the progress of the newest task that is old enough.
func (s *Screen) draw() {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.left || s.line.busy {
		return
	}
	now := s.Clock.Now()
	for _, m := range slices.Backward(s.tasks) {
		if since := now.Sub(m.start); since >= progressFrom {
			text := m.text(s.width()-1, since) // a full line would wrap
			n := cells(text)
			s.write("\r" + text + strings.Repeat(" ", max(0, s.drawn-n)))
			s.drawn = max(s.drawn, n)
			return
		}
	}
}

// erase removes the progress line, and the ^C that a terminal may have shown after it.
func (s *Screen) erase() {
	if s.drawn > 0 {
		blank := max(0, min(s.drawn+len("^C"), s.width()-1))
		s.write("\r" + strings.Repeat(" ", blank) + "\r")
		s.drawn = 0
	}
}

// write draws; an error must not stop the task.
func (s *Screen) write(text string) { _, _ = io.WriteString(s.to, text) }

// cursorLine follows the text that a terminal shows.
type cursorLine struct {
	busy   bool // the cursor's line shows text
	escape escape
}

// escape is the state in an escape sequence.
type escape int

const (
	noEscape    escape = iota
	afterEscape        // ESC was the last character
	inSequence         // after ESC [
)

func (l *cursorLine) follow(text []byte) {
	for _, c := range text {
		switch {
		case l.escape == afterEscape && c == '[':
			l.escape = inSequence
		case l.escape == afterEscape, l.escape == inSequence && c >= '@' && c <= '~':
			l.escape = noEscape
		case l.escape == inSequence:
		case c == 0x1b:
			l.escape = afterEscape
		case c == '\n':
			l.busy = false
		case c >= ' ': // a return leaves the line's text where it is
			l.busy = true
		}
	}
}
