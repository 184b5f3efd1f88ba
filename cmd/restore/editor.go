package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/lineedit"
)

// editor reads the lines of a conversation that a person holds on a terminal.
type editor struct {
	a *cli.App
	*lineedit.Editor
	hinted bool // Ctrl-C has just said how to leave
	kept   bool // the history is kept between sessions
}

// newEditor returns nil if input or output is not a terminal. keep keeps the history between
// sessions. The terminal shows nothing of what is typed, except to the editor, until
// Interrupts.Restore.
func newEditor(a *cli.App, keep bool) (*editor, error) {
	tty, ok := a.In.(*os.File)
	if !ok || !cli.IsTerminal(a.In) || !cli.IsTerminal(a.Err) || a.Getenv("TERM") == "dumb" {
		return nil, nil
	}
	line, err := lineedit.New(tty, a.Err)
	if err != nil {
		return nil, cli.PathError("stdin", err)
	}
	a.Interrupts.Changed(func() { _ = line.Restore() }) // nothing more can be done if this fails
	e := &editor{a: a, Editor: line}
	e.openHistory(keep)
	return e, line.Quiet()
}

// openHistory opens the history of earlier sessions.
func (e *editor) openHistory(keep bool) {
	e.History = lineedit.NewHistory()
	folder := cli.StateFolder()
	if !keep || folder == "" {
		return
	}
	h, err := lineedit.OpenHistory(filepath.Join(folder, "history"))
	if h != nil {
		e.History, e.kept = h, true
	}
	e.historyFails(err)
}

// historyFails says once that the history is not kept.
func (e *editor) historyFails(err error) {
	if err != nil {
		e.a.Note("the history of questions is not kept: %v (--history=false)", err)
		e.kept = false
	}
}

// next reads a question or command. It returns io.EOF when the person leaves or ctx ends.
func (e *editor) next(ctx context.Context) (string, error) {
	for {
		line, err := e.Line(ctx, prompt)
		switch {
		case !errors.Is(err, lineedit.ErrInterrupted):
			e.hinted = false
			if err == nil {
				if failed := e.History.Add(line); e.kept {
					e.historyFails(failed)
				}
			}
			return line, err
		case e.hinted && e.Untouched():
			return "", io.EOF
		}
		e.hinted = true
		fmt.Fprintln(e.a.Err, "Ctrl-C once more, Ctrl-D or /exit leaves the conversation")
	}
}

// completion returns the part of a line that stays, and what may follow it: the names of commands,
// the files of /image and /save, the flags of /set and their values.
func (t *talk) completion(before string) (stays string, words []string) {
	name, arg, isArg := strings.Cut(before, " ")
	if !isArg {
		if before == "" {
			return "", nil
		}
		for _, c := range talkCommands() {
			if c.args != "" {
				c.name += " "
			}
			words = append(words, c.name)
		}
		return "", cli.StartingWith(before, words)
	}
	switch name {
	case "/image", "/save":
		folder, words := pathsFrom(arg)
		return name + " " + folder, words
	case "/set":
		flag, value, isValue := strings.Cut(arg, " ")
		if !isValue {
			for _, s := range t.settable() {
				words = append(words, s+" ")
			}
			return name + " ", cli.StartingWith(flag, words)
		}
		if f := t.o.reduction.Flags.Lookup(flag); f != nil {
			words = cli.StartingWith(value, cli.FlagValues(f))
		}
		return name + " " + flag + " ", words
	}
	return before, nil
}

// pathsFrom returns the folder of a path, as it was typed, and the names in it that begin like the
// path's last part. Hidden files are named only after a dot.
func pathsFrom(path string) (folder string, names []string) {
	quote := ""
	if path != "" && (path[0] == '"' || path[0] == '\'') {
		quote, path = path[:1], path[1:]
	}
	folder, last := filepath.Split(path)
	at := cli.Local(folder)
	if at == "" {
		at = "."
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		return quote + path, nil
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, last) || last == "" && name[0] == '.' {
			continue
		}
		if files.IsFolder(filepath.Join(at, name)) {
			name += string(filepath.Separator)
		}
		names = append(names, name)
	}
	return quote + folder, names
}
