package imageproc

import (
	"fmt"
	"math"
	"strconv"

	"github.com/restore-vlm/restore/errs"
)

// Patches is Qwen2-VL's Qwen2VLImageProcessor: both sides rounded to multiples of
// patch·merge within a pixel budget, a plain resize, and the picture cut into
// patches in the order of the merged 2×2 (merge×merge) blocks. It is also Pixtral's
// PixtralImageProcessor, with a limit to the longer side instead, as the class for Pillow (…Pil)
// computes it.
type Patches struct {
	Patch, Temporal, Merge int // pixels, frames, patches
	MinPixels, MaxPixels   int // of a resized picture
	// Longest is the most pixels along a side of Pixtral's pictures, which have no other limits; 0:
	// of others
	Longest int

	Mean, Std [3]float64

	class    string
	doResize bool
	filter   Filter
	lut      *lut
}

// Name implements Processor.
func (q *Patches) Name() string { return q.class }

// maxAspectRatio is the limit of the reference; exactly 200 is allowed.
const maxAspectRatio = 200

// NewPatches makes a [Patches].
func NewPatches(r *Settings) Processor {
	return PatchesOf(r, Patches{
		Patch: 14, Temporal: 2, Merge: 2, MinPixels: 56 * 56, MaxPixels: 28 * 28 * 1280,
		Mean: CLIPMean, Std: CLIPStd,
	}, maxOutputPixels)
}

// PatchesOf makes a [Patches] with the defaults def. No limit is above most pixels.
func PatchesOf(r *Settings, def Patches, most int) *Patches {
	q := &Patches{
		class:    r.class,
		Patch:    r.Int("patch_size", def.Patch, 1, 512),
		Temporal: r.Int("temporal_patch_size", def.Temporal, 1, 16),
		Merge:    r.Int("merge_size", def.Merge, 1, 16),
		doResize: r.Bool("do_resize", true),
		filter:   r.filter(Bicubic),
	}
	s := r.size("size", false, size{})
	lo, hi := def.MinPixels, def.MaxPixels
	switch {
	case len(s) == 0:
	case r.is("size", s, most, "shortest_edge", "longest_edge"):
		lo, hi = s["shortest_edge"], s["longest_edge"]
	case r.is("size", s, most, "min_pixels", "max_pixels"):
		lo, hi = s["min_pixels"], s["max_pixels"]
	default:
		r.Fail("size", "got %s, want shortest_edge and longest_edge (numbers of pixels)",
			describe(s))
	}
	q.MinPixels = r.Int("min_pixels", lo, 1, most)
	q.MaxPixels = r.Int("max_pixels", hi, 1, most)
	if q.MinPixels > q.MaxPixels {
		r.Fail("min_pixels", "got %d, more than max_pixels %d", q.MinPixels, q.MaxPixels)
	}
	if f := q.Cell(); f*f > q.MaxPixels {
		r.Fail("max_pixels", "got %d, less than one block of %dx%d pixels", q.MaxPixels, f, f)
	}
	n := r.normalisation(def.Mean, def.Std)
	q.Mean, q.Std, q.lut = n.Mean, n.Std, newLUT(n)
	return q
}

// Cell returns the side of a block in pixels.
func (q *Patches) Cell() int { return q.Patch * q.Merge }

// Limiter is a Processor with limits on a resized picture's pixels.
type Limiter interface {
	Processor
	// Limit returns the processor with other limits than the checkpoint's; 0 keeps a limit.
	Limit(lo, hi int) (Processor, error)
}

var _ Limiter = (*Patches)(nil)

// LimitPixels returns p with other limits, if it is a [Limiter]. The errors name the limits
// min-pixels and max-pixels.
func LimitPixels(p Processor, lo, hi int) (Processor, error) {
	if lo == 0 && hi == 0 {
		return p, nil
	}
	if l, ok := p.(Limiter); ok {
		return l.Limit(lo, hi)
	}
	return nil, noLimits(lo, hi, withName(p))
}

// noLimits is the error for limits that have no effect because of why.
func noLimits(lo, hi int, why string) error {
	name, got := "min-pixels", lo
	if lo == 0 {
		name, got = "max-pixels", hi
	}
	return &errs.OptionError{Name: name, Got: strconv.Itoa(got), Why: why, Fault: errs.Useless}
}

// NewLongest makes a [Patches] that prepares pictures as transformers' PixtralImageProcessor. The
// settings do not have the sides of patches and blocks (see [Patches.Cells]).
func NewLongest(r *Settings) Processor {
	q := &Patches{
		class: r.class, Patch: 16, Temporal: 1, Merge: 1,
		doResize: r.Bool("do_resize", true), filter: r.filter(Bicubic),
	}
	s := r.size("size", true, size{"longest_edge": 1024})
	switch {
	case r.is("size", s, maxSide, "longest_edge"):
		q.Longest = s["longest_edge"]
	case r.is("size", s, maxSide, "height", "width") && s["height"] == s["width"]:
		q.Longest = s["height"]
	default:
		r.Fail("size", "got %s, want longest_edge, or equal height and width", describe(s))
	}
	n := r.normalisation(CLIPMean, CLIPStd)
	q.Mean, q.Std, q.lut = n.Mean, n.Std, newLUT(n)
	r.Bool("do_pad", true) // pads only lists of pictures, with pixels that nothing reads
	return q
}

