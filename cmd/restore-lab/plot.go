package main

import (
	"io"
	"path/filepath"
	"strings"

	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/cli"
)

// checkPlot refuses a name with the extension of another format than SVG.
func checkPlot(flag, path string) error {
	if path != "-" && strings.ToLower(filepath.Ext(path)) != ".svg" {
		return cli.Flagf(flag, "got %q, want a name that ends in .svg, or - for stdout", path)
	}
	return nil
}

// writePlot draws panels with a caption above and a legend to the right into the file f, which may
// be nil.
func writePlot(f *cli.OutputFile, caption string, panels []chart.Panel) error {
	return f.Write(func(w io.Writer) error { return chart.Draw(w, caption, panels) })
}
