package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth limits how deep values nest.
const maxDepth = 1000

// scanner finds the ends of JSON values. Pictures are strings of megabytes, so it searches for the
// end of a string instead of reading it byte by byte, and copies nothing.
type scanner struct {
	data    []byte
	at      int
	body    *document // where data lies
	from    int       // position of data in it
	checked bool      // data is known to be valid JSON
	err     string    // the error at position at
}

// document is a whole body with its long strings, so that pictures are searched only once.
type document struct {
	data   []byte
	mark   int                // bytes of the byte-order mark before data
	long   map[int]longString // by their positions
	values int
}

// longString is a string of at least longBytes.
type longString struct {
	end   int // position after the string
	plain bool
}

const longBytes = 1 << 10

// scanner returns a scanner of a value of the body. The value was checked before.
func (b *document) scanner(value []byte) scanner {
	return scanner{data: value, body: b, from: b.at(value), checked: true}
}

// at returns the position of a value, which is a slice of the body with all capacity after it.
func (b *document) at(value []byte) int { return cap(b.data) - cap(value) }

func (s *scanner) fail(format string, args ...any) bool {
	if s.err == "" {
		s.err = fmt.Sprintf(format, args...)
	}
	return false
}

// space skips white space and returns the next byte, 0 at the end.
func (s *scanner) space() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// wrong records that the byte at position at is not the expected one.
func (s *scanner) wrong(want string) bool {
	if s.at >= len(s.data) {
		return s.fail("unexpected end, want %s", want)
	}
	return s.fail("got %q, want %s", s.data[s.at], want)
}

// value moves past the next value, and reports whether it is valid.
func (s *scanner) value(depth int) bool {
	c := s.space()
	if !s.checked {
		if s.body.values++; s.body.values > maxValues {
			return s.fail("too many values")
		}
	}
	switch {
	case depth > maxDepth:
		return s.fail("nested more than %d deep", maxDepth)
	case c == '{':
		return s.members('}', func() bool {
			if s.space() != '"' {
				return s.wrong("a name in quotes")
			}
			if !s.text() {
				return false
			}
			if s.space() != ':' {
				return s.wrong("a colon")
			}
			s.at++
			return s.value(depth + 1)
		})
	case c == '[':
		return s.members(']', func() bool { return s.value(depth + 1) })
	case c == '"':
		return s.text()
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if c == word[0] {
			for i := range len(word) {
				if s.at >= len(s.data) || s.data[s.at] != word[i] {
					return s.wrong(word)
				}
				s.at++
			}
			return true
		}
	}
	return s.wrong("a value")
}

// members moves past a list or an object; one reads each member.
func (s *scanner) members(end byte, one func() bool) bool {
	s.at++
	if s.space() == end {
		s.at++
		return true
	}
	for one() {
		switch s.space() {
		case ',':
			s.at++
		case end:
			s.at++
			return true
		default:
			return s.wrong("a comma or " + string(end))
		}
	}
	return false
}

// text moves past a string.
func (s *scanner) text() bool {
	start := s.from + s.at
	if s.checked && len(s.body.long) > 0 {
		if l, ok := s.body.long[start]; ok {
			s.at = l.end - s.from
			return true
		}
	}
	s.at++
	quote, plain := -1, true
	for {
		if quote < s.at {
			i := bytes.IndexByte(s.data[s.at:], '"')
			if i < 0 {
				s.at = len(s.data)
				return s.fail("unexpected end, want the end of a string")
			}
			quote = s.at + i
		}
		end := quote
		if i := bytes.IndexByte(s.data[s.at:quote], '\\'); i >= 0 {
			end = s.at + i
		}
		if !s.checked {
			if i := control(s.data[s.at:end]); i >= 0 {
				s.at += i
				return s.fail("got %q in a string, want it escaped", s.data[s.at])
			}
		}
		s.at = end
		if end == quote {
			s.at++
			if end := s.from + s.at; !s.checked && end-start >= longBytes {
				s.body.long[start] = longString{end, plain}
			}
			return true
		}
		plain = false
		if !s.escape() {
			return false
		}
	}
}

// escape moves past an escape sequence.
func (s *scanner) escape() bool {
	s.at++
	if s.at >= len(s.data) {
		return s.wrong("an escape")
	}
	switch s.data[s.at] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at++
		return true
	case 'u':
		s.at++
		for range 4 {
			if s.at >= len(s.data) || !isHex(s.data[s.at]) {
				return s.wrong("four hexadecimal digits")
			}
			s.at++
		}
		return true
	}
	return s.wrong("an escape")
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// control returns the index of the first control character, -1 if there is none.
func control(b []byte) int {
	i := 0
	// A byte below 0x20 borrows in the subtraction; bytes above 0x7f do not count.
	low := func(b *[8]byte) uint64 {
		w := binary.LittleEndian.Uint64(b[:])
		return (w - 0x2020202020202020) &^ w
	}
	for rest := b; len(rest) >= 32; rest = rest[32:] {
		w := low((*[8]byte)(rest)) | low((*[8]byte)(rest[8:])) |
			low((*[8]byte)(rest[16:])) | low((*[8]byte)(rest[24:]))
		if w&0x8080808080808080 != 0 {
			break
		}
		i += 32
	}
	for ; i < len(b); i++ {
		if b[i] < 0x20 {
			return i
		}
	}
	return -1
}

// number moves past a number.
func (s *scanner) number() bool {
	s.skip('-')
	if !s.skip('0') && !s.digits() {
		return false
	}
	if s.skip('.') && !s.digits() {
		return false
	}
	if !s.skip('e') && !s.skip('E') {
		return true
	}
	if !s.skip('+') {
		s.skip('-')
	}
	return s.digits()
}

// skip moves past c if it is the next byte.
func (s *scanner) skip(c byte) bool {
	if s.at >= len(s.data) || s.data[s.at] != c {
		return false
	}
	s.at++
	return true
}

// digits moves past at least one digit.
func (s *scanner) digits() bool {
	start := s.at
	for s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9' {
		s.at++
	}
	return s.at > start || s.wrong("a digit")
}

// unescape decodes the inside of a string with valid escapes. Half a surrogate pair becomes U+FFFD.
func unescape(s []byte) []byte {
	out := make([]byte, 0, len(s))
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(out, s...)
		}
		out = append(out, s[:i]...)
		c := s[i+1]
		s = s[i+2:]
		if c != 'u' {
			out = append(out, plainEscapes[c])
			continue
		}
		r := hexRune(s)
		s = s[4:]
		if utf16.IsSurrogate(r) {
			low := rune(0)
			if len(s) >= 6 && s[0] == '\\' && s[1] == 'u' {
				low = hexRune(s[2:])
			}
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				s = s[6:]
			}
		}
		out = utf8.AppendRune(out, r)
	}
}

// plainEscapes are the bytes that stand for themselves or for a control character.
var plainEscapes = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// hexRune decodes four hexadecimal digits.
func hexRune(s []byte) (r rune) {
	for _, c := range s[:4] {
		d := c - '0'
		if c > '9' {
			d = c | 0x20 - 'a' + 10
		}
		r = r<<4 | rune(d)
	}
	return r
}
