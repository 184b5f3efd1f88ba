// Package chart draws line plots in panels, and pages of text, as SVG.
package chart

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Panel is one of several plots that are drawn side by side with one legend.
type Panel struct {
	Title, X, Y string
	Ticks       []float64 // on the x axis
	LogX        bool      // logarithmic x axis
	Low, High   float64   // smallest range of the y axis
	Series      []Series
}

// Series is a line through points. Series with the same name share a legend entry.
type Series struct {
	Name   string
	Style  int // colour and glyph
	Dashed bool
	Bare   bool // draw no glyphs
	X, Y   []float64
}

// palette has twelve colours that most colour-blind people can distinguish; further series differ
// by glyph.
var palette = []string{
	"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
	"#800020", "#6a3d9a", "#8c8c00", "#004d40", "#8b5a2b", "#555555",
}

// Colours is how many series differ by colour.
var Colours = len(palette)

// Sizes of a plot, in CSS pixels. The axes lie inside of a panel's margins.
const (
	panelWidth, panelHeight       = 440.0, 370.0
	marginLeft, marginRight       = 62.0, 14.0
	marginTop, marginBottom       = 30.0, 48.0
	pad                           = 10.0
	legendLine, legendSample      = 19.0, 30.0
	labelSize, tickSize, textSize = 14.0, 12.0, 12.0
	lineHeight                    = 1.5 * labelSize
)

// Draw draws panels side by side with a caption above and a legend to the right.
func Draw(w io.Writer, caption string, panels []Panel) error {
	for i := range panels {
		if err := panels[i].check(); err != nil {
			return err
		}
	}
	names := entries(panels)
	plots := panelWidth * float64(len(panels))
	width := plots + legendWidth(names)
	lines := wrap(caption, width-2*pad)
	top := lineHeight * float64(len(lines))
	if top > 0 {
		top += pad
	}
	height := top + max(panelHeight, legendLine*float64(len(names))+2*pad)
	d := newDrawing(width, height)
	for i, line := range lines {
		d.text(label{x: pad, y: lineHeight * float64(i+1), size: labelSize}, line)
	}
	for i := range panels {
		d.panel(&panels[i], panelWidth*float64(i), top)
	}
	for i, s := range names {
		y := top + marginTop + legendLine*float64(i)
		d.sample(s, plots+pad, y)
		d.text(label{x: plots + pad + legendSample + 6, y: y + 4, size: textSize}, s.Name)
	}
	return d.writeTo(w)
}

// Text draws lines of text in a monospaced font.
func Text(w io.Writer, s string) error {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	widest := 0
	for _, line := range lines {
		widest = max(widest, len([]rune(line)))
	}
	d := newDrawing(2*pad+monoWidth*textSize*float64(widest), 2*pad+lineHeight*float64(len(lines)))
	for i, line := range lines {
		d.text(label{x: pad, y: lineHeight * float64(i+1), size: textSize, mono: true}, line)
	}
	return d.writeTo(w)
}

// check refuses series that cannot be drawn.
func (p *Panel) check() error {
	for _, s := range p.Series {
		if len(s.X) != len(s.Y) || len(s.X) == 0 {
			return fmt.Errorf("chart: %s: got %d x and %d y, want as many, at least 1",
				s.Name, len(s.X), len(s.Y))
		}
		for i, x := range s.X {
			if math.IsInf(x, 0) || math.IsNaN(x) || math.IsInf(s.Y[i], 0) || math.IsNaN(s.Y[i]) ||
				p.LogX && x <= 0 {
				return fmt.Errorf("chart: %s: point %d: got (%v, %v), want numbers%s",
					s.Name, i, x, s.Y[i], map[bool]string{true: ", x above 0"}[p.LogX])
			}
		}
	}
	return nil
}

// entries are the series of the legend: the first of each name.
func entries(panels []Panel) (all []Series) {
	listed := map[string]bool{}
	for _, p := range panels {
		for _, s := range p.Series {
			if !listed[s.Name] {
				listed[s.Name] = true
				all = append(all, s)
			}
		}
	}
	return all
}

// legendWidth is the width of the widest name and its sample.
func legendWidth(all []Series) (width float64) {
	for _, s := range all {
		width = max(width, textWidth(s.Name, textSize)+legendSample+3*pad)
	}
	return width
}

// wrap breaks a text at spaces into lines of at most the given width.
func wrap(s string, width float64) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch longer := line + " " + word; {
		case line == "":
			line = word
		case textWidth(longer, labelSize) <= width:
			line = longer
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
