package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/pytext"
)

// Text is a template's string: its bytes, and a record of which bytes came from the caller
// (messages and tools) and not from the template. Every operation keeps these marks, so that user
// text is still known after trim, replace or join.
type Text struct {
	s    string
	user []span // sorted, disjoint, not empty, not touching
}

// span is the half-open byte range [a, b).
type span struct{ a, b int }

// Plain returns a text that belongs to the template.
func Plain(s string) Text { return Text{s: s} }

// FromUser returns a text that belongs to the caller.
func FromUser(s string) Text {
	if s == "" {
		return Text{}
	}
	return Text{s, []span{{0, len(s)}}}
}

// Slice returns the bytes [a, b).
func (t Text) Slice(a, b int) Text {
	out := Text{s: t.s[a:b]}
	for _, u := range t.user {
		if lo, hi := max(u.a, a), min(u.b, b); lo < hi {
			out.user = append(out.user, span{lo - a, hi - a})
		}
	}
	return out
}

// anyUser reports whether any byte is the caller's. Text that is derived from such a string, but
// not byte by byte, belongs completely to the caller.
func (t Text) anyUser() bool { return len(t.user) > 0 }

// like marks all of s as the caller's if any of t is.
func (t Text) like(s string) Text {
	if t.anyUser() {
		return FromUser(s)
	}
	return Plain(s)
}

// trim removes runes in cut from the given ends; an empty cut means white space as in Python.
func (t Text) trim(cut string, left, right bool) Text {
	isCut := pytext.IsSpace
	if cut != "" {
		isCut = func(r rune) bool { return strings.ContainsRune(cut, r) }
	}
	a, b := 0, len(t.s)
	if left {
		a = len(t.s) - len(strings.TrimLeftFunc(t.s, isCut))
	}
	if right {
		b = max(a, len(strings.TrimRightFunc(t.s, isCut)))
	}
	return t.Slice(a, b)
}

// mapRuns applies f separately to each run with equal marks.
func (t Text) mapRuns(f func(string) string) Text {
	var b builder
	for _, seg := range t.Segments() {
		b.write(f(seg.Text), seg.User)
	}
	return b.str()
}

// Segments splits the text where its origin changes. No segment is empty.
func (t Text) Segments() []Segment {
	var out []Segment
	at := 0
	for _, u := range t.user {
		if at < u.a {
			out = append(out, Segment{Text: t.s[at:u.a]})
		}
		out = append(out, Segment{Text: t.s[u.a:u.b], User: true})
		at = u.b
	}
	if at < len(t.s) {
		out = append(out, Segment{Text: t.s[at:]})
	}
	return out
}

// runes returns the byte offset of every rune, and the length.
func (t Text) runes() []int {
	at := make([]int, 0, len(t.s)+1)
	for i := range t.s {
		at = append(at, i)
	}
	return append(at, len(t.s))
}

func (t Text) runeCount() int { return utf8.RuneCountInString(t.s) }

// split splits t at sep, at most n times (n < 0: always), from the right if fromRight is set. An
// empty sep splits at white space and leaves out empty pieces, as in Python.
func (t Text) split(sep string, n int, fromRight bool) []Text {
	if sep == "" {
		return t.fields(n, fromRight)
	}
	var out []Text
	a, b := 0, len(t.s)
	for n != 0 {
		if fromRight {
			i := strings.LastIndex(t.s[a:b], sep)
			if i < 0 {
				break
			}
			out = append(out, t.Slice(a+i+len(sep), b))
			b = a + i
		} else {
			i := strings.Index(t.s[a:b], sep)
			if i < 0 {
				break
			}
			out = append(out, t.Slice(a, a+i))
			a += i + len(sep)
		}
		n--
	}
	out = append(out, t.Slice(a, b))
	if fromRight {
		slices.Reverse(out)
	}
	return out
}

// fields splits at runs of white space.
func (t Text) fields(n int, fromRight bool) []Text {
	var out []Text
	rest := t.trim("", !fromRight, fromRight)
	for rest.s != "" {
		var i int
		if fromRight {
			i = strings.LastIndexFunc(rest.s, pytext.IsSpace)
		} else {
			i = strings.IndexFunc(rest.s, pytext.IsSpace)
		}
		if n == 0 || i < 0 {
			out = append(out, rest)
			break
		}
		n--
		if fromRight {
			_, w := utf8.DecodeRuneInString(rest.s[i:])
			out = append(out, rest.Slice(i+w, len(rest.s)))
			rest = rest.Slice(0, i).trim("", false, true)
		} else {
			out = append(out, rest.Slice(0, i))
			rest = rest.Slice(i, len(rest.s)).trim("", true, false)
		}
	}
	if fromRight {
		slices.Reverse(out)
	}
	return out
}

// replace replaces the first n occurrences of from (n < 0: all). The replacement keeps its own
// marks.
func (t Text) replace(from string, to Text, n int) Text {
	var b builder
	at := 0
	for n != 0 && at <= len(t.s) {
		i := strings.Index(t.s[at:], from)
		if i < 0 {
			break
		}
		b.add(t.Slice(at, at+i))
		b.add(to)
		at += i + len(from)
		n--
		if from == "" { // between all runes: skip one rune
			if at == len(t.s) {
				return b.str()
			}
			_, w := utf8.DecodeRuneInString(t.s[at:])
			b.add(t.Slice(at, at+w))
			at += w
		}
	}
	b.add(t.Slice(at, len(t.s)))
	return b.str()
}

// builder joins pieces and their marks.
type builder struct {
	b    []byte
	user []span
}

func (b *builder) write(s string, user bool) {
	if s == "" {
		return
	}
	if user {
		b.mark(len(b.b), len(b.b)+len(s))
	}
	b.b = append(b.b, s...)
}

func (b *builder) add(t Text) {
	n := len(b.b)
	for _, u := range t.user {
		b.mark(n+u.a, n+u.b)
	}
	b.b = append(b.b, t.s...)
}

func (b *builder) mark(from, to int) {
	if k := len(b.user) - 1; k >= 0 && b.user[k].b == from {
		b.user[k].b = to
		return
	}
	b.user = append(b.user, span{from, to})
}

func (b *builder) str() Text { return Text{string(b.b), b.user} }

// Concat joins texts.
func Concat(parts ...Text) Text {
	var b builder
	for _, p := range parts {
		b.add(p)
	}
	return b.str()
}
