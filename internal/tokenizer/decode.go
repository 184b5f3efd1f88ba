package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// decodeKind is the type of a decoder.
type decodeKind uint8

const (
	decodeReplace decodeKind = iota
	decodeByteFallback
	decodeFuse
	decodeStrip
	decodeByteLevel
	decodeMetaspace
)

// decodeStep is one decoder: a function from a list of strings to another. The steps are data
// because Stream applies them differently from Decode.
type decodeStep struct {
	kind        decodeKind
	find        finder // decodeReplace
	content     string // decodeReplace: the replacement; decodeStrip: the character
	start, stop int    // decodeStrip: the most at either end
	metaspace   metaspace
}

// decoder is the whole decoder section.
type decoder []decodeStep

func readDecoder(raw json.RawMessage) (decoder, error) {
	c, ok, err := readComponent("decoder", raw, 0)
	if err != nil || !ok {
		return nil, err
	}
	return appendDecoder(&c, decoder{})
}

func appendDecoder(c *component, dst decoder) (decoder, error) {
	switch c.Type {
	case "Sequence":
		return appendSequence(c, "decoders", "decoder", dst, appendDecoder)
	case "Replace":
		var f struct {
			Pattern patternField
			Content string
		}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		find, err := f.Pattern.compile(c)
		return append(dst, decodeStep{kind: decodeReplace, find: find, content: f.Content}), err
	case "ByteFallback":
		return append(dst, decodeStep{kind: decodeByteFallback}), nil
	case "Fuse":
		return append(dst, decodeStep{kind: decodeFuse}), nil
	case "Strip":
		var f struct {
			Content     string
			Start, Stop int
		}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		if f.Start < 0 || f.Stop < 0 {
			return nil, c.errorf("start %d and stop %d, want at least 0", f.Start, f.Stop)
		}
		return append(dst, decodeStep{
			kind: decodeStrip, content: f.Content, start: f.Start, stop: f.Stop,
		}), c.char("content", f.Content)
	case "ByteLevel":
		return append(dst, decodeStep{kind: decodeByteLevel}), nil
	case "Metaspace":
		m, err := readMetaspace(c)
		return append(dst, decodeStep{kind: decodeMetaspace, metaspace: m}), err
	}
	return nil, c.unknown()
}

// decode joins tokens to text. Without a decoder section, they are separated by spaces.
func (d decoder) decode(tokens []string) string {
	if d == nil {
		return strings.Join(tokens, " ")
	}
	for i := range d {
		tokens = d[i].apply(tokens)
	}
	return strings.Join(tokens, "")
}

func (s *decodeStep) apply(tokens []string) []string {
	switch s.kind {
	case decodeFuse:
		return []string{strings.Join(tokens, "")}
	case decodeByteFallback:
		return joinBytes(tokens)
	case decodeByteLevel:
		var b []byte
		for _, t := range tokens {
			b = byteLevelBytes(b, t)
		}
		return []string{lossy(b)}
	case decodeReplace, decodeStrip, decodeMetaspace:
		out := make([]string, len(tokens))
		for i, t := range tokens {
			out[i] = s.single(t, i == 0)
		}
		return out
	}
	return tokens
}

// single applies a step that treats each token separately. first marks the first token.
func (s *decodeStep) single(t string, first bool) string {
	switch s.kind {
	case decodeReplace:
		matches, err := s.find(t, nil)
		if err != nil || len(matches) == 0 {
			return t // if a pattern runs out of time, the token is not changed
		}
		var b strings.Builder
		last := 0
		for _, m := range matches {
			b.WriteString(t[last:m[0]])
			b.WriteString(s.content)
			last = m[1]
		}
		b.WriteString(t[last:])
		return b.String()
	case decodeStrip:
		for n := 0; n < s.start && strings.HasPrefix(t, s.content); n++ {
			t = t[len(s.content):]
		}
		for n := 0; n < s.stop && strings.HasSuffix(t, s.content); n++ {
			t = t[:len(t)-len(s.content)]
		}
	case decodeMetaspace:
		space := " "
		if first && s.metaspace.prepend != prependNever {
			space = ""
		}
		return strings.ReplaceAll(t, s.metaspace.replacement, space)
	}
	return t
}

