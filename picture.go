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
	"math"
	"os"
	"sync"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// Picture is a picture's file, which is decoded when a model needs its pixels, or decoded pixels.
// Any number of requests and goroutines may share it.
type Picture struct{ s *source }

// source is what the copies of a [Picture] share.
type source struct {
	mu   sync.Mutex
	im   engine.Image
	late func(context.Context) ([]byte, error) // reads the file; nil: it is here

	loading chan struct{} // of a late file: has room for the one goroutine that reads it
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
	return &Picture{&source{im: engine.Image{Name: o.Name, Decode: how}}}
}

// image returns the picture for the engine. late says that its file must be read first.
func (p *Picture) image() (im engine.Image, late bool) {
	if p == nil || p.s == nil {
		return im, false
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.im, p.s.late != nil
}

// missing reports whether there is no picture, and never will be.
func (p *Picture) missing() bool {
	im, late := p.image()
	return !late && im.File == nil && im.Picture == nil
}

// NewPicture returns the picture in a file: PNG, JPEG, WebP, BMP, or the first picture of a GIF or
// TIFF. It detects the format from the data. Transparent pixels are composited on white. The error
// is an [errs.PictureError] if the file's head shows that it is no such picture or larger than the
// limits; damage behind the head is found when the picture is decoded. The picture keeps data.
func NewPicture(data []byte, o *PictureOptions) (*Picture, error) {
	p := o.picture()
	p.s.im.File = data
	if data == nil {
		p.s.im.File = []byte{}
	}
	_, err := p.s.im.Size()
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
	most := named.picture().s.im.Decode.Limits.MaxBytes
	data, err := io.ReadAll(io.LimitReader(f, max(most, most+1))) // of the most, one more is none
	if err != nil {
		return nil, err
	}
	return NewPicture(data, &named)
}

// PictureFrom returns a picture whose file load reads when a request has its place in the queue.
// An error of load is the request's. Until the file is read, once, the picture has no pixels.
func PictureFrom(load func(context.Context) ([]byte, error), o *PictureOptions) *Picture {
	p := o.picture()
	p.s.late, p.s.loading = load, make(chan struct{}, 1)
	return p
}

// load reads the file of a picture from PictureFrom, unless another request has read it.
func (p *Picture) load(ctx context.Context) error {
	select {
	case p.s.loading <- struct{}{}:
		defer func() { <-p.s.loading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, late := p.image(); !late {
		return nil
	}
	data, err := p.s.late(ctx)
	if err != nil {
		return err
	}
	if data == nil {
		data = []byte{}
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.im.File, p.s.late = data, nil
	return nil
}

// FromImage returns a copy of m as a picture. Transparent pixels are composited on white.
// The error is an [errs.PictureError] when m is empty or has more than 64 million pixels.
func FromImage(m image.Image) (*Picture, error) {
	if m == nil {
		return nil, errNoPicture
	}
	b := m.Bounds()
	w, h := b.Dx(), b.Dy()
	n := int64(w) * int64(h)
	if w > 0 && n/int64(w) != int64(h) {
		n = math.MaxInt64
	}
	switch {
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
	pixels := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 0, 3*w*h), Frames: 1}
	for i := 0; i < len(rgba.Pix); i += 4 {
		pixels.Pix = append(pixels.Pix, rgba.Pix[i:i+3]...)
	}
	p := new(PictureOptions).picture()
	p.s.im.Picture = pixels
	return p, nil
}

// pixels returns the decoded picture.
func (p *Picture) pixels() (*imageproc.Picture, error) {
	im, late := p.image()
	if late || p.missing() {
		return nil, errNoPicture
	}
	return im.Pixels()
}

// Decode decodes the picture now, and keeps the pixels. It returns how many pictures the file
// contains, of which this is the first. The error is an [errs.PictureError] if the file is damaged.
func (p *Picture) Decode() (frames int, err error) {
	decoded, err := p.pixels()
	if err != nil {
		return 0, err
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.im.Picture = decoded
	return decoded.Frames, nil
}

// Image returns a copy of the picture's pixels, before any preprocessing for a model.
func (p *Picture) Image() (image.Image, error) {
	pic, err := p.pixels()
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
	if im, _ := p.image(); im.File != nil {
		return im.File, nil
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
	im, _ := p.image()
	d := &im.Decode
	return &PictureOptions{Name: im.Name, MaxPixels: d.Limits.MaxPixels,
		MaxBytes: d.Limits.MaxBytes, IgnoreEXIF: !d.EXIF}
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
		p, err := f.pixels()
		if err != nil {
			return nil, err
		}
		out.Frames = append(out.Frames, p)
	}
	return out, nil
}
