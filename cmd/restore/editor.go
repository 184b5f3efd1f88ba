package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/restore-vlm/restore/internal/cli"
)

// editor reads lines that a person edits on a terminal: arrows, history, completion with Tab. Lines
// may have any length. Pasted text is part of the line, including its line breaks.
type editor struct {
	a    *cli.App
	tty  *os.File
	term *term.Terminal
	keys *keys
}

// newEditor returns nil if input or output is not a terminal.
func newEditor(a *cli.App, prompt string, complete func(line string) string) *editor {
	tty, ok := a.In.(*os.File)
	if !ok || !cli.IsTerminal(a.In) || !cli.IsTerminal(a.Err) || a.Getenv("TERM") == "dumb" {
		return nil
	}
	e := &editor{a: a, tty: tty, keys: &keys{r: tty}}
	e.term = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{e.keys, a.Err}, prompt)
	e.term.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		return e.key(line, pos, key, complete)
	}
	return e
}

// longLine is the length in characters at which x/term accepts no more.
const longLine = 4000

// key handles the keys that x/term does not: Ctrl-C, which clears a line or leaves if the line is
// empty, Tab, and keys in long lines.
func (e *editor) key(
	line string,
	pos int,
	key rune,
	complete func(string) string,
) (string, int, bool) {
	switch {
	case key == interruptKey:
		e.keys.left = line == ""
		return "", 0, true
	case key == '\t':
		if longer := complete(line[:pos]); longer != line[:pos] {
			return longer + line[pos:], len(longer), true
		}
		return line, pos, true
	case key >= ' ' && key != utf8.RuneError && len(line) >= longLine &&
		(key < 0xd800 || key > 0xdfff):
		s := string(key)
		return line[:pos] + s + line[pos:], pos + len(s), true
	}
	return "", 0, false
}

// next reads a line; it returns io.EOF when the person leaves or ctx ends.
func (e *editor) next(ctx context.Context) (string, error) {
	state, err := term.MakeRaw(int(e.tty.Fd()))
	if err != nil {
		return "", err
	}
	e.a.Interrupts.Changed(func() {
		e.term.SetBracketedPasteMode(false)
		_ = term.Restore(int(e.tty.Fd()), state) // nothing more can be done if this fails
	})
	defer e.a.Interrupts.Restore()
	if w, h, err := term.GetSize(int(e.tty.Fd())); err == nil && w > 0 {
		_ = e.term.SetSize(w, h) // a wrong size only moves the cursor
	}
	e.term.SetBracketedPasteMode(true)
	type result struct {
		line string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		line, err := e.term.ReadLine()
		if errors.Is(err, term.ErrPasteIndicator) {
			err = nil
		}
		read <- result{line, err}
	}()
	select {
	case r := <-read:
		return strings.ReplaceAll(r.line, string(pastedBreak), "\n"), r.err
	case <-ctx.Done():
		return "", io.EOF
	}
}

// Replacements for keys.
const (
	interruptKey = 0x1d // Ctrl-C, which x/term would treat as the end
	pastedBreak  = '⏎'  // a line break in a pasted text
)

// The sequences that a terminal sends before and after a pasted text.
var pasteStart, pasteEnd = []byte("\x1b[200~"), []byte("\x1b[201~")

// keys reads keys from a terminal.
type keys struct {
	r       io.Reader
	pending []byte // read but not yet returned
	split   []byte // the beginning of an incomplete sequence
	pasting bool
	left    bool // the person left
}

// Read implements io.Reader.
func (k *keys) Read(p []byte) (int, error) {
	if k.left {
		k.left = false
		return 0, io.EOF
	}
	if len(k.pending) == 0 {
		buf := make([]byte, 1024)
		n, err := k.r.Read(buf)
		if n == 0 {
			return 0, err
		}
		in := append(k.split, buf[:n]...)
		k.split = nil
		if n == len(buf) { // more follows: a sequence at the end may be incomplete
			if at := bytes.LastIndexByte(in, 0x1b); at >= 0 && len(in)-at < len(pasteStart) {
				in, k.split = in[:at], bytes.Clone(in[at:])
			}
		}
		k.pending = k.translate(in)
	}
	n := copy(p, k.pending)
	k.pending = k.pending[n:]
	return n, nil
}

// translate replaces Ctrl-C, and line breaks in a pasted text.
func (k *keys) translate(in []byte) (out []byte) {
	for len(in) > 0 {
		switch {
		case bytes.HasPrefix(in, pasteStart):
			k.pasting = true
			out, in = append(out, pasteStart...), in[len(pasteStart):]
			continue
		case bytes.HasPrefix(in, pasteEnd):
			k.pasting = false
			out, in = append(out, pasteEnd...), in[len(pasteEnd):]
			continue
		case k.pasting && bytes.HasPrefix(in, []byte("\r\n")):
			in = in[1:]
			continue
		case k.pasting && (in[0] == '\r' || in[0] == '\n'):
			out = utf8.AppendRune(out, pastedBreak)
		case in[0] == 3:
			out = append(out, interruptKey)
		default:
			out = append(out, in[0])
		}
		in = in[1:]
	}
	return out
}

// completePath extends path by the common prefix of all files that begin with it.
func completePath(path string) string {
	found, err := filepath.Glob(escapeGlob(cli.ExpandHome(path)) + "*")
	if err != nil || len(found) == 0 {
		return path
	}
	common := found[0]
	for _, f := range found[1:] {
		for !strings.HasPrefix(f, common) {
			_, n := utf8.DecodeLastRuneInString(common)
			common = common[:len(common)-n]
		}
	}
	if info, err := os.Stat(common); len(found) == 1 && err == nil && info.IsDir() {
		common += string(filepath.Separator)
	}
	if len(common) <= len(path) {
		return path
	}
	return common
}

// escapeGlob escapes a folder's name for filepath.Glob.
func escapeGlob(dir string) string {
	if os.PathSeparator == '\\' {
		return dir // Windows has no escape, and forbids such characters in names
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
