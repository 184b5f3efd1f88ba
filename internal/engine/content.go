package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

// Pictures returns decoded pictures as pictures of a request.
func Pictures(decoded ...*imageproc.Picture) []*Image {
	out := make([]*Image, len(decoded))
	for i, p := range decoded {
		out[i] = &Image{Picture: p}
	}
	return out
}

// name is the name of the file in errors.
func (m *Image) name() string {
	if m.Name == "" {
		return "picture"
	}
	return m.Name
}

// decoded reports whether the picture is in memory as pixels, or missing.
func (m *Image) decoded() bool { return m.Picture != nil || m.File == nil }

// Size returns the number of pixels, of a file as its header says. The error says why the file
// cannot be decoded.
func (m *Image) Size() (int64, error) {
	switch {
	case m.Picture != nil:
		return int64(m.Picture.Width) * int64(m.Picture.Height), nil
	case m.File == nil:
		return 0, nil
	}
	w, h, err := imageproc.Size(m.File, m.name(), m.Decode)
	return int64(w) * int64(h), err
}

// Pixels returns the decoded picture.
func (m *Image) Pixels() (*imageproc.Picture, error) {
	if m.decoded() {
		return m.Picture, nil
	}
	return imageproc.Decode(m.File, m.name(), m.Decode)
}

// key identifies the picture's content.
func (m *Image) key() Key {
	if m.decoded() {
		return pixelsKey(m.Picture)
	}
	o := fmt.Sprint(m.Decode.EXIF)
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
	several       bool              // prepared as one of several pictures of a prompt
	before        *methods.Before   // what was left out before the encoder; nil: nothing
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

// remembered returns the description of a picture that was prepared before, or nil.
func (e *Engine) remembered(key Key) *image {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.images[key]
}

// remember keeps im. If there are too many, an arbitrary one is forgotten.
func (e *Engine) remember(im *image) {
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
	case p.asks(): // so are they with one that reads a text
		how, _ = json.Marshal(p.need)
		return keyOf([]byte("encoded"), p.key[:], how, []byte(salt))
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
	case p.asks(): // see setWords
		return e.unique()
	}
	return features
}

// picture is a picture or a video at its place in a prompt.
type picture struct {
	*image
	source   *Image // the picture that it was prepared from, or
	video    *imageproc.Video
	moment   int           // index in the video, if its moments are pictures of their own
	prepared model.Picture // not encoded yet; nil if it need not be
	rgb      []byte        // of prepared; see ready
	shared   *preparation  // that made prepared, for this request and others; nil: none
	visual   *model.Visual // an earlier encoding of it; nil: none
	deep     [][]float32   // Visual.Deep of the picture as it is being reduced
	planned
	index int     // within its message
	words []int32 // text that its method reads after the encoder

	id     Key             // of the rows that the decoder reads
	entry  *entry          // in the feature cache; nil: the cache is not used
	tokens *features       // what the decoder reads; nil: not made yet
	inside *methods.Inside // set once the decoder has read the picture, if it reduces it
	chosen int             // end in units of the prompt its tokens were chosen for; 0: this one
	stored string          // where this request loaded the entry from: FromDisk, FromShared or ""
	from   string          // the cache that the tokens came from
	spent  spent
}

// spent is the time that each stage took.
type spent struct{ prepare, encode, choose, merge time.Duration }
