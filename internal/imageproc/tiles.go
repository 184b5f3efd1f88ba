package imageproc

import (
	"cmp"
	"fmt"
	"slices"
)

// Tiles is LLaVA-NeXT's LlavaNextImageProcessor: the whole picture squashed to one
// tile (the base), then the picture resized into the best fitting of several
// canvases, centred on black and cut into tiles row by row.
type Tiles struct {
	Square    // of a tile
	class     string
	pinpoints [][2]int // canvases, [height, width], multiples of the tile
	most      int      // pixels of a canvas; 0: any number
}

var _ Limiter = (*Tiles)(nil)

// Name implements Processor.
func (l *Tiles) Name() string { return l.class }

// Canvases are the canvases that published files leave out.
var Canvases = [][2]int{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}}

// MaxTiles bounds a canvas; published models have at most 36.
const MaxTiles = 256

// NewTiles makes a [Tiles].
func NewTiles(r *Settings) Processor {
	c := r.clip()
	tile := Square{Side: c.cropHeight, filter: c.filter, lut: c.lut}
	side := c.edge
	if side == 0 && c.height == c.width {
		side = c.height
	}
	// then do_resize and do_center_crop have no effect: they are for tiles that are cut already
	if c.cropHeight != c.cropWidth || side != tile.Side {
		r.Fail("size", "the resized side and crop_size must be one square tile, got size %d, "+
			"crop %dx%d", side, c.cropHeight, c.cropWidth)
	}
	return TilesOf(r, tile, Canvases)
}

// TilesOf makes a [Tiles] of a tile's settings. It reads the canvases, by default those given.
func TilesOf(r *Settings, tile Square, pinpoints [][2]int) *Tiles {
	l := &Tiles{Square: tile, class: r.class, pinpoints: pinpoints}
	r.Bool("do_pad", true) // pads only lists of pictures, with tiles that nothing reads
	if v, ok := r.raw("image_grid_pinpoints"); ok {
		l.pinpoints = r.pinpoints("image_grid_pinpoints", v)
	}
	if len(l.pinpoints) == 0 {
		r.Fail("image_grid_pinpoints", "got an empty list, want [height, width] pairs")
	}
	crop := r.size("crop_size", true, size{"height": l.Side, "width": l.Side})
	if crop["height"] != l.Side || crop["width"] != l.Side { // the tile's side in transformers
		r.Fail("crop_size", "got %s, want the size %d", describe(crop), l.Side)
	}
	if r.err != nil {
		return l // the tile may be 0
	}
	for _, p := range l.pinpoints {
		switch rows, cols := p[0]/l.Side, p[1]/l.Side; {
		case rows < 1 || cols < 1 || p[0]%l.Side != 0 || p[1]%l.Side != 0 ||
			rows > MaxTiles || cols > MaxTiles || rows*cols > MaxTiles:
			r.Fail("image_grid_pinpoints", "got [%d, %d], want multiples of the tile %d and "+
				"at most %d tiles", p[0], p[1], l.Side, MaxTiles)
		case int64(p[0])*int64(p[1]) > maxOutputPixels:
			r.Fail("image_grid_pinpoints", "got [%d, %d], want at most %d pixels", p[0], p[1],
				maxOutputPixels)
		}
	}
	return l
}

// fit is the place of a picture on a canvas.
type fit struct {
	height, width int // canvas
	ow, oh, x, y  int // resized picture and its place
}

// Canvas chooses, among canvases of [height, width], the one that keeps the most pixels of a
// picture of w by h; ties go to the least unused area, then to the first.
func Canvas(canvases [][2]int, w, h int) (height, width int) {
	bestKept, bestWaste := -1, 0
	for _, p := range canvases {
		scale := min(float64(p[1])/float64(w), float64(p[0])/float64(h))
		dw, dh := int(float64(w)*scale), int(float64(h)*scale)
		kept := min(dw*dh, w*h)
		waste := p[0]*p[1] - kept
		if kept > bestKept || kept == bestKept && waste < bestWaste {
			bestKept, bestWaste = kept, waste
			height, width = p[0], p[1]
		}
	}
	return height, width
}

// Within returns the canvases of at most that many pixels; 0: of any number.
func Within(canvases [][2]int, most int) [][2]int {
	if most == 0 {
		return canvases
	}
	return slices.DeleteFunc(slices.Clone(canvases), func(p [2]int) bool { return area(p) > most })
}

