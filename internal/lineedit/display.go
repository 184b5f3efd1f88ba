package lineedit

import (
	"fmt"
	"io"
	"strings"

	"github.com/clipperhouse/displaywidth"
)

// display draws a prompt and a line in as many rows of a terminal as they take, at most all but
// one: of a longer line it shows the rows around the cursor. It uses all columns but the last,
// because terminals differ in what follows a full row.
type display struct {
	out  io.Writer
	size func() (columns, rows int)

	drawn   []int // columns of each row on the screen
	row     int   // the cursor's row there
	col     int   // and its column
	columns int   // of the terminal then
	top     int   // the first drawn row of the line
}

// Sizes of a terminal that does not tell its own.
const (
	usualColumns = 80
	usualRows    = 24
)

// row is a row of a line: the cells from one to another, after a prompt in the first.
type row struct{ from, to, width int }

// layout breaks a line into rows of at most the given width.
func layout(promptWidth int, l *line, width int) (rows []row, at, col int) {
	r := row{width: promptWidth}
	for i := 0; ; i++ {
		if i < len(l.cells) && r.width > 0 && r.width+l.cells[i].width > width {
			rows = append(rows, r)
			r = row{from: i}
		}
		if i == l.at {
			at, col = len(rows), r.width
		}
		if i == len(l.cells) {
			r.to = i
			return append(rows, r), at, col
		}
		r.to, r.width = i+1, r.width+l.cells[i].width
	}
}

// draw shows the line in place of the last one.
func (d *display) draw(prompt string, l *line) {
	columns, most := d.size()
	if columns < 2 {
		columns = usualColumns
	}
	if most < 2 {
		most = usualRows
	}
	rows, at, col := layout(displaywidth.String(prompt), l, columns-1)
	d.top = min(d.top, at)
	d.top = max(d.top, at-(most-2))
	d.top = max(0, min(d.top, len(rows)-(most-1)))
	shown := rows[d.top:min(len(rows), d.top+most-1)]

	var b strings.Builder
	b.WriteString(d.back(columns) + "\x1b[J")
	d.drawn = d.drawn[:0]
	for i, r := range shown {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if d.top+i == 0 {
			b.WriteString(prompt)
		}
		for _, c := range l.cells[r.from:r.to] {
			b.WriteString(c.shown())
		}
		d.drawn = append(d.drawn, r.width)
	}
	if up := len(shown) - 1 - (at - d.top); up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	if b.WriteByte('\r'); col > 0 {
		fmt.Fprintf(&b, "\x1b[%dC", col)
	}
	d.row, d.col, d.columns = at-d.top, col, columns
	d.write(b.String())
}

// back returns the text that moves the cursor to the beginning of the drawn rows. A terminal that
// became narrower since has broken its rows.
func (d *display) back(columns int) string {
	up := d.row
	if columns < d.columns {
		for _, width := range d.drawn[:min(d.row, len(d.drawn))] {
			up += max(0, width-1) / columns
		}
		up += d.col / columns
	}
	if up > 0 {
		return fmt.Sprintf("\r\x1b[%dA", up)
	}
	return "\r"
}

// extend shows cells at the end of the line without drawing the rest. It returns false if that
// cannot be done.
func (d *display) extend(cells []cell) bool {
	width := 0
	for _, c := range cells {
		if c.width < 1 {
			return false
		}
		width += c.width
	}
	last := len(d.drawn) - 1
	columns, _ := d.size()
	if last < 0 || d.row != last || d.col != d.drawn[last] || columns != d.columns ||
		d.col+width > columns-1 {
		return false
	}
	text := ""
	for _, c := range cells {
		text += c.shown()
	}
	d.col += width
	d.drawn[last] = d.col
	d.write(text)
	return true
}

// leave ends the drawn line, with the cursor below it.
func (d *display) leave() {
	text := "\r\n"
	if down := len(d.drawn) - 1 - d.row; down > 0 {
		text = fmt.Sprintf("\x1b[%dB", down) + text
	}
	d.forget()
	d.write(text)
}

// forget makes the next line be drawn where the cursor is.
func (d *display) forget() { d.drawn, d.row, d.col, d.top = d.drawn[:0], 0, 0, 0 }

// write draws; a terminal that is gone is noticed when it is read.
func (d *display) write(text string) { _, _ = io.WriteString(d.out, text) }
