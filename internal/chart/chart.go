// Package chart draws line plots in panels, and pages of text, as SVG.
package chart

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/restore-vlm/restore/internal/wrap"
)

// Panel is one of several plots that are drawn with one legend.
type Panel struct {
	Title, X, Y string
	Ticks       []float64 // on the x axis, which covers them
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

// Sizes of a plot, in CSS pixels.
const (
	marginRight, marginTop        = 14.0, 30.0
	pad                           = 10.0
	legendLine, legendSample      = 19.0, 30.0
	labelSize, tickSize, textSize = 14.0, 12.0, 12.0
	lineHeight                    = 1.5 * labelSize
)

// sheet is how panels are arranged: panels in a row, the size of one, and the margins of its axes.
type sheet struct{ columns, width, height, left, bottom float64 }

// manyPanels is how many panels are drawn side by side; more are drawn small, in several rows.
const manyPanels = 4

func arrange(panels int) sheet {
	if panels > manyPanels {
		return sheet{columns: 5, width: 230, height: 190, left: 40, bottom: 28}
	}
	return sheet{columns: float64(panels), width: 440, height: 370, left: 62, bottom: 48}
}

// at returns the upper left corner of panel i.
func (s sheet) at(i int) (left, top float64) {
	return s.width * float64(i%int(s.columns)), s.height * float64(i/int(s.columns))
}

// Draw draws panels with a caption above and a legend to the right. Four panels are side by side;
// more are small, in rows of five, and without titles of their axes, which the caption gives.
func Draw(w io.Writer, caption string, panels []Panel) error {
	for i := range panels {
		if err := panels[i].check(); err != nil {
			return err
		}
	}
	names, sh := entries(panels), arrange(len(panels))
	plots := sh.width * sh.columns
	width := plots + legendWidth(names)
	lines := wrap.Lines(caption, func(line string) bool {
		return textWidth(line, labelSize) <= width-2*pad
	})
	top := lineHeight * float64(len(lines))
	if top > 0 {
		top += pad
	}
	_, last := sh.at(len(panels) - 1)
	height := top + max(last+sh.height, legendLine*float64(len(names))+2*pad)
	d := newDrawing(width, height)
	for i, line := range lines {
		d.text(label{x: pad, y: lineHeight * float64(i+1), size: labelSize}, line)
	}
	for i := range panels {
		left, down := sh.at(i)
		d.panel(&panels[i], sh, left, top+down)
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
