package media

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"sync"
)

// data reads the part of a data URL after "data:".
func (l *Loader) data(rest []byte) ([]byte, error) {
	head, body, found := bytes.Cut(rest, []byte(","))
	i := bytes.LastIndexByte(head, ';')
	if !found || i < 0 || !bytes.EqualFold(bytes.TrimSpace(head[i+1:]), []byte("base64")) {
		return nil, fail(InvalidURL,
			"got a data URL without \";base64,\", want data:TYPE;base64,DATA")
	}
	data, err := l.decode(body)
	if err != nil {
		return nil, err
	}
	return data, nil
}

// bare reads base64 without a scheme.
func (l *Loader) bare(s []byte) ([]byte, error) {
	if len(bytes.Trim(s, "\r\n")) == 0 {
		return nil, fail(InvalidURL,
			"got an empty string, want a data, http, https or file URL, or base64")
	}
	data, err := l.decode(s)
	if err != nil && err.Code == InvalidBase64 {
		return nil, fail(InvalidURL,
			"got %q, which is neither a URL nor base64, want a data, http, https or file URL",
			clip(string(s)))
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// decode reads base64 in the standard or the URL-safe alphabet, with or without padding; it skips
// line breaks.
func (l *Loader) decode(s []byte) ([]byte, *Error) {
	breaks := bytes.Count(s, []byte("\n")) + bytes.Count(s, []byte("\r"))
	most := int64(base64.StdEncoding.DecodedLen(len(s) - breaks))
	if most-2 > l.o.MaxBytes {
		return nil, fail(TooLarge, "got %d bytes, want at most %d", most, l.o.MaxBytes)
	}
	digits := bytes.TrimRight(s, "=\r\n")
	pad := bytes.Count(s[len(digits):], []byte("="))
	if pad > 2 || pad > 0 && (len(s)-breaks)%4 != 0 {
		return nil, fail(InvalidBase64,
			"base64: got padding at the wrong place, want a whole number of 4 characters")
	}
	out := make([]byte, base64.RawStdEncoding.DecodedLen(len(digits)))
	n, err := standard.decode(out, digits)
	if err != nil && bytes.ContainsAny(digits, "-_") {
		n, err = urlSafe.decode(out, digits)
	}
	switch {
	case err != nil:
		return nil, fail(InvalidBase64, "base64: %v", err)
	case n == 0:
		return nil, fail(Empty, "got 0 bytes, want a picture")
	case int64(n) > l.o.MaxBytes:
		return nil, fail(TooLarge, "got %d bytes, want at most %d", n, l.o.MaxBytes)
	}
	return out[:n], nil
}

// alphabet decodes base64 without padding; it skips line breaks.
type alphabet struct {
	encoding *base64.Encoding
	pairs    func() *pairs
}

// pairs are the 12 bits of two characters, by the characters as a little-endian number.
type pairs [1 << 16]uint16

// noPair is the value of two characters that are not both in the alphabet.
const noPair = 1 << 15

var standard, urlSafe = newAlphabet(base64.RawStdEncoding), newAlphabet(base64.RawURLEncoding)

func newAlphabet(e *base64.Encoding) *alphabet {
	return &alphabet{e, sync.OnceValue(func() *pairs {
		p := new(pairs)
		for i := range p {
			p[i] = noPair
		}
		for v := range uint16(1 << 12) {
			c := e.EncodeToString([]byte{byte(v >> 4), byte(v << 4)})
			p[uint16(c[0])|uint16(c[1])<<8] = v
		}
		return p
	})}
}

// decode decodes s into out and returns the number of bytes. It reads eight characters at a time;
// from a line break or an error on, the standard library reads the rest.
func (a *alphabet) decode(out, s []byte) (int, error) {
	p, at, n := a.pairs(), 0, 0
	for ; at+8 <= len(s) && n+8 <= len(out); at, n = at+8, n+6 {
		c := s[at : at+8]
		w := p[uint16(c[0])|uint16(c[1])<<8]
		x := p[uint16(c[2])|uint16(c[3])<<8]
		y := p[uint16(c[4])|uint16(c[5])<<8]
		z := p[uint16(c[6])|uint16(c[7])<<8]
		if (w|x|y|z)&noPair != 0 {
			break
		}
		binary.BigEndian.PutUint64(out[n:], uint64(w)<<52|uint64(x)<<40|uint64(y)<<28|uint64(z)<<16)
	}
	rest, err := a.encoding.Decode(out[n:], s[at:])
	var wrong base64.CorruptInputError
	if errors.As(err, &wrong) {
		err = wrong + base64.CorruptInputError(at)
	}
	return n + rest, err
}
