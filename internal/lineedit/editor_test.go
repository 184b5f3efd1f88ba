//go:build linux

package lineedit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// desk is an editor on a pseudo-terminal at which a test types.
type desk struct {
	*Editor
	t      *testing.T
	master *os.File
	screen *clitest.Display
	read   chan result
}

type result struct {
	line string
	err  error
}

// columns is the width of the terminal.
const columns = 40

// newDesk starts an editor that reads lines until the end of the input.
func newDesk(t *testing.T, prepare func(e *Editor)) *desk {
	t.Helper()
	master, slave := clitest.NewTerminal(t)
	d := &desk{t: t, master: master, screen: &clitest.Display{Columns: columns},
		read: make(chan result, 100)}
	d.resize(columns)
	go io.Copy(d.screen, master)
	e, err := New(slave, slave)
	if err != nil {
		t.Fatal(err)
	}
	d.Editor = e
	if prepare != nil {
		prepare(e)
	}
	go func() {
		for {
			line, err := e.Line(context.Background(), "> ")
			d.read <- result{line, err}
			if err == io.EOF {
				return
			}
		}
	}()
	t.Cleanup(func() {
		for range 3 { // whatever it does, this ends it
			_, _ = master.WriteString("\x03\x04")
		}
		for r := range d.read {
			if r.err == io.EOF {
				break
			}
		}
		if err := e.Restore(); err != nil {
			t.Error(err)
		}
		slave.Close()
		master.Close()
	})
	d.shows("> ")
	return d
}

