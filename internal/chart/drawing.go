package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"unicode/utf8"
)

// Widths of a character as shares of the font's size. Readers have different fonts, so these are
// on the safe side of a sans-serif and of a monospaced one.
const (
	sansWidth = 0.56
	monoWidth = 0.61
)

func textWidth(s string, size float64) float64 {
	return sansWidth * size * float64(utf8.RuneCountInString(s))
}

// drawing is an SVG document.
type drawing struct{ b bytes.Buffer }

func newDrawing(width, height float64) *drawing {
	d := &drawing{}
	d.addf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %[1]g %[2]g" `+
		`font-family="Liberation Sans, Arial, Helvetica, sans-serif">`, width, height)
	d.addf(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	return d
}

func (d *drawing) addf(format string, values ...any) {
	fmt.Fprintf(&d.b, format+"\n", values...)
}

func (d *drawing) writeTo(w io.Writer) error {
	d.addf("</svg>")
	_, err := d.b.WriteTo(w)
	return err
}

// label is a place for a text, and the text's form.
type label struct {
	x, y, size float64
	anchor     string // start (""), middle or end
	upright    bool   // turned to the left
	mono       bool
}

func (d *drawing) text(l label, text string) {
	fmt.Fprintf(&d.b, `<text x="%.1f" y="%.1f" font-size="%g"`, l.x, l.y, l.size)
	if l.anchor != "" {
		fmt.Fprintf(&d.b, ` text-anchor="%s"`, l.anchor)
	}
	if l.upright {
		fmt.Fprintf(&d.b, ` transform="rotate(-90 %.1f %.1f)"`, l.x, l.y)
	}
	if l.mono {
		d.b.WriteString(` font-family="Liberation Mono, monospace" xml:space="preserve"`)
	}
	d.b.WriteByte('>')
	xml.EscapeText(&d.b, []byte(text)) // a bytes.Buffer takes every write
	d.b.WriteString("</text>\n")
}

func (d *drawing) line(x1, y1, x2, y2 float64, stroke string) {
	d.addf(`<path d="M%.1f %.1fL%.1f %.1f" stroke="%s"/>`, x1, y1, x2, y2, stroke)
}

// panel draws a panel whose upper left corner is (left, top).
func (d *drawing) panel(p *Panel, sh sheet, left, top float64) {
	x, y := p.axes(sh, left, top)
	for _, v := range x.ticks {
		d.line(x.at(v), y.from+4, x.at(v), y.to, "#ddd")
		at := label{x: x.at(v), y: y.from + 18, size: tickSize, anchor: "middle"}
		d.text(at, tickLabel(v))
	}
	for _, v := range y.ticks {
		d.line(x.from-4, y.at(v), x.to, y.at(v), "#ddd")
		d.text(label{x: x.from - 7, y: y.at(v) + 4, size: tickSize, anchor: "end"}, tickLabel(v))
	}
	d.line(x.from, y.from, x.to, y.from, "#000")
	d.line(x.from, y.from, x.from, y.to, "#000")
	middle := (x.from + x.to) / 2
	d.text(label{x: middle, y: top + 18, size: labelSize, anchor: "middle"}, p.Title)
	if sh.columns <= manyPanels {
		d.text(label{x: middle, y: y.from + 38, size: labelSize, anchor: "middle"}, p.X)
		side := label{x: left + 16, y: (y.from + y.to) / 2, size: labelSize, anchor: "middle"}
		side.upright = true
		d.text(side, p.Y)
	}
	for _, s := range p.Series {
		d.series(s, x, y)
	}
}

func (d *drawing) series(s Series, x, y axis) {
	d.b.WriteString(`<path d="`)
	for i := range s.X {
		fmt.Fprintf(&d.b, "%c%.1f %.1f", "ML"[min(i, 1)], x.at(s.X[i]), y.at(s.Y[i]))
	}
	d.addf(`"%s/>`, s.stroke())
	for i := range s.X {
		d.glyph(s, x.at(s.X[i]), y.at(s.Y[i]))
	}
}

// sample draws a piece of the line for the legend, from (x, y) to the right.
func (d *drawing) sample(s Series, x, y float64) {
	d.addf(`<path d="M%.1f %.1fh%g"%s/>`, x, y, legendSample, s.stroke())
	d.glyph(s, x+legendSample/2, y)
}

func (s *Series) stroke() string {
	out := fmt.Sprintf(` fill="none" stroke="%s" stroke-width="1.8"`, s.colour())
	if s.Dashed {
		out += ` stroke-dasharray="6 4"`
	}
	return out
}

func (s *Series) colour() string { return palette[s.Style%len(palette)] }

// glyphs are paths around a point; hollow ones come later, so series of one colour differ.
var glyphs = []string{
	"m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z", // circle
	"m-3-3h6v6h-6z",                     // square
	"m0-4l3.8 6.6h-7.6z",                // triangle
	"m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z", // diamond
	"m-3-3l6 6m0-6l-6 6",                // cross
	"m-4 0h8m-4-4v8",                    // plus
	"m0 4l3.8-6.6h-7.6z",                // triangle on its tip
}

func (d *drawing) glyph(s Series, x, y float64) {
	if s.Bare {
		return
	}
	fill := s.colour()
	if s.Style/len(palette)%2 == 1 {
		fill = "#fff"
	}
	d.addf(`<path d="M%.1f %.1f%s" fill="%s" stroke="%s" stroke-width="1.4"/>`,
		x, y, glyphs[s.Style%len(glyphs)], fill, s.colour())
}
