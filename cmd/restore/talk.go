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

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/files"
)

// maxLine is the length in bytes of the longest question.
const maxLine = 1 << 20

// talk is a conversation: lines are questions, or commands that begin with a slash.
type talk struct {
	o    *runOptions
	a    *cli.App
	outs *cli.Outputs
	d    *dialogue

	editor *editor // nil without a terminal
	person bool    // somebody types; otherwise a program
	// reads an answer to a question of the program, if somebody types
	read func(prompt string) (string, error)

	next  cli.Question // what the next question shows, and the system prompt
	turns []exchange   // questions and answers so far
	noted bool         // that no picture is shown, since one was
}

// exchange is a question and its answer.
type exchange struct {
	*cli.Question
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
		{"/undo", "", "take back the last question; its pictures wait again", (*talk).undo},
		{"/clear", "", "forget the conversation and its pictures", (*talk).clear},
		{
			"/set",
			"NAME VALUE",
			"change a flag, as in /set n-vis 128; without VALUE: take it back; alone: show them",
			(*talk).set,
		},
		{"/save", "FILE", "write the conversation: .json as messages, else as text", (*talk).save},
		{"/help", "", "show this list; a question that begins with / begins with //", (*talk).help},
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
	in, err := t.a.Stdin("the questions of the conversation")
	if err != nil {
		return err
	}
	t.person = cli.IsTerminal(t.a.In)
	if t.person {
		fmt.Fprintln(t.a.Err,
			"one question a line; /image FILE shows a picture; /help lists all commands")
		if err := t.describe(ctx, t.next.Pictures); err != nil {
			return err
		}
	}
	next := t.reader(ctx, in)
	defer t.d.cut()
	for {
		if t.person && t.d.ahead == nil && len(t.next.Names()) > 0 {
			t.d.readAhead(ctx, &t.next)
		}
		line, err := next()
		switch {
		case err == io.EOF && t.person:
			return nil
		case err == io.EOF: // or a signal came before all questions were read
			return context.Cause(ctx)
		}
		if err == nil {
			err = t.line(ctx, line)
		}
		switch {
		case err == nil:
		case errors.Is(err, errLeave):
			return nil
		case !t.person || ctx.Err() != nil:
			return err
		default:
			t.a.Say("%s", cli.ErrorLine(t.o.reduction.Flags, err))
		}
	}
}

// prompt is shown before a question.
const prompt = "> "

// reader returns a function that reads the next question or command, and sets t.read.
func (t *talk) reader(ctx context.Context, in io.Reader) (next func() (string, error)) {
	line := lines(ctx, in)
	switch {
	case t.editor != nil:
		t.editor.Complete = t.completion
		t.read = func(prompt string) (string, error) { return t.editor.Line(ctx, prompt) }
		return func() (string, error) { return t.editor.next(ctx) }
	case t.person:
		t.read = func(prompt string) (string, error) {
			fmt.Fprint(t.a.Err, prompt)
			text, err := line()
			if t.a.Screen.Entered(); err == io.EOF {
				fmt.Fprintln(t.a.Err)
			}
			return text, err
		}
		return func() (string, error) { return t.read(prompt) }
	}
	return line
}

// line executes a line.
func (t *talk) line(ctx context.Context, line string) error {
	if len(line) > maxLine {
		return fmt.Errorf("run: question too long, got %d bytes, want at most %d", len(line),
			maxLine)
	}
	line, err := files.TextString(line)
	if err != nil {
		return fmt.Errorf("run: the question %w", err)
	}
	if line = strings.TrimSpace(line); line == "" {
		return nil
	}
	if t.person {
		var end func()
		ctx, end = t.a.Interrupts.Begin(ctx)
		defer end()
	}
	if question, ok := strings.CutPrefix(line, "//"); ok {
		return t.ask(ctx, "/"+question)
	}
	if line[0] != '/' {
		return t.ask(ctx, line)
	}
	t.d.cut()
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
	return fmt.Errorf("run: unknown command, got %q, want %s%s", name, strings.Join(names, "|"),
		cli.DidYouMean(name, names))
}

