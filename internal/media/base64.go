package media

import (
	"encoding/base64"
	"strings"
)

// data reads the part of a data URL after "data:".
func (l *Loader) data(rest string) ([]byte, error) {
	head, body, found := strings.Cut(rest, ",")
	i := strings.LastIndexByte(head, ';')
	if !found || i < 0 || !strings.EqualFold(strings.TrimSpace(head[i+1:]), "base64") {
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
func (l *Loader) bare(s string) ([]byte, error) {
	if strings.Trim(s, "\r\n") == "" {
		return nil, fail(InvalidURL,
			"got an empty string, want a data, http, https or file URL, or base64")
	}
	data, err := l.decode(s)
	if err != nil && err.Code == InvalidBase64 {
		return nil, fail(InvalidURL,
			"got %q, which is neither a URL nor base64, want a data, http, https or file URL",
			clip(s))
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// decode reads base64 in the standard or the URL-safe alphabet, with or without padding; it skips
// line breaks.
func (l *Loader) decode(s string) ([]byte, *Error) {
	breaks := strings.Count(s, "\n") + strings.Count(s, "\r")
	most := int64(base64.StdEncoding.DecodedLen(len(s) - breaks))
	if most-2 > l.o.MaxBytes {
		return nil, fail(TooLarge, "got %d bytes, want at most %d", most, l.o.MaxBytes)
	}
	digits := strings.TrimRight(s, "=\r\n")
	pad := strings.Count(s[len(digits):], "=")
	characters := len(digits) - strings.Count(digits, "\n") - strings.Count(digits, "\r")
	if pad > 2 || pad > 0 && (characters+pad)%4 != 0 {
		return nil, fail(InvalidBase64,
			"base64: got padding at the wrong place, want a whole number of 4 characters")
	}
	alphabet := base64.RawStdEncoding // which skips line breaks
	if strings.Contains(digits, "-") || strings.Contains(digits, "_") {
		alphabet = base64.RawURLEncoding
	}
	out := make([]byte, alphabet.DecodedLen(len(digits)))
	n, err := alphabet.Decode(out, []byte(digits))
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
