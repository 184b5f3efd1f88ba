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

	"github.com/restore-vlm/restore/internal/textfile"
)

// maxLine is the most bytes of a line of JSON.
const maxLine = 64 << 20

// Lines yields the rows of a file with one JSON object per line. It skips empty lines.
func Lines(path string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		in := textfile.NewScanner(f, maxLine)
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

// Array yields the items of the JSON array in a file or, if member is not empty, of that member of
// the file's JSON object. It skips everything else.
func Array(path, member string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		row := int64(0)
		err := document(path, member, '[', func(dec *json.Decoder) error {
			var cells map[string]any
			if err := dec.Decode(&cells); err != nil {
				return fmt.Errorf("row %d: want a JSON object: %w", row, err)
			}
			if cells == nil {
				return fmt.Errorf("row %d: want a JSON object, got null", row)
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
		err := document(path, "", '{', func(dec *json.Decoder) error {
			name, err := dec.Token()
			if err != nil {
				return fmt.Errorf("row %d: %w", row, err)
			}
			var cells map[string]any
			if err := dec.Decode(&cells); err != nil {
				return fmt.Errorf("row %d (%q): want a JSON object: %w", row, name, err)
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
func document(path, member string, open json.Delim, item func(*json.Decoder) error) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer f.Close()
	dec := json.NewDecoder(textfile.NewReader(f))
	dec.UseNumber()
	if member != "" {
		if err := enter(dec, member); err != nil {
			return err
		}
	}
	tok, err := dec.Token()
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if tok != open {
		return fmt.Errorf(
			"want a JSON %s, got %v",
			map[json.Delim]string{'[': "array", '{': "object"}[open],
			tok,
		)
	}
	for dec.More() {
		if err := item(dec); err != nil {
			return err
		}
	}
	if _, err = dec.Token(); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// enter skips the members of the object that follows in dec, up to the value of the given one.
func enter(dec *json.Decoder, member string) error {
	tok, err := dec.Token()
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("want a JSON object with %q, got %v", member, tok)
	}
	for dec.More() {
		name, err := dec.Token()
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
func skip(dec *json.Decoder) error {
	for depth := 0; ; {
		tok, err := dec.Token()
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
