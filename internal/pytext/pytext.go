// Package pytext has Python's methods of str where Go's functions of the same names differ. The
// rules of benchmarks use these methods, and scores must be equal.
//
// Letters follow Go's Unicode tables. Python 3.11 and Go 1.26 differ in letters that Unicode 15
// added, which no benchmark contains.
package pytext

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// IsSpace is str.isspace of one character: the characters that strip and split remove.
func IsSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}

// Strip is str.strip().
func Strip(s string) string { return strings.TrimFunc(s, IsSpace) }

// Fields is str.split(): the words between runs of white space.
func Fields(s string) []string { return strings.FieldsFunc(s, IsSpace) }

// Lower is str.lower(): the full mapping, in which one character may become two and a capital
// sigma at the end of a word becomes a final one.
func Lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	var b strings.Builder
	b.Grow(len(s))
	for i, r := range s {
		switch r {
		case 'İ':
			b.WriteString("i̇")
		case 'Σ':
			b.WriteRune(sigma(s, i))
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// LowerEach lowers every character by itself and keeps their number, like numpy when it stores the
// lower-cased text in an array as long as the text: what does not fit is lost.
func LowerEach(s string) string {
	lower := []rune(Lower(s))
	return string(lower[:min(len(lower), utf8.RuneCountInString(s))])
}

// Capitalize is str.capitalize(): the first character in title case, all others lowered.
func Capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	first := cases.Title(language.Und, cases.NoLower).String(s[:n])
	// Lower the rest together with the first character, because that may precede a sigma.
	lower := Lower(s)
	return first + lower[len(Lower(s[:n])):]
}

// IsUpper is str.isupper() of one character.
func IsUpper(r rune) bool { return unicode.In(r, unicode.Upper, unicode.Other_Uppercase) }

// IsAlpha is str.isalpha() of one character.
func IsAlpha(r rune) bool { return unicode.IsLetter(r) }

// IsDigit says whether \d of a regular expression matches: decimal digits of any script.
func IsDigit(r rune) bool { return unicode.Is(unicode.Nd, r) }

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// sigma lowers the capital sigma at byte i of s: to a final sigma if a cased letter precedes it and
// none follows it; characters without case in between do not count.
func sigma(s string, i int) rune {
	before := strings.TrimRightFunc(s[:i], caseIgnorable)
	after := strings.TrimLeftFunc(s[i+len("Σ"):], caseIgnorable)
	last, _ := utf8.DecodeLastRuneInString(before)
	next, _ := utf8.DecodeRuneInString(after)
	if before != "" && cased(last) && (after == "" || !cased(next)) {
		return 'ς'
	}
	return 'σ'
}

// cased is Unicode's property of that name.
func cased(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Uppercase,
		unicode.Other_Lowercase)
}

// caseIgnorable is Unicode's property Case_Ignorable: marks, format characters, modifiers, and
// punctuation inside words.
func caseIgnorable(r rune) bool {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) {
		return true
	}
	switch r {
	case '\'', '.', ':', 0xb7, 0x387, 0x55f, 0x5f4, 0x2018, 0x2019, 0x2024, 0x2027, 0xfe13, 0xfe52,
		0xfe55, 0xff07, 0xff0e, 0xff1a:
		return true
	}
	return false
}
