package qwen3vl

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/imageproc"
)

// clips is Qwen2VLImageProcessor with Qwen3VLVideoProcessor. A clip is sampled at a rate, its
// limits count the pixels of all frames, and each moment has a time.
type clips struct {
	*imageproc.Patches                    // of pictures
	frames             *imageproc.Patches // of clips
	rate               float64            // sampled frames per second; 0: all frames are read
	fewest, most       int                // sampled frames
	tokens             int                // most tokens of a frame; 0: no limit
}

var (
	_ imageproc.Limiter        = (*clips)(nil)
	_ imageproc.VideoProcessor = (*clips)(nil)
)

// half is the mean and standard deviation of Qwen3-VL's channels.
var half = [3]float64{0.5, 0.5, 0.5}

// clipDefaults are transformers'.
var clipDefaults = imageproc.Patches{
	Patch: 16, Temporal: 2, Merge: 2, MinPixels: 128 * 32 * 32, MaxPixels: 768 * 32 * 32,
	Mean: half, Std: half,
}

// withClips completes p by the settings of a video processor.
func withClips(r *imageproc.Settings, p imageproc.Processor) imageproc.Processor {
	c := &clips{
		frames: imageproc.PatchesOf(r, clipDefaults, math.MaxInt32),
		rate:   r.Float("fps", 2), fewest: r.Int("min_frames", 4, 1, maxFrames),
		most: r.Int("max_frames", 768, 1, maxFrames),
	}
	if n := r.Int("num_frames", 0, 0, maxFrames); n != 0 {
		r.Fail("num_frames", "got %d, which is not supported, want null (fps decides)", n)
	}
	if tokens := r.Int("max_video_tokens", 768, 1, 1<<20); r.Bool("cap_pixels_per_frame", false) {
		c.tokens = tokens
	}
	if !r.Bool("do_resize", true) {
		r.Fail("do_resize", "got false, which is not supported, want true")
	}
	if !r.Bool("do_sample_frames", true) {
		c.rate = 0
	}
	if r.Null("fps") {
		r.Fail("fps", "got null, which is not supported, want a number")
	}
	if !(c.rate >= 0 && c.rate <= imageproc.MaxFPS) {
		r.Fail("fps", "got %v, want 0 to %d", c.rate, imageproc.MaxFPS)
	}
	q, ok := p.(*imageproc.Patches)
	if !ok {
		return p // of another family, whose pixels this family's model refuses
	}
	c.Patches = q
	for _, s := range []struct {
		key       string
		got, want int
	}{
		{"patch_size", c.frames.Patch, q.Patch}, {"merge_size", c.frames.Merge, q.Merge},
		{"temporal_patch_size", c.frames.Temporal, q.Temporal},
	} {
		if s.got != s.want {
			r.Fail(s.key, "got %d, want the pictures' %d", s.got, s.want)
		}
	}
	return c
}

// maxFrames limits the settings of frames.
const maxFrames = 1 << 16

// Limit implements [imageproc.Limiter] for pictures. A clip keeps its limits.
func (c *clips) Limit(lo, hi int) (imageproc.Processor, error) {
	p, err := c.Patches.Limit(lo, hi)
	if err != nil {
		return nil, err
	}
	other := *c
	other.Patches = p.(*imageproc.Patches)
	return &other, nil
}

// sampled returns the indexes of the frames that are read of a clip of n frames.
func (c *clips) sampled(n int, fps float64) []int {
	most := n
	if c.rate > 0 {
		most = min(max(int(float64(n)/fps*c.rate), c.fewest), c.most, n)
	}
	out := make([]int, most)
	for i := range out {
		if i > 0 {
			out[i] = int(math.RoundToEven(float64(i) * (float64(n-1) / float64(most-1))))
		}
	}
	return out
}

// fit returns the size to which frames of w by h are resized if there are n of them. As in the
// reference, moments are rounded half to even here, though the last one is filled up.
func (c *clips) fit(n, w, h int) (ow, oh int, err error) {
	q, side := *c.frames, c.frames.Cell()
	if least := min(w, h); least < side {
		scale := float64(side) / float64(least)
		w, h = int(float64(w)*scale), int(float64(h)*scale)
	}
	if c.tokens > 0 {
		each := min(c.tokens*side*side, q.MaxPixels/n)
		q.MaxPixels = n * max(each, int(float64(q.MinPixels)*1.05))
	}
	moments := int(math.RoundToEven(float64(n) / float64(q.Temporal)))
	return q.Fit(n, moments*q.Temporal, w, h)
}

// ProcessVideo returns [patches, 3·temporal·patch·patch] like [imageproc.Patches.ProcessVideo], of
// the sampled frames, with the time of each moment in Times.
func (c *clips) ProcessVideo(v *imageproc.Video) (*imageproc.Pixels, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	at := c.sampled(len(v.Frames), v.FPS)
	if len(at) < c.frames.Temporal {
		return nil, fmt.Errorf("qwen3vl: video: got %d frames, of which %d are read, want at "+
			"least %d", len(v.Frames), len(at), c.frames.Temporal)
	}
	short := &imageproc.Video{FPS: v.FPS, Frames: v.Sampled(at)}
	first := short.Frames[0]
	ow, oh, err := c.fit(len(at), first.Width, first.Height)
	if err != nil {
		return nil, err
	}
	px, err := c.frames.Moments(short, ow, oh)
	if err != nil {
		return nil, err
	}
	px.Times = c.times(at, v.FPS)
	rate := float64(float64(len(at))/float64(len(v.Frames))) * v.FPS
	px.SecondsPerMoment = float64(c.frames.Temporal) / rate
	return px, nil
}

// times returns the seconds to the middle of each moment of the frames at; the last frame is
// repeated.
func (c *clips) times(at []int, fps float64) (out []float64) {
	n := c.frames.Temporal
	for m := 0; m < len(at); m += n {
		first, last := float64(at[m])/fps, float64(at[min(m+n, len(at))-1])/fps
		out = append(out, (first+last)/2)
	}
	return out
}
