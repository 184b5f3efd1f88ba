package qwen2vl

import "github.com/restore-vlm/restore/internal/imageproc"

// processor is Qwen2VLImageProcessor with Qwen2VLVideoProcessor, whose limits count the pixels of a
// frame.
type processor struct {
	*imageproc.Patches
	frames *imageproc.Patches
	tokens int // 0, or the tokens of which frames share nine tenths (cap_pixels_per_frame)
}

var (
	_ imageproc.Limiter        = (*processor)(nil)
	_ imageproc.VideoProcessor = (*processor)(nil)
)

// maxFrame limits the limits of a frame's pixels.
const maxFrame = 1 << 26

// withVideos completes p by the settings of a video processor. All frames are read.
func withVideos(r *imageproc.Settings, p imageproc.Processor) imageproc.Processor {
	frames := imageproc.PatchesOf(r, imageproc.Patches{
		Patch: 14, Temporal: 2, Merge: 2, MinPixels: 128 * 28 * 28, MaxPixels: 768 * 28 * 28,
		Mean: imageproc.CLIPMean, Std: imageproc.CLIPStd,
	}, maxFrame)
	tokens := r.Int("max_video_tokens", 128000, 1, 1<<20)
	if !r.Bool("cap_pixels_per_frame", false) {
		tokens = 0
	}
	q, ok := p.(*imageproc.Patches)
	if !ok {
		return p // of another family, whose pixels this family's model refuses
	}
	return &processor{q, frames, tokens}
}

// ProcessVideo implements [imageproc.VideoProcessor].
func (p *processor) ProcessVideo(v *imageproc.Video) (*imageproc.Pixels, error) {
	frames := *p.frames
	if n := int64(len(v.Frames)); p.tokens > 0 && n > 0 {
		cell := int64(frames.Cell())
		all := int64(float64(int64(p.tokens)*cell*cell) * 0.9)
		share := min(int64(frames.MaxPixels), all*int64(frames.Temporal)/n)
		frames.MaxPixels = max(int(share), int(float64(frames.MinPixels)*1.05))
	}
	return frames.ProcessVideo(v)
}

// Limit implements [imageproc.Limiter] for pictures and frames.
func (p *processor) Limit(lo, hi int) (imageproc.Processor, error) {
	pictures, err := p.Patches.Limit(lo, hi)
	if err != nil {
		return nil, err
	}
	frames, err := p.frames.Limit(lo, hi)
	if err != nil {
		return nil, err
	}
	return &processor{pictures.(*imageproc.Patches), frames.(*imageproc.Patches), p.tokens}, nil
}