// Cells returns the processor with patches and blocks of other sides than the settings'.
func (q *Patches) Cells(patch, merge int) *Patches {
	out := *q
	out.Patch, out.Merge = patch, merge
	return &out
}

// limitLongest is Limit if Longest limits pictures: it becomes the side of the largest square with
// at most hi pixels.
func (q *Patches) limitLongest(lo, hi int) (Processor, error) {
	out := *q
	out.Longest = int(math.Sqrt(float64(hi)))
	switch cell := q.Cell(); {
	case lo != 0:
		return nil, noLimits(lo, hi, withName(q)+", which enlarges no pictures")
	case out.Longest < cell || out.Longest > maxSide:
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want %d (one visual token of "+
			"%dx%[3]d pixels) to %d", hi, cell*cell, cell, maxSide*maxSide)
	}
	return &out, nil
}

// Limit implements [Limiter].
func (q *Patches) Limit(lo, hi int) (Processor, error) {
	if !q.doResize {
		return nil, noLimits(lo, hi, "where do_resize is false")
	}
	if q.Longest > 0 {
		return q.limitLongest(lo, hi)
	}
	out := *q
	if lo != 0 {
		out.MinPixels = lo
	}
	if hi != 0 {
		out.MaxPixels = hi
	}
	cell := q.Cell()
	switch {
	case min(out.MinPixels, out.MaxPixels) < 1 ||
		max(out.MinPixels, out.MaxPixels) > maxOutputPixels:
		return nil, fmt.Errorf("imageproc: min-pixels and max-pixels: got %d and %d, want 1 to %d",
			out.MinPixels, out.MaxPixels, maxOutputPixels)
	case out.MinPixels > out.MaxPixels:
		return nil, fmt.Errorf("imageproc: min-pixels: got %d, want at most max-pixels %d",
			out.MinPixels, out.MaxPixels)
	case out.MaxPixels < cell*cell:
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want at least %d (one visual "+
			"token of %dx%d pixels)", out.MaxPixels, cell*cell, cell, cell)
	}
	return &out, nil
}

