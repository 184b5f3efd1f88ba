package files

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Text is UTF-8, and a byte-order mark at its beginning is not part of it. Errors say what was
// found instead, and at which byte of the text, from 0.

// ByteOrderMark is UTF-8's.
var ByteOrderMark = []byte("\uFEFF")

// foreign are the marks of encodings that are not read. Those of UTF-32 come first: the one with
// low bytes first begins like UTF-16's.
var foreign = []struct{ name, mark string }{
	{"UTF-32", "\xff\xfe\x00\x00"},
	{"UTF-32", "\x00\x00\xfe\xff"},
	{"UTF-16", "\xff\xfe"},
	{"UTF-16", "\xfe\xff"},
}

// pointer begins the file that Git keeps in place of a large one.
const pointer = "version https://git-lfs.github.com/spec/"

// headBytes is how much of a text tells its encoding.
const headBytes = 4

// CheckPointer refuses the beginning of a file that Git keeps in place of a large one.
func CheckPointer(head []byte) error {
	if !bytes.HasPrefix(head, []byte(pointer)) {
		return nil
	}
	return errors.New("is a Git LFS pointer, want the file that it stands for: " +
		"'git lfs pull' in its repository fetches it")
}

// Text returns text without a byte-order mark; it does not copy. The error says why the text is
// not UTF-8.
func Text(text []byte) ([]byte, error) {
	if err := checkHead(text); err != nil {
		return nil, err
	}
	if at := ValidUTF8(text); at < len(text) {
		return nil, badByte(text[at], int64(at))
	}
	return bytes.TrimPrefix(text, ByteOrderMark), nil
}

// TextString is Text for a string.
func TextString(text string) (string, error) {
	b, err := Text([]byte(text))
	return string(b), err
}

// checkHead refuses the beginning of a text in UTF-16 or UTF-32, with a mark or without: there,
// one of the first two bytes of a Latin letter is zero.
func checkHead(head []byte) error {
	if err := CheckPointer(head); err != nil {
		return err
	}
	for _, f := range foreign {
		if bytes.HasPrefix(head, []byte(f.mark)) {
			return fmt.Errorf("is %s: got the byte-order mark % X, want UTF-8", f.name, f.mark)
		}
	}
	if at := bytes.IndexByte(head[:min(len(head), 2)], 0); at >= 0 {
		return fmt.Errorf("is not text: got a zero byte at byte %d, as in UTF-16, want UTF-8", at)
	}
	return nil
}

func badByte(b byte, at int64) error {
	return fmt.Errorf("is not UTF-8: got %#x at byte %d, want UTF-8", b, at)
}

// ValidUTF8 returns the length of the longest beginning of text that is UTF-8.
func ValidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return len(text)
	}
	at := 0
	for at < len(text) {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return at
}

// TextReader reads the text of a stream, without its byte-order mark. It returns all text before
// the first byte that is not UTF-8.
type TextReader struct {
	in     io.Reader
	buf    []byte
	ready  []byte // of buf: text that was not returned yet
	rest   []byte // of buf, after ready: the beginning of a character
	at     int64  // where rest begins in the stream
	begun  bool
	marked int64 // length of the byte-order mark
	err    error // what follows ready
}

// NewTextReader returns a TextReader of in.
func NewTextReader(in io.Reader) *TextReader {
	return &TextReader{in: in, buf: make([]byte, 1<<16)}
}

// Read implements io.Reader.
func (r *TextReader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// Marked returns the length of the byte-order mark that the stream begins with, 0 without one.
func (r *TextReader) Marked() int64 {
	if !r.begun {
		r.fill()
	}
	return r.marked
}

// fill reads the next part of the stream.
func (r *TextReader) fill() {
	n := copy(r.buf, r.rest)
	least := n + 1
	if !r.begun {
		least = headBytes
	}
	for n < least && r.err == nil {
		var more int
		more, r.err = r.in.Read(r.buf[n:])
		n += more
	}
	text := r.buf[:n]
	if !r.begun {
		r.begun = true
		if wrong := checkHead(text); wrong != nil {
			r.err = wrong
			return
		}
		if bytes.HasPrefix(text, ByteOrderMark) {
			r.marked = int64(len(ByteOrderMark))
			text, r.at = text[len(ByteOrderMark):], r.marked
		}
	}
	valid := ValidUTF8(text)
	r.ready, r.rest = text[:valid], text[valid:]
	r.at += int64(valid)
	if len(r.rest) > 0 && (r.err == io.EOF || r.err == nil && utf8.FullRune(r.rest)) {
		r.err = badByte(r.rest[0], r.at)
	}
}

// NewLines returns a scanner of the lines of in, each of at most most bytes. A line that an error
// of in cuts is not returned.
func NewLines(in io.Reader, most int) *bufio.Scanner {
	r := NewTextReader(in)
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, min(1<<16, most)), most)
	s.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if atEOF && r.err != io.EOF && bytes.IndexByte(data, '\n') < 0 {
			return 0, nil, r.err
		}
		return bufio.ScanLines(data, atEOF)
	})
	return s
}
