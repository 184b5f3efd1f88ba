package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"io"
	"io/fs"
	"os"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// Picture is a picture's file, which is decoded when a model needs its pixels, or decoded pixels.
// Any number of requests may share it.
type Picture struct {
	im   engine.Image
	late func(context.Context) ([]byte, error) // reads the file; nil: it is here
}

// PictureOptions say how to read a picture's file. The zero value has every default.
type PictureOptions struct {
	// Name of the file, for errors.
	Name string
	// MaxPixels and MaxBytes refuse larger pictures and files, before memory for pixels is
	// allocated; 0 is 64 million pixels and 256 MiB.
	MaxPixels, MaxBytes int64
	// IgnoreEXIF ignores the EXIF orientation. By default a picture is turned upright.
	IgnoreEXIF bool
}

func (o *PictureOptions) picture() *Picture {
	if o == nil {
		o = new(PictureOptions)
	}
	limits := imageproc.Limits{MaxPixels: o.MaxPixels, MaxBytes: o.MaxBytes}
	if limits.MaxPixels == 0 {
		limits.MaxPixels = imageproc.DefaultMaxPixels
	}
	if limits.MaxBytes == 0 {
		limits.MaxBytes = imageproc.DefaultMaxBytes
	}
	how := imageproc.DecodeOptions{EXIF: !o.IgnoreEXIF, Limits: limits}
	return &Picture{im: engine.Image{Name: o.Name, Decode: how}}
}

// NewPicture returns the picture in a file: PNG, JPEG, WebP, BMP, or the first picture of a GIF or
// TIFF. It detects the format from the data. Transparent pixels are composited on white. The error
// is an [errs.PictureError] if the file's head shows that it is no such picture or larger than the
// limits; damage behind the head is found when the picture is decoded.
func NewPicture(data []byte, o *PictureOptions) (*Picture, error) {
	p := o.picture()
	p.im.File = data
	if data == nil {
		p.im.File = []byte{}
	}
	_, err := p.im.Size()
	return p, err
}

// OpenPicture reads the picture in a file, like [NewPicture]. The error is [errs.ErrNotFound] when
// there is no such file.
func OpenPicture(path string, o *PictureOptions) (*Picture, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w", path, errs.ErrNotFound)
		}
		return nil, err
	}
	defer f.Close()
	named := PictureOptions{}
	if o != nil {
		named = *o
	}
	if named.Name == "" {
		named.Name = path
	}
	data, err := io.ReadAll(io.LimitReader(f, named.picture().im.Decode.Limits.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	return NewPicture(data, &named)
}

// PictureFrom returns a picture whose file load reads when a request has its place in the queue.
// An error of load is the request's.
func PictureFrom(load func(context.Context) ([]byte, error), o *PictureOptions) *Picture {
	p := o.picture()
	p.late = load
	return p
}

// load reads the file of a picture from PictureFrom, once.
func (p *Picture) load(ctx context.Context) error {
	data, err := p.late(ctx)
	if err == nil && data == nil {
		data = []byte{}
	}
	if p.im.File = data; err == nil {
		p.late = nil
	}
	return err
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
	p := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 0, 3*w*h), Frames: 1}
	for i := 0; i < len(rgba.Pix); i += 4 {
		p.Pix = append(p.Pix, rgba.Pix[i:i+3]...)
	}
	return &Picture{im: engine.Image{Picture: p}}, nil
}

// Decode decodes the picture now, and keeps the pixels. It returns how many pictures the file
// contains, of which this is the first. The error is an [errs.PictureError] if the file is damaged.
func (p *Picture) Decode() (frames int, err error) {
	if p.late != nil {
		return 0, errNoPicture
	}
	decoded, err := p.im.Pixels()
	if err != nil {
		return 0, err
	}
	p.im.Picture = decoded
	return decoded.Frames, nil
}

// Image returns a copy of the picture's pixels, before any preprocessing for a model.
func (p *Picture) Image() (image.Image, error) {
	if p.late != nil {
		return nil, errNoPicture
	}
	pic, err := p.im.Pixels()
	if err != nil {
		return nil, err
	}
	out := image.NewNRGBA(image.Rect(0, 0, pic.Width, pic.Height))
	for i, j := 0, 0; i < len(pic.Pix); i, j = i+3, j+4 {
		copy(out.Pix[j:], pic.Pix[i:i+3])
		out.Pix[j+3] = 255
	}
	return out, nil
}

// File returns the picture's file, as it was given; of a picture from [FromImage], a PNG.
func (p *Picture) File() ([]byte, error) {
	if p.im.File != nil || p.late != nil {
		return p.im.File, nil
	}
	m, err := p.Image()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = png.Encode(&out, m)
	return out.Bytes(), err
}

// Options say how the picture's file is read.
func (p *Picture) Options() *PictureOptions {
	d := &p.im.Decode
	return &PictureOptions{Name: p.im.Name, MaxPixels: d.Limits.MaxPixels,
		MaxBytes: d.Limits.MaxBytes, IgnoreEXIF: !d.EXIF && p.im.File != nil}
}

// Video is a video as pictures, for models that take videos.
type Video struct {
	Frames []*Picture
	FPS    float64 // frames per second
}

// engine returns the decoded video.
func (v *Video) engine() (*imageproc.Video, error) {
	if v == nil {
		return nil, nil
	}
	out := &imageproc.Video{FPS: v.FPS}
	for _, f := range v.Frames {
		if f == nil || f.late != nil {
			return nil, errNoPicture
		}
		p, err := f.im.Pixels()
		if err != nil {
			return nil, err
		}
		out.Frames = append(out.Frames, p)
	}
	return out, nil
}
