package dataset

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/restore-vlm/restore/internal/files"
)

// Limits of a row in JSON: its bytes, and the values in it, which take many times their bytes.
const (
	maxLine   = 64 << 20
	maxValues = 1 << 20
)

// Lines yields the rows of a file with one JSON object per line. It skips empty lines.
func Lines(path string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		in := files.NewLines(f, maxLine)
		row, line := int64(0), 0
		for in.Scan() {
			line++
			data := bytes.TrimSpace(in.Bytes())
			if len(data) == 0 {
				continue
			}
			cells, err := object(data)
			if err != nil {
				yield(nil, fmt.Errorf("%s: row %d (line %d): %w", path, row, line, err))
				return
			}
			if !yield(NewRow(path, row, line, cells), nil) {
				return
			}
			row++
		}
		if err := in.Err(); err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				err = fmt.Errorf("more than %d bytes", maxLine)
			}
			yield(nil, fmt.Errorf("%s: row %d (line %d): %w", path, row, line+1, err))
		}
	}
}

// object decodes one JSON object.
func object(data []byte) (map[string]any, error) {
	if values(data) > maxValues {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var cells map[string]any
	if err := dec.Decode(&cells); err != nil {
		return nil, fmt.Errorf("want a JSON object: %w", err)
	}
	if cells == nil {
		return nil, errors.New("want a JSON object, got null")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("want one JSON object, got more after it")
	}
	return cells, nil
}

// values counts the values of JSON text, except the whole.
func values(data []byte) int {
	n := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ',', '[', '{':
			n++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}

// decoder reads a document value by value; each has at most maxLine bytes.
type decoder struct {
	*json.Decoder
	in *bounded
}

// token reads the next token.
func (d decoder) token() (json.Token, error) {
	d.in.left = maxLine
	return d.Token()
}

// more reports whether another value of an array or object follows.
func (d decoder) more() bool {
	d.in.left = maxLine
	return d.More()
}

// object reads the next value, a JSON object.
func (d decoder) object() (map[string]any, error) {
	d.in.left = maxLine
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("want a JSON object: %w", err)
	}
	return object(raw)
}

// bounded returns an error instead of more than left bytes.
type bounded struct {
	in   io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("a value of more than %d bytes", maxLine)
	}
	n, err := b.in.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// Array yields the items of the JSON array in a file or, if member is not empty, of that member of
// the file's JSON object. It skips everything else.
func Array(path, member string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		row := int64(0)
		err := document(path, member, '[', func(dec decoder) error {
			cells, err := dec.object()
			if err != nil {
				return fmt.Errorf("row %d: %w", row, err)
			}
			if !yield(NewRow(path, row, 0, cells), nil) {
				return errStop
			}
			row++
			return nil
		})
		if err != nil && err != errStop {
			yield(nil, fmt.Errorf("%s: %w", path, err))
		}
	}
}

// Member is a member of a JSON object: its name, and its object as a row.
type Member struct {
	Name string
	*Row
}

// Object yields the members of the JSON object in a file; each must be an object.
func Object(path string) iter.Seq2[Member, error] {
	return func(yield func(Member, error) bool) {
		row := int64(0)
		err := document(path, "", '{', func(dec decoder) error {
			name, err := dec.token()
			if err != nil {
				return fmt.Errorf("row %d: %w", row, err)
			}
			cells, err := dec.object()
			if err != nil {
				return fmt.Errorf("row %d (%q): %w", row, name, err)
			}
			text, _ := name.(string)
			if !yield(Member{text, NewRow(path, row, 0, cells)}, nil) {
				return errStop
			}
			row++
			return nil
		})
		if err != nil && err != errStop {
			yield(Member{}, fmt.Errorf("%s: %w", path, err))
		}
	}
}

var errStop = errors.New("stop")

// document opens a file with a JSON document, skips everything before the value that opens with the
// delimiter, and calls item for each of its items.
func document(path, member string, open json.Delim, item func(decoder) error) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer f.Close()
	in := &bounded{in: files.NewTextReader(f)}
	dec := decoder{json.NewDecoder(in), in}
	if member != "" {
		if err := enter(dec, member); err != nil {
			return err
		}
	}
	tok, err := dec.token()
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if tok != open {
		return fmt.Errorf("want a JSON %s, got %v", map[json.Delim]string{'[': "array",
			'{': "object"}[open], tok)
	}
	for dec.more() {
		if err := item(dec); err != nil {
			return err
		}
	}
	_, err = dec.token()
	if err == nil && member != "" {
		err = leave(dec)
	}
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	if _, err := dec.token(); err != io.EOF {
		return errors.New("want one JSON document, got more after it")
	}
	return nil
}

// leave skips the other members of the object that dec is in, and its end.
func leave(dec decoder) error {
	for dec.more() {
		if _, err := dec.token(); err != nil {
			return err
		}
		if err := skip(dec); err != nil {
			return err
		}
	}
	_, err := dec.token()
	return err
}

// enter skips the members of the object that follows in dec, up to the value of the given one.
func enter(dec decoder, member string) error {
	tok, err := dec.token()
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("want a JSON object with %q, got %v", member, tok)
	}
	for dec.more() {
		name, err := dec.token()
		if err != nil {
			return err
		}
		if name == member {
			return nil
		}
		if err := skip(dec); err != nil {
			return err
		}
	}
	return fmt.Errorf("column %q: missing", member)
}

// skip skips a value without holding it in memory.
func skip(dec decoder) error {
	for depth := 0; ; {
		tok, err := dec.token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}
