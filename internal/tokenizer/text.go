package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxText is the most bytes of one call's text: far more than any model's context, while the
	// intermediate tables stay below two gigabytes.
	maxText = 16 << 20
	// maxNormalized is the most bytes of a run after normalisation, which a hostile file may make
	// long.
	maxNormalized = 64 << 20
)

var errTooLong = errors.New("tokenizer: text: too long after normalisation, limit is " +
	fmt.Sprint(maxNormalized) + " bytes")

// span is a half-open range of bytes of the original text.
type span struct{ start, end int32 }

// piece is a run of text between the stages of the encoding.
type piece struct {
	text string // normalised so far
	// align has, for each byte of text, the range of the original text that it came from. nil means
	// that text is the original's own bytes, from base on.
	align []span
	base  int32 // where the piece starts in the original text
	id    int32 // id of the added token that the piece is, or noToken
}

const noToken = -1

// spanOf returns the range of the original text for text[i:j], with i < j.
func (p *piece) spanOf(i, j int) span {
	if p.align != nil {
		return span{p.align[i].start, p.align[j-1].end}
	}
	for i > 0 && !utf8.RuneStart(p.text[i]) {
		i--
	}
	for j < len(p.text) && !utf8.RuneStart(p.text[j]) {
		j++
	}
	return span{p.base + int32(i), p.base + int32(j)}
}

// slice returns the part text[i:j], which must lie on character boundaries.
func (p *piece) slice(i, j int) piece {
	q := piece{text: p.text[i:j], base: p.base, id: noToken}
	switch {
	case p.align == nil:
		q.base += int32(i)
	case i < j:
		q.align = p.align[i:j:j]
		q.base = p.align[i].start
	}
	return q
}

// spans returns align, computed if it is nil.
func (p *piece) spans() []span {
	if p.align != nil {
		return p.align
	}
	align := make([]span, 0, len(p.text))
	for i, r := range p.text {
		n := utf8.RuneLen(r)
		for range n {
			align = append(align, span{p.base + int32(i), p.base + int32(i+n)})
		}
	}
	return align
}

// builder collects the result of a normalisation.
type builder struct {
	text  strings.Builder
	align []span
}

func newBuilder(size int) *builder {
	b := &builder{align: make([]span, 0, size)}
	b.text.Grow(size)
	return b
}

// rune appends r with the alignment a.
func (b *builder) rune(r rune, a span) {
	n, _ := b.text.WriteRune(r)
	for range n {
		b.align = append(b.align, a)
	}
}

// string appends s, every byte with the alignment a.
func (b *builder) string(s string, a span) {
	b.text.WriteString(s)
	for range len(s) {
		b.align = append(b.align, a)
	}
}

// copy appends text with its own alignment.
func (b *builder) copy(text string, align []span) {
	b.text.WriteString(text)
	b.align = append(b.align, align...)
}

// into sets p's text to the result.
func (b *builder) into(p *piece) error {
	if b.text.Len() > maxNormalized {
		return errTooLong
	}
	p.text, p.align = b.text.String(), b.align
	return nil
}

// prepend adds s before the text, aligned with its first character. An empty piece stays empty.
func (p *piece) prepend(s string) error {
	if p.text == "" || s == "" {
		return nil
	}
	align := p.spans()
	b := newBuilder(len(s) + len(p.text))
	b.string(s, align[0])
	b.copy(p.text, align)
	return b.into(p)
}

// replace replaces each match by content, aligned with the match's last character.
func (p *piece) replace(matches [][2]int, content string) error {
	if len(matches) == 0 {
		return nil
	}
	size := len(p.text) + len(matches)*len(content)
	if size > maxNormalized {
		return errTooLong
	}
	align := p.spans()
	b := newBuilder(size)
	last := 0
	for _, m := range matches {
		b.copy(p.text[last:m[0]], align[last:m[0]])
		a := span{p.base, p.base}
		if m[1] > 0 {
			a = align[m[1]-1]
		}
		b.string(content, a)
		last = m[1]
	}
	b.copy(p.text[last:], align[last:])
	return b.into(p)
}

// filter drops the characters for which keep is false.
func (p *piece) filter(keep func(rune) bool) error {
	if strings.IndexFunc(p.text, func(r rune) bool { return !keep(r) }) < 0 {
		return nil
	}
	align := p.spans()
	b := newBuilder(len(p.text))
	for i, r := range p.text {
		if keep(r) {
			b.rune(r, align[i])
		}
	}
	return b.into(p)
}

// expand replaces each character by the string that f appends for it.
func (p *piece) expand(f func(dst []byte, r rune) []byte) error {
	align := p.spans()
	b := newBuilder(len(p.text) + len(p.text)/2)
	var buf []byte
	for i, r := range p.text {
		buf = f(buf[:0], r)
		b.string(string(buf), align[i])
	}
	return b.into(p)
}
