package qwen2vl

import "github.com/restore-vlm/restore/internal/imageproc"

// processor is Qwen2VLImageProcessor with Qwen2VLVideoProcessor, whose limits count the pixels of a
// frame.
type processor struct {
	*imageproc.Patches
	frames *imageproc.Patches
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
	q, ok := p.(*imageproc.Patches)
	if !ok {
		return p // of another family, whose pixels this family's model refuses
	}
	return &processor{q, frames}
}

// ProcessVideo implements [imageproc.VideoProcessor].
func (p *processor) ProcessVideo(v *imageproc.Video) (*imageproc.Pixels, error) {
	return p.frames.ProcessVideo(v)
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
	return &processor{pictures.(*imageproc.Patches), frames.(*imageproc.Patches)}, nil
}
