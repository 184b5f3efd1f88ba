package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/textfile"
	"github.com/spf13/pflag"
)

// maxLine is the length in bytes of the longest question.
const maxLine = 1 << 20

// talk is a conversation: lines are questions, or commands that begin with a slash.
type talk struct {
	o    *runOptions
	a    *app
	outs *outputs
	d    dialogue

	next  question   // what the next question shows, and the system prompt
	turns []exchange // questions and answers so far
}

// dialogue asks questions of a model: in this process, or of a server.
type dialogue interface {
	// ask asks a question after the turns of before. It shows the answer on stdout and the report
	// on stderr. It returns the turn that the dialogue has now; nil: the question is not part of
	// it, because of an error or a cancellation before the answer's first token.
	ask(ctx context.Context, before []exchange, q *question) (*exchange, error)
	// describe returns the picture's size and tokens.
	describe(ctx context.Context, p shownPicture) (string, error)
	// undo removes the last turn.
	undo()
	// set changes the options of later questions. A changed reduction needs a restart.
	set(r engine.Request) error
	// restart forgets all turns.
	restart()
}

// exchange is a question and its answer.
type exchange struct {
	*question
	typed  string // the question as typed, with markers of pictures
	answer string
}

// said is the answer without space around it.
func (e *exchange) said() string { return strings.TrimSpace(e.answer) }

// errLeave ends a conversation.
var errLeave = errors.New("leave")

// talkCommand is a line that begins with a slash.
type talkCommand struct {
	name, args, help string
	do               func(t *talk, ctx context.Context, arg string) error
}

// talkCommands returns all commands.
func talkCommands() []talkCommand {
	return []talkCommand{
		{"/image", "FILE", "show a picture with the next question", (*talk).image},
		{"/drop", "", "remove the picture that was added last", (*talk).drop},
		{"/undo", "", "take back the last question, with its answer and pictures", (*talk).undo},
		{"/clear", "", "forget the conversation and its pictures", (*talk).clear},
		{
			"/set",
			"NAME VALUE",
			"change a flag, for example /set n-vis 128; alone: show them",
			(*talk).set,
		},
		{"/save", "FILE", "write the conversation: .json as messages, else as text", (*talk).save},
		{"/help", "", "show this list", (*talk).help},
		{
			"/exit",
			"",
			"end the conversation; so does the end of the input",
			func(*talk, context.Context, string) error { return errLeave },
		},
	}
}

// run reads lines until the end. On a terminal an error ends only the turn, otherwise the
// conversation.
func (t *talk) run(ctx context.Context) error {
	in, err := t.a.stdin("the questions of the conversation")
	if err != nil {
		return err
	}
	next := lines(ctx, in)
	person := isTerminal(t.a.in)
	if person {
		fmt.Fprintln(t.a.err,
			"one question a line; /image FILE shows a picture; /help lists all commands")
		if err := t.describe(ctx, t.next.pictures); err != nil {
			return err
		}
	}
	if e := newEditor(t.a, "> ", t.complete); e != nil {
		next = func() (string, error) { return e.next(ctx) }
	} else if person {
		plain := next
		next = func() (string, error) {
			fmt.Fprint(t.a.err, "> ")
			defer t.a.screen.entered()
			return plain()
		}
	}
	for {
		line, err := next()
		if err == io.EOF {
			if person {
				fmt.Fprintln(t.a.err)
			}
			return nil
		}
		if err == nil {
			err = t.line(ctx, line, person)
		}
		switch {
		case err == nil:
		case errors.Is(err, errLeave):
			return nil
		case !person || ctx.Err() != nil:
			return err
		default:
			fmt.Fprintf(t.a.err, "restore: %s\n", errorLine(t.o.reduction.fs, err))
		}
	}
}

// line executes a line.
func (t *talk) line(ctx context.Context, line string, person bool) error {
	line, err := textfile.String(line)
	if err != nil {
		return fmt.Errorf("run: the question %w", err)
	}
	if line = strings.TrimSpace(line); line == "" {
		return nil
	}
	if person {
		var end func()
		ctx, end = t.a.interrupts.begin(ctx)
		defer end()
	}
	if line[0] != '/' {
		return t.ask(ctx, line)
	}
	name, arg, _ := strings.Cut(line, " ")
	var names []string
	for _, c := range talkCommands() {
		if c.name == name {
			arg = strings.TrimSpace(arg)
			if (arg == "") != (c.args == "") && c.name != "/set" {
				return fmt.Errorf("run: %s: got %q, want %s", name, line,
					strings.TrimSpace(name+" "+c.args))
			}
			return c.do(t, ctx, arg)
		}
		names = append(names, c.name)
	}
	return fmt.Errorf("run: unknown command, got %q, want %s", name, strings.Join(names, "|"))
}

