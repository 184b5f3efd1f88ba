// Package lineedit lets a person edit lines on a terminal: it has history, search and completion,
// takes pasted text of any length as part of the line, moves by characters as people see them, and
// counts their columns.
package lineedit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Editor reads lines from a terminal.
type Editor struct {
	// Complete returns the part of a text that stays, and what may follow it; may be nil.
	Complete func(before string) (stays string, words []string)
	// History has the earlier lines; may be nil.
	History *History

	tty    *os.File
	before *term.State // of the terminal
	keys   keys
	reads  chan received // of the only read that may be running
	runs   bool          // one is

	display display
	prompt  string
	line    line
	stale   bool   // the line is not drawn as it is
	touched bool   // a key was pressed that did not end the line
	killed  string // what eraseLeft and others took last
	place   int    // in History; its length: a new line
	draft   string // the new line, while an earlier one is shown
	find    *finding
}

// received is the result of a read.
type received struct {
	data []byte
	err  error
}

// ErrInterrupted is returned when Ctrl-C is pressed and the line is empty.
var ErrInterrupted = errors.New("interrupted")

// escapeTime is how long the rest of a sequence may take. Escape alone is known only after it.
const escapeTime = 100 * time.Millisecond

// readSize is the size of a read. Keys that arrived together are drawn once.
const readSize = 1 << 16

// New returns an editor that reads from tty and draws on out, which is the same terminal. The
// caller must Restore it.
func New(tty *os.File, out io.Writer) (*Editor, error) {
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		return nil, err
	}
	e := &Editor{tty: tty, before: before, reads: make(chan received, 1)}
	e.display = display{out: out, size: func() (columns, rows int) {
		columns, rows, _ = term.GetSize(int(tty.Fd())) // zeros if not known
		return columns, rows
	}}
	return e, nil
}

// Restore gives the terminal the state that it had before New.
func (e *Editor) Restore() error {
	e.display.write(noMarkPastes)
	return term.Restore(int(e.tty.Fd()), e.before)
}

// Untouched reports whether the last line ended with the first key.
func (e *Editor) Untouched() bool { return !e.touched }

// Quiet lets the terminal keep what is typed for the next line, without showing it, while Ctrl-C
// sends its signal.
func (e *Editor) Quiet() error { return quiet(e.tty, e.before) }

// The sequences that make a terminal mark pasted text.
const (
	markPastes   = "\x1b[?2004h"
	noMarkPastes = "\x1b[?2004l"
)

// Line reads a line after a prompt of one row. The error is io.EOF when the person ends the input
// with Ctrl-D, the terminal is gone, or ctx ends; and ErrInterrupted.
func (e *Editor) Line(ctx context.Context, prompt string) (string, error) {
	if err := e.begin(); err != nil {
		return "", err
	}
	defer e.end()
	e.prompt, e.find, e.draft, e.place = prompt, nil, "", len(e.earlier())
	e.line.set("")
	e.display.forget()
	e.stale, e.touched = true, false
	for idle := false; ; {
		for {
			do, text, ok := e.keys.next(idle)
			if idle = false; !ok {
				break
			}
			if done, err := e.press(do, text); done {
				e.draw()
				e.display.leave()
				return e.line.String(), err
			}
			e.touched = true
		}
		e.draw()
		var err error
		if idle, err = e.receive(ctx); err != nil {
			e.display.leave()
			return "", io.EOF
		}
	}
}

// begin prepares the terminal for a line.
func (e *Editor) begin() error {
	if _, err := term.MakeRaw(int(e.tty.Fd())); err != nil {
		return err
	}
	e.display.write(markPastes)
	return nil
}

// end is the end of what begin began.
func (e *Editor) end() {
	e.display.write(noMarkPastes)
	_ = e.Quiet() // else what is typed now is shown
}

