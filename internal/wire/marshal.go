package wire

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
)

// Marshal encodes a value as JSON without HTML escaping.
func Marshal(v any) ([]byte, error) {
	out, err := files.JSON(v, "")
	return bytes.TrimSuffix(out, []byte("\n")), err
}

// String encodes a value of texts and finite numbers as JSON. Such a value always encodes.
func String(v any) string {
	out, err := Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("wire.String: %T: %v", v, err))
	}
	return string(out)
}

// Text encodes a text as JSON.
func Text(s string) string {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return String(s)
		}
	}
	return `"` + s + `"`
}

// Frame is the JSON of messages that differ only in a few values. It is encoded once.
type Frame []string // the JSON between these values

// Gap is a text for a gap in a frame; no text of an API is equal to it.
const Gap = "\x00"

// NewFrame encodes v, in which gaps are the values that change, in this order. No other value of v
// may be equal to a gap.
func NewFrame(v any, gaps ...any) Frame {
	var f Frame
	rest := String(v)
	for _, gap := range gaps {
		before, after, found := strings.Cut(rest, String(gap))
		if !found {
			panic(fmt.Sprintf("wire.NewFrame: %T has no value %v", v, gap))
		}
		f, rest = append(f, before), after
	}
	return append(f, rest)
}

// Fill returns the JSON of the message with these values, which are JSON.
func (f Frame) Fill(values ...string) string {
	n := 0
	for _, list := range [][]string{f, values} {
		for _, part := range list {
			n += len(part)
		}
	}
	var b strings.Builder
	b.Grow(n)
	for i, part := range f {
		b.WriteString(part)
		if i < len(values) {
			b.WriteString(values[i])
		}
	}
	return b.String()
}
