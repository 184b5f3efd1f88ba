package engine

import (
	recent "container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/reduce"
)

// sizes are classes of pictures. Each class has its own limit, in order of arrival, so that a small
// picture never waits for larger ones.
var sizes = [...]struct{ largest, together int64 }{ // pixels of a picture, and of all at once
	{1 << 20, 4 << 20}, {8 << 20, 16 << 20}, {math.MaxInt64, 64 << 20},
}

// smallest is how many pixels a picture counts for at least: each has a goroutine and a file.
const smallest = 1 << 16

// room limits the pixels of the pictures that are decoded and processed at once.
type room [len(sizes)]*semaphore.Weighted

func newRoom() room {
	var r room
	for i := range r {
		r[i] = semaphore.NewWeighted(sizes[i].together)
	}
	return r
}

// enter waits for room for a picture of n pixels. leave frees it.
func (r *room) enter(ctx context.Context, n int64) (leave func(), err error) {
	class := 0
	for n > sizes[class].largest {
		class++
	}
	n = min(max(n, smallest), sizes[class].together) // a larger one is alone
	if err := r[class].Acquire(ctx, n); err != nil {
		return nil, err
	}
	return func() { r[class].Release(n) }, nil
}

// ready is a picture, or a moment of a video, that can be encoded.
type ready struct {
	*image
	prepared model.Picture
	bytes    int64  // of its pixel values
	rgb      []byte // see imageproc.Pixels; nil once methods before the encoder have read it
}

// preparation makes the pixel values of a picture or a video on a goroutine of its own, for one
// request or for several.
type preparation struct {
	key    Key                // in Engine.shared, if it is there
	users  int                // requests that use it or wait for it
	cancel context.CancelFunc // ends the wait for room once there are no users

	encoded *model.Visual   // everything that methods read; nil: not encoded, or not kept
	unused  *recent.Element // in Engine.encoded while encoded is kept without users

	made   chan struct{} // closed when the fields below are set
	waited time.Duration // for room
	pics   []ready       // one, of a video perhaps several moments
	err    error
}

// task is the work of a preparation.
type task struct {
	size func() (int64, error) // pixels
	make func() ([]ready, error)
}

// start starts a preparation for one user.
func (e *Engine) start(t task) *preparation {
	ctx, cancel := context.WithCancel(context.Background())
	s := &preparation{users: 1, cancel: cancel, made: make(chan struct{})}
	go s.run(ctx, e, t)
	return s
}

// run does the work. A picture that is being decoded keeps its room until that ends, even if no
// request needs it any more. A panic becomes the preparation's error.
func (s *preparation) run(ctx context.Context, e *Engine, t task) {
	defer close(s.made)
	defer func() {
		if v := recover(); v != nil {
			s.err = e.publicError(&model.Panic{Value: v, Stack: debug.Stack()})
		}
	}()
	var n int64
	if n, s.err = t.size(); s.err != nil {
		return
	}
	start := time.Now()
	leave, err := e.room.enter(ctx, n)
	if s.waited = time.Since(start); err != nil {
		s.err = err
		return
	}
	defer leave()
	s.pics, s.err = t.make()
}

