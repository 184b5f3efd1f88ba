package imageproc

import "fmt"

// OneVision is LLaVA-OneVision's LlavaOnevisionImageProcessor. The only picture of a prompt is cut
// into tiles (see [Tiles]). Of several pictures, each is centred on a square of its longer side in
// the mean colour, int(255·mean), and becomes one tile. The frames of a video are squashed to one
// tile each.
type OneVision struct {
	Tiles
	colour  [3]byte // of the padding
	several bool    // a picture is never the only one
}

// OneVisionCanvases are the canvases that published files may leave out: up to 6 by 6 tiles.
func OneVisionCanvases(tile int) (out [][2]int) {
	for rows := range 6 {
		for cols := range 6 {
			out = append(out, [2]int{(rows + 1) * tile, (cols + 1) * tile})
		}
	}
	return out
}

// NewOneVision makes a [OneVision].
func NewOneVision(r *Settings) Processor {
	n := r.normalisation()
	l := &OneVision{colour: n.background()}
	l.class, l.filter, l.lut = r.class, r.filter(Bicubic), newLUT(n)
	s := r.size("size", "square", size{"height": 384, "width": 384})
	if r.is("size", s, maxSide, "height", "width") && s["height"] == s["width"] {
		l.tile = s["height"]
	} else {
		r.fail("size", "got %s, want equal height and width", describe(s))
	}
	if !r.bool("do_resize", true) {
		r.fail("do_resize", "false is not supported")
	}
	l.canvases(r, OneVisionCanvases(l.tile))
	return l
}

// Several implements [CrowdProcessor].
func (l *OneVision) Several() Processor {
	other := *l
	other.several = true
	return &other
}

// Process returns [pictures, tiles, 3, tile, tile], like [Tiles.Process]. With several pictures,
// tiles is 1.
func (l *OneVision) Process(pics []*Picture) (*Pixels, error) {
	if len(pics) == 1 && !l.several {
		px, err := l.Tiles.Process(pics)
		if err == nil { // the decoder reads no padding
			px.Canvases = px.Frames
		}
		return px, err
	}
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	px := &Pixels{}
	views := make([]view, len(pics))
	for i, p := range pics {
		v := padSquare(p, l.colour)
		views[i] = v
		side := float64(v.width)
		px.Tiles = append(px.Tiles, 1)
		px.ImageSizes = append(px.ImageSizes, [2]int{p.Height, p.Width})
		px.Frames = append(px.Frames, Frame{X0: -float64(v.x), Y0: -float64(v.y), W: side, H: side})
	}
	err := l.squares(px, views)
	px.Shape = []int{len(pics), 1, 3, l.tile, l.tile}
	return px, err
}

// ProcessVideo returns [frames, 3, tile, tile]. All frames are read; the caller chooses them.
func (l *OneVision) ProcessVideo(v *Video) (*Pixels, error) {
	if err := checkPictures(v.Frames); err != nil {
		return nil, err
	}
	px := &Pixels{Shape: []int{len(v.Frames), 3, l.tile, l.tile}}
	views := make([]view, len(v.Frames))
	for i, p := range v.Frames {
		views[i] = whole(p)
	}
	return px, l.squares(px, views)
}

// squares resizes each view to one tile.
func (l *OneVision) squares(px *Pixels, views []view) error {
	n := 3 * l.tile * l.tile
	if err := checkOutput(len(views), n); err != nil {
		return err
	}
	px.Data = make([]float32, len(views)*n)
	u8 := make([]byte, n)
	for i := range views {
		if err := views[i].resize(u8, 3*l.tile, l.tile, l.tile, window{w: l.tile, h: l.tile},
			l.filter); err != nil {
			return fmt.Errorf("%w (picture %d of %d)", err, i+1, len(views))
		}
		l.lut.planes(px.Data[i*n:(i+1)*n], u8, 3*l.tile, l.tile, l.tile)
	}
	return nil
}