func (d *desk) resize(columns int) {
	d.t.Helper()
	if err := unix.IoctlSetWinsize(int(d.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: 10, Col: uint16(columns)}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) send(text string) {
	d.t.Helper()
	if _, err := d.master.WriteString(text); err != nil {
		d.t.Fatal(err)
	}
}

// shows waits until the display ends with text, without space at the end.
func (d *desk) shows(text string) {
	d.t.Helper()
	text = strings.TrimRight(text, " ")
	for end := time.Now().Add(time.Minute); !strings.HasSuffix(d.screen.Shown(), text); {
		if time.Now().After(end) {
			d.t.Fatalf("never shown: %q, but %q", text, d.screen.Shown())
		}
		time.Sleep(time.Millisecond)
	}
}

// line waits for the next line.
func (d *desk) line() result {
	d.t.Helper()
	select {
	case r := <-d.read:
		return r
	case <-time.After(time.Minute):
		d.t.Fatalf("no line, screen %q", d.screen.Shown())
		return result{}
	}
}

// afterEscape is longer than the rest of a sequence may take.
const afterEscape = 3 * escapeTime

// Ensure that keys of many terminals do what they say, and that the screen shows it. Steps are sent
// one after another; "" stands for a pause.
func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		steps []string
		want  string
	}{
		"home":                 {[]string{"bc\x1b[Ha"}, "abc"},
		"home, application":    {[]string{"bc\x1bOHa"}, "abc"},
		"home, linux":          {[]string{"bc\x1b[1~a"}, "abc"},
		"home, rxvt":           {[]string{"bc\x1b[7~a"}, "abc"},
		"end":                  {[]string{"ab\x01\x1b[Fc"}, "abc"},
		"end, application":     {[]string{"ab\x01\x1bOFc"}, "abc"},
		"end, linux":           {[]string{"ab\x01\x1b[4~c"}, "abc"},
		"emacs":                {[]string{"bd\x01a\x06c\x05e\x02\x02\x04d"}, "abcde"},
		"delete":               {[]string{"xab\x01\x1b[3~"}, "ab"},
		"backspace":            {[]string{"axb\x1b[D\x7f"}, "ab"},
		"ctrl-left":            {[]string{"one two\x1b[1;5DX"}, "one Xtwo"},
		"ctrl-right":           {[]string{"one two\x01\x1b[1;5CX"}, "oneX two"},
		"alt-left":             {[]string{"one two\x1b[1;3DX"}, "one Xtwo"},
		"alt-right":            {[]string{"one two\x01\x1b[1;3CX"}, "oneX two"},
		"alt-b alt-f":          {[]string{"one two\x1bb\x1bbX\x1bfY"}, "XoneY two"},
		"ctrl-left, rxvt":      {[]string{"one two\x1bOdX"}, "one Xtwo"},
		"ctrl-left, old":       {[]string{"one two\x1bO5DX\x1b[5DY"}, "one YXtwo"},
		"shift-left":           {[]string{"ab\x1b[1;2DX"}, "aXb"},
		"word away":            {[]string{"one two three\x17\x1b\x7fX"}, "one X"},
		"next word away":       {[]string{"one two\x01\x1bd\x1b[3;5~X"}, "X"},
		"all away and back":    {[]string{"ab\x15X\x19"}, "Xab"},
		"rest away and back":   {[]string{"abcd\x1b[D\x1b[D\x0b\x01\x19"}, "cdab"},
		"escape":               {[]string{"ab\x1b", "", "cd"}, "abcd"},
		"escape, digits":       {[]string{"ab\x1b", "", "12"}, "ab12"},
		"escape, a meaning":    {[]string{"ab\x1b", "", "b[O"}, "abb[O"},
		"escape at once":       {[]string{"ab\x1bxy"}, "abxy"},
		"escape twice":         {[]string{"ab\x1b\x1b", "", "cd"}, "abcd"},
		"escape, accent":       {[]string{"\x1bé"}, "é"},
		"unknown":              {[]string{"ab\x1b[15~\x1b[1;2P\x1b[200;3u\x1b[[Ac\x1b[Z\x1b[I\x1bOPd"}, "abcd"},
		"replies":              {[]string{"a\x1b]11;rgb:0/0/0\x07b\x1bP1+r\x1b\\c\x1b[?1;2c"}, "abc"},
		"not a sequence":       {[]string{"a\x1b[1\x03b"}, "b"},
		"incomplete":           {[]string{"a\x1b[1;", "", "b"}, "ab"},
		"wide":                 {[]string{"日本語\x1b[DX"}, "日本X語"},
		"wide away":            {[]string{"日本語\x1b[D\x7f"}, "日語"},
		"accents":              {[]string{"cafe\u0301x\x7f\x7fy"}, "cafy"},
		"before an accent":     {[]string{"e\u0301f\x1b[D\x1b[Da"}, "ae\u0301f"},
		"accent alone":         {[]string{"ef\x1b[D", "\u0301"}, "e\u0301f"},
		"family":               {[]string{"a👩\u200d👧b\x1b[D\x1b[DX"}, "aX👩\u200d👧b"},
		"character in parts":   {[]string{"\xe6\x97", "", "\xa5"}, "日"},
		"not UTF-8":            {[]string{"a\xe6b"}, "a\xe6b"},
		"paste":                {[]string{"\x1b[200~one\rtwo\nthree\r\nfour\x1b[201~!"}, "one\ntwo\nthree\nfour!"},
		"paste in parts":       {[]string{"\x1b[200~one\r", "", "\ntwo\x1b[20", "", "1~!"}, "one\ntwo!"},
		"paste of keys":        {[]string{"\x1b[200~a\tb\x1b[Dc\x7f\x1b[201~"}, "a\tb\x1b[Dc\x7f"},
		"paste in the middle":  {[]string{"ad\x1b[D\x1b[200~b\rc\x1b[201~"}, "ab\ncd"},
		"empty paste":          {[]string{"a\x1b[200~\x1b[201~b"}, "ab"},
		"paste without an end": {[]string{"\x1b[200~junk", "", "\x03ab"}, "ab"},
		"alt-enter":            {[]string{"a\x1b\rb"}, "a\nb"},
		"cleared":              {[]string{"junk\x03ab"}, "ab"},
		"ctrl-d":               {[]string{"axb\x1b[D\x1b[D\x04"}, "ab"},
		"screen cleared":       {[]string{"ab\x0cc"}, "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, nil)
			for _, s := range c.steps {
				if s == "" {
					time.Sleep(afterEscape)
				} else {
					d.send(s)
				}
			}
			var shown string
			for _, cell := range cellsOf(c.want) {
				shown += cell.shown()
			}
			d.shows("> " + shown)
			d.send("\r")
			if r := d.line(); r.line != c.want || r.err != nil {
				t.Errorf("got %q, %v, want %q", r.line, r.err, c.want)
			}
		})
	}
}