// wait returns the prepared forms of the i-th picture of a request, or the cause of ctx if ctx ends
// first.
func (s *preparation) wait(ctx context.Context, i int) ([]ready, error) {
	select {
	case <-s.made:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var p *errs.PictureError
	if errors.As(s.err, &p) {
		return nil, pictureError(i, p.Fault, s.err)
	}
	return s.pics, s.err
}

// shareOf returns the preparation of a picture for all requests with the same salt. Its users are
// counted: each must call [Engine.unshare].
func (e *Engine) shareOf(m *Image, as way, salt string) *preparation {
	key := keyOf(as.key[:], []byte(salt))
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shared[key]
	if s != nil {
		s.users++
		e.encoded.take(s)
		return s
	}
	s = e.start(e.imageTask(m, as))
	s.key = key
	e.shared[key] = s
	return s
}

// unshare ends a request's use of a preparation.
func (e *Engine) unshare(s *preparation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	s.cancel()
	if e.shared[s.key] != s {
		return
	}
	for _, old := range e.encoded.keep(s) {
		delete(e.shared, old.key)
	}
}

// keptPictures are the encoded pictures that no request uses, within a limit of bytes.
type keptPictures struct {
	most, bytes int64
	order       recent.List // of *preparation, newest first
}

// keep keeps s, and returns those that are forgotten, perhaps s itself.
func (k *keptPictures) keep(s *preparation) (forgotten []*preparation) {
	if s.encoded == nil {
		return []*preparation{s}
	}
	s.unused = k.order.PushFront(s)
	for k.bytes += s.bytes(); k.bytes > k.most; {
		old := k.order.Back().Value.(*preparation)
		k.take(old)
		forgotten = append(forgotten, old)
	}
	return forgotten
}

// take removes s, if it is kept.
func (k *keptPictures) take(s *preparation) {
	if s.unused != nil {
		k.order.Remove(s.unused)
		s.unused = nil
		k.bytes -= s.bytes()
	}
}

// bytes is the memory of an encoded picture.
func (s *preparation) bytes() int64 {
	return s.pics[0].bytes + int64(len(s.pics[0].rgb)) + visualBytes(s.encoded)
}

// visualBytes is the memory of an encoded picture.
func visualBytes(v *model.Visual) int64 {
	n := len(v.X) + len(v.ViewsX) + len(v.ClsAttn) + len(v.Hidden) + len(v.Keys) +
		len(v.LastQuery) + len(v.LastKeys) + len(v.Cells)
	for _, level := range v.Deep {
		n += len(level)
	}
	for _, taps := range []map[int][]float32{v.Class, v.Received} {
		for _, a := range taps {
			n += len(a)
		}
	}
	return 4 * int64(n)
}

// encode returns the encoding of the picture with what many methods read, and with need. Only the
// device's goroutine calls it.
func (s *preparation) encode(e *Engine, r *model.Run, need model.Needs) (*model.Visual, error) {
	p := s.pics[0].prepared
	need = need.With(model.Needs{ClsAttn: true, Keys: true, Last: !p.Shape().NoClass})
	if s.encoded != nil {
		if s.encoded.Needs.Cover(&need) {
			return s.encoded, nil
		}
		need = need.With(s.encoded.Needs)
	}
	v, err := e.m.Encode(r, []model.Picture{p}, need)
	if err == nil {
		err = e.device.end() // then the encoding may be incomplete
	}
	if err != nil {
		return nil, err
	}
	if e.encoded.most > 0 {
		e.mu.Lock()
		defer e.mu.Unlock()
		s.encoded = v[0]
	}
	return v[0], nil
}

// prepare prepares a picture for one request. Its errors name the i-th picture.
func (e *Engine) prepare(ctx context.Context, t task, i int) ([]ready, error) {
	if err := e.takesPictures(); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := e.start(t)
	defer e.unshare(s)
	return s.wait(ctx, i)
}

// way tells how a picture is prepared.
type way struct {
	key     Key // of the picture so prepared
	several bool
	before  *methods.Before // leaves out tokens; nil: nothing does
}

// as returns how the picture with that key is prepared in a prompt with pictures pictures.
func (e *Engine) as(key Key, pictures int, before *methods.Before) way {
	w := way{beforeKey(key, before), pictures > 1 && e.several != nil, before}
	if w.several {
		w.key = keyOf(w.key[:], []byte("one of several"))
	}
	return w
}

// beforeKey is the key of a picture after a method before the encoder.
func beforeKey(key Key, b *methods.Before) Key {
	if b == nil {
		return key
	}
	values, _ := json.Marshal(b.Values()) // names, numbers and texts
	return keyOf(key[:], []byte("before"), []byte(b.Name()), values)
}

// leaveOut leaves out the tokens of r that b does not let the encoder see.
func (e *Engine) leaveOut(r *ready, b *methods.Before) error {
	s := r.shape
	d, ok := r.prepared.(model.Divisible)
	switch {
	case !ok:
		return cannotBefore(b, needsAll)
	case s.Video:
		return cannotBefore(b, "only one frame is compared, and this is a video")
	case r.rgb == nil:
		return cannotBefore(b, "it compares pixels, and only pixel values are given")
	}
	in := &reduce.Input{N: s.N, GridH: s.GridH, GridW: s.GridW}
	show(in, r.rgb)
	p, err := b.Choose(in)
	if err != nil {
		return err
	}
	if len(p.Kept) < p.N {
		r.shape = s.Only(p)
		r.prepared = d.Only(r.shape, b.LogSizes(p))
		r.bytes = r.bytes * int64(len(p.Kept)) / int64(p.N)
	}
	return nil
}

// needsAll is why an encoder cannot leave out tokens.
const needsAll = "this model's encoder needs all patches of a picture; what it would see without " +
	"some of them is not defined"

// show sets the pixels of in, whose tokens are a whole grid.
func show(in *reduce.Input, rgb []byte) {
	in.Pixels, in.Cell = rgb, int(math.Sqrt(float64(len(rgb)/3/in.N)))
}

// cannotBefore returns the error for a picture of which b cannot leave out tokens.
func cannotBefore(b *methods.Before, why string) error {
	return fmt.Errorf("engine: %w", &errs.OptionError{
		Name: b.Option, Got: b.Name(), Want: "another method", Why: why, Fault: errs.Conflict,
	})
}

// imageTask makes the pixel values of a picture.
func (e *Engine) imageTask(m *Image, as way) task {
	return task{m.Size, func() ([]ready, error) {
		pic, err := m.Pixels()
		if err != nil {
			return nil, pictureError(-1, errs.Undecodable, err)
		}
		proc := e.proc
		if as.several {
			proc = e.several
		}
		px, err := proc.Process([]*imageproc.Picture{pic})
		if err != nil {
			return nil, pictureError(-1, errs.BadShape, err)
		}
		made, err := e.described(px, as.key)
		if err != nil {
			return nil, err
		}
		made[0].width, made[0].height = pic.Width, pic.Height
		made[0].several, made[0].before = as.several, as.before
		if as.before != nil {
			if err := e.leaveOut(&made[0], as.before); err != nil {
				return nil, err
			}
			made[0].rgb = nil
		}
		return made, nil
	}}
}

// videoTask makes the pixel values of a video.
func (e *Engine) videoTask(v *imageproc.Video) task {
	size := func() (n int64, _ error) {
		for _, f := range v.Frames {
			n += int64(f.Width) * int64(f.Height)
		}
		return n, nil
	}
	return task{size, func() ([]ready, error) {
		px, err := e.videoPixels(v)
		if err != nil {
			return nil, err
		}
		return e.described(px, videoKey(v))
	}}
}

func (e *Engine) videoPixels(v *imageproc.Video) (*imageproc.Pixels, error) {
	proc := e.videos()
	if proc != nil {
		return proc.ProcessVideo(v)
	}
	why := e.ck.Name + " takes no videos"
	if e.noVideos != nil {
		why = "the model takes videos only with other settings: " + e.noVideos.Error()
	}
	return nil, fmt.Errorf("engine: %w", &errs.OptionError{
		Name: "video", Got: fmt.Sprintf("%d frames", len(v.Frames)), Want: "pictures alone",
		Why: why, Fault: errs.Conflict,
	})
}

// videos returns the processor of videos; nil if the model takes none.
func (e *Engine) videos() imageproc.VideoProcessor {
	proc, ok := e.proc.(imageproc.VideoProcessor)
	if !ok || e.noVideos != nil || e.m.VideoToken() < 0 {
		return nil
	}
	return proc
}

func (e *Engine) takesPictures() error {
	if e.proc == nil {
		return e.lacks(&e.ck.Parts().Processor, "which pictures need; give pixel_values instead")
	}
	return nil
}

// described returns the picture in px, or the moments of the video.
func (e *Engine) described(px *imageproc.Pixels, key Key) ([]ready, error) {
	pics, err := e.m.Pictures(px)
	if err != nil {
		return nil, err
	}
	out := make([]ready, len(pics))
	for i, p := range pics {
		im := &image{key: key, shape: p.Shape(), frames: px.GridFrames(i)}
		if i > 0 {
			im.key = keyOf(key[:], fmt.Append(nil, "moment ", i))
		}
		out[i] = ready{image: im, prepared: p, bytes: int64(4 * len(px.Data) / len(pics))}
		if i < len(px.RGB) {
			out[i].rgb = px.RGB[i]
		}
	}
	return out, nil
}