// Fit returns the size to which n frames of w by h pixels, of which the limits count all, are
// resized (a picture is one frame). moments is n in whole moments:
//
//	both sides to the nearest multiple of factor (half to even, possibly 0);
//	moments·area over MaxPixels:  factor·⌊side/β/factor⌋, at least factor, β = √(n·w·h/MaxPixels)
//	moments·area under MinPixels: factor·⌈side·β/factor⌉, β = √(MinPixels/(n·w·h))
func (q *Patches) Fit(n, moments, w, h int) (ow, oh int, err error) {
	if r := float64(max(w, h)) / float64(min(w, h)); r > maxAspectRatio {
		return 0, 0, fmt.Errorf("imageproc: picture %dx%d: aspect ratio %.4g, limit %d", w, h, r,
			maxAspectRatio)
	}
	factor := q.Cell()
	f, fn, fw, fh := float64(factor), float64(n), float64(w), float64(h)
	ow, oh = int(math.RoundToEven(fw/f))*factor, int(math.RoundToEven(fh/f))*factor
	switch {
	case moments*ow*oh > q.MaxPixels:
		beta := math.Sqrt(fn * fw * fh / float64(q.MaxPixels))
		ow = max(factor, int(math.Floor(fw/beta/f))*factor)
		oh = max(factor, int(math.Floor(fh/beta/f))*factor)
	case moments*ow*oh < q.MinPixels:
		beta := math.Sqrt(float64(q.MinPixels) / (fn * fw * fh))
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
	row := 3 * q.Temporal * q.Patch * q.Patch
	px := &Pixels{Merge: q.Merge}
	patches := 0
	for _, p := range pics {
		ow, oh, err := q.size(p)
		if err != nil {
			return nil, err
		}
		gw, gh := ow/q.Patch, oh/q.Patch
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
		ow, oh := px.GridTHW[i][2]*q.Patch, px.GridTHW[i][1]*q.Patch
		u8 := make([]byte, ow*oh*3)
		if err := whole(p).resize(u8, ow*3, ow, oh, window{w: ow, h: oh}, q.filter); err != nil {
			return nil, fmt.Errorf("%w (picture %d of %d)", err, i+1, len(pics))
		}
		dst = q.patches(dst, u8, ow, oh, row, 0)
		px.RGB = append(px.RGB, u8)
	}
	return px, nil
}

// ProcessVideo returns [patches, 3·temporal·patch·patch], moment by moment. A moment has temporal
// frames; the last moment is filled up with the last frame. All frames are resized to the same
// size.
func (q *Patches) ProcessVideo(v *Video) (*Pixels, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	ow, oh, err := q.size(v.Frames[0])
	if err != nil {
		return nil, err
	}
	return q.Moments(v, ow, oh)
}

// Check returns an error unless all frames have one size and their rate is known.
func (v *Video) Check() error {
	if err := checkPictures(v.Frames); err != nil {
		return err
	}
	if !(v.FPS > 0 && v.FPS <= MaxFPS) {
		return fmt.Errorf("imageproc: video: fps: got %v, want more than 0 and at most %d", v.FPS,
			MaxFPS)
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

// Sampled returns the frames with the indexes at.
func (v *Video) Sampled(at []int) []*Picture {
	out := make([]*Picture, len(at))
	for i, k := range at {
		out[i] = v.Frames[k]
	}
	return out
}

// Moments cuts the frames of v, resized to ow by oh, into patches.
func (q *Patches) Moments(v *Video, ow, oh int) (*Pixels, error) {
	first := v.Frames[0]
	moments := (len(v.Frames) + q.Temporal - 1) / q.Temporal
	row, each := 3*q.Temporal*q.Patch*q.Patch, ow/q.Patch*(oh/q.Patch)
	if int64(moments) > maxOutputValues/(int64(each)*int64(row)) {
		return nil, fmt.Errorf("imageproc: video of %d frames: more than %d pixel values; "+
			"lower max_pixels", len(v.Frames), int64(maxOutputValues))
	}
	px := &Pixels{
		Shape: []int{moments * each, row}, Data: make([]float32, moments*each*row), Merge: q.Merge,
		SecondsPerMoment: float64(q.Temporal) / v.FPS,
		GridTHW:          [][3]int{{moments, oh / q.Patch, ow / q.Patch}},
		ImageSizes:       [][2]int{{first.Height, first.Width}},
	}
	dst, frame := px.Data, ow*oh*3
	u8 := make([]byte, q.Temporal*frame)
	for m := range moments {
		for t := range q.Temporal {
			i := min(m*q.Temporal+t, len(v.Frames)-1)
			if err := whole(v.Frames[i]).resize(u8[t*frame:(t+1)*frame], ow*3, ow, oh,
				window{w: ow, h: oh}, q.filter); err != nil {
				return nil, fmt.Errorf("%w (frame %d of %d)", err, i+1, len(v.Frames))
			}
		}
		dst = q.patches(dst, u8, ow, oh, row, frame)
	}
	return px, nil
}

// MaxFPS limits a video's frames per second.
const MaxFPS = 1000

// Within returns the size to which a picture of w by h pixels is resized if Longest limits it: both
// sides in proportion, rounded down, if one is longer, and then each up to a multiple of a block.
func (q *Patches) Within(w, h int) (ow, oh int, err error) {
	fw, fh, longest := float64(w), float64(h), float64(q.Longest)
	ow, oh = w, h
	if ratio := max(fh/longest, fw/longest); ratio > 1 {
		ow, oh = int(fw/ratio), int(fh/ratio)
	}
	if min(ow, oh) < 1 {
		return 0, 0, fmt.Errorf("imageproc: picture %dx%d: with a longest edge of %d pixels, "+
			"%dx%d are left, want at least one along each side", w, h, q.Longest, ow, oh)
	}
	up := func(n int) int { return (n + q.Cell() - 1) / q.Cell() * q.Cell() }
	return up(ow), up(oh), nil
}

// size is Fit or Within, or without do_resize the picture's own size.
func (q *Patches) size(p *Picture) (ow, oh int, err error) {
	switch {
	case q.doResize && q.Longest > 0:
		return q.Within(p.Width, p.Height)
	case q.doResize:
		return q.Fit(1, 1, p.Width, p.Height)
	}
	if f := q.Cell(); p.Width%f != 0 || p.Height%f != 0 {
		return 0, 0, fmt.Errorf("imageproc: picture %dx%d: sides must be multiples of %d "+
			"when do_resize is false", p.Width, p.Height, f)
	}
	return p.Width, p.Height, nil
}

// patches writes the rows of one moment and returns the rest of dst. A row is
// [channel][frame][patch][patch]. Frames are frame bytes apart in u8; 0 means that all frames are
// the same picture.
func (q *Patches) patches(dst []float32, u8 []byte, ow, oh, row, frame int) []float32 {
	block := q.Cell()
	for by := 0; by < oh; by += block {
		for bx := 0; bx < ow; bx += block {
			for y := by; y < by+block; y += q.Patch {
				for x := bx; x < bx+block; x += q.Patch {
					for t := range q.Temporal {
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
	n := q.Patch * q.Patch
	for c := range 3 {
		frame := dst[(c*q.Temporal+t)*n:][:n]
		for y := range q.Patch {
			s := src[y*stride:]
			for x := range q.Patch {
				frame[y*q.Patch+x] = q.lut[c][s[x*3+c]]
			}
		}
	}
}
