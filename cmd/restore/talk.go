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
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/spf13/pflag"
)

// maxLine is the length in bytes of the longest question.
const maxLine = 1 << 20

// talk is a conversation: lines are questions, or commands that begin with a slash.
type talk struct {
	o     *runOptions
	a     *app
	m     *engine.Engine
	d     *drawings
	first engine.Request // options of every question, and the video of the first
	conv  *engine.Conversation

	shown []shownPicture // pictures for the next question
	turns []exchange     // questions and answers so far
	video string         // name of the video for the next question
}

// shownPicture is a picture and its file.
type shownPicture struct {
	pic  *imageproc.Picture
	name string
}

// exchange is a question and its answer.
type exchange struct {
	question string
	answer   string
	pictures []shownPicture
}

// newTalk begins a conversation. Its first question is about the pictures of first; names are the
// names of its video and pictures.
func newTalk(
	o *runOptions,
	a *app,
	m *engine.Engine,
	d *drawings,
	first engine.Request,
	names []string,
) *talk {
	t := &talk{o: o, a: a, m: m, d: d, first: first, conv: m.NewConversation(first.Reduce)}
	if first.Video != nil {
		t.video, names = names[0], names[1:]
	}
	for i, pic := range first.Images {
		t.shown = append(t.shown, shownPicture{pic, names[i]})
	}
	return t
}

// errLeave ends a conversation.
var errLeave = errors.New("leave")

// talkCommand is a line that begins with a slash.
type talkCommand struct {
	name, args, help string
	do               func(t *talk, arg string) error
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
			func(*talk, string) error { return errLeave },
		},
	}
}

