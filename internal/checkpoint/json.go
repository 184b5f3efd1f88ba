package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/restore-vlm/restore/internal/files"
)

// maxDepth is how deep a JSON file may nest: the reference library's limit.
const maxDepth = 128

// CheckObject returns an error unless b is one JSON object in UTF-8, at most maxDepth deep and
// without a repeated key in any object. Readers differ in which of two equal keys they use, so such
// a file is ambiguous.
func CheckObject(b []byte) error {
	if _, err := files.Text(b); err != nil {
		return err
	}
	var first json.RawMessage
	if err := json.Unmarshal(b, &first); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line, column := position(b, syntax.Offset)
			return fmt.Errorf("line %d column %d: not JSON: %w", line, column, err)
		}
		return err
	}
	if t := bytes.TrimLeft(b, " \t\r\n"); t[0] != '{' {
		return fmt.Errorf("got %s, want a JSON object", Excerpt(t))
	}
	// The syntax is valid; the rest only checks depth and keys.
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	type level struct {
		keys  map[string]bool // nil in an array
		isKey bool            // the next string is a key
	}
	var stack []level
	for first := true; first || len(stack) > 0; first = false {
		token, err := d.Token()
		if err != nil {
			return err
		}
		top := len(stack) - 1
		if s, ok := token.(string); ok && top >= 0 && stack[top].isKey {
			if stack[top].keys[s] {
				line, column := position(b, d.InputOffset())
				return fmt.Errorf("line %d column %d: key %s occurs twice", line, column,
					Excerpt(fmt.Appendf(nil, "%q", s)))
			}
			stack[top].keys[s] = true
			stack[top].isKey = false
			continue
		}
		switch token {
		case json.Delim('{'):
			stack = append(stack, level{keys: map[string]bool{}, isKey: true})
		case json.Delim('['):
			stack = append(stack, level{})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
		}
		if len(stack) > maxDepth {
			return fmt.Errorf("got JSON nested deeper than %d, want less", maxDepth)
		}
		// A value has ended, or an object has begun: in an object, a key is next.
		if top = len(stack) - 1; top >= 0 && stack[top].keys != nil {
			stack[top].isKey = true
		}
	}
	return nil
}

// position returns the line and column, from 1, of the last byte read after offset bytes.
func position(b []byte, offset int64) (line, column int) {
	before := b[:max(0, min(offset, int64(len(b)))-1)]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// Excerpt returns the beginning of text on one line, for an error.
func Excerpt(text []byte) string {
	const limit = 60
	text = bytes.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text[:min(len(text), limit+1)])
	if len(text) > limit {
		return string(bytes.ToValidUTF8(text[:limit], nil)) + "…"
	}
	return string(text)
}
