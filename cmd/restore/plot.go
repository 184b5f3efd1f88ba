package main

import (
	"fmt"
	"image/color"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// panel is one of the plots that stand side by side and share a legend.
type panel struct {
	title, x, y string
	ticks       []float64 // of x
	logX        bool      // ticks lie at equal ratios
	low, high   float64   // that y shows at least
	series      []series
}

// series is a line through points. Series of one name have one entry in the legend.
type series struct {
	name   string
	style  int // colour and glyph
	dashed bool
	x, y   []float64
}

// Sizes of a plot.
const (
	panelWidth  = 4.6 * vg.Inch
	panelHeight = 3.9 * vg.Inch
	legendWidth = 2.5 * vg.Inch
	plotDPI     = 120
)

// palette tells twelve series apart, also for most who see fewer colours; glyphs tell apart what comes after.
var palette = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.RGBA{0x80, 0x00, 0x20, 0xff}, color.RGBA{0x6a, 0x3d, 0x9a, 0xff},
	color.RGBA{0x8c, 0x8c, 0x00, 0xff}, color.RGBA{0x00, 0x4d, 0x40, 0xff}, color.RGBA{0x8b, 0x5a, 0x2b, 0xff}, color.RGBA{0x55, 0x55, 0x55, 0xff},
}

// checkPlot says whether a file of that name can be drawn.
func checkPlot(flag, path string) error {
	if ext := strings.ToLower(filepath.Ext(path)); ext != ".svg" && ext != ".png" {
		return usagef("--%s: got %q, want a name that ends in .svg or .png", flag, path)
	}
	return nil
}

// writePlot draws panels side by side, a legend to their right, into the file path.
func writePlot(path string, panels []panel) error {
	return writeFile(path, nil, func(w io.Writer) error { return drawPanels(w, strings.ToLower(filepath.Ext(path)), panels) })
}

func drawPanels(w io.Writer, format string, panels []panel) error {
	width, height := panelWidth*vg.Length(len(panels))+legendWidth, vg.Length(panelHeight)
	var c interface {
		vg.CanvasSizer
		io.WriterTo
	} = vgsvg.NewWith(vgsvg.UseWH(width, height))
	if format == ".png" {
		c = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(plotDPI))}
	}
	dc := draw.New(c)
	plot.DefaultFont.Variant = "Sans"
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(2)
	listed := map[string]bool{}
	rows := [][]*plot.Plot{nil}
	for i := range panels {
		p, err := panels[i].draw(&legend, listed)
		if err != nil {
			return err
		}
		rows[0] = append(rows[0], p)
	}
	pad := vg.Points(8)
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: pad, PadTop: pad, PadBottom: pad, PadLeft: pad, PadRight: pad}
	for i, at := range plot.Align(rows, tiles, draw.Crop(dc, 0, -legendWidth, 0, 0))[0] {
		rows[0][i].Draw(at)
	}
	legend.Draw(draw.Crop(dc, width-legendWidth, 0, pad, -3*pad))
	_, err := c.WriteTo(w)
	return err
}

// shortTicks are the default ones, labelled without zeros behind the point.
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

func (p *panel) draw(legend *plot.Legend, listed map[string]bool) (*plot.Plot, error) {
	out := plot.New()
	out.Title.Text, out.X.Label.Text, out.Y.Label.Text = p.title, p.x, p.y
	out.Y.Tick.Marker = shortTicks{}
	out.Add(plotter.NewGrid())
	for _, s := range p.series {
		points := make(plotter.XYs, len(s.x))
		for i := range points {
			points[i] = plotter.XY{X: s.x[i], Y: s.y[i]}
		}
		line, glyphs, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("plot: %s: %w", s.name, err)
		}
		line.Color, line.Width = palette[s.style%len(palette)], vg.Points(1.4)
		if s.dashed {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		glyphs.Color, glyphs.Shape, glyphs.Radius = line.Color, plotutil.Shape(s.style), vg.Points(2.6)
		out.Add(line, glyphs)
		if !listed[s.name] {
			listed[s.name] = true
			legend.Add(s.name, line, glyphs)
		}
	}
	if p.low < p.high {
		out.Y.Min, out.Y.Max = min(out.Y.Min, p.low), max(out.Y.Max, p.high)
	}
	if p.logX {
		out.X.Scale = plot.LogScale{}
	}
	if p.ticks != nil {
		var ticks plot.ConstantTicks
		for _, v := range p.ticks {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', -1, 64)})
		}
		out.X.Tick.Marker = ticks
	}
	return out, nil
}
