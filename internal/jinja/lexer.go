package jinja

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/pytext"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	tokEOF      tokenKind = iota
	tokData               // text between tags
	tokVarBegin           // {{
	tokVarEnd             // }}
	tokTagBegin           // {%
	tokTagEnd             // %}
	tokName
	tokString
	tokInt
	tokFloat
	tokOp // an operator or bracket, in text
)

type token struct {
	kind tokenKind
	text string // the name, the operator, the data, or the string's value
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "text"
	case tokVarBegin:
		return "{{"
	case tokVarEnd:
		return "}}"
	case tokTagEnd:
		return "%}"
	case tokTagBegin:
		return "{%"
	case tokString:
		return "a string"
	}
	return strconv.Quote(t.text)
}

// operators, longest first.
var operators = []string{
	"**", "//", "==", "!=", "<=", ">=",
	"+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ":", "|", ",", ";", "(", ")", "[", "]", "{",
	"}",
}

var (
	rawBegin = regexp.MustCompile(`^\{%[-+]?\s*raw\s*(-?)%\}`)
	rawEnd   = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)
	number   = regexp.MustCompile(
		`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[0-9a-fA-F])+|\d(?:_?\d)*(?:(\.\d(?:_?\d)*)?[eE][+-]?\d(?:_?\d)*|\.\d(?:_?\d)*)?)`,
	)
)

// lexer splits a template into tokens with trim_blocks (one newline after a block tag or comment is
// dropped) and lstrip_blocks (spaces before a tag or comment at the beginning of a line are
// dropped), as the reference renders chat templates.
type lexer struct {
	src      string
	at       int
	line     int
	newLine  bool // the previous token ended a line, or there was none
	tokens   []token
	brackets []byte
}

// lex returns all tokens; the last is tokEOF. Line ends become "\n", and one at the end of the
// template is dropped.
func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, newLine: true}
	for l.at < len(l.src) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.emit(tokEOF, "")
	return l.tokens, nil
}

func (l *lexer) emit(k tokenKind, text string) {
	l.tokens = append(l.tokens, token{k, text, l.line})
}

func (l *lexer) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", l.line, fmt.Sprintf(format, args...))
}

// advance moves over n bytes.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.src[l.at:l.at+n], "\n")
	l.at += n
}

// next reads text up to a tag, and the tag.
func (l *lexer) next() error {
	rest := l.src[l.at:]
	open := -1
	for i := 0; i+1 < len(rest); i++ {
		j := strings.IndexByte(rest[i:], '{')
		if j < 0 || i+j+1 >= len(rest) {
			break
		}
		i += j
		if c := rest[i+1]; c == '{' || c == '%' || c == '#' {
			open = i
			break
		}
	}
	if open < 0 {
		l.emit(tokData, rest)
		l.advance(len(rest))
		return nil
	}
	what := rest[open+1]
	sign := byte(0)
	if open+2 < len(rest) && (rest[open+2] == '-' || rest[open+2] == '+') {
		sign = rest[open+2]
	}
	text := l.stripBefore(rest[:open], sign, what == '{')
	if text != "" {
		l.emit(tokData, text)
	}
	l.advance(open)
	rest = rest[open:]
	if m := rawBegin.FindStringSubmatch(rest); m != nil {
		l.endTag(len(m[0]), m[1] == "-", false)
		return l.raw()
	}
	skip := 2
	if sign != 0 {
		skip = 3
	}
	switch what {
	case '#':
		return l.comment()
	case '{':
		l.emit(tokVarBegin, "")
		l.advance(skip)
		return l.expression(tokVarEnd, "}}")
	default:
		l.emit(tokTagBegin, "")
		l.advance(skip)
		return l.expression(tokTagEnd, "%}")
	}
}

// stripBefore removes the white space that a tag strips from the text before it.
func (l *lexer) stripBefore(text string, sign byte, variable bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, pytext.IsSpace)
	}
	if sign == '+' || variable {
		return text
	}
	begin := strings.LastIndexByte(text, '\n') + 1
	if (begin > 0 || l.newLine) && strings.TrimFunc(text[begin:], pytext.IsSpace) == "" {
		return text[:begin]
	}
	return text
}

// endTag moves past the end of a tag and past the text that it drops.
func (l *lexer) endTag(n int, minus, newline bool) {
	l.advance(n)
	l.newLine = false
	rest := l.src[l.at:]
	switch {
	case minus:
		k := len(rest) - len(strings.TrimLeftFunc(rest, pytext.IsSpace))
		l.newLine = k > 0 && rest[k-1] == '\n'
		l.advance(k)
	case newline && strings.HasPrefix(rest, "\n"):
		l.newLine = true
		l.advance(1)
	}
}