// byteToken returns the byte of a token of the form <0xNN>.
func byteToken(t string) (byte, bool) {
	if len(t) != 6 || t[:3] != "<0x" || t[5] != '>' {
		return 0, false
	}
	hi, lo := hexDigit(t[3]), hexDigit(t[4])
	return byte(hi<<4 | lo), hi >= 0 && lo >= 0
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// joinBytes turns each run of byte tokens into one string. A run that is not completely valid UTF-8
// becomes one U+FFFD for each byte.
func joinBytes(tokens []string) []string {
	var out []string
	var pending []byte
	flush := func() {
		switch {
		case len(pending) == 0:
		case utf8.Valid(pending):
			out = append(out, string(pending))
		default:
			out = append(out, strings.Repeat("\uFFFD", len(pending)))
		}
		pending = pending[:0]
	}
	for _, t := range tokens {
		if b, ok := byteToken(t); ok {
			pending = append(pending, b)
			continue
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}

// lossy turns bytes into text with one U+FFFD for each maximal invalid part (The Unicode Standard,
// section 3.9, "U+FFFD substitution of maximal subparts"; strings.ToValidUTF8 and range differ).
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	out, rest := decided(nil, b)
	return string(out) + cut(rest)
}

// cut returns the text of an incomplete character at the end, from decided.
func cut(rest []byte) string {
	switch {
	case len(rest) == 0:
		return ""
	case surrogateHalf(rest):
		return "\uFFFD\uFFFD" // no character begins like this: two invalid parts
	}
	return "\uFFFD"
}

// surrogateHalf reports whether b is the first two bytes of an encoded surrogate.
func surrogateHalf(b []byte) bool {
	return len(b) == 2 && b[0] == 0xed && b[1] >= 0xa0 && b[1] <= 0xbf
}

// decided appends the text of b that cannot change any more: complete characters, and U+FFFD for
// each maximal invalid part. rest is an incomplete character at the end, at most three bytes. The
// first two bytes of an encoded surrogate wait for the third, as in the reference's decoder; this
// does not change the text.
func decided(dst, b []byte) (text, rest []byte) {
	text, _, rest = decidedRuns(dst, nil, b)
	return text, rest
}

// decidedRuns is decided, and also appends to runs how many bytes of b each character stands for.
func decidedRuns(dst []byte, runs []int, b []byte) (text []byte, _ []int, rest []byte) {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r != utf8.RuneError || n > 1 {
			dst, runs = append(dst, b[:n]...), append(runs, n)
			b = b[n:]
			continue
		}
		n = subpart(b)
		if n == len(b) && !impossible(b) || surrogateHalf(b) {
			return dst, runs, b
		}
		dst, runs = append(dst, "\uFFFD"...), append(runs, n)
		b = b[n:]
	}
	return dst, runs, nil
}

// subpart returns the length of the maximal part of b that begins a character, at least 1.
// b does not begin with a complete character.
func subpart(b []byte) int {
	if impossible(b[:1]) {
		return 1
	}
	n := 1
	for n < len(b) && n < 3 && !impossible(b[:n+1]) {
		n++
	}
	return n
}

// impossible reports whether no character begins with b, which has 1 to 3 bytes (The Unicode
// Standard, table 3-7).
func impossible(b []byte) bool {
	lo, hi, size := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		size = 2
	case c >= 0xe0 && c <= 0xef:
		size = 3
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		size = 4
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	}
	if len(b) >= size {
		return true
	}
	for i, c := range b[1:] {
		if i > 0 {
			lo, hi = 0x80, 0xbf
		}
		if c < lo || c > hi {
			return true
		}
	}
	return false
}
