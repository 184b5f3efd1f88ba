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

// Key is the SHA-256 of everything that a value depends on. Values with equal keys are equal.
type Key [sha256.Size]byte

// keyOf hashes parts, each preceded by its length.
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

// Image is a picture of a request: decoded pixels, or a file, which is decoded when needed. If the
// tokens of a file are cached, it is not decoded.
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

// image describes a picture or a video before it is encoded. Requests share it.
type image struct {
	key           Key
	shape         *model.Shape
	frames        []imageproc.Frame // the parts of the picture that its grids cover
	width, height int               // pixels; 0 for a video
}

// prepare computes the pixel values of a picture on a goroutine other than the device's.
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

// preparation is a picture that several requests need. One of them prepares it.
type preparation struct {
	key   Key
	users int           // requests that use it or wait for it
	made  chan struct{} // closed when the fields below are set
	im    *image
	pic   model.Picture
	err   error
}

// prepareShared is prepare for requests that share the result. It is kept until each of them has
// called unshare. A request that finds another's preparation failed tries again itself.
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

// unshare ends a request's share in a preparation.
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

// before returns the result of f, or the cause of ctx if ctx ends first; f then continues. A panic
// in f becomes an error.
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

// prepareVideo is prepare for a video.
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

// pictureError adds the picture's index in the request to err. fault is used if err is not a
// PictureError.
func pictureError(i int, fault errs.PictureFault, err error) error {
	var p *errs.PictureError
	if errors.As(err, &p) {
		named := *p
		named.Index = i
		return &named
	}
	return &errs.PictureError{Index: i, Fault: fault, Err: err}
}

// imagesMost is how many prepared pictures the engine remembers.
const imagesMost = 256

// known returns the description of a picture that was prepared before, or nil.
func (e *Engine) known(key Key) *image {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.images[key]
}

// learn remembers im. If there are too many, an arbitrary one is forgotten.
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

// featuresKey identifies the decoder's rows of p, among requests with the same salt.
func (e *Engine) featuresKey(p *picture, salt string) Key {
	how := []byte("whole") // with a method inside the decoder, features are the encoder's output
	switch {
	case p.late != nil:
		how, _ = json.Marshal(p.late)
	case !p.whole():
		how, _ = json.Marshal(p.plan.BeforeDecoder().Resolved) // numbers, texts and lists of them
	}
	if !p.whole() {
		if p.draws {
			how = fmt.Append(bytes.Clone(how), " picture ", p.index)
		}
	}
	return keyOf([]byte("features"), p.key[:], how, []byte(salt))
}

// rowsKey identifies what the decoder makes of p's rows, given their features' key.
func (e *Engine) rowsKey(p *picture, features Key) Key {
	switch {
	case p.chosenInside(): // the choice holds for this question only
		return e.unique()
	case p.late == nil && p.plan.First != nil: // late options are part of the features' key
		how, _ := json.Marshal(p.plan.Resolved)
		return keyOf([]byte("two stages"), features[:], how)
	}
	return features
}

// picture is a picture or a video at its place in a prompt.
type picture struct {
	*image
	source   *Image // the picture that it was prepared from, or
	video    *imageproc.Video
	prepared model.Picture // not encoded yet; nil if it need not be
	shared   *preparation  // shared source of prepared; nil: this request prepared it
	visual   *model.Visual // an earlier encoding of it; nil: none
	planned
	index int // within its message

	id     Key             // of the rows that the decoder reads
	entry  *entry          // in the feature cache; nil: the cache is not used
	tokens *features       // what the decoder reads; nil: not made yet
	inside *methods.Inside // set once the decoder has read the picture, if it reduces it
	chosen int             // end in units of the prompt its tokens were chosen for; 0: this one
	disk   bool            // this request loaded the entry from the store
	from   string          // the cache that the tokens came from
	spent  spent
}

// spent is the time that each stage took.
type spent struct{ prepare, encode, choose, merge time.Duration }
