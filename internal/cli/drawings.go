package cli

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

	"github.com/restore-vlm/restore"
)

// DrawingFlags are the files for drawings of reduced pictures.
type DrawingFlags struct {
	Overlay string
	Stages  string // drawing of each stage
}

// Add declares the flags.
func (d *DrawingFlags) Add(fs *pflag.FlagSet) {
	fs.StringVar(&d.Overlay, "overlay", "",
		"draw kept and merged patches into this `file`, .png or .jpg (numbered "+
			"when there are several pictures)")
	fs.StringVar(&d.Stages, "overlay-stages", "",
		"draw the rows that remain after each stage of a method inside the encoder or the "+
			"decoder, side by side, into this `file`, .png or .jpg")
}

// Check refuses file names that cannot be drawings.
func (d *DrawingFlags) Check() error {
	if err := CheckPicture("overlay", d.Overlay); err != nil {
		return err
	}
	return CheckPicture("overlay-stages", d.Stages)
}

// CheckPicture refuses a name whose extension is neither PNG's nor JPEG's.
func CheckPicture(flag, path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case "", ".png", ".jpg", ".jpeg":
		return nil
	}
	return Flagf(flag, "got %q, want a name that ends in .png or .jpg", path)
}

// Drawings are the drawing files of one command.
type Drawings struct {
	Flags *DrawingFlags
	Outs  *Outputs
	done  int // number of pictures whose files have names

	overlay, stages []*OutputFile // files of the next request's pictures
}

// Open opens the files for n more pictures.
func (d *Drawings) Open(n int) error {
	d.Discard()
	for i := range n {
		for _, f := range []struct {
			flag, path string
			list       *[]*OutputFile
		}{{"overlay", d.Flags.Overlay, &d.overlay}, {"overlay-stages", d.Flags.Stages, &d.stages}} {
			out, err := d.Outs.Open(f.flag, numbered(f.path, d.done+i, n == 1))
			if err != nil {
				d.Discard()
				return err
			}
			*f.list = append(*f.list, out)
		}
	}
	return nil
}

// Discard removes the files that were opened but not written.
func (d *Drawings) Discard() {
	for _, f := range slices.Concat(d.overlay, d.stages) {
		d.Outs.close(f)
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

// Write draws the pictures of an answer, and returns the files' names.
func (d *Drawings) Write(ans *restore.Answer) (names, stages []string, err error) {
	defer d.Discard()
	for i := range ans.Pictures {
		if i >= len(d.overlay) {
			break
		}
		p := &ans.Pictures[i]
		if f := d.overlay[i]; f != nil {
			if err := f.WritePicture(p.Draw()); err != nil {
				return names, stages, err
			}
			names = append(names, f.Path)
		}
		if img := p.DrawStages(); d.stages[i] != nil && img != nil {
			if err := d.stages[i].WritePicture(img); err != nil {
				return names, stages, err
			}
			stages = append(stages, d.stages[i].Path)
		}
	}
	d.done += len(d.overlay)
	return names, stages, nil
}

// jpegQuality keeps thin lines and small digits readable.
const jpegQuality = 92

// WritePicture writes a picture to the file: JPEG if the name says so, else PNG.
func (f *OutputFile) WritePicture(img image.Image) error {
	return f.Write(func(w io.Writer) error {
		switch strings.ToLower(filepath.Ext(f.Path)) {
		case ".jpg", ".jpeg":
			return jpeg.Encode(w, img, &jpeg.Options{Quality: jpegQuality})
		}
		return png.Encode(w, img)
	})
}
