package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errJSON is the cause of every syntax error that scanner finds; the error adds the position.
var errJSON = errors.New("invalid json")

// scanner reads JSON in UTF-8 in place. The vocabulary and the merges are most of a tokenizer.json;
// reading them without building a tree makes Parse several times faster than encoding/json. The
// rest is decoded by encoding/json.
type scanner struct {
	data []byte
	pos  int
	buf  []byte // unescaped form of the last string with an escape
}

func (s *scanner) fail() error { return fmt.Errorf("%w at byte %d", errJSON, s.pos) }

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.fail()
	}
	s.pos++
	return nil
}

// object calls f for each key, positioned at its value; f must consume the value.
func (s *scanner) object(f func(key []byte) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := f(key); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.pos++
			continue
		}
		return s.expect('}')
	}
}

// array calls f for each element; f must consume it.
func (s *scanner) array(f func(i int) error) error {
	if err := s.expect('['); err != nil {
		return err
	}
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := f(i); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.pos++
			continue
		}
		return s.expect(']')
	}
}

// str reads a string. The result is valid until the next call.
func (s *scanner) str() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	start := s.pos
	for i := start; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return s.data[start:i], nil
		case c == '\\':
			return s.escaped(start, i)
		case c < ' ':
			s.pos = i
			return nil, s.fail()
		}
	}
	s.pos = len(s.data)
	return nil, s.fail()
}

// escaped continues a string that began at start and has its first backslash at i.
func (s *scanner) escaped(start, i int) ([]byte, error) {
	for ; i < len(s.data) && s.data[i] != '"'; i++ {
		if s.data[i] == '\\' {
			i++
		}
	}
	if i >= len(s.data) {
		s.pos = len(s.data)
		return nil, s.fail()
	}
	s.pos = start
	var v string
	if err := json.Unmarshal(s.data[start-1:i+1], &v); err != nil {
		return nil, s.fail()
	}
	s.pos = i + 1
	s.buf = append(s.buf[:0], v...)
	return s.buf, nil
}

// integer reads a non-negative integer of at most nine digits.
func (s *scanner) integer() (int, error) {
	s.peek()
	end := s.pos
	for end < len(s.data) && s.data[end] >= '0' && s.data[end] <= '9' {
		end++
	}
	if end == s.pos && s.pos < len(s.data) && s.data[s.pos] != '-' {
		return 0, s.fail()
	}
	for end < len(s.data) && strings.IndexByte("+-.eE0123456789", s.data[end]) >= 0 {
		end++
	}
	if text := s.data[s.pos:end]; len(text) > 9 || strings.Trim(string(text), "0123456789") != "" {
		return 0, fmt.Errorf("got %.40s at byte %d, want a whole number of at most 9 digits", text,
			s.pos)
	}
	v, err := strconv.Atoi(string(s.data[s.pos:end]))
	s.pos = end
	return v, err
}

// raw skips one value and returns its bytes. It matches brackets and respects strings; the code
// that decodes the value checks the rest.
func (s *scanner) raw() (json.RawMessage, error) {
	s.peek() // past white space
	start := s.pos
	depth := 0
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			s.pos++
			for s.pos < len(s.data) && s.data[s.pos] != '"' {
				if s.data[s.pos] == '\\' {
					s.pos++
				}
				s.pos++
			}
		}
		if depth < 0 || (depth == 0 && (c == ',' || c == ':')) {
			break
		}
		s.pos++
		if depth == 0 && (c == '}' || c == ']' || c == '"') {
			break
		}
	}
	if depth > 0 || s.pos == start || s.pos > len(s.data) {
		s.pos = min(s.pos, len(s.data))
		return nil, s.fail()
	}
	return s.data[start:s.pos], nil
}

// end returns an error if bytes remain.
func (s *scanner) end() error {
	if s.peek() != 0 || s.pos < len(s.data) {
		return s.fail()
	}
	return nil
}
