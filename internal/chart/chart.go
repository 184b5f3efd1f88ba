// Package chart draws line plots in panels, and pages of text, as SVG and PNG.
package chart

import (
	"fmt"
	"image/color"
	"io"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
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

// Sizes of a plot.
const (
	panelWidth  = 4.6 * vg.Inch
	panelHeight = 3.9 * vg.Inch
	plotDPI     = 120
)

// palette has twelve colours that most colour-blind people can distinguish; further series differ
// by glyph.
var palette = []color.Color{
	rgb(0x0072b2), rgb(0xd55e00), rgb(0x009e73), rgb(0xcc79a7), rgb(0xe69f00), rgb(0x56b4e9),
	rgb(0x800020), rgb(0x6a3d9a), rgb(0x8c8c00), rgb(0x004d40), rgb(0x8b5a2b), rgb(0x555555),
}

// Colours is how many series differ by colour.
var Colours = len(palette)

func rgb(v uint32) color.Color { return color.RGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 0xff} }

// Draw draws panels side by side with a caption above and a legend to the right, as "svg" or "png".
func Draw(w io.Writer, format, caption string, panels []Panel) error {
	plot.DefaultFont.Variant = "Sans"
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(2)
	legendWidth := widthOf(&legend, panels)
	pad := vg.Points(8)
	width := panelWidth*vg.Length(len(panels)) + legendWidth
	lines := wrap(caption, width-2*pad, legend.TextStyle)
	lineHeight := 1.3 * legend.TextStyle.Height("X")
	top := lineHeight * vg.Length(len(lines))
	height := max(panelHeight, heightOf(&legend, panels)) + top
	c, err := canvasOf(format, width, height)
	if err != nil {
		return err
	}
	dc := draw.New(c)
	for i, line := range lines {
		dc.FillText(legend.TextStyle, vg.Point{X: pad, Y: height - lineHeight*vg.Length(i+1)}, line)
	}
	dc = draw.Crop(dc, 0, 0, 0, -top)
	listed := map[string]bool{}
	rows := [][]*plot.Plot{nil}
	for i := range panels {
		p, err := panels[i].draw(&legend, listed)
		if err != nil {
			return err
		}
		rows[0] = append(rows[0], p)
	}
	tiles := draw.Tiles{
		Rows: 1, Cols: len(panels), PadX: pad,
		PadTop: pad, PadBottom: pad, PadLeft: pad, PadRight: pad,
	}
	for i, at := range plot.Align(rows, tiles, draw.Crop(dc, 0, -legendWidth, 0, 0))[0] {
		rows[0][i].Draw(at)
	}
	legend.Draw(draw.Crop(dc, width-legendWidth, 0, pad, -3*pad))
	_, err = c.WriteTo(w)
	return err
}

// wrap breaks a text at spaces into lines of at most the given width.
func wrap(s string, width vg.Length, style text.Style) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch longer := line + " " + word; {
		case line == "":
			line = word
		case style.Width(longer) <= width:
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

// Text draws lines of text in a monospaced font.
func Text(w io.Writer, format, s string) error {
	style := text.Style{
		Color: color.Black, Handler: plot.DefaultTextHandler,
		Font: font.From(font.Font{Typeface: "Liberation", Variant: "Mono"}, 9),
	}
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	pad, lineHeight := vg.Points(10), 1.6*style.Height("X")
	width := vg.Length(0)
	for _, line := range lines {
		width = max(width, style.Width(line))
	}
	height := lineHeight * vg.Length(len(lines))
	c, err := canvasOf(format, width+2*pad, height+2*pad)
	if err != nil {
		return err
	}
	dc := draw.New(c)
	for i, line := range lines {
		at := vg.Point{X: pad, Y: pad + height - lineHeight*vg.Length(i+1)}
		dc.FillText(style, at, line)
	}
	_, err = c.WriteTo(w)
	return err
}

// canvas is a drawing that can be written to a file.
type canvas interface {
	vg.CanvasSizer
	io.WriterTo
}

func canvasOf(format string, width, height vg.Length) (canvas, error) {
	switch format {
	case "svg":
		return vgsvg.NewWith(vgsvg.UseWH(width, height)), nil
	case "png":
		return vgimg.PngCanvas{
			Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(plotDPI)),
		}, nil
	}
	return nil, fmt.Errorf("chart: format: got %q, want svg or png", format)
}

// widthOf is the width of the legend: the widest name and its sample.
func widthOf(l *plot.Legend, panels []Panel) vg.Length {
	widest := vg.Length(0)
	for _, p := range panels {
		for _, s := range p.Series {
			widest = max(widest, l.TextStyle.Width(s.Name))
		}
	}
	return l.ThumbnailWidth + widest + vg.Points(28) // the margins, and a blank between
}

// heightOf is the height of the legend: one line per series.
func heightOf(l *plot.Legend, panels []Panel) vg.Length {
	names := map[string]bool{}
	for _, p := range panels {
		for _, s := range p.Series {
			names[s.Name] = true
		}
	}
	return vg.Length(len(names))*(l.TextStyle.Height("X")+l.Padding) + vg.Points(40)
}

// shortTicks are the default ticks with labels without trailing zeros.
type shortTicks struct{}

// Ticks implements plot.Ticker.
func (shortTicks) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = strconv.FormatFloat(t.Value, 'g', 6, 64)
		}
	}
	return ticks
}

func (p *Panel) draw(legend *plot.Legend, listed map[string]bool) (*plot.Plot, error) {
	out := plot.New()
	out.Title.Text, out.X.Label.Text, out.Y.Label.Text = p.Title, p.X, p.Y
	out.Y.Tick.Marker = shortTicks{}
	out.Add(plotter.NewGrid())
	for _, s := range p.Series {
		points := make(plotter.XYs, len(s.X))
		for i := range points {
			points[i] = plotter.XY{X: s.X[i], Y: s.Y[i]}
		}
		line, glyphs, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("chart: %s: %w", s.Name, err)
		}
		line.Color, line.Width = palette[s.Style%len(palette)], vg.Points(1.4)
		if s.Dashed {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		glyphs.Color, glyphs.Shape, glyphs.Radius = line.Color, plotutil.Shape(
			s.Style,
		), vg.Points(
			2.6,
		)
		thumbs := []plot.Thumbnailer{line}
		out.Add(line)
		if !s.Bare {
			out.Add(glyphs)
			thumbs = append(thumbs, glyphs)
		}
		if !listed[s.Name] {
			listed[s.Name] = true
			legend.Add(s.Name, thumbs...)
		}
	}
	if p.Low < p.High {
		out.Y.Min, out.Y.Max = min(out.Y.Min, p.Low), max(out.Y.Max, p.High)
	}
	if p.LogX {
		out.X.Scale = plot.LogScale{}
	}
	if p.Ticks != nil {
		var ticks plot.ConstantTicks
		for _, v := range p.Ticks {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', -1, 64)})
		}
		out.X.Tick.Marker = ticks
	}
	return out, nil
}
