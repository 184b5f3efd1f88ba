package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

const (
	// matchTime and findTime limit the time of one match, and of all matches in one piece, of a
	// pattern from the file: a backtracking matcher can take exponential time. Harmless patterns
	// take up to 0.7 s per megabyte.
	matchTime = time.Second
	findTime  = 10 * time.Second
	// maxPattern is the most bytes of a pattern.
	maxPattern = 1 << 16
)

// finder appends the matches in s as byte ranges, from left to right and without overlap.
type finder func(s string, dst [][2]int) ([][2]int, error)

// patternField is a field {"String": …} or {"Regex": …}.
type patternField struct {
	String *string
	Regex  *string
}

func (f patternField) compile(c *component) (finder, error) {
	switch {
	case f.String != nil && *f.String == "":
		return nil, c.errorf("pattern is empty")
	case f.String != nil:
		return literal(*f.String), nil
	case f.Regex != nil:
		find, err := compileRegexp(*f.Regex)
		if err != nil {
			return nil, c.errorf("pattern %.80q: %w", *f.Regex, err)
		}
		return find, nil
	}
	return nil, c.errorf("no pattern of kind String or Regex")
}

func literal(sep string) finder {
	return func(s string, dst [][2]int) ([][2]int, error) {
		for at := 0; ; {
			i := strings.Index(s[at:], sep)
			if i < 0 {
				return dst, nil
			}
			dst = append(dst, [2]int{at + i, at + i + len(sep)})
			at += i + len(sep)
		}
	}
}

// each matches every single character for which f is true.
func each(f func(rune) bool) finder {
	return func(s string, dst [][2]int) ([][2]int, error) {
		for i, r := range s {
			if f(r) {
				dst = append(dst, [2]int{i, i + utf8.RuneLen(r)})
			}
		}
		return dst, nil
	}
}

// runs matches every longest run of characters of one class. Class 0 is not matched.
func runs(class func(rune) int) finder {
	return func(s string, dst [][2]int) ([][2]int, error) {
		start, current := 0, 0
		for i, r := range s {
			if k := class(r); k != current {
				if current != 0 {
					dst = append(dst, [2]int{start, i})
				}
				start, current = i, k
			}
		}
		if current != 0 {
			dst = append(dst, [2]int{start, len(s)})
		}
		return dst, nil
	}
}

// The published patterns. They match every character, so a matcher is a function from the start of
// a match to its end.
const (
	gpt2Pattern  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	qwenPattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	llamaPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

func compileRegexp(pattern string) (finder, error) {
	switch pattern {
	case gpt2Pattern:
		return tiling(gpt2Next), nil
	case qwenPattern:
		return tiling(func(s string, i int) int { return qwenNext(s, i, 1) }), nil
	case llamaPattern:
		return tiling(func(s string, i int) int { return qwenNext(s, i, 3) }), nil
	}
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("%d bytes long, limit is %d", len(pattern), maxPattern)
	}
	translated, err := translate(pattern)
	if err != nil {
		return nil, err
	}
	// The published patterns are written for a syntax in which ^ and $ match at every line.
	re, err := regexp2.Compile(translated, regexp2.Multiline)
	if err != nil {
		return nil, err
	}
	re.MatchTimeout = matchTime
	return func(s string, dst [][2]int) ([][2]int, error) { return findRegexp(re, s, dst) }, nil
}

// findRegexp appends the matches of re. An empty match directly after another match is skipped.
func findRegexp(re *regexp2.Regexp, s string, dst [][2]int) ([][2]int, error) {
	deadline := time.Now().Add(findTime)
	text := []rune(s)
	at, bytes := 0, 0 // the same place, in characters and in bytes
	last := -1
	m, err := re.FindRunesMatch(text)
	for m != nil && err == nil {
		for ; at < m.Index; at++ {
			bytes += utf8.RuneLen(text[at])
		}
		start := bytes
		for ; at < m.Index+m.Length; at++ {
			bytes += utf8.RuneLen(text[at])
		}
		if bytes > start || start != last {
			dst = append(dst, [2]int{start, bytes})
		}
		last = bytes
		if time.Now().After(deadline) {
			return dst, tooSlow(re, s)
		}
		m, err = re.FindNextMatch(m)
	}
	if err != nil { // a timeout; the engine's own message quotes the whole text
		return dst, tooSlow(re, s)
	}
	return dst, nil
}