// ask asks a question about the pending pictures.
func (t *talk) ask(ctx context.Context, prompt string) error {
	q := t.next
	q.prompt = prompt
	if err := q.place(len(q.pictures), q.video != nil); err != nil {
		return err
	}
	turn, err := t.d.ask(ctx, t.turns, &q)
	if turn != nil {
		turn.typed = prompt
		t.turns = append(t.turns, *turn)
		t.next = question{system: q.system}
	}
	return t.full(err)
}

// full explains how to make room when the dialogue does not fit in the context.
func (t *talk) full(err error) error {
	var full *errs.ContextError
	if !errors.As(err, &full) {
		return err
	}
	return fmt.Errorf("the conversation is full: it would take %d of %d positions; %s",
		full.Positions, full.Context, t.room())
}

// room lists the ways to make room.
func (t *talk) room() string {
	var ways []string
	if shown := t.next.pictures; len(shown) > 0 {
		ways = append(ways, "/drop takes away "+shown[len(shown)-1].name)
	}
	if len(t.turns) > 0 {
		ways = append(ways, "/undo the last question")
	}
	return strings.Join(append(ways, "/clear everything"), ", ")
}

func (t *talk) image(ctx context.Context, arg string) error {
	path, err := unquote(arg)
	if err != nil {
		return err
	}
	pic, err := t.o.question.picture(t.a, path)
	if err != nil {
		return fmt.Errorf("/image: %w", err)
	}
	if err := t.describe(ctx, []shownPicture{pic}); err != nil {
		return err
	}
	t.outs.reads(path)
	t.next.pictures = append(t.next.pictures, pic)
	return nil
}

// describe prints the pictures' sizes and tokens.
func (t *talk) describe(ctx context.Context, pictures []shownPicture) error {
	for _, p := range pictures {
		size, err := t.d.describe(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(t.a.err, "%s: %s\n", p.name, size)
	}
	return nil
}

func (t *talk) drop(context.Context, string) error {
	shown := t.next.pictures
	if len(shown) == 0 {
		if len(t.turns) > 0 {
			return errors.New(
				"/drop: no picture waits for a question; /undo takes back the last question " +
					"with its pictures")
		}
		return errors.New("/drop: no picture is shown")
	}
	last := len(shown) - 1
	t.next.pictures = shown[:last]
	fmt.Fprintf(t.a.err, "%s is not shown; %d picture(s) left for the next question\n",
		shown[last].name, last)
	return nil
}

func (t *talk) undo(context.Context, string) error {
	if len(t.turns) == 0 {
		return errors.New("/undo: no question was asked")
	}
	t.d.undo()
	last := t.turns[len(t.turns)-1]
	t.turns = t.turns[:len(t.turns)-1]
	fmt.Fprintf(t.a.err, "taken back: %.60q", last.typed)
	if n := len(last.pictures); n > 0 {
		fmt.Fprintf(t.a.err, " with %d picture(s)", n)
	}
	fmt.Fprintln(t.a.err)
	return nil
}

func (t *talk) clear(context.Context, string) error {
	t.d.restart()
	t.turns, t.next = nil, question{system: t.next.system}
	fmt.Fprintln(t.a.err, "the conversation is empty")
	return nil
}

func (t *talk) help(context.Context, string) error {
	var rows [][]string
	for _, c := range talkCommands() {
		rows = append(rows, []string{strings.TrimSpace(c.name + " " + c.args), c.help})
	}
	return columns(t.a.err, rows)
}

// samplingFlags are the flags that change how answers are generated, not how pictures are read.
var samplingFlags = []string{"n-predict", "temp", "top-k", "top-p", "min-p", "seed"}

// settable are the names for /set.
func (t *talk) settable() (names []string) {
	t.o.reduction.fs.VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Value.(*parameterFlag); ok {
			names = append(names, f.Name)
		}
	})
	return append(names, samplingFlags...)
}

// set changes a flag. A flag that changes the reading of pictures restarts the conversation, with
// all its pictures for the next question.
func (t *talk) set(_ context.Context, arg string) error {
	fs := t.o.reduction.fs
	if arg == "" {
		var rows [][]string
		for _, name := range t.settable() {
			f := fs.Lookup(name)
			value := f.Value.String()
			if v := f.Annotations[applies]; v != nil && !f.Changed {
				value = v[0]
			}
			rows = append(rows, []string{name, value})
		}
		return columns(t.a.err, rows)
	}
	name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), " ")
	value = strings.TrimSpace(value)
	f := fs.Lookup(name)
	if f == nil || !slices.Contains(t.settable(), name) {
		return fmt.Errorf("/set: unknown, got %q, want %s", name, strings.Join(t.settable(), "|"))
	}
	if value == "" {
		return fmt.Errorf("/set: got %s without a value, want /set %s VALUE", name, name)
	}
	old, changed := f.Value.String(), f.Changed
	p, parameter := f.Value.(*parameterFlag)
	if err := fs.Set(name, value); err != nil {
		return fmt.Errorf("--%s: cannot be used, got %q, want %s", name, value, kind(f))
	}
	r, err := t.o.check()
	if err == nil {
		err = t.d.set(r)
	}
	if err != nil {
		if parameter {
			p.text = old // may be empty, which Set would refuse
		} else if undo := f.Value.Set(old); undo != nil {
			return undo
		}
		f.Changed = changed
		return err
	}
	if slices.Contains(samplingFlags, name) {
		fmt.Fprintf(t.a.err, "%s %s\n", name, value)
		return nil
	}
	t.d.restart()
	var all []shownPicture
	for _, e := range t.turns {
		all = append(all, e.pictures...)
	}
	t.next.pictures, t.turns = append(all, t.next.pictures...), nil
	fmt.Fprintf(t.a.err,
		"%s %s; the conversation begins again, %d picture(s) are shown with the next question\n",
		name, value, len(t.next.pictures))
	return nil
}

