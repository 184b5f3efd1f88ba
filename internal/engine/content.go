package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// Key says what something was made from: the SHA-256 of all that it depends on. Two things
// with one key are the same.
type Key [sha256.Size]byte

// keyOf hashes parts, each with its length.
func keyOf(parts ...[]byte) Key {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return Key(h.Sum(nil))
}

// Image is a picture of a request: decoded, or a file that is decoded when that is needed. A
// file whose tokens are cached is not.
type Image struct {
	Picture *imageproc.Picture

	File   []byte                  // instead of Picture: PNG, JPEG, GIF, TIFF, WebP or BMP
	Name   string                  // of the file, for errors
	Decode imageproc.DecodeOptions // of the file
}

// pixels returns the decoded picture.
func (m *Image) pixels() (*imageproc.Picture, error) {
	if m.Picture != nil || m.File == nil {
		return m.Picture, nil
	}
	name := m.Name
	if name == "" {
		name = "picture"
	}
	return imageproc.Decode(m.File, name, m.Decode)
}

// key identifies the picture's content.
func (m *Image) key() Key {
	if m.Picture != nil || m.File == nil {
		return pixelsKey(m.Picture)
	}
	o := fmt.Sprint(m.Decode.EXIF, m.Decode.Alpha)
	return keyOf([]byte("file"), []byte(o), m.File)
}

func pixelsKey(p *imageproc.Picture) Key {
	if p == nil {
		return Key{}
	}
	return keyOf([]byte("pixels"), []byte(fmt.Sprint(p.Width, p.Height)), p.Pix)
}

func videoKey(v *imageproc.Video) Key {
	parts := [][]byte{[]byte("video"), []byte(fmt.Sprint(v.FPS))}
	for _, f := range v.Frames {
		k := pixelsKey(f)
		parts = append(parts, k[:])
	}
	return keyOf(parts...)
}

// image is what is known of a picture, or a video, before it is encoded. It is shared by
// requests.
type image struct {
	key           Key
	shape         *model.Shape
	frames        []imageproc.Frame // the parts of the picture that its grids cover
	width, height int               // pixels; 0 of a video
}

// prepare makes pixel values of a picture, on a goroutine of the caller's.
func (e *Engine) prepare(ctx context.Context, m *Image, i int) (*image, model.Picture, error) {
	if err := e.takesPictures(); err != nil {
		return nil, nil, err
	}
	var pic *imageproc.Picture
	px, err := before(ctx, func() (px *imageproc.Pixels, err error) {
		if pic, err = m.pixels(); err != nil {
			return nil, pictureError(i, errs.Undecodable, err)
		}
		if px, err = e.proc.Process([]*imageproc.Picture{pic}); err != nil {
			return nil, pictureError(i, errs.BadShape, err)
		}
		return px, nil
	})
	if err != nil {
		return nil, nil, e.told(err)
	}
	im, prepared, err := e.described(px, m.key())
	if err != nil {
		return nil, nil, err
	}
	im.width, im.height = pic.Width, pic.Height
	return im, prepared, nil
}

// preparation is a picture that several requests need prepared, and that one of them prepares.
type preparation struct {
	key   Key
	users int           // requests that have it or wait for it
	made  chan struct{} // closed when the rest is there
	im    *image
	pic   model.Picture
	err   error
}

// prepareShared is prepare for requests that share what is made, until each of them has given
// up its part. What another request failed at is tried again.
func (e *Engine) prepareShared(
	ctx context.Context, m *Image, i int, p *picture, salt string,
) error {
	key := m.key()
	key = keyOf(key[:], []byte(salt))
	e.mu.Lock()
	s := e.shared[key]
	first := s == nil
	if first {
		s = &preparation{key: key, made: make(chan struct{})}
		e.shared[key] = s
	}
	s.users++
	p.shared = s
	e.mu.Unlock()
	if first {
		s.im, s.pic, s.err = e.prepare(ctx, m, i)
		close(s.made)
	}
	select {
	case <-s.made:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	im, pic, err := s.im, s.pic, s.err
	if err != nil && !first {
		im, pic, err = e.prepare(ctx, m, i)
	}
	if err == nil {
		p.image, p.prepared = im, pic
	}
	return err
}

// unshare gives up the part that a request has in a preparation.
func (e *Engine) unshare(p *picture) {
	s := p.shared
	if s == nil {
		return
	}
	p.shared = nil
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(e.shared, s.key)
	}
}