func (l *lexer) comment() error {
	end := strings.Index(l.src[l.at+2:], "#}")
	if end < 0 {
		return l.errorf("comment without an end, want #}")
	}
	sign := byte(0)
	if end > 1 { // a sign alone is the beginning's
		sign = l.src[l.at+2+end-1]
	}
	l.endTag(end+4, sign == '-', sign != '+')
	return nil
}

func (l *lexer) raw() error {
	rest := l.src[l.at:]
	m := rawEnd.FindStringSubmatchIndex(rest)
	if m == nil {
		return l.errorf("raw without endraw")
	}
	sign := byte(0)
	if m[2] < m[3] {
		sign = rest[m[2]]
	}
	l.newLine = false
	if text := l.stripBefore(rest[:m[0]], sign, false); text != "" {
		l.emit(tokData, text)
	}
	after := rest[m[4]:m[5]]
	l.endTag(m[1], after == "-", after != "+")
	return nil
}

// expression reads the tokens of a tag up to its end.
func (l *lexer) expression(end tokenKind, closer string) error {
	begin := l.line
	l.brackets = l.brackets[:0]
	for {
		rest := l.src[l.at:]
		trimmed := strings.TrimLeftFunc(rest, pytext.IsSpace)
		l.advance(len(rest) - len(trimmed))
		rest = trimmed
		if rest == "" {
			l.line = begin
			return l.errorf("tag without an end, want %s", closer)
		}
		if len(l.brackets) == 0 {
			sign := 0
			if rest[0] == '-' || rest[0] == '+' && end == tokTagEnd {
				sign = 1
			}
			if strings.HasPrefix(rest[sign:], closer) {
				l.emit(end, "")
				l.endTag(sign+2, rest[0] == '-', end == tokTagEnd && sign == 0)
				return nil
			}
		}
		if err := l.token(rest); err != nil {
			return err
		}
	}
}

func (l *lexer) token(rest string) error {
	c := rest[0]
	r, _ := utf8.DecodeRuneInString(rest)
	switch {
	case c == '\'' || c == '"':
		return l.quoted(rest)
	case c >= '0' && c <= '9':
		m := number.FindString(rest)
		kind := tokInt
		if strings.ContainsAny(m, ".eE") && !strings.HasPrefix(m, "0x") &&
			!strings.HasPrefix(m, "0X") {
			kind = tokFloat
		}
		l.emit(kind, strings.ReplaceAll(m, "_", ""))
		l.advance(len(m))
		return nil
	case r == '_' || unicode.IsLetter(r):
		n := strings.IndexFunc(rest, func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) &&
				!unicode.Is(unicode.Mn, r)
		})
		if n < 0 {
			n = len(rest)
		}
		l.emit(tokName, rest[:n])
		l.advance(n)
		return nil
	}
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(", "[", "{":
			l.brackets = append(l.brackets, map[string]byte{"(": ')', "[": ']', "{": '}'}[op])
		case ")", "]", "}":
			k := len(l.brackets) - 1
			if k < 0 || l.brackets[k] != c {
				return l.errorf("got an unexpected %q", op)
			}
			l.brackets = l.brackets[:k]
		}
		l.emit(tokOp, op)
		l.advance(len(op))
		return nil
	}
	return l.errorf("got an unexpected character %q", r)
}

// quoted reads a string with Python's escapes.
func (l *lexer) quoted(rest string) error {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == rest[0]:
			l.emit(tokString, b.String())
			l.advance(i + 1)
			return nil
		case c != '\\' || i+1 == len(rest):
			b.WriteByte(c)
		default:
			n, err := unescape(&b, rest[i+1:])
			if err != nil {
				return l.errorf("%v", err)
			}
			i += n
		}
	}
	return l.errorf("string without an end, want %c", rest[0])
}

// unescape writes the meaning of the escape whose backslash precedes s, and returns how many bytes
// of s it takes.
func unescape(b *strings.Builder, s string) (int, error) {
	if i := strings.IndexByte("abfnrtv\\'\"", s[0]); i >= 0 {
		b.WriteByte("\a\b\f\n\r\t\v\\'\""[i])
		return 1, nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	switch {
	case s[0] == '\n': // a continued line
		return 1, nil
	case digits > 0:
		if len(s) <= digits {
			return 0, fmt.Errorf("escape \\%c: want %d hexadecimal digits", s[0], digits)
		}
		v, err := strconv.ParseUint(s[1:1+digits], 16, 32)
		if err != nil || v > unicode.MaxRune {
			return 0, fmt.Errorf("escape \\%c: got %q, want %d hexadecimal digits of a character",
				s[0], s[1:1+digits], digits)
		}
		b.WriteRune(rune(v))
		return 1 + digits, nil
	case s[0] >= '0' && s[0] <= '7':
		n, v := 0, 0
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			v = v*8 + int(s[n]-'0')
			n++
		}
		b.WriteRune(rune(v))
		return n, nil
	}
	b.WriteByte('\\') // not an escape: both characters stay
	return 0, nil
}
