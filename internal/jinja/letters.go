package jinja

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/restore-vlm/restore/internal/pytext"
)

// Case mapping is Unicode's full mapping, as in Python ("ß" becomes "SS").

// fold removes differences of case. A [cases.Caser] must not be shared.
func fold(s string) string { return cases.Fold().String(s) }

func upper(s string) string { return cases.Upper(language.Und).String(s) }

// capitalize is str.capitalize: the first rune in title case, all others lowered.
func capitalize(s Text) Text {
	first := true
	return s.mapRuns(func(run string) string {
		if first {
			first = false
			return pytext.Capitalize(run)
		}
		return pytext.Lower(run)
	})
}

// titleWords is str.title: the first letter of every run of letters becomes upper case. The rest is
// converted to lower case as part of its word, for the final sigma.
func titleWords(s string) string {
	var b strings.Builder
	for s != "" {
		n := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsLetter(r) })
		if n < 0 {
			n = len(s)
		}
		if n == 0 {
			_, n = utf8.DecodeRuneInString(s)
			b.WriteString(s[:n])
		} else {
			_, w := utf8.DecodeRuneInString(s)
			b.WriteString(pytext.Capitalize(s[:w]))
			b.WriteString(strings.TrimPrefix(pytext.Lower(s[:n]), pytext.Lower(s[:w])))
		}
		s = s[n:]
	}
	return b.String()
}

// swapCase is str.swapcase: what is neither upper nor lower case stays.
func swapCase(s string) string {
	var b strings.Builder
	lower := pytext.Lower(s) // as a whole, for the final sigma
	for _, r := range s {
		n := len(pytext.Lower(string(r)))
		switch {
		case pytext.IsUpper(r):
			b.WriteString(lower[:n])
		case unicode.In(r, unicode.Lower, unicode.Other_Lowercase):
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(r)
		}
		lower = lower[n:]
	}
	return b.String()
}

// titleFilter is the filter title: words begin after spaces, hyphens and opening brackets, and all
// but their first letter is lowered by itself.
func titleFilter(s Text) Text {
	begin := true
	return s.mapRuns(func(run string) string {
		var b strings.Builder
		for run != "" {
			n := strings.IndexFunc(run, func(r rune) bool {
				return strings.ContainsRune("-([{<", r) || pytext.IsSpace(r)
			})
			if n < 0 {
				n = len(run)
			}
			_, w := utf8.DecodeRuneInString(run)
			switch {
			case n == 0:
				b.WriteString(run[:w])
				begin, run = true, run[w:]
				continue
			case begin:
				b.WriteString(upper(run[:w]))
				begin, run, n = false, run[w:], n-w
			}
			b.WriteString(pytext.Lower(run[:n]))
			run = run[n:]
		}
		return b.String()
	})
}

func all(s string, f func(rune) bool) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !f(r) })
}

func isAlpha(s string) bool    { return all(s, unicode.IsLetter) }
func isDigit(s string) bool    { return all(s, unicode.IsDigit) }
func isAllSpace(s string) bool { return all(s, pytext.IsSpace) }
func isAlnum(s string) bool {
	return all(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
}
func isUpper(s string) bool {
	return strings.ContainsFunc(s, unicode.IsUpper) &&
		!strings.ContainsFunc(s,
			func(r rune) bool { return unicode.IsLower(r) || unicode.IsTitle(r) })
}
func isLower(s string) bool {
	return strings.ContainsFunc(s, unicode.IsLower) &&
		!strings.ContainsFunc(s,
			func(r rune) bool { return unicode.IsUpper(r) || unicode.IsTitle(r) })
}

// lines is str.splitlines.
func (t Text) lines(keepEnds bool) []Text {
	var out []Text
	begin := 0
	for i := 0; i < len(t.s); {
		r, w := utf8.DecodeRuneInString(t.s[i:])
		end := i
		i += w
		switch r {
		case '\r':
			if i < len(t.s) && t.s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keepEnds {
			end = i
		}
		out = append(out, t.Slice(begin, end))
		begin = i
	}
	if begin < len(t.s) {
		out = append(out, t.Slice(begin, len(t.s)))
	}
	return out
}

// strftime formats a time by C's directives, in English. The time has no zone, as in the reference.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04",
		'S': "05", 'p': "PM", 'P': "pm", 'Z': "", 'z': "",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon",
		'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'r': "03:04:05 PM",
		'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'j': "002",
		'n': "\n", 't': "\t", '%': "%",
	}
	year, week := t.ISOWeek()
	// weeks of the year that began, counted from their first day
	weeks := func(first time.Weekday) int {
		return (t.YearDay() + 6 - int(t.Weekday()-first+7)%7) / 7
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' || i+1 == len(format) {
			b.WriteByte(c)
			continue
		}
		i++
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		text := ""
		switch d := format[i]; d {
		case 'w':
			text = fmt.Sprint(int(t.Weekday()))
		case 'u':
			text = fmt.Sprint(int(t.Weekday()+6)%7 + 1)
		case 'U':
			text = fmt.Sprintf("%02d", weeks(time.Sunday))
		case 'W':
			text = fmt.Sprintf("%02d", weeks(time.Monday))
		case 'V':
			text = fmt.Sprintf("%02d", week)
		case 'G':
			text = fmt.Sprint(year)
		case 'g':
			text = fmt.Sprintf("%02d", year%100)
		case 'C':
			text = fmt.Sprintf("%02d", t.Year()/100)
		case 'k':
			text = fmt.Sprintf("%2d", t.Hour())
		case 'l':
			text = fmt.Sprintf("%2d", (t.Hour()+11)%12+1)
		case 's':
			text = fmt.Sprint(t.Unix())
		case 'f':
			text = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		default:
			layout, ok := layouts[d]
			if !ok {
				b.WriteByte('%')
				b.WriteByte(d)
				continue
			}
			text = t.Format(layout)
		}
		if unpadded && len(text) > 1 && strings.Trim(text, " 0123456789") == "" {
			text = strings.TrimLeft(text[:len(text)-1], "0 ") + text[len(text)-1:]
		}
		b.WriteString(text)
	}
	return b.String()
}
