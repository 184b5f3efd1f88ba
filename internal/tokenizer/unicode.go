package tokenizer

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12).
const (
	hangulL, hangulV, hangulT, hangulS = 0x1100, 0x1161, 0x11a7, 0xac00
	hangulLs, hangulVs, hangulTs       = 19, 21, 28
)

// decomposed is one character of a decomposition during normalisation.
type decomposed struct {
	r   rune
	ccc uint8
	// change relates the character to the source: 0 replaces one character, 1 is new, -n replaces
	// one and removes the n after it. Composition adds the changes and subtracts 1.
	change int
}

// normalForm is one of the four normalisation forms (UAX #15) of Unicode 9, as in the reference.
// Package norm inserts U+034F into long runs of marks and keeps no alignment, so only its character
// data is used.
type normalForm struct {
	quick   norm.Form // the form itself, to detect text that is already normal
	data    norm.Form // NFD or NFKD, for decompositions and combining classes
	compose bool
}

func (f normalForm) normalize(p *piece) error {
	if f.quick.IsNormalString(p.text) {
		return nil
	}
	chars := f.decompose(p.text)
	if f.compose {
		chars = composeAll(chars)
	}
	return p.transform(chars)
}

// decompose returns the full decomposition of s in canonical order.
func (f normalForm) decompose(s string) []decomposed {
	out := make([]decomposed, 0, len(s)+len(s)/8)
	marks := 0 // start of the current run of characters with a combining class
	add := func(r rune, change int) {
		ccc := uint8(0)
		if r >= 0x300 {
			ccc = f.properties(r).CCC()
		}
		if ccc == 0 {
			sortMarks(out[marks:])
			marks = len(out) + 1
		}
		out = append(out, decomposed{r, ccc, change})
	}
	for _, r := range s {
		if r < utf8.RuneSelf {
			add(r, 0)
			continue
		}
		if h := r - hangulS; h >= 0 && h < hangulLs*hangulVs*hangulTs {
			add(hangulL+h/(hangulVs*hangulTs), 0)
			add(hangulV+h%(hangulVs*hangulTs)/hangulTs, 1)
			if t := h % hangulTs; t > 0 {
				add(hangulT+t, 1)
			}
			continue
		}
		d := f.properties(r).Decomposition()
		if d == nil {
			add(r, 0)
			continue
		}
		for n, change := 0, 0; n < len(d); change = 1 {
			r, size := utf8.DecodeRune(d[n:])
			add(r, change)
			n += size
		}
	}
	sortMarks(out[min(marks, len(out)):])
	return out
}

// properties returns the data of a character.
func (f normalForm) properties(r rune) norm.Properties {
	if unicode.Is(newForms, r) {
		return norm.Properties{}
	}
	var utf [utf8.UTFMax]byte
	return f.data.Properties(utf[:utf8.EncodeRune(utf[:], r)])
}

func sortMarks(m []decomposed) {
	if len(m) > 1 {
		slices.SortStableFunc(m, func(a, b decomposed) int { return int(a.ccc) - int(b.ccc) })
	}
}

// composeAll is the canonical composition algorithm (The Unicode Standard, D117), in place.
func composeAll(chars []decomposed) []decomposed {
	out := chars[:0]
	starter := -1 // index in out of the last character with combining class 0
	for _, c := range chars {
		// c is blocked from the starter by a character between them with the same or a higher
		// class.
		if starter >= 0 && (starter == len(out)-1 || out[len(out)-1].ccc < c.ccc) {
			if r, ok := composePair(out[starter].r, c.r); ok {
				out[starter].r = r
				out[starter].change += c.change - 1
				continue
			}
		}
		if c.ccc == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	return out
}

// composePair returns the primary composite of a and b.
func composePair(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; l >= 0 && l < hangulLs && v >= 0 && v < hangulVs {
		return hangulS + (l*hangulVs+v)*hangulTs, true
	}
	if s, t := a-hangulS, b-hangulT; s >= 0 && s < hangulLs*hangulVs*hangulTs && s%hangulTs == 0 &&
		t > 0 && t < hangulTs {
		return a + t, true
	}
	if b < 0x300 {
		return 0, false
	}
	var buf [2 * utf8.UTFMax]byte
	n := utf8.EncodeRune(buf[:], a)
	m := n + utf8.EncodeRune(buf[n:], b)
	if norm.NFC.Properties(buf[n:m]).BoundaryBefore() {
		return 0, false
	}
	var dst [3 * utf8.UTFMax]byte
	c := norm.NFC.Append(dst[:0], buf[:m]...)
	r, size := utf8.DecodeRune(c)
	return r, size == len(c) && !unicode.Is(newForms, r)
}

// transform replaces the text by chars and adjusts the alignment by their changes.
func (p *piece) transform(chars []decomposed) error {
	align := p.spans()
	b := newBuilder(len(p.text))
	pos := 0 // bytes of the old text that were used
	for _, c := range chars {
		at := pos
		if c.change > 0 {
			at = pos - 1
		}
		a := span{p.base, p.base}
		if at >= 0 {
			a = align[min(at, len(align)-1)]
		}
		b.rune(c.r, a)
		for n := c.change; n <= 0 && pos < len(p.text); n++ {
			_, size := utf8.DecodeRuneInString(p.text[pos:])
			pos += size
		}
	}
	return b.into(p)
}

// isWord is \w of UTS #18: alphabetic characters, marks, decimal digits, connectors, join controls.
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return r == '_' || r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z'
	}
	return r == 0x200c || r == 0x200d || isLetter(r) || unicode.IsMark(r) ||
		unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, newNumbers,
			newMarks)
}

func isLetter(r rune) bool { return unicode.IsLetter(r) || unicode.Is(newLetters, r) }

func isNumber(r rune) bool { return unicode.IsNumber(r) || unicode.Is(newNumbers, r) }

// isPunct reports whether r is punctuation in the published tokenizers: ASCII symbols and category
// P.
func isPunct(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7f && !(r >= '0' && r <= '9') && !(r|0x20 >= 'a' && r|0x20 <= 'z')
	}
	return unicode.IsPunct(r)
}

// appendLower appends the lower case of r by the full mapping; only U+0130 has two characters.
func appendLower(dst []byte, r rune) []byte {
	if r == 0x130 {
		return append(dst, "i\u0307"...)
	}
	return utf8.AppendRune(dst, unicode.ToLower(r))
}
