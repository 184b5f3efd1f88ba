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

// drawingFlags are the files for drawings of reduced pictures.
type drawingFlags struct {
	overlay string
	stages  string // drawing of each stage
}

func (d *drawingFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&d.overlay, "overlay", "",
		"draw kept and merged patches into this `file`, .png or .jpg (numbered "+
			"when there are several pictures)")
	fs.StringVar(&d.stages, "overlay-stages", "",
		"draw the rows that remain after each stage of a method inside the encoder or the "+
			"decoder,\n        side by side, into this `file`, .png or .jpg")
}

// check refuses file names that cannot be drawings.
func (d *drawingFlags) check() error {
	if err := checkPicture("overlay", d.overlay); err != nil {
		return err
	}
	return checkPicture("overlay-stages", d.stages)
}

// notWritten are extensions of picture formats that cannot be written.
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

// checkPicture refuses a name with the extension of a format other than PNG or JPEG.
func checkPicture(flag, path string) error {
	if slices.Contains(notWritten, strings.ToLower(filepath.Ext(path))) {
		return usagef("--%s: got %q, want a name that ends in .png or .jpg", flag, path)
	}
	return nil
}

// drawings are the drawing files of one command.
type drawings struct {
	flags *drawingFlags
	outs  *outputs
	done  int // number of pictures whose files have names

	overlay, stages []*output // files of the next request's pictures
}

// open opens the files for n more pictures.
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

// discard removes the files that were opened but not written.
func (d *drawings) discard() {
	for _, f := range slices.Concat(d.overlay, d.stages) {
		d.outs.close(f)
	}
	d.overlay, d.stages = nil, nil
}

// numbered is the name of the drawing of picture i: a first picture that is the only one has the
// given name, others kept-2.png, kept-3.png.
func numbered(path string, i int, alone bool) string {
	if path == "" || path == "-" || i == 0 && alone {
		return path
	}
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, ext), i+1, ext)
}

// write draws the pictures of r with the reductions in ans, and returns the files' names.
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

// writePicture writes a picture to the file: JPEG if the name says so, else PNG.
func (f *output) writePicture(img image.Image) error {
	return f.write(func(w io.Writer) error {
		switch strings.ToLower(filepath.Ext(f.path)) {
		case ".jpg", ".jpeg":
			return jpeg.Encode(w, img, &jpeg.Options{Quality: jpegQuality})
		}
		return png.Encode(w, img)
	})
}