// area is the number of a canvas's pixels.
func area(canvas [2]int) int { return canvas[0] * canvas[1] }

// Limit implements [Limiter]: it leaves out the canvases of more than hi pixels.
func (l *Tiles) Limit(lo, hi int) (Processor, error) {
	compare := func(a, b [2]int) int { return cmp.Compare(area(a), area(b)) }
	least := slices.MinFunc(l.pinpoints, compare)
	most := area(slices.MaxFunc(l.pinpoints, compare))
	switch {
	case lo != 0:
		return nil, noLimits(lo, hi, withName(l)+", which puts pictures on given canvases")
	case hi >= most:
		return nil, noLimits(lo, hi, fmt.Sprintf("where no canvas of image_grid_pinpoints has "+
			"more than %d", most))
	case hi < area(least):
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want at least %d (the smallest "+
			"canvas of image_grid_pinpoints, %dx%d pixels)", hi, area(least), least[0], least[1])
	}
	out := *l
	out.pinpoints, out.most = Within(l.pinpoints, hi), hi
	return &out, nil
}

// fit places a picture on its canvas.
func (l *Tiles) fit(w, h int) fit {
	var f fit
	f.height, f.width = Canvas(l.pinpoints, w, h)
	sw, sh := float64(f.width)/float64(w), float64(f.height)/float64(h)
	if sw < sh {
		f.ow, f.oh = f.width, min(ceil(float64(h)*sw), f.height)
	} else {
		f.ow, f.oh = min(ceil(float64(w)*sh), f.width), f.height
	}
	f.x, f.y = (f.width-f.ow)/2, (f.height-f.oh)/2
	return f
}

// frame is the canvas in p's pixels.
func (f *fit) frame(p *Picture) Frame {
	sx, sy := float64(p.Width)/float64(f.ow), float64(p.Height)/float64(f.oh)
	return Frame{
		X0: -float64(f.x) * sx, Y0: -float64(f.y) * sy, W: float64(f.width) * sx,
		H: float64(f.height) * sy,
	}
}

// Process returns [pictures, tiles, 3, tile, tile], where tiles is the largest number of tiles of a
// picture; the others are padded with tiles of zeros.
func (l *Tiles) Process(pics []*Picture) (*Pixels, error) {
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	px := &Pixels{MostPixels: l.most}
	fits := make([]fit, len(pics))
	most := 0
	for i, p := range pics {
		fits[i] = l.fit(p.Width, p.Height)
		tiles := 1 + fits[i].height/l.Side*(fits[i].width/l.Side)
		most = max(most, tiles)
		px.Tiles = append(px.Tiles, tiles)
		px.CanvasSizes = append(px.CanvasSizes, [2]int{fits[i].height, fits[i].width})
		px.ImageSizes = append(px.ImageSizes, [2]int{p.Height, p.Width})
		px.Frames = append(px.Frames, Frame{W: float64(p.Width), H: float64(p.Height)})
		px.Canvases = append(px.Canvases, fits[i].frame(p))
	}
	n := 3 * l.Side * l.Side
	if err := checkOutput(len(pics), most*n); err != nil {
		return nil, err
	}
	px.Shape = []int{len(pics), most, 3, l.Side, l.Side}
	px.Data = make([]float32, len(pics)*most*n)
	for i, p := range pics {
		base, canvas, err := l.bytes(p, fits[i])
		if err != nil {
			return nil, fmt.Errorf("%w (picture %d of %d)", err, i+1, len(pics))
		}
		dst := l.lut.tiles(px.Data[i*most*n:], base, l.Side, l.Side, l.Side)
		l.lut.tiles(dst, canvas, fits[i].width, fits[i].height, l.Side)
	}
	return px, nil
}

// bytes returns the base tile and the canvas before cutting.
func (l *Tiles) bytes(p *Picture, f fit) (base, canvas []byte, err error) {
	base = make([]byte, l.Side*l.Side*3)
	if err := whole(p).resize(base, l.Side*3, l.Side, l.Side, window{w: l.Side, h: l.Side},
		l.filter); err != nil {
		return nil, nil, err
	}
	canvas = make([]byte, f.width*f.height*3)
	dst := canvas[(f.y*f.width+f.x)*3:]
	if err := whole(p).resize(dst, f.width*3, f.ow, f.oh, window{w: f.ow, h: f.oh},
		l.filter); err != nil {
		return nil, nil, err
	}
	return base, canvas, nil
}
