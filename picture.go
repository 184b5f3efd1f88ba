package restore

import (
	"errors"
	"fmt"
	"image"
	"image/draw"
	"io"
	"io/fs"
	"os"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// Picture is a decoded picture. It is immutable, and any number of requests may
// share it.
type Picture struct {
	p *imageproc.Picture
}

// PictureOption says how to read a picture's file.
type PictureOption func(*pictureSettings)

type pictureSettings struct{ decode imageproc.DecodeOptions }

// WithMaxPixels refuses pictures of more than n pixels before it allocates memory for them. The
// default is 64 million.
func WithMaxPixels(n int64) PictureOption {
	return func(s *pictureSettings) { s.decode.Limits.MaxPixels = n }
}

// WithMaxBytes refuses files of more than n bytes. The default is 256 MiB.
func WithMaxBytes(n int64) PictureOption {
	return func(s *pictureSettings) { s.decode.Limits.MaxBytes = n }
}

// WithoutEXIF ignores the picture's EXIF orientation. By default the picture is turned upright.
func WithoutEXIF() PictureOption {
	return func(s *pictureSettings) { s.decode.EXIF = false }
}

// OpenPicture reads the picture in a file, like [DecodePicture]. The error is [errs.ErrNotFound]
// when there is no such file.
func OpenPicture(path string, options ...PictureOption) (*Picture, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w", path, errs.ErrNotFound)
		}
		return nil, err
	}
	defer f.Close()
	return read(f, path, options)
}

// ReadPicture reads r to its end and decodes it like [DecodePicture].
func ReadPicture(r io.Reader, options ...PictureOption) (*Picture, error) {
	return read(r, "picture", options)
}

// DecodePicture decodes a picture: PNG, JPEG, WebP, BMP, or the first picture of a GIF or TIFF. It
// detects the format from the data. Transparent pixels are composited on white. The error is an
// [errs.PictureError] when the data are damaged, of another format, or larger than the limits.
func DecodePicture(data []byte, options ...PictureOption) (*Picture, error) {
	return decode(data, "picture", decodeOptions(options))
}

// FromImage returns a copy of m as a picture. Transparent pixels are composited on white.
// The error is an [errs.PictureError] when m is empty or has more than 64 million pixels.
func FromImage(m image.Image) (*Picture, error) {
	b := m.Bounds()
	w, h := b.Dx(), b.Dy()
	switch n := int64(w) * int64(h); {
	case w < 1 || h < 1:
		return nil, &errs.PictureError{Index: -1, Fault: errs.EmptyPicture, Width: w, Height: h,
			Err: fmt.Errorf("picture: got %d x %d pixels, want at least 1 x 1", w, h)}
	case n > imageproc.DefaultMaxPixels:
		return nil, &errs.PictureError{Index: -1, Fault: errs.TooManyPixels, Width: w, Height: h,
			Got: n, Limit: imageproc.DefaultMaxPixels,
			Err: fmt.Errorf("picture: got %d x %d = %d pixels, want at most %d", w, h, n,
				int64(imageproc.DefaultMaxPixels))}
	}
	rgba := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.Draw(rgba, rgba.Rect, image.White, image.Point{}, draw.Src)
	draw.Draw(rgba, rgba.Rect, m, b.Min, draw.Over)
	p := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 0, 3*w*h)}
	for i := 0; i < len(rgba.Pix); i += 4 {
		p.Pix = append(p.Pix, rgba.Pix[i:i+3]...)
	}
	return &Picture{p}, nil
}

// Size returns the picture's width and height in pixels, after it is turned upright.
func (p *Picture) Size() (width, height int) { return p.p.Width, p.p.Height }

// Format returns the name of the file's format, as in "PNG". It is "" for a picture from
// [FromImage].
func (p *Picture) Format() string { return p.p.Format }

// Image returns a copy of the picture's pixels, before any preprocessing for a model.
func (p *Picture) Image() image.Image {
	out := image.NewNRGBA(image.Rect(0, 0, p.p.Width, p.p.Height))
	for i, j := 0, 0; i < len(p.p.Pix); i, j = i+3, j+4 {
		copy(out.Pix[j:], p.p.Pix[i:i+3])
		out.Pix[j+3] = 255
	}
	return out
}

func decodeOptions(options []PictureOption) imageproc.DecodeOptions {
	s := pictureSettings{imageproc.DefaultDecodeOptions()}
	for _, set := range options {
		set(&s)
	}
	return s.decode
}

// read decodes the picture in r. It reads at most one byte more than the limit.
func read(r io.Reader, name string, options []PictureOption) (*Picture, error) {
	o := decodeOptions(options)
	most := o.Limits.MaxBytes
	if most == 0 {
		most = imageproc.DefaultMaxBytes
	}
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	return decode(data, name, o)
}

func decode(data []byte, name string, o imageproc.DecodeOptions) (*Picture, error) {
	p, err := imageproc.Decode(data, name, o)
	if err != nil {
		return nil, err
	}
	return &Picture{p}, nil
}

// Video is a video as pictures, for models that take videos.
type Video struct {
	Frames []*Picture
	FPS    float64 // frames per second
}
