package imageproc

import (
	"encoding/json"
	"fmt"
	"math"
)

// Clips is Qwen3-VL's Qwen3VLVideoProcessor with its picture processor. A clip is sampled at a
// rate, its limits count the pixels of all frames, and each moment has a time.
type Clips struct {
	Patches
	rate                 float64 // sampled frames per second; 0: all frames are read
	fewest, most         int     // sampled frames
	minPixels, maxPixels int     // of all frames
	perFrame             int     // pixels; 0: no limit
}

// VideoKind is a kind of video processor. New completes the picture processor p.
type VideoKind struct {
	Classes []string // in transformers; the first one names the kind
	New     func(r *Settings, p Processor) Processor
}

// WithVideo returns p completed by the video processor that video_preprocessor_config.json
// describes, if it is one of kinds; otherwise p.
func WithVideo(p Processor, videoConfigJSON []byte, kinds []VideoKind) (Processor, error) {
	r, err := newSettings("video processor config", videoConfigJSON)
	if err != nil {
		return nil, err
	}
	name := r.string("video_processor_type")
	for _, k := range kinds {
		for _, class := range k.Classes {
			if class == name {
				r.class = class
				p = k.New(r, p)
				return p, r.err
			}
		}
	}
	return p, r.err
}

// NewClips makes a [Clips]. Absent settings have the defaults of transformers 5.23.
func NewClips(r *Settings, p Processor) Processor {
	q, ok := p.(*Patches)
	if !ok {
		r.fail("video_processor_type", "got %s, which does not go %s", r.class, withName(p))
		return p
	}
	c := &Clips{
		Patches: *q, rate: r.float("fps", 2), fewest: r.int("min_frames", 4, 1, maxFrames),
		most: r.int("max_frames", 768, 1, maxFrames), minPixels: 4096, maxPixels: 25165824,
	}
	s := r.size("size", "", size{})
	if len(s) > 0 && r.is("size", s, math.MaxInt32, "shortest_edge", "longest_edge") {
		c.minPixels, c.maxPixels = s["shortest_edge"], s["longest_edge"]
	} else if len(s) > 0 {
		r.fail("size", "got %s, want shortest_edge and longest_edge (numbers of pixels of all "+
			"frames)", describe(s))
	}
	for key, want := range map[string]int{
		"patch_size": q.patch, "temporal_patch_size": q.temporal, "merge_size": q.merge,
	} {
		if got := r.int(key, want, 1, maxSide); got != want {
			r.fail(key, "got %d, want the pictures' %d", got, want)
		}
	}
	if r.bool("cap_pixels_per_frame", false) {
		side := q.patch * q.merge
		c.perFrame = r.int("max_video_tokens", 768, 1, 1<<20) * side * side
	}
	if !r.bool("do_sample_frames", true) {
		c.rate = 0
	}
	if !(c.rate >= 0 && c.rate <= maxFPS) {
		r.fail("fps", "got %v, want 0 to %d", c.rate, maxFPS)
	}
	return c
}

// maxFrames limits the settings of frames.
const maxFrames = 1 << 16

// sampled returns the indexes of the frames that are read of a clip of n frames.
func (c *Clips) sampled(n int, fps float64) []int {
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

// clipSize returns the size to which frames of w by h are resized if there are n of them.
func (c *Clips) clipSize(n, w, h int) (ow, oh int, err error) {
	side := c.patch * c.merge
	if least := min(w, h); least < side {
		scale := float64(side) / float64(least)
		w, h = int(float64(w)*scale), int(float64(h)*scale)
	}
	q := c.Patches
	frames := (n + q.temporal - 1) / q.temporal * q.temporal
	q.minPixels, q.maxPixels = c.minPixels, c.maxPixels
	if c.perFrame > 0 {
		q.maxPixels = min(q.maxPixels, c.perFrame*n)
	}
	return q.smartSizeOf(n, frames, w, h)
}

// ProcessVideo returns [patches, 3·temporal·patch·patch] like [Patches.ProcessVideo], of the
// sampled frames, with the time of each moment in Times.
func (c *Clips) ProcessVideo(v *Video) (*Pixels, error) {
	if len(v.Frames) < 2 {
		return nil, fmt.Errorf("imageproc: video: got %d frames, want at least 2", len(v.Frames))
	}
	if err := v.check(); err != nil {
		return nil, err
	}
	at := c.sampled(len(v.Frames), v.FPS)
	short := &Video{FPS: v.FPS}
	for _, i := range at {
		short.Frames = append(short.Frames, v.Frames[i])
	}
	first := short.Frames[0]
	ow, oh, err := c.clipSize(len(at), first.Width, first.Height)
	if err != nil {
		return nil, err
	}
	px, err := c.moments(short, ow, oh)
	if err != nil {
		return nil, err
	}
	px.Times = c.times(at, v.FPS)
	return px, nil
}

// times returns the seconds to the middle of each moment of the frames at; the last frame is
// repeated.
func (c *Clips) times(at []int, fps float64) (out []float64) {
	for m := 0; m < len(at); m += c.temporal {
		first, last := float64(at[m])/fps, float64(at[min(m+c.temporal, len(at))-1])/fps
		out = append(out, (first+last)/2)
	}
	return out
}

// newSettings reads the settings of what, a JSON object.
func newSettings(what string, data []byte) (*Settings, error) {
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("imageproc: %s: %d bytes, limit %d", what, len(data), maxConfigBytes)
	}
	r := &Settings{seen: map[string]bool{}}
	if err := json.Unmarshal(data, &r.m); err != nil {
		return nil, fmt.Errorf("imageproc: %s: not a JSON object: %w", what, err)
	}
	return r, nil
}