// run reads lines until the end. On a terminal an error ends only the turn, otherwise the
// conversation.
func (t *talk) run(ctx context.Context) error {
	t.a.stdinRead = true
	next := lines(ctx, t.a.in)
	person := isTerminal(t.a.in)
	if person {
		fmt.Fprintln(t.a.err,
			"one question a line; /image FILE shows a picture; /help lists all commands")
		t.describe(t.shown)
	}
	if e := newEditor(t.a, "> ", t.complete); e != nil {
		next = func() (string, error) { return e.next(ctx) }
	} else if person {
		plain := next
		next = func() (string, error) {
			fmt.Fprint(t.a.err, "> ")
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
			err = t.line(ctx, strings.TrimSpace(line), person)
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
	if line == "" {
		return nil
	}
	if line[0] != '/' {
		if person {
			var end func()
			ctx, end = t.a.interrupts.begin(ctx)
			defer end()
		}
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
			return c.do(t, arg)
		}
		names = append(names, c.name)
	}
	return fmt.Errorf("run: unknown command, got %q, want %s", name, strings.Join(names, "|"))
}

// ask asks a question about the pending pictures.
func (t *talk) ask(ctx context.Context, prompt string) error {
	q := question{prompt: prompt}
	if err := q.place(len(t.shown), t.first.Video != nil); err != nil {
		return err
	}
	r := t.first
	r.Prompt, r.Places, r.Images = q.prompt, q.places, nil
	var names []string
	if r.Video != nil {
		names = append(names, t.video)
	}
	for _, s := range t.shown {
		r.Images, names = append(r.Images, s.pic), append(names, s.name)
	}
	if err := t.o.room(t.m, &r, t.held()); err != nil {
		return t.full(err)
	}
	if err := t.d.open(len(r.Images)); err != nil {
		return err
	}
	ans, err := t.o.answer(ctx, t.a, t.m, r, names, t.d, t.conv.Ask)
	if ans != nil &&
		(ans.Finish != engine.FinishCancelled || len(ans.Tokens) > 0) { // the dialogue contains it
		t.turns = append(t.turns, exchange{prompt, strings.TrimSpace(ans.Text), t.shown})
		t.shown, t.first.Video = nil, nil
	}
	return t.full(err)
}

// held returns the pictures of the dialogue.
func (t *talk) held() (pics []*imageproc.Picture) {
	for _, e := range t.turns {
		for _, p := range e.pictures {
			pics = append(pics, p.pic)
		}
	}
	return pics
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
	if len(t.shown) > 0 {
		ways = append(ways, "/drop takes away "+t.shown[len(t.shown)-1].name)
	}
	if len(t.turns) > 0 {
		ways = append(ways, "/undo the last question")
	}
	return strings.Join(append(ways, "/clear everything"), ", ")
}

func (t *talk) image(arg string) error {
	path, err := unquote(arg)
	if err != nil {
		return err
	}
	pic, err := t.o.question.picture(t.a, path)
	if err != nil {
		return err
	}
	t.d.outs.reads(path)
	t.shown = append(t.shown, shownPicture{pic, path})
	t.describe(t.shown[len(t.shown)-1:])
	return nil
}

// describe prints the pictures' sizes and tokens.
func (t *talk) describe(pictures []shownPicture) {
	for _, p := range pictures {
		size := fmt.Sprintf("%s: %dx%d pixels", p.name, p.pic.Width, p.pic.Height)
		if n, err := t.m.PictureTokens(p.pic); err == nil {
			size += fmt.Sprintf(", %d visual tokens", n)
			if o := t.first.Reduce; o.NVis > 0 && o.NVis < n {
				size += fmt.Sprintf(", reduced to %d", o.NVis)
			} else if o.KeepRatio > 0 {
				size += fmt.Sprintf(", reduced to %v of them", o.KeepRatio)
			}
		}
		fmt.Fprintln(t.a.err, size)
	}
}

func (t *talk) drop(string) error {
	if len(t.shown) == 0 {
		if len(t.turns) > 0 {
			return errors.New(
				"/drop: no picture waits for a question; /undo takes back the last question " +
					"with its pictures",
			)
		}
		return errors.New("/drop: no picture is shown")
	}
	last := t.shown[len(t.shown)-1]
	t.shown = t.shown[:len(t.shown)-1]
	fmt.Fprintf(t.a.err, "%s is not shown; %d picture(s) left for the next question\n", last.name,
		len(t.shown))
	return nil
}

func (t *talk) undo(string) error {
	if len(t.turns) == 0 {
		return errors.New("/undo: no question was asked")
	}
	t.conv.Undo()
	last := t.turns[len(t.turns)-1]
	t.turns = t.turns[:len(t.turns)-1]
	fmt.Fprintf(t.a.err, "taken back: %.60q", last.question)
	if n := len(last.pictures); n > 0 {
		fmt.Fprintf(t.a.err, " with %d picture(s)", n)
	}
	fmt.Fprintln(t.a.err)
	return nil
}

func (t *talk) clear(string) error {
	t.conv.Reset()
	t.turns, t.shown, t.first.Video = nil, nil, nil
	fmt.Fprintln(t.a.err, "the conversation is empty")
	return nil
}

func (t *talk) help(string) error {
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
func (t *talk) set(arg string) error {
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
		err = t.o.checkLength(t.m)
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
	t.first.Sample, t.first.MaxTokens = r.Sample, r.MaxTokens
	if slices.Contains(samplingFlags, name) {
		fmt.Fprintf(t.a.err, "%s %s\n", name, value)
		return nil
	}
	t.first.Reduce = r.Reduce
	t.conv = t.m.NewConversation(r.Reduce)
	var all []shownPicture
	for _, e := range t.turns {
		all = append(all, e.pictures...)
	}
	t.shown, t.turns = append(all, t.shown...), nil
	fmt.Fprintf(t.a.err,
		"%s %s; the conversation begins again, %d picture(s) are shown with the next question\n",
		name, value, len(t.shown))
	return nil
}

// message is a message of a saved conversation.
type message struct {
	Role     string   `json:"role"`
	Content  string   `json:"content"`
	Pictures []string `json:"pictures,omitempty"`
}

func (t *talk) save(arg string) error {
	path, err := unquote(arg)
	if err != nil {
		return err
	}
	outs := t.a.outputs(t.o.question.inputs()...)
	outs.inputs = append(outs.inputs, t.d.outs.inputs...)
	defer outs.discard()
	f, err := outs.open("save", path)
	if err != nil {
		return err
	}
	err = f.write(func(w io.Writer) error {
		if strings.EqualFold(filepath.Ext(path), ".json") {
			messages := []message{}
			for _, e := range t.turns {
				m := message{Role: "user", Content: e.question}
				for _, p := range e.pictures {
					m.Pictures = append(m.Pictures, p.name)
				}
				messages = append(messages, m, message{Role: "assistant", Content: e.answer})
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
				strings.ReplaceAll(e.question, "\n", "\n> "), e.answer); err != nil {
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
