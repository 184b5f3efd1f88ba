package onevision

import "github.com/restore-vlm/restore/internal/imageproc"

// processor is LlavaOnevisionImageProcessor. The only picture of a prompt is cut into tiles (see
// [imageproc.Tiles]). Of several pictures, each is centred on a square of its longer side in the
// mean colour, and becomes one tile. With LlavaOnevisionVideoProcessor, the frames of a video are
// squashed to one tile each.
type processor struct {
	*imageproc.Tiles
	frames  imageproc.Square
	several bool // a picture is never the only one
}

var (
	_ imageproc.CrowdProcessor = (*processor)(nil)
	_ imageproc.Limiter        = (*processor)(nil)
	_ imageproc.VideoProcessor = (*processor)(nil)
)

// side is the published side of a tile, the default.
const side = 384

// canvases are the canvases that published files may leave out: up to 6 by 6 tiles.
func canvases(tile int) (out [][2]int) {
	for rows := range 6 {
		for cols := range 6 {
			out = append(out, [2]int{(rows + 1) * tile, (cols + 1) * tile})
		}
	}
	return out
}

func newProcessor(r *imageproc.Settings) imageproc.Processor {
	tile := r.Square(side, true) // of a number, tiles are squares in any case
	return &processor{Tiles: imageproc.TilesOf(r, tile, canvases(tile.Side)), frames: tile}
}

// withVideos completes p by the settings of a video processor.
func withVideos(r *imageproc.Settings, p imageproc.Processor) imageproc.Processor {
	r.Bool("do_pad", true) // in the pictures' settings, and of no effect here
	frames := r.Square(side, false)
	q, ok := p.(*processor)
	if !ok {
		return p // of another family: it takes no videos, or its model refuses them
	}
	if frames.Side != q.Side {
		r.Fail("size", "got %d, want the pictures' %d", frames.Side, q.Side)
	}
	other := *q
	other.frames = frames
	return &other
}

// Limit implements [imageproc.Limiter] for the only picture of a prompt.
func (p *processor) Limit(lo, hi int) (imageproc.Processor, error) {
	tiles, err := p.Tiles.Limit(lo, hi)
	if err != nil {
		return nil, err
	}
	other := *p
	other.Tiles = tiles.(*imageproc.Tiles)
	return &other, nil
}

// Several implements [imageproc.CrowdProcessor].
func (p *processor) Several() imageproc.Processor {
	other := *p
	other.several = true
	return &other
}

// Process returns [pictures, tiles, 3, tile, tile], like [imageproc.Tiles.Process]. With several
// pictures, tiles is 1.
func (p *processor) Process(pics []*imageproc.Picture) (*imageproc.Pixels, error) {
	if len(pics) == 1 && !p.several {
		px, err := p.Tiles.Process(pics)
		if err == nil { // the decoder reads no padding
			px.Canvases = px.Frames
		}
		return px, err
	}
	data, frames, err := p.Centre(pics)
	if err != nil {
		return nil, err
	}
	px := &imageproc.Pixels{
		Shape: []int{len(pics), 1, 3, p.Side, p.Side}, Data: data, Frames: frames,
	}
	for _, pic := range pics {
		px.Tiles = append(px.Tiles, 1)
		px.ImageSizes = append(px.ImageSizes, [2]int{pic.Height, pic.Width})
	}
	return px, nil
}

// ProcessVideo returns [frames, 3, tile, tile]. All frames are read; the caller chooses them.
func (p *processor) ProcessVideo(v *imageproc.Video) (*imageproc.Pixels, error) {
	data, err := p.frames.Squash(v.Frames)
	if err != nil {
		return nil, err
	}
	return &imageproc.Pixels{Shape: []int{len(v.Frames), 3, p.Side, p.Side}, Data: data}, nil
}
