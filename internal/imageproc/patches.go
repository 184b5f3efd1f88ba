package imageproc

import (
	"fmt"
	"math"
	"strconv"

	"github.com/restore-vlm/restore/errs"
)

// Patches is Qwen2-VL's Qwen2VLImageProcessor: both sides rounded to multiples of
// patch·merge within a pixel budget, a plain resize, and the picture cut into
// patches in the order of the merged 2×2 (merge×merge) blocks.
type Patches struct {
	class                  string
	minPixels, maxPixels   int
	patch, temporal, merge int
	doResize               bool
	filter                 Filter
	lut                    *lut
}

// Name implements Processor.
func (q *Patches) Name() string { return q.class }

// maxAspectRatio is the limit of the reference; exactly 200 is allowed.
const maxAspectRatio = 200

// NewPatches makes a [Patches].
func NewPatches(r *Settings) Processor {
	q := &Patches{
		class:    r.class,
		patch:    r.int("patch_size", 14, 1, 512),
		temporal: r.int("temporal_patch_size", 2, 1, 16),
		merge:    r.int("merge_size", 2, 1, 16),
		doResize: r.bool("do_resize", true),
		filter:   r.filter(Bicubic),
	}
	s := r.size("size", "", size{})
	lo, hi := 56*56, 28*28*1280
	switch {
	case len(s) == 0:
	case r.is("size", s, maxOutputPixels, "shortest_edge", "longest_edge"):
		lo, hi = s["shortest_edge"], s["longest_edge"]
	case r.is("size", s, maxOutputPixels, "min_pixels", "max_pixels"):
		lo, hi = s["min_pixels"], s["max_pixels"]
	default:
		r.fail("size", "got %s, want shortest_edge and longest_edge (numbers of pixels)",
			describe(s))
	}
	q.minPixels = r.int("min_pixels", lo, 1, maxOutputPixels)
	q.maxPixels = r.int("max_pixels", hi, 1, maxOutputPixels)
	if q.minPixels > q.maxPixels {
		r.fail("min_pixels", "got %d, more than max_pixels %d", q.minPixels, q.maxPixels)
	}
	if f := q.patch * q.merge; f*f > q.maxPixels {
		r.fail("max_pixels", "got %d, less than one block of %dx%d pixels", q.maxPixels, f, f)
	}
	q.lut = newLUT(r.normalisation())
	return q
}

// LimitPixels returns p with other limits on a resized picture's pixels than the checkpoint's; 0
// keeps a limit. Only Patches has such limits. The errors name the limits min-pixels and
// max-pixels.
func LimitPixels(p Processor, lo, hi int) (Processor, error) {
	if lo == 0 && hi == 0 {
		return p, nil
	}
	name, got := "min-pixels", lo
	if lo == 0 {
		name, got = "max-pixels", hi
	}
	q, ok := p.(*Patches)
	switch {
	case !ok:
		return nil, &errs.OptionError{
			Name: name, Got: strconv.Itoa(got), Why: withName(p), Fault: errs.Useless,
		}
	case !q.doResize:
		return nil, &errs.OptionError{
			Name: name, Got: strconv.Itoa(got), Why: "where do_resize is false",
			Fault: errs.Useless,
		}
	}
	out := *q
	if lo != 0 {
		out.minPixels = lo
	}
	if hi != 0 {
		out.maxPixels = hi
	}
	cell := q.patch * q.merge
	switch {
	case min(out.minPixels, out.maxPixels) < 1 ||
		max(out.minPixels, out.maxPixels) > maxOutputPixels:
		return nil, fmt.Errorf("imageproc: min-pixels and max-pixels: got %d and %d, want 1 to %d",
			out.minPixels, out.maxPixels, maxOutputPixels)
	case out.minPixels > out.maxPixels:
		return nil, fmt.Errorf("imageproc: min-pixels: got %d, want at most max-pixels %d",
			out.minPixels, out.maxPixels)
	case out.maxPixels < cell*cell:
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want at least %d (one visual "+
			"token of %dx%d pixels)", out.maxPixels, cell*cell, cell, cell)
	}
	return &out, nil
}