// Ensure that 300 kB can be pasted, whether the terminal marks pastes or not, with line breaks if
// it does, and that the line can be edited then.
func TestLongPaste(t *testing.T) {
	words, lines := strings.Repeat("word ", 60000), strings.Repeat("one line\r", 33000)
	for name, c := range map[string][2]string{
		"marked": {"\x1b[200~" + words + "\x1b[201~", words},
		"lines":  {"\x1b[200~" + lines + "\x1b[201~", strings.ReplaceAll(lines, "\r", "\n")},
		"keys":   {words, words},
		"wide":   {strings.Repeat("日本 ", 40000), strings.Repeat("日本 ", 40000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, nil)
			d.send(c[0])
			d.send("\x1b[D\x1b[DY\x01X\r")
			cells := cellsOf(c[1])
			n := len(c[1]) - len(textOf(cells[len(cells)-2:]))
			if r := d.line(); r.line != "X"+c[1][:n]+"Y"+c[1][n:] || r.err != nil {
				t.Errorf("got %d bytes %.20q…, %v", len(r.line), r.line, r.err)
			}
		})
	}
}

// Ensure that a line of several rows is drawn where it is edited, that a wide character is not
// broken, that only the rows around the cursor of a long line are shown, and that the next prompt
// is below.
func TestRows(t *testing.T) {
	d := newDesk(t, nil)
	row := strings.Repeat("a", columns-3)
	d.send(row + "日" + strings.Repeat("b", 45))
	d.shows("> " + row + "\n日" + strings.Repeat("b", columns-3) + "\n" + strings.Repeat("b", 8))
	d.send("\x01X")
	d.shows("> X" + row[1:] + "\na日" + strings.Repeat("b", columns-4) + "\n" +
		strings.Repeat("b", 9))
	if r, c := d.screen.Cursor(); r != 0 || c != 3 {
		t.Errorf("cursor at %d, %d, want 0, 3", r, c)
	}
	d.send("\r")
	d.shows("\n" + strings.Repeat("b", 9) + "\n> ")
	if r := d.line(); r.line != "X"+row+"日"+strings.Repeat("b", 45) {
		t.Errorf("got %q", r.line)
	}
	var long string
	for i := range 20 {
		long += fmt.Sprintf("%-*d", columns-1, i)
	}
	d.send(long)
	d.shows("\n" + d.rows(long, 12, 20) + "\n")
	if shown := d.screen.Shown(); strings.Contains(shown, " 9 ") {
		t.Errorf("more than the terminal's rows: %q", shown)
	}
	d.send("\x01")
	d.shows("> 0\n" + d.rows(long, 1, 9))
	d.send("\x05\x15")
	d.shows("\n> ")
	d.send("narrow" + row + row)
	d.shows("a\n" + strings.Repeat("a", 2*(columns-3)+8-2*(columns-1)))
	d.resize(columns / 2)
	d.send("!\r")
	if r := d.line(); r.line != "narrow"+row+row+"!" {
		t.Errorf("got %q", r.line)
	}
}

// rows are rows of a line after the prompt, without space at their ends.
func (d *desk) rows(line string, from, to int) string {
	var all []string
	line = "> " + line
	for i := from; i < to; i++ {
		all = append(all, strings.TrimRight(line[i*(columns-1):(i+1)*(columns-1)], " "))
	}
	return strings.Join(all, "\n")
}

// Ensure that Ctrl-C and Ctrl-D end an empty line, and that keys which arrived before a line began
// are its own.
func TestEnds(t *testing.T) {
	d := newDesk(t, nil)
	d.send("one\rtwo\r\x03x\x7f\x03three")
	for i, want := range []result{{"one", nil}, {"two", nil}, {"", ErrInterrupted},
		{"", ErrInterrupted}} {
		if got := d.line(); got.line != want.line || !errors.Is(got.err, want.err) {
			t.Errorf("%d: got %v, want %v", i, got, want)
		}
	}
	d.shows("> three")
	d.send("\x03\x04")
	if r := d.line(); r.err != io.EOF {
		t.Errorf("Ctrl-D: %v", r)
	}
	d.read <- result{"", io.EOF} // for the cleanup
}

// Ensure that a context ends a line.
func TestContext(t *testing.T) {
	master, slave := clitest.NewTerminal(t)
	defer master.Close()
	defer slave.Close()
	e, err := New(slave, slave)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if line, err := e.Line(ctx, "> "); line != "" || err != io.EOF {
		t.Errorf("got %q, %v", line, err)
	}
}