func tooSlow(re *regexp2.Regexp, s string) error {
	return fmt.Errorf("tokenizer: pattern %.80q: takes too long on %d bytes of text", re.String(),
		len(s))
}

// tiling matches s completely; next returns the end of the match that starts at i.
func tiling(next func(s string, i int) int) finder {
	return func(s string, dst [][2]int) ([][2]int, error) {
		for i := 0; i < len(s); {
			j := next(s, i)
			dst = append(dst, [2]int{i, j})
			i = j
		}
		return dst, nil
	}
}

// class is a class of characters in the published patterns.
type class uint8

const (
	other class = iota
	letter
	number
	space
	none // past the end
)

// classAt returns the class of the character at s[i] and the end of the character.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return none, i
	}
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], i + 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case isLetter(r):
		return letter, i + n
	case isNumber(r):
		return number, i + n
	case unicode.IsSpace(r):
		return space, i + n
	}
	return other, i + n
}

var asciiClass = func() (t [utf8.RuneSelf]class) {
	for c := range t {
		switch r := rune(c); {
		case unicode.IsLetter(r):
			t[c] = letter
		case unicode.IsNumber(r):
			t[c] = number
		case unicode.IsSpace(r):
			t[c] = space
		}
	}
	return t
}()

// run returns the end of the longest run of class c from i on.
func run(s string, i int, c class) int {
	for {
		k, j := classAt(s, i)
		if k != c {
			return i
		}
		i = j
	}
}

// contraction returns the end of 's, 't, 're, 've, 'm, 'll or 'd at i, or i.
func contraction(s string, i int, fold bool) int {
	if s[i] != '\'' {
		return i
	}
	t := s[i+1:]
	if fold && strings.HasPrefix(t, "ſ") { // U+017F folds to s
		return i + 1 + len("ſ")
	}
	for _, w := range [...]string{"s", "t", "re", "ve", "m", "ll", "d"} {
		if strings.HasPrefix(t, w) || fold && len(t) >= len(w) && asciiFold(t[:len(w)]) == w {
			return i + 1 + len(w)
		}
	}
	return i
}

func asciiFold(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// spaces returns the end of a match of \s+(?!\S)|\s+ at i. At the end of the text this is the whole
// run. Otherwise it is the run without its last character, unless that is its only one.
func spaces(s string, i int) int {
	end := run(s, i, space)
	if end == len(s) {
		return end
	}
	_, n := utf8.DecodeLastRuneInString(s[i:end])
	if end-n > i {
		return end - n
	}
	return end
}

// gpt2Next matches gpt2Pattern.
func gpt2Next(s string, i int) int {
	if j := contraction(s, i, false); j > i {
		return j
	}
	k, j := classAt(s, i)
	if s[i] == ' ' {
		if k2, j2 := classAt(s, j); k2 != space && k2 != none {
			return run(s, j2, k2)
		}
	}
	if k == space {
		return spaces(s, i)
	}
	return run(s, j, k)
}

// qwenNext matches qwenPattern, with up to digits digits in a row (llamaPattern: 3).
func qwenNext(s string, i int, digits int) int {
	if j := contraction(s, i, true); j > i {
		return j
	}
	k, j := classAt(s, i)
	newline := s[i] == '\r' || s[i] == '\n'
	if k == letter {
		return run(s, j, letter)
	}
	k2, j2 := classAt(s, j)
	if k2 == letter && k != number && !newline {
		return run(s, j2, letter)
	}
	switch {
	case k == number:
		for n := 1; n < digits && k2 == number; n++ {
			j = j2
			k2, j2 = classAt(s, j)
		}
		return j
	case k == other, s[i] == ' ' && k2 == other:
		j = run(s, j, other)
		for j < len(s) && (s[j] == '\r' || s[j] == '\n') {
			j++
		}
		return j
	}
	end := run(s, i, space)
	if n := strings.LastIndexAny(s[i:end], "\r\n"); n >= 0 {
		return i + n + 1
	}
	return spaces(s, i)
}
