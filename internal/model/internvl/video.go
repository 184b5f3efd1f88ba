package internvl

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/imageproc"
)

// clips is GotOcr2ImageProcessor with InternVLVideoProcessor: each frame of a clip is squashed to
// one tile. All frames are read unless the settings say that they are sampled.
type clips struct {
	*imageproc.Crops                  // of pictures
	frames           imageproc.Square // of clips
	sample           bool             // not all frames are read
	count            int              // sampled frames; 0: rate says it
	rate             float64          // sampled frames per second
	middle           bool             // of equal parts of the clip, not their first frames
}

var (
	_ imageproc.Limiter        = (*clips)(nil)
	_ imageproc.VideoProcessor = (*clips)(nil)
)

// maxFrames limits the settings of frames.
const maxFrames = 1 << 16

// withClips completes p by the settings of a video processor.
func withClips(r *imageproc.Settings, p imageproc.Processor) imageproc.Processor {
	c := &clips{
		frames: r.Square(384, true), sample: r.Bool("do_sample_frames", false),
		count: r.Int("num_frames", 0, 1, maxFrames), rate: r.Float("fps", 0),
		middle: r.Bool("initial_shift", true),
	}
	if c.sample && c.count == 0 && !(c.rate > 0 && c.rate <= imageproc.MaxFPS) {
		r.Fail("num_frames", "missing, want it, or fps above 0 and at most %d, where frames are "+
			"sampled", imageproc.MaxFPS)
	}
	q, ok := p.(*imageproc.Crops)
	if !ok {
		return p // of another family, whose pixels this family's model refuses
	}
	if c.frames.Side != q.Side {
		r.Fail("size", "got %d, want the pictures' %d", c.frames.Side, q.Side)
	}
	c.Crops = q
	return c
}

// Limit implements [imageproc.Limiter] for pictures. A frame is one tile in any case.
func (c *clips) Limit(lo, hi int) (imageproc.Processor, error) {
	p, err := c.Crops.Limit(lo, hi)
	if err != nil {
		return nil, err
	}
	other := *c
	other.Crops = p.(*imageproc.Crops)
	return &other, nil
}

// sampled returns the indexes of the frames that are read of a clip of n frames: one of each of
// equal parts. The reference computes them in float64 and rounds them to float32.
func (c *clips) sampled(n int, fps float64) ([]int, error) {
	count := n
	if c.sample {
		if count = c.count; count == 0 {
			count = int(min(float64(n)/fps*c.rate, maxFrames))
		}
	}
	if count < 1 || count > n {
		return nil, fmt.Errorf("internvl: video: got %d frames at %v per second, of which %d are "+
			"sampled, want 1 to all", n, fps, count)
	}
	step, first := float64(n)/float64(count), 0.0
	if c.sample && c.middle {
		first = step / 2
	}
	var at []int
	for i := range int(math.Ceil((float64(n) - first) / step)) {
		at = append(at, int(float32(first+float64(step*float64(i)))))
	}
	return at, nil
}

// ProcessVideo returns [frames, 3, tile, tile] of the frames that are read.
func (c *clips) ProcessVideo(v *imageproc.Video) (*imageproc.Pixels, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	at, err := c.sampled(len(v.Frames), v.FPS)
	if err != nil {
		return nil, err
	}
	data, err := c.frames.Squash(v.Sampled(at))
	if err != nil {
		return nil, err
	}
	return &imageproc.Pixels{
		Shape: []int{len(at), 3, c.Side, c.Side}, Data: data,
		SecondsPerMoment: float64(len(v.Frames)) / v.FPS / float64(len(at)),
	}, nil
}
