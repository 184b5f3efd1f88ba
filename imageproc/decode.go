package imageproc

import (
	"bytes"
	"fmt"
	"image/png"
)

// DefaultMaxPixels is the limit on width·height when Limits.MaxPixels is 0.
const DefaultMaxPixels = 64_000_000

// DefaultMaxBytes is the limit on a file's size when Limits.MaxBytes is 0.
const DefaultMaxBytes = 256 << 20

// Limits bound what Decode accepts. They are checked before any allocation
// that depends on the picture; zero means the default.
type Limits struct {
	MaxPixels int64 // width·height from the header
	MaxBytes  int64 // size of the encoded file
}

// AlphaPolicy says what becomes of transparency.
type AlphaPolicy int

const (
	// White composites on white, whatever kind of transparency it is.
	White AlphaPolicy = iota
	// Drop ignores transparency: hidden colours show as they are stored.
	Drop
)

// DecodeOptions choose among the loaders in use. Those of the reference
// implementation:
//
//	transformers load_image          {EXIF: true, Alpha: Drop}
//	transformers 5 given a picture   {EXIF: false, Alpha: White}
//	convert("RGB"), original LLaVA   {EXIF: false, Alpha: Drop}
type DecodeOptions struct {
	EXIF   bool // turn the picture upright by its EXIF orientation
	Alpha  AlphaPolicy
	Limits Limits
}

// DefaultDecodeOptions shows a picture as a viewer would: upright, on white.
func DefaultDecodeOptions() DecodeOptions { return DecodeOptions{EXIF: true, Alpha: White} }

// Picture is an 8-bit RGB picture. Pix holds rows from the top, 3 bytes a
// pixel, without padding; it is read-only once the picture is in use.
type Picture struct {
	Width, Height int
	Pix           []byte
	Format        string // "PNG", "JPEG", "GIF", "WebP", "BMP" or "TIFF"
}

func (p *Picture) check() error {
	if p == nil || p.Width <= 0 || p.Height <= 0 || len(p.Pix) != p.Width*p.Height*3 {
		if p == nil {
			return fmt.Errorf("imageproc: picture is nil")
		}
		return fmt.Errorf("imageproc: picture %dx%d: got %d bytes, want width*height*3", p.Width, p.Height, len(p.Pix))
	}
	return nil
}

// Decode reads a picture, deciding its format by content, never by name. name
// appears in errors only. Animated files give their first frame.
func Decode(data []byte, name string, o DecodeOptions) (*Picture, error) {
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("imageproc: %s: %w", name, err)
	}
	pix, err := toRGB(img, o.Alpha)
	if err != nil {
		return nil, fmt.Errorf("imageproc: %s: %w", name, err)
	}
	return &Picture{Width: img.Bounds().Dx(), Height: img.Bounds().Dy(), Pix: pix, Format: "PNG"}, nil
}