// smartSize returns the size to which a w×h picture is resized:
//
//	both sides to the nearest multiple of factor (half to even, possibly 0);
//	area over maxPixels:  factor·⌊side/β/factor⌋, at least factor, β = √(w·h/maxPixels)
//	area under minPixels: factor·⌈side·β/factor⌉, β = √(minPixels/(w·h))
func (q *Patches) smartSize(w, h int) (ow, oh int, err error) { return q.smartSizeOf(1, 1, w, h) }

// smartSizeOf is smartSize for n frames, whose limits count the pixels of all; whole is n rounded
// up to whole moments.
func (q *Patches) smartSizeOf(n, whole, w, h int) (ow, oh int, err error) {
	if r := float64(max(w, h)) / float64(min(w, h)); r > maxAspectRatio {
		return 0, 0, fmt.Errorf("imageproc: picture %dx%d: aspect ratio %.4g, limit %d", w, h, r,
			maxAspectRatio)
	}
	factor := q.patch * q.merge
	f, fn, fw, fh := float64(factor), float64(n), float64(w), float64(h)
	ow, oh = int(math.RoundToEven(fw/f))*factor, int(math.RoundToEven(fh/f))*factor
	switch {
	case whole*ow*oh > q.maxPixels:
		beta := math.Sqrt(fn * fw * fh / float64(q.maxPixels))
		ow = max(factor, int(math.Floor(fw/beta/f))*factor)
		oh = max(factor, int(math.Floor(fh/beta/f))*factor)
	case whole*ow*oh < q.minPixels:
		beta := math.Sqrt(float64(q.minPixels) / (fn * fw * fh))
		ow = ceil(float64(fw*beta)/f) * factor
		oh = ceil(float64(fh*beta)/f) * factor
	}
	return ow, oh, nil
}

func ceil(v float64) int { return int(math.Ceil(v)) }

// Process returns [patches, 3·temporal·patch·patch], the patches of all pictures concatenated, and
// the grid of each in GridTHW.
func (q *Patches) Process(pics []*Picture) (*Pixels, error) {
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	row := 3 * q.temporal * q.patch * q.patch
	px := &Pixels{Merge: q.merge}
	patches := 0
	for _, p := range pics {
		ow, oh, err := q.size(p)
		if err != nil {
			return nil, err
		}
		gw, gh := ow/q.patch, oh/q.patch
		patches += gw * gh
		if int64(patches)*int64(row) > maxOutputValues {
			return nil, fmt.Errorf(
				"imageproc: %d pictures: more than %d pixel values; lower max_pixels", len(pics),
				int64(maxOutputValues))
		}
		px.GridTHW = append(px.GridTHW, [3]int{1, gh, gw})
		px.ImageSizes = append(px.ImageSizes, [2]int{p.Height, p.Width})
		px.Frames = append(px.Frames, Frame{W: float64(p.Width), H: float64(p.Height)})
	}
	px.Shape = []int{patches, row}
	px.Data = make([]float32, patches*row)
	dst := px.Data
	for i, p := range pics {
		ow, oh := px.GridTHW[i][2]*q.patch, px.GridTHW[i][1]*q.patch
		u8 := make([]byte, ow*oh*3)
		if err := whole(p).resize(u8, ow*3, ow, oh, window{w: ow, h: oh}, q.filter); err != nil {
			return nil, fmt.Errorf("%w (picture %d of %d)", err, i+1, len(pics))
		}
		dst = q.patches(dst, u8, ow, oh, row, 0)
	}
	return px, nil
}

// ProcessVideo returns [patches, 3·temporal·patch·patch], moment by moment. A moment has temporal
// frames; the last moment is filled up with the last frame. All frames are resized to the same
// size.
func (q *Patches) ProcessVideo(v *Video) (*Pixels, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	ow, oh, err := q.size(v.Frames[0])
	if err != nil {
		return nil, err
	}
	return q.moments(v, ow, oh)
}