// Ensure that between lines the terminal shows nothing and keeps more than a line of the system,
// and that the state before is restored.
func TestQuiet(t *testing.T) {
	d := newDesk(t, func(e *Editor) {
		if err := e.Quiet(); err != nil {
			t.Fatal(err)
		}
	})
	state := func() uint32 {
		s, err := unix.IoctlGetTermios(int(d.tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return s.Lflag
	}
	const lines = unix.ICANON | unix.ECHO
	d.send("\x04")
	d.line()
	d.read <- result{"", io.EOF}
	if got := state(); got&(lines|unix.ISIG) != unix.ISIG {
		t.Errorf("between lines: %b", got)
	}
	if err := d.Restore(); err != nil {
		t.Fatal(err)
	}
	if got := state(); got&lines != lines {
		t.Errorf("at the end: %b", got)
	}
}

// Ensure that earlier lines can be recalled, edited and found, and that the new line is not lost.
func TestHistory(t *testing.T) {
	d := newDesk(t, func(e *Editor) {
		e.History = NewHistory()
		for _, line := range []string{"first", "second\nof two", "third"} {
			if err := e.History.Add(line); err != nil {
				t.Fatal(err)
			}
		}
	})
	for keys, want := range map[string]string{
		"\x1b[A":                            "third",
		"\x1bOA\x1bOA\x7fx":                 "second\nof twx",
		"new\x10\x10\x10\x10\x10\x1b[B\x0e": "third",
		"new\x1b[A\x1b[A\x1b[B\x1b[B\x1b[B": "new",
		"\x12fir\x05!":                      "first!",
		"\x12ir\x12\x7f\x7fsec":             "second\nof two",
		"old\x12third\x03er":                "older",
		"\x12third\x12\x12":                 "third",
		"\x12first\x1b[B":                   "second\nof two",
	} {
		d.send(keys)
		time.Sleep(afterEscape)
		d.send("\r")
		if r := d.line(); r.line != want {
			t.Errorf("%q: got %q, want %q, screen %q", keys, r.line, want, d.screen.Shown())
		}
	}
	d.send("\x12nowhere")
	d.shows(`(no line with "nowhere")`)
	d.send("\x03")
	d.shows("\n> ")
}

// Ensure that Tab completes as far as it can, and shows the possible words.
func TestComplete(t *testing.T) {
	d := newDesk(t, func(e *Editor) {
		e.Complete = func(before string) (stays string, words []string) {
			stays = before[:strings.LastIndex(before, " ")+1]
			for _, w := range []string{"banana ", "band ", "café", "cafè"} {
				if strings.HasPrefix(w, before[len(stays):]) {
					words = append(words, w)
				}
			}
			return stays, words
		}
	})
	d.send("a b\t")
	d.shows("> a ban")
	d.send("\t")
	d.shows("> a ban\nbanana   band\n> a ban")
	d.send("d\tc\tx\t\x01!")
	d.shows("> !a band cafx")
	d.send("\r")
	if r := d.line(); r.line != "!a band cafx" {
		t.Errorf("got %q", r.line)
	}
}

// Ensure that text is decoded alike in whatever parts it arrives, that nothing of it is lost, and
// that no sequence makes the decoder wait for ever.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"text", "é日👩\u200d👧", "a\x1b[1;5Db",
		"\x1b[200~x\ry\x1b[201~\r", "\x1b",
		"\x1b]0;t\x07", "\x1bOH\x1b[[A", "\xe6\x97", "\x1b[200~\x1b[20",
		"\x1b[200~0\x03"} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		decode := func(size int) (keysOf []key, text string) {
			k := new(keys)
			for part := range slices.Chunk(data, size) {
				k.buf = append(k.buf, part...)
				for {
					do, s, ok := k.next(false)
					if !ok {
						break
					}
					if text += s; do != noKey && do != typed {
						keysOf = append(keysOf, do)
					}
				}
			}
			begun := len(k.buf) > 0 && k.buf[0] == esc && !k.pasting
			if _, _, ok := k.next(true); begun && !ok {
				t.Fatalf("%q waits although nothing follows", k.buf)
			}
			return keysOf, text
		}
		wholeKeys, wholeText := decode(max(1, len(data)))
		partKeys, partText := decode(max(1, int(size)))
		if wholeText != partText || !slices.Equal(wholeKeys, partKeys) {
			t.Fatalf("%q: in parts of %d %v %q, whole %v %q", data, size, partKeys, partText,
				wholeKeys, wholeText)
		}
		if !strings.ContainsFunc(string(data), func(r rune) bool { return r < ' ' || r == del }) &&
			wholeText != string(data[:whole(data)]) {
			t.Fatalf("of %q got %q", data, wholeText)
		}
	})
}
