package main

import (
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/overlay"
)

// drawingFlags say where drawings of reduced pictures go.
type drawingFlags struct {
	overlay string
	stages  string // of each stage
}

func (d *drawingFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(
		&d.overlay,
		"overlay",
		"",
		"write a picture of kept and merged patches to this `file`, .png or .jpg (numbered "+
			"when there are several pictures)",
	)
	fs.StringVar(
		&d.stages,
		"overlay-stages",
		"",
		"write what each stage of a method inside the encoder or the decoder leaves to this "+
			"`file`, .png or .jpg,\n        drawing next to drawing",
	)
}

// check finds names that no drawing can have.
func (d *drawingFlags) check() error {
	if err := checkPicture("overlay", d.overlay); err != nil {
		return err
	}
	return checkPicture("overlay-stages", d.stages)
}

// notWritten are endings of pictures that are not written.
var notWritten = []string{
	".gif",
	".webp",
	".bmp",
	".tif",
	".tiff",
	".svg",
	".pdf",
	".avif",
	".heic",
	".jxl",
	".ppm",
}

// checkPicture refuses a name that promises another format than PNG or JPEG.
func checkPicture(flag, path string) error {
	if slices.Contains(notWritten, strings.ToLower(filepath.Ext(path))) {
		return usagef("--%s: got %q, want a name that ends in .png or .jpg", flag, path)
	}
	return nil
}

// drawings are the files of the drawings of one command.
type drawings struct {
	flags *drawingFlags
	outs  *outputs
	done  int // pictures whose files have names

	overlay, stages []*output // of the pictures that are asked about next
}

// open prepares the files of n more pictures.
func (d *drawings) open(n int) error {
	d.discard()
	for i := range n {
		for _, f := range []struct {
			flag, path string
			list       *[]*output
		}{{"overlay", d.flags.overlay, &d.overlay}, {"overlay-stages", d.flags.stages, &d.stages}} {
			out, err := d.outs.open(f.flag, numbered(f.path, d.done+i, n == 1))
			if err != nil {
				d.discard()
				return err
			}
			*f.list = append(*f.list, out)
		}
	}
	return nil
}

// discard gives the files up that were opened and not written.
func (d *drawings) discard() {
	for _, f := range slices.Concat(d.overlay, d.stages) {
		d.outs.close(f)
	}
	d.overlay, d.stages = nil, nil
}

// numbered is the name of the drawing of picture i: a first picture alone has the name that
// was given, others kept-2.png, kept-3.png.
func numbered(path string, i int, alone bool) string {
	if path == "" || path == "-" || i == 0 && alone {
		return path
	}
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, ext), i+1, ext)
}

// write draws the pictures of r as ans reports them, and returns the files' names.
func (d *drawings) write(
	r *engine.Request,
	ans *engine.Answer,
) (names, stages []string, err error) {
	defer d.discard()
	for i, p := range ans.Report.Images {
		if i >= len(d.overlay) {
			break
		}
		if f := d.overlay[i]; f != nil {
			if err := f.writePicture(overlay.Draw(r.Images[i], p.Reduction, p.Grids)); err != nil {
				return names, stages, err
			}
			names = append(names, f.path)
		}
		if f := d.stages[i]; f != nil && p.Reduction != nil && len(p.Reduction.Stages) > 0 {
			img := overlay.DrawStages(r.Images[i], p.Reduction, p.Grids)
			if err := f.writePicture(img); err != nil {
				return names, stages, err
			}
			stages = append(stages, f.path)
		}
	}
	d.done += len(d.overlay)
	return names, stages, nil
}

// jpegQuality keeps thin lines and small digits readable.
const jpegQuality = 92

// writePicture fills the file with a picture: JPEG where the name says so, else PNG.
func (f *output) writePicture(img image.Image) error {
	return f.write(func(w io.Writer) error {
		switch strings.ToLower(filepath.Ext(f.path)) {
		case ".jpg", ".jpeg":
			return jpeg.Encode(w, img, &jpeg.Options{Quality: jpegQuality})
		}
		return png.Encode(w, img)
	})
}
