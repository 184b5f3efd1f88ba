// Package wrap breaks texts into lines.
package wrap

import (
	"strings"
	"unicode/utf8"
)

// Lines breaks a text at spaces into lines that fit; a word that does not has its own line.
func Lines(text string, fits func(line string) bool) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if n := len(lines) - 1; n >= 0 && fits(lines[n]+" "+word) {
			lines[n] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// Characters breaks a text into lines of at most width characters.
func Characters(text string, width int) []string {
	return Lines(text, func(line string) bool { return utf8.RuneCountInString(line) <= width })
}
