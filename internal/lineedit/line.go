package lineedit

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

// cell is a character as a person sees it: a grapheme cluster, such as a letter with its accents.
type cell struct {
	text  string
	width int // columns
}

// line is the text being edited.
type line struct {
	cells []cell
	at    int // the cursor is before this cell
}

// cellsOf cuts text into cells.
func cellsOf(text string) (cells []cell) {
	g := displaywidth.StringGraphemes(text)
	for g.Next() {
		c := cell{text: g.Value()}
		c.width = displaywidth.String(c.shown())
		cells = append(cells, c)
	}
	return cells
}

// shown is how the cell is drawn: control characters as ^A, line breaks and tabs as a sign.
func (c cell) shown() string {
	r, _ := utf8.DecodeRuneInString(c.text)
	switch {
	case c.text == "\n":
		return "⏎"
	case c.text == "\t":
		return "⇥"
	case r < ' ':
		return "^" + string('@'+r)
	case r == del:
		return "^?"
	case unicode.IsControl(r):
		return "?"
	}
	return strings.ToValidUTF8(c.text, string(utf8.RuneError))
}

// space reports whether the cell separates words.
func (c cell) space() bool {
	r, _ := utf8.DecodeRuneInString(c.text)
	return unicode.IsSpace(r)
}

func textOf(cells []cell) string {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString(c.text)
	}
	return b.String()
}

func (l *line) String() string { return textOf(l.cells) }

// before is the text before the cursor.
func (l *line) before() string { return textOf(l.cells[:l.at]) }

// set replaces the line, with the cursor at its end.
func (l *line) set(text string) {
	l.cells = cellsOf(text)
	l.at = len(l.cells)
}

// insert inserts text at the cursor. Its first and last characters may join those around it.
func (l *line) insert(text string) {
	from, to := max(0, l.at-1), min(len(l.cells), l.at+1)
	head := textOf(l.cells[from:l.at]) + text
	cells := cellsOf(head + textOf(l.cells[l.at:to]))
	if from == 0 && to == len(l.cells) {
		l.cells = cells
	} else {
		l.cells = slices.Replace(l.cells, from, to, cells...)
	}
	l.at = from
	for n := 0; n < len(head); l.at++ {
		n += len(l.cells[l.at].text)
	}
}

// cut removes the cells from one place to another, which the cursor takes, and returns their text.
func (l *line) cut(from, to int) string {
	text := textOf(l.cells[from:to])
	l.cells = slices.Delete(l.cells, from, to)
	l.at = from
	return text
}

// wordLeft is the beginning of the word before the cursor.
func (l *line) wordLeft() int {
	i := l.at
	for i > 0 && l.cells[i-1].space() {
		i--
	}
	for i > 0 && !l.cells[i-1].space() {
		i--
	}
	return i
}

// wordRight is the end of the word after the cursor.
func (l *line) wordRight() int {
	i := l.at
	for i < len(l.cells) && l.cells[i].space() {
		i++
	}
	for i < len(l.cells) && !l.cells[i].space() {
		i++
	}
	return i
}