// receive waits for more bytes. It returns idle if the rest of a sequence did not come in time.
func (e *Editor) receive(ctx context.Context) (idle bool, err error) {
	if !e.runs {
		e.runs = true
		go func() {
			buf := make([]byte, readSize)
			n, err := e.tty.Read(buf)
			e.reads <- received{buf[:n], err}
		}()
	}
	var late <-chan time.Time
	if len(e.keys.buf) > 0 && !e.keys.pasting && e.keys.buf[0] == esc {
		late = time.After(escapeTime)
	}
	select {
	case r := <-e.reads:
		e.runs = false
		e.keys.buf = append(e.keys.buf, r.data...)
		if len(r.data) > 0 {
			return false, nil
		}
		return false, r.err
	case <-late:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// draw shows the line if it has changed.
func (e *Editor) draw() {
	if !e.stale {
		return
	}
	e.stale = false
	prompt := e.prompt
	if e.find != nil {
		prompt = e.find.prompt()
	}
	e.display.draw(prompt, &e.line)
}

// press does what a key means. It returns done when the line is complete.
func (e *Editor) press(do key, text string) (done bool, err error) {
	if e.find != nil && e.refine(do, text) {
		return false, nil
	}
	empty := len(e.line.cells) == 0
	switch {
	case do == noKey:
		return false, nil
	case do == typed:
		e.insert(text)
		return false, nil
	case do == enter:
		return true, nil
	case do == interrupt && empty:
		return true, ErrInterrupted
	case do == endInput && empty:
		return true, io.EOF
	}
	e.stale = true
	switch do {
	case interrupt:
		e.line.set("")
		e.place = len(e.earlier())
	case endInput:
		e.edit(deleteRight)
	case tab:
		e.complete()
	case up:
		e.recall(e.place - 1)
	case down:
		e.recall(e.place + 1)
	case search:
		e.find = &finding{before: e.line.String(), place: len(e.earlier())}
	case clearScreen:
		e.display.write("\x1b[H\x1b[2J")
		e.display.forget()
	case suspend:
		e.suspend()
	default:
		e.edit(do)
	}
	return false, nil
}

// edit changes the line or moves the cursor.
func (e *Editor) edit(do key) {
	l := &e.line
	n := len(l.cells)
	switch do {
	case left:
		l.at = max(0, l.at-1)
	case right:
		l.at = min(n, l.at+1)
	case home:
		l.at = 0
	case end:
		l.at = n
	case wordLeft:
		l.at = l.wordLeft()
	case wordRight:
		l.at = l.wordRight()
	case backspace:
		l.cut(max(0, l.at-1), l.at)
	case deleteRight:
		l.cut(l.at, min(n, l.at+1))
	case eraseWordLeft:
		e.killed = l.cut(l.wordLeft(), l.at)
	case eraseWordRight:
		e.killed = l.cut(l.at, l.wordRight())
	case eraseLeft:
		e.killed = l.cut(0, l.at)
	case eraseRight:
		e.killed = l.cut(l.at, n)
	case yank:
		l.insert(e.killed)
	}
}

// insert inserts typed text, and draws it at once if it only extends what is drawn.
func (e *Editor) insert(text string) {
	n := len(e.line.cells)
	atEnd, last := e.line.at == n, ""
	if n > 0 {
		last = e.line.cells[n-1].text
	}
	e.line.insert(text)
	if e.stale || !atEnd || n > 0 && e.line.cells[n-1].text != last ||
		!e.display.extend(e.line.cells[n:]) {
		e.stale = true
	}
}

// earlier are the lines of the history, the newest last.
func (e *Editor) earlier() []string {
	if e.History == nil {
		return nil
	}
	return e.History.lines
}

// recall shows a line of the history, or the new line after its last.
func (e *Editor) recall(place int) {
	lines := e.earlier()
	if place < 0 || place > len(lines) {
		return
	}
	if e.place == len(lines) {
		e.draft = e.line.String()
	}
	if e.place = place; place == len(lines) {
		e.line.set(e.draft)
	} else {
		e.line.set(lines[place])
	}
}

// finding is a search for an earlier line.
type finding struct {
	text   string // what it contains
	before string // the line when the search began
	place  int    // of the line found, in the history
	fails  bool
}

func (f *finding) prompt() string {
	if f.fails {
		return fmt.Sprintf("(no line with %q) ", f.text)
	}
	return fmt.Sprintf("(search %q) ", f.text)
}

// refine handles a key during a search. It returns false for keys that end it and then have their
// usual meaning.
func (e *Editor) refine(do key, text string) bool {
	f, from := e.find, len(e.earlier())
	switch do {
	case typed:
		f.text += text
	case backspace:
		cells := cellsOf(f.text)
		f.text = textOf(cells[:max(0, len(cells)-1)])
	case search:
		from = f.place
	case interrupt:
		e.line.set(f.before)
		e.find, e.stale = nil, true
		return true
	default:
		e.find, e.stale = nil, true
		return false
	}
	e.stale = true
	if f.text == "" {
		return true
	}
	f.fails = true
	for i := from - 1; i >= 0; i-- {
		if strings.Contains(e.earlier()[i], f.text) {
			f.place, f.fails = i, false
			e.place = i
			e.line.set(e.earlier()[i])
			break
		}
	}
	return true
}

// mostWords is how many possible continuations are shown.
const mostWords = 100

// complete extends the text before the cursor as far as all possible continuations agree. If it
// cannot be extended, it shows them.
func (e *Editor) complete() {
	if e.Complete == nil {
		return
	}
	before := e.line.before()
	stays, words := e.Complete(before)
	if len(words) == 0 {
		return
	}
	common := words[0]
	for _, w := range words[1:] {
		for !strings.HasPrefix(w, common) {
			cells := cellsOf(common)
			common = textOf(cells[:len(cells)-1])
		}
	}
	if len(words) == 1 || len(stays+common) > len(before) {
		e.line.cut(0, e.line.at)
		e.line.insert(stays + common)
		return
	}
	more := ""
	if n := len(words); n > mostWords {
		words, more = words[:mostWords], fmt.Sprintf("  and %d more", n-mostWords)
	}
	e.draw()
	e.display.leave()
	shown := ""
	for _, c := range cellsOf(strings.Join(words, "  ") + more) {
		shown += c.shown()
	}
	e.display.write(shown + "\r\n")
	e.stale = true
}

// suspend stops the process until the shell continues it.
func (e *Editor) suspend() {
	if stop == nil {
		return
	}
	e.draw()
	e.display.leave()
	_ = e.Restore() // the shell has its own state
	stop()
	_ = e.begin() // it succeeded before
	e.stale = true
}