// check returns an error unless all frames have one size and their rate is known.
func (v *Video) check() error {
	if err := checkPictures(v.Frames); err != nil {
		return err
	}
	if !(v.FPS > 0 && v.FPS <= maxFPS) {
		return fmt.Errorf("imageproc: video: fps: got %v, want more than 0 and at most %d", v.FPS,
			maxFPS)
	}
	first := v.Frames[0]
	for i, p := range v.Frames {
		if p.Width != first.Width || p.Height != first.Height {
			return fmt.Errorf(
				"imageproc: video: frame %d of %d: got %dx%d, want the first frame's %dx%d", i+1,
				len(v.Frames), p.Width, p.Height, first.Width, first.Height)
		}
	}
	return nil
}

// moments cuts the frames of v, resized to ow by oh, into patches.
func (q *Patches) moments(v *Video, ow, oh int) (*Pixels, error) {
	first := v.Frames[0]
	moments := (len(v.Frames) + q.temporal - 1) / q.temporal
	row, each := 3*q.temporal*q.patch*q.patch, ow/q.patch*(oh/q.patch)
	if int64(moments) > maxOutputValues/(int64(each)*int64(row)) {
		return nil, fmt.Errorf("imageproc: video of %d frames: more than %d pixel values; "+
			"lower max_pixels", len(v.Frames), int64(maxOutputValues))
	}
	px := &Pixels{
		Shape: []int{moments * each, row}, Data: make([]float32, moments*each*row), Merge: q.merge,
		SecondsPerMoment: float64(q.temporal) / v.FPS,
		GridTHW:          [][3]int{{moments, oh / q.patch, ow / q.patch}},
		ImageSizes:       [][2]int{{first.Height, first.Width}},
	}
	dst, frame := px.Data, ow*oh*3
	u8 := make([]byte, q.temporal*frame)
	for m := range moments {
		for t := range q.temporal {
			i := min(m*q.temporal+t, len(v.Frames)-1)
			if err := whole(v.Frames[i]).resize(u8[t*frame:(t+1)*frame], ow*3, ow, oh,
				window{w: ow, h: oh}, q.filter); err != nil {
				return nil, fmt.Errorf("%w (frame %d of %d)", err, i+1, len(v.Frames))
			}
		}
		dst = q.patches(dst, u8, ow, oh, row, frame)
	}
	return px, nil
}

// maxFPS limits a video's frames per second.
const maxFPS = 1000

// size is smartSize, or without do_resize the picture's own size.
func (q *Patches) size(p *Picture) (ow, oh int, err error) {
	if q.doResize {
		return q.smartSize(p.Width, p.Height)
	}
	if f := q.patch * q.merge; p.Width%f != 0 || p.Height%f != 0 {
		return 0, 0, fmt.Errorf("imageproc: picture %dx%d: sides must be multiples of %d "+
			"when do_resize is false", p.Width, p.Height, f)
	}
	return p.Width, p.Height, nil
}

// patches writes the rows of one moment and returns the rest of dst. A row is
// [channel][frame][patch][patch]. Frames are frame bytes apart in u8; 0 means that all frames are
// the same picture.
func (q *Patches) patches(dst []float32, u8 []byte, ow, oh, row, frame int) []float32 {
	block := q.patch * q.merge
	for by := 0; by < oh; by += block {
		for bx := 0; bx < ow; bx += block {
			for y := by; y < by+block; y += q.patch {
				for x := bx; x < bx+block; x += q.patch {
					for t := range q.temporal {
						q.fill(dst[:row], u8[t*frame+(y*ow+x)*3:], ow*3, t)
					}
					dst = dst[row:]
				}
			}
		}
	}
	return dst
}

// fill writes frame t of one patch.
func (q *Patches) fill(dst []float32, src []byte, stride, t int) {
	n := q.patch * q.patch
	for c := range 3 {
		frame := dst[(c*q.temporal+t)*n:][:n]
		for y := range q.patch {
			s := src[y*stride:]
			for x := range q.patch {
				frame[y*q.patch+x] = q.lut[c][s[x*3+c]]
			}
		}
	}
}
