package imageproc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/restore-vlm/restore/errs"
)

// DefaultMaxPixels is the limit on width·height when Limits.MaxPixels is 0.
const DefaultMaxPixels = 64_000_000

// MostPixels is the largest limit on width·height: with it an int holds the size of a picture of
// eight channels of 16 bits.
const MostPixels = math.MaxInt / 32

// DefaultMaxBytes is the limit on a file's size when Limits.MaxBytes is 0.
const DefaultMaxBytes = 256 << 20

// Limits limit what Decode accepts. They are checked before any allocation that depends on the
// picture; zero means the default.
type Limits struct {
	MaxPixels int64 // width·height from the header, at most MostPixels
	MaxBytes  int64 // size of the encoded file
}

// DecodeOptions choose how pictures are loaded. Transparent ones are put on white, as transformers
// 5 does with a picture; its load_image, and the original LLaVA, show the hidden colours.
type DecodeOptions struct {
	EXIF   bool // turn the picture upright by the orientation in its EXIF block or XMP packet
	Limits Limits
}

// Picture is an 8-bit RGB picture. Pix holds rows from the top, 3 bytes per pixel, without padding;
// it is read-only once the picture is in use.
type Picture struct {
	Width, Height int
	Pix           []byte
	Format        string // "PNG", "JPEG", "GIF", "WebP", "BMP" or "TIFF"
	Frames        int    // pictures in the file; this is the first one; 0: not known
}

func (p *Picture) check() error {
	if p == nil || p.Width <= 0 || p.Height <= 0 || len(p.Pix) != p.Width*p.Height*3 {
		if p == nil {
			return fmt.Errorf("imageproc: picture is nil")
		}
		return fmt.Errorf("imageproc: picture %dx%d: got %d bytes, want width*height*3", p.Width,
			p.Height, len(p.Pix))
	}
	return nil
}

// errTruncated is returned by format readers when the data ends early.
var errTruncated = errors.New("truncated")

// format is one file format. size reads width and height from the header without allocating. decode
// reads the pixels; it is called only after size was accepted. orientation is 1 to 8; other values
// mean 1.
type format struct {
	name   string
	size   func(data []byte) (w, h int64, err error)
	decode func(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error)
	frames func(data []byte) int // pictures in the file; nil: one
}

var formats = map[string]format{
	"PNG":  {"PNG", pngSize, decodePNG, pngFrames},
	"JPEG": {"JPEG", jpegSize, decodeJPEG, nil},
	"GIF":  {"GIF", gifSize, decodeGIF, gifFrames},
	"WebP": {"WebP", webpSize, decodeWebP, webpFrames},
	"BMP":  {"BMP", bmpSize, decodeBMP, nil},
	"TIFF": {"TIFF", tiffSize, decodeTIFF, tiffPages},
}

// Decode reads a picture. It detects the format from the content, never from the name; name appears
// only in errors. Animated files give their first frame on its canvas. A TIFF's orientation is
// always applied; that in other files (JPEG, PNG, WebP) if o.EXIF is set. Cost: one decoded copy
// and at most one rotated copy. The error is an [errs.PictureError].
func Decode(data []byte, name string, o DecodeOptions) (p *Picture, err error) {
	kind, w, h, err := head(data, name, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = &errs.PictureError{Index: -1, Width: w, Height: h, Err: err}
		}
	}()
	// Third-party decoders have panicked on hostile files before. Such a file is unreadable, but
	// must not stop the program.
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("imageproc: %s: %s is damaged: %v", name, kind, r)
		}
	}()
	f := formats[kind]
	pix, pw, ph, orientation, err := f.decode(data, o)
	if err != nil {
		return nil, f.explain(name, err)
	}
	p = &Picture{Width: pw, Height: ph, Pix: pix, Format: kind, Frames: 1}
	if f.frames != nil {
		p.Frames = f.frames(data)
	}
	if err := p.check(); err != nil {
		return nil, f.explain(name, err)
	}
	return p.turned(orientation), nil
}

// Size returns the width and height in the header of a picture's file, and the error of Decode if
// Decode refuses the file because of its header.
func Size(data []byte, name string, o DecodeOptions) (w, h int, err error) {
	_, w, h, err = head(data, name, o)
	return w, h, err
}

// head reads format and size, and checks the limits.
func head(data []byte, name string, o DecodeOptions) (kind string, width, height int, err error) {
	if o.Limits.MaxPixels == 0 {
		o.Limits.MaxPixels = DefaultMaxPixels
	}
	o.Limits.MaxPixels = min(o.Limits.MaxPixels, MostPixels)
	if o.Limits.MaxBytes == 0 {
		o.Limits.MaxBytes = DefaultMaxBytes
	}
	bad := &errs.PictureError{Index: -1}
	fail := func(format string, args ...any) (string, int, int, error) {
		bad.Err = fmt.Errorf(format, args...)
		return "", 0, 0, bad
	}
	if n := int64(len(data)); n > o.Limits.MaxBytes {
		bad.Fault, bad.Got, bad.Limit = errs.TooManyBytes, n, o.Limits.MaxBytes
		return fail("imageproc: %s: file has %d bytes, limit %d", name, n, o.Limits.MaxBytes)
	}
	if kind, err = detect(data); err != nil {
		if bad.Fault = errs.UnknownFormat; len(data) == 0 {
			bad.Fault = errs.EmptyPicture
		}
		return fail("imageproc: %s: %w", name, err)
	}
	w, h, err := formats[kind].size(data)
	if err != nil {
		return fail("%w", formats[kind].explain(name, err))
	}
	if w <= 0 || h <= 0 {
		return fail("imageproc: %s: %s is invalid: size is %dx%d", name, kind, w, h)
	}
	bad.Width, bad.Height = int(w), int(h)
	// Neither side exceeds 2³²-1, so only their product needs care.
	if w > o.Limits.MaxPixels/h {
		bad.Fault, bad.Got, bad.Limit = errs.TooManyPixels, pixels(w, h), o.Limits.MaxPixels
		return fail("imageproc: %s: %s picture is %dx%d = %.0f pixels, limit %d",
			name, kind, w, h, float64(w)*float64(h), o.Limits.MaxPixels)
	}
	return kind, int(w), int(h), nil
}

// pixels returns w·h, clamped to the largest number.
func pixels(w, h int64) int64 {
	if w > math.MaxInt64/h {
		return math.MaxInt64
	}
	return w * h
}

// unsupported is an error about a valid file that this package cannot read.
type unsupported string

func (u unsupported) Error() string { return string(u) }

// explain words err for the user: truncated, an unsupported variant, or damaged.
func (f format) explain(name string, err error) error {
	text := strings.TrimPrefix(err.Error(), errTruncated.Error()+": ")
	for _, prefix := range []string{
		"png: invalid format: ", "png: unsupported feature: ", "png: ", "gif: ", "bmp: ", "webp: ",
		"vp8: ", "vp8l: ",
		"imageproc: ",
	} {
		text = strings.TrimPrefix(text, prefix)
	}
	var u unsupported
	switch {
	case errors.As(err, &u) || strings.Contains(err.Error(), "unsupported"):
		return fmt.Errorf("imageproc: %s: this %s variant is not supported: %s", name, f.name, text)
	case errors.Is(err, errTruncated), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF),
		strings.Contains(text, "unexpected EOF"), strings.Contains(text, "not enough"):
		return fmt.Errorf("imageproc: %s: %s is truncated: %s", name, f.name, text)
	default:
		return fmt.Errorf("imageproc: %s: %s is damaged: %s", name, f.name, text)
	}
}