// before returns what f makes, or the cause of ctx where that ends first. f goes on then. A
// panic of f is an error.
func before[T any](ctx context.Context, f func() (T, error)) (out T, err error) {
	if err := context.Cause(ctx); err != nil {
		return out, err
	}
	type made struct {
		out T
		err error
	}
	c := make(chan made, 1)
	go func() {
		var m made
		defer func() {
			if v := recover(); v != nil {
				m.err = &model.Panic{Value: v, Stack: debug.Stack()}
			}
			c <- m
		}()
		m.out, m.err = f()
	}()
	select {
	case m := <-c:
		return m.out, m.err
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
}

// prepareVideo is prepare of a video.
func (e *Engine) prepareVideo(
	ctx context.Context, v *imageproc.Video,
) (*image, model.Picture, error) {
	if err := e.takesPictures(); err != nil {
		return nil, nil, err
	}
	px, err := before(ctx, func() (*imageproc.Pixels, error) { return e.videoPixels(v) })
	if err != nil {
		return nil, nil, e.told(err)
	}
	return e.described(px, videoKey(v))
}

func (e *Engine) videoPixels(v *imageproc.Video) (*imageproc.Pixels, error) {
	proc, ok := e.proc.(imageproc.VideoProcessor)
	if !ok || e.m.VideoToken() < 0 {
		return nil, fmt.Errorf(
			"engine: video: got %d frames, and %s takes no videos, only pictures",
			len(v.Frames), e.ck.Name)
	}
	return proc.ProcessVideo(v)
}

func (e *Engine) takesPictures() error {
	if e.proc == nil {
		return e.lacks(&e.ck.Parts().Processor, "which pictures need; give pixel_values instead")
	}
	return nil
}

// described returns the one picture in px.
func (e *Engine) described(px *imageproc.Pixels, key Key) (*image, model.Picture, error) {
	pics, err := e.m.Pictures(px)
	if err != nil {
		return nil, nil, err
	}
	im := &image{key: key, shape: pics[0].Shape(), frames: px.GridFrames(0)}
	return im, pics[0], nil
}

// pictureError says which picture of a request err is about, and what is wrong with it where
// err does not.
func pictureError(i int, fault errs.PictureFault, err error) error {
	var p *errs.PictureError
	if errors.As(err, &p) {
		named := *p
		named.Index = i
		return &named
	}
	return &errs.PictureError{Index: i, Fault: fault, Err: err}
}

// imagesMost is how many pictures' shapes are remembered.
const imagesMost = 256

// known returns what is known of a picture that was prepared before.
func (e *Engine) known(key Key) *image {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.images[key]
}

// learn remembers im. Where too many are remembered, any other goes.
func (e *Engine) learn(im *image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.images {
		if len(e.images) < imagesMost {
			break
		}
		delete(e.images, k)
	}
	e.images[im.key] = im
}

// featuresKey identifies what the decoder reads of p, for requests with the same salt.
func (e *Engine) featuresKey(p *picture, salt string) Key {
	how := []byte("whole") // methods inside the decoder get what the encoder made
	switch {
	case p.late != nil:
		how, _ = json.Marshal(p.late)
	case !p.whole():
		how, _ = json.Marshal(p.plan.Resolved) // numbers, texts and lists of them
	}
	if !p.whole() {
		if p.draws {
			how = fmt.Append(bytes.Clone(how), " picture ", p.index)
		}
	}
	return keyOf([]byte("features"), p.key[:], how, []byte(salt))
}

// picture is one place of a prompt where a picture, or a video, stands.
type picture struct {
	*image
	source   *Image // what it was prepared from, or
	video    *imageproc.Video
	prepared model.Picture // to be encoded; nil where that was not needed
	shared   *preparation  // where prepared came from; nil: it is this request's
	visual   *model.Visual // as it was encoded before; nil: it was not
	planned
	index int // in its message

	id     Key             // of the rows that the decoder reads
	entry  *entry          // of the feature cache; nil: the cache is not used
	tokens *features       // what the decoder reads; nil: not made yet
	inside *methods.Inside // of a method inside the decoder, once it has read the picture
	chosen int             // units of the prompt that it chose for; 0: of this one
	disk   bool            // the entry came from the store, for this request
	from   string          // cache that it came from
	spent  spent
}

// spent is the time that stages took.
type spent struct{ prepare, encode, choose, merge time.Duration }