// ask asks a question about the pending pictures.
func (t *talk) ask(ctx context.Context, prompt string) error {
	q := t.next
	q.Prompt = prompt
	if err := q.Place(len(q.Pictures), q.Video != nil); err != nil {
		return err
	}
	shown := len(q.Names()) > 0 ||
		slices.ContainsFunc(t.turns, func(e exchange) bool { return len(e.Names()) > 0 })
	if !shown && !t.noted {
		t.o.noteTextAlone(t.a, "/image FILE")
	}
	t.noted = !shown
	turn, err := t.d.ask(ctx, &q)
	if turn != nil {
		turn.typed = prompt
		t.turns = append(t.turns, *turn)
		t.next = cli.Question{System: q.System}
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
	if shown := t.next.Pictures; len(shown) > 0 {
		ways = append(ways, "/drop takes away "+shown[len(shown)-1].Name)
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
	pic, err := t.o.question.Picture(t.a, path)
	if err != nil {
		return fmt.Errorf("/image: %w", err)
	}
	if err := t.describe(ctx, []cli.ShownPicture{pic}); err != nil {
		return err
	}
	t.outs.Reads(path)
	t.next.Pictures = append(t.next.Pictures, pic)
	return nil
}

// describe prints the pictures' sizes and tokens.
func (t *talk) describe(ctx context.Context, pictures []cli.ShownPicture) error {
	for _, p := range pictures {
		size, err := t.d.describe(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		fmt.Fprintf(t.a.Err, "%s: %s\n", p.Name, size)
	}
	return nil
}

func (t *talk) drop(context.Context, string) error {
	shown := t.next.Pictures
	if len(shown) == 0 {
		if len(t.turns) > 0 {
			return errors.New(
				"/drop: no picture waits for a question; those of the last question do after /undo")
		}
		return errors.New("/drop: no picture is shown")
	}
	last := len(shown) - 1
	t.next.Pictures = shown[:last]
	fmt.Fprintf(t.a.Err, "%s is not shown; %d picture(s) left for the next question\n",
		shown[last].Name, last)
	return nil
}

func (t *talk) undo(context.Context, string) error {
	if len(t.turns) == 0 {
		return errors.New("/undo: no question was asked")
	}
	t.d.conv.Undo()
	last := t.turns[len(t.turns)-1]
	t.turns = t.turns[:len(t.turns)-1]
	t.next.Again(last.Question)
	fmt.Fprintf(t.a.Err, "taken back: %.60q", last.typed)
	if len(t.next.Names()) > 0 {
		fmt.Fprintf(t.a.Err, "; %s are shown with the next question", t.next.Shows())
	}
	fmt.Fprintln(t.a.Err)
	return nil
}

func (t *talk) clear(context.Context, string) error {
	if err := t.d.restart(); err != nil {
		return err
	}
	t.turns, t.next = nil, cli.Question{System: t.next.System}
	fmt.Fprintln(t.a.Err, "the conversation is empty")
	return nil
}

func (t *talk) help(context.Context, string) error {
	var rows [][]string
	for _, c := range talkCommands() {
		rows = append(rows, []string{strings.TrimSpace(c.name + " " + c.args), c.help})
	}
	return cli.Table(t.a.Err, rows)
}

// samplingFlags are the flags that change how answers are generated, not how pictures are read.
var samplingFlags = []string{"n-predict", "temp", "top-k", "top-p", "min-p", "seed"}

// settable are the names for /set.
func (t *talk) settable() (names []string) {
	t.o.reduction.Flags.VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Value.(*cli.ParameterFlag); ok {
			names = append(names, f.Name)
		}
	})
	return append(names, samplingFlags...)
}

// set changes a flag, NAME VALUE or NAME=VALUE, or takes it back, NAME. It takes back other flags
// that have no place next to it. A flag that changes the reading of pictures restarts the
// conversation, with all its pictures for the next question.
func (t *talk) set(_ context.Context, arg string) error {
	fs := t.o.reduction.Flags
	if arg == "" {
		return t.list()
	}
	name, value := strings.TrimPrefix(arg, "--"), ""
	if i := strings.IndexAny(name, " ="); i >= 0 {
		name, value = name[:i], strings.TrimSpace(name[i+1:])
	}
	f := fs.Lookup(name)
	if f == nil || !slices.Contains(t.settable(), name) {
		return fmt.Errorf("/set: unknown, got %q, want %s%s", name,
			strings.Join(t.settable(), "|"), cli.DidYouMean(name, t.settable()))
	}
	before := t.settings()
	if value == "" {
		if !t.takeBack(name) {
			return fmt.Errorf("/set: got %s without a value, which is not set, want /set %s VALUE",
				name, name)
		}
	} else if err := fs.Set(name, value); err != nil {
		return fmt.Errorf("--%s: cannot be used, got %q, want %s", name, value, cli.Kind(f))
	}
	var gone []string
	for _, other := range budgetFlags {
		if value != "" && other != name && slices.Contains(budgetFlags, name) && t.takeBack(other) {
			gone = append(gone, other)
		}
	}
	for {
		r, err := t.o.check()
		if err == nil {
			err = t.d.set(r)
		}
		if err == nil {
			break
		}
		other := cli.Fault(err)
		if other == name || !t.takeBack(other) {
			before()
			return err
		}
		gone = append(gone, other)
	}
	said := strings.TrimSpace(name + " " + value)
	if value == "" {
		said = name + " is not set"
	}
	for _, other := range gone {
		said += ", " + other + " is not set"
	}
	if !cli.IsParameter(f) && !slices.ContainsFunc(gone, func(name string) bool {
		return cli.IsParameter(fs.Lookup(name))
	}) {
		fmt.Fprintln(t.a.Err, said)
		return nil
	}
	if err := t.d.restart(); err != nil {
		return err
	}
	for _, e := range slices.Backward(t.turns) {
		t.next.Again(e.Question)
	}
	t.turns = nil
	fmt.Fprintf(t.a.Err,
		"%s; the conversation begins again, %s are shown with the next question\n",
		said, t.next.Shows())
	return nil
}

// budgetFlags set a budget in different ways.
var budgetFlags = []string{"n-vis", "keep-ratio"}

// takeBack unsets a flag for /set and reports whether it was set.
func (t *talk) takeBack(name string) bool {
	f := t.o.reduction.Flags.Lookup(name)
	if f == nil || !f.Changed || !slices.Contains(t.settable(), name) {
		return false
	}
	setFlag(f, f.DefValue, false)
	return true
}

// setFlag gives a flag a value that it had.
func setFlag(f *pflag.Flag, value string, changed bool) {
	if p, ok := f.Value.(*cli.ParameterFlag); ok {
		p.Text = value // may be empty, which Set would refuse
	} else {
		_ = f.Value.Set(value) // it had this value
	}
	f.Changed = changed
}

// settings returns a function that gives all flags for /set the values that they have now.
func (t *talk) settings() (restore func()) {
	var all []func()
	for _, name := range t.settable() {
		f := t.o.reduction.Flags.Lookup(name)
		value, changed := f.Value.String(), f.Changed
		all = append(all, func() { setFlag(f, value, changed) })
	}
	return func() {
		for _, f := range all {
			f()
		}
	}
}

// list prints the flags for /set with their values.
func (t *talk) list() error {
	var rows [][]string
	for _, name := range t.settable() {
		f := t.o.reduction.Flags.Lookup(name)
		value := f.Value.String()
		if v := f.Annotations[cli.Applies]; v != nil && !f.Changed {
			value = v[0]
		}
		rows = append(rows, []string{name, value})
	}
	return cli.Table(t.a.Err, rows)
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
	outs := t.a.Outputs(cli.InputPaths(t.o.question.Inputs())...)
	outs.Inputs = append(outs.Inputs, t.outs.Inputs...)
	defer outs.Discard()
	f, err := outs.Open("save", path)
	if err != nil {
		return err
	}
	if !t.mayReplace(path) {
		fmt.Fprintln(t.a.Err, "not saved")
		return nil
	}
	err = f.Write(func(w io.Writer) error {
		if strings.EqualFold(filepath.Ext(path), ".json") {
			messages := []message{}
			for _, e := range t.turns {
				m := message{Role: "user", Content: e.typed, Pictures: e.Names()}
				messages = append(messages, m, message{Role: "assistant", Content: e.said()})
			}
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			return enc.Encode(messages)
		}
		for _, e := range t.turns {
			for _, name := range e.Names() {
				fmt.Fprintf(w, "[%s]\n", name)
			}
			if _, err := fmt.Fprintf(w, "> %s\n\n%s\n\n",
				strings.ReplaceAll(e.typed, "\n", "\n> "), e.said()); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && f.Path != "-" {
		fmt.Fprintf(t.a.Err, "%s: %d question(s) with their answers\n", path, len(t.turns))
	}
	return err
}

// mayReplace asks whether a file may be overwritten, if there is one.
func (t *talk) mayReplace(path string) bool {
	info, err := os.Stat(path)
	if !t.person || err != nil || !info.Mode().IsRegular() {
		return true
	}
	fmt.Fprintf(t.a.Err, "%s exists\n", cli.OneLine(path))
	said, err := t.read("overwrite it? (y/N) ")
	said = strings.ToLower(strings.TrimSpace(said))
	return err == nil && (said == "y" || said == "yes")
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
		return cli.ExpandHome(arg[1 : len(arg)-1]), nil
	}
	if os.PathSeparator == '/' {
		arg = unescape(arg)
	}
	return cli.Local(arg), nil
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