// message is a message of a saved conversation.
type message struct {
	Role     string   `json:"role"`
	Content  string   `json:"content"`
	Pictures []string `json:"pictures,omitempty"`
}

func (t *talk) save(_ context.Context, arg string) error {
	path, err := unquote(arg)
	if err != nil {
		return err
	}
	outs := t.a.outputs(inputPaths(t.o.question.inputs())...)
	outs.inputs = append(outs.inputs, t.outs.inputs...)
	defer outs.discard()
	f, err := outs.open("save", path)
	if err != nil {
		return err
	}
	err = f.write(func(w io.Writer) error {
		if strings.EqualFold(filepath.Ext(path), ".json") {
			messages := []message{}
			for _, e := range t.turns {
				m := message{Role: "user", Content: e.typed}
				for _, p := range e.pictures {
					m.Pictures = append(m.Pictures, p.name)
				}
				messages = append(messages, m, message{Role: "assistant", Content: e.said()})
			}
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			return enc.Encode(messages)
		}
		for _, e := range t.turns {
			for _, p := range e.pictures {
				fmt.Fprintf(w, "[%s]\n", p.name)
			}
			if _, err := fmt.Fprintf(w, "> %s\n\n%s\n\n",
				strings.ReplaceAll(e.typed, "\n", "\n> "), e.said()); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && f.path != "-" {
		fmt.Fprintf(t.a.err, "%s: %d question(s) with their answers\n", path, len(t.turns))
	}
	return err
}

// complete completes a command's name, or the file name after a command.
func (t *talk) complete(line string) string {
	name, arg, isArg := strings.Cut(line, " ")
	if !isArg {
		var found string
		for _, c := range talkCommands() {
			if line != "" && strings.HasPrefix(c.name, line) {
				if found != "" {
					return line
				}
				found = c.name
				if c.args != "" {
					found += " "
				}
			}
		}
		if found != "" {
			return found
		}
		return line
	}
	if (name == "/image" || name == "/save") && arg != "" {
		return name + " " + completePath(arg)
	}
	return line
}

// unquote reads a file name as people and terminals write it: in quotes, with backslashes before
// spaces, as file://, or with ~ for the home folder. If a file with exactly that name exists, it
// wins.
func unquote(arg string) (string, error) {
	if _, err := os.Lstat(arg); err == nil {
		return arg, nil
	}
	if len(arg) > 1 && (arg[0] == '"' || arg[0] == '\'') {
		if arg[len(arg)-1] != arg[0] {
			return "", fmt.Errorf("got %s, want the quote closed", arg)
		}
		return expandHome(arg[1 : len(arg)-1]), nil
	}
	arg = strings.TrimPrefix(arg, "file://")
	if os.PathSeparator == '/' {
		arg = unescape(arg)
	}
	return expandHome(arg), nil
}

// unescape removes the backslashes of a shell.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// lines returns a function that reads the next line of r, io.EOF after the last. A cancelled
// context ends the wait.
func lines(ctx context.Context, r io.Reader) func() (string, error) {
	type result struct {
		line string
		err  error
	}
	ch := make(chan result)
	read := func() {
		defer close(ch)
		s := bufio.NewScanner(r)
		s.Buffer(nil, maxLine)
		for s.Scan() {
			select {
			case ch <- result{line: s.Text()}:
			case <-ctx.Done():
				return
			}
		}
		err := s.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("run: question too long, want at most %d bytes a line", maxLine)
		}
		if err != nil {
			select {
			case ch <- result{err: err}:
			case <-ctx.Done():
			}
		}
	}
	started := false
	return func() (string, error) {
		if !started { // not before the first call, because an editor may read the input itself
			started = true
			go read()
		}
		select {
		case x, ok := <-ch:
			if !ok {
				return "", io.EOF
			}
			return x.line, x.err
		case <-ctx.Done():
			return "", io.EOF
		}
	}
}
