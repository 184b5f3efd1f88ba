package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	restore "github.com/restore-vlm/restore"
)

// maxLine is the length in bytes of the longest question that is read from the input.
const maxLine = 1 << 20

// talk holds a conversation: each line of a.in is a question, answered with what came before kept. first holds the pictures that belong to
// the first question. On a terminal an error ends the turn, elsewhere the conversation.
func (o *runOptions) talk(ctx context.Context, a *app, m *restore.Model, first restore.Request, names []string) error {
	person := isTerminal(a.in)
	if person {
		fmt.Fprintln(a.err, "one question a line; /image FILE shows a picture; /exit ends")
	}
	conv := m.NewConversation(first.Reduce)
	pics := first.Images
	next := lines(ctx, a.in)
	for {
		if person {
			fmt.Fprint(a.err, "> ")
		}
		line, err := next()
		switch {
		case err == io.EOF:
			if person {
				fmt.Fprintln(a.err)
			}
			return nil
		case err != nil:
			return err
		}
		line = strings.TrimSpace(line)
		switch file, isImage := strings.CutPrefix(line, "/image "); {
		case line == "":
		case line == "/exit":
			return nil
		case isImage:
			file = strings.TrimSpace(file)
			pic, loadErr := o.picture.load(file)
			if err = loadErr; err == nil {
				pics, names = append(pics, pic), append(names, file)
			}
		case strings.HasPrefix(line, "/"):
			err = fmt.Errorf("run: unknown command, got %q, want /image FILE or /exit", line)
		default:
			r := first
			r.Prompt, r.Images = line, pics
			if err = o.answer(ctx, a, m, r, names, conv.Ask); err == nil {
				pics, names, first.Video = nil, nil, nil
			}
		}
		if err != nil {
			if !person || errors.Is(err, errInterrupted) {
				return err
			}
			fmt.Fprintf(a.err, "restore: %s\n", oneLine(err.Error()))
		}
	}
}

// lines returns a function that reads the next line of r, io.EOF after the last; a cancelled context ends the wait too.
func lines(ctx context.Context, r io.Reader) func() (string, error) {
	type result struct {
		line string
		err  error
	}
	ch := make(chan result)
	go func() {
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
	}()
	return func() (string, error) {
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
