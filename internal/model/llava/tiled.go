package llava

import (
	"fmt"
	"strconv"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Tiled is a model that sees a picture in square views: the whole picture, squashed, and the tiles
// of the canvas on which it lies. All views of all pictures of a request go through the encoder as
// one batch.
type Tiled struct {
	*Model
	newline []float32 // [text hidden]
	lay     Lay
}

// Lay returns the pictures of px, or its video.
type Lay func(m *Tiled, px *imageproc.Pixels) ([]*Tiles, error)

// Newline is the source of a newline, see [model.Views].
const Newline = -1

// ReadTiles reads the settings that models in tiles have besides. canvases are those of files that
// leave them out; strategy is the vision_feature_select_strategy that the model has.
func (c *Config) ReadTiles(v *model.Values, canvases [][2]int, strategy string) {
	const key = "image_grid_pinpoints"
	c.Canvases = v.Pairs(key, canvases, 1, 1<<20)
	for _, p := range c.Canvases {
		side := c.Vision.ImageSide
		if h, w := p[0]/side, p[1]/side; p[0]%side != 0 || p[1]%side != 0 ||
			h > imageproc.MaxTiles || h*w > imageproc.MaxTiles {
			v.Fail(key, "got %v, want multiples of the tile side %d (vision_config's "+
				"image_size), at most %d tiles", p, side, imageproc.MaxTiles)
		}
	}
	v.Unsupported(map[string]string{
		"vision_feature_select_strategy": strconv.Quote(strategy),
		"use_image_newline_parameter":    "true",
	})
}

// NewTiled binds ck; the error lists every weight that does not fit config.json. views is the
// number of views of the picture whose sizes are reported, and fields are more facts about the
// encoder.
func NewTiled(
	ck *model.Source, c *Config, architecture string, views int, lay Lay, fields ...model.Field,
) (model.Multimodal, error) {
	b := model.NewBinder(ck)
	t := &Tiled{bind(b, c), b.Vector("image_newline", "text hidden", c.Text.Hidden), lay}
	if err := t.finish(b, architecture); err != nil {
		return nil, err
	}
	t.info.Sizes.Views = views
	t.info.Sizes.Tokens *= views
	t.info.Vision = append(t.info.Vision, model.Field{
		Name: "canvases (height, width)", Value: c.Canvases,
	})
	t.info.Vision = append(t.info.Vision, fields...)
	return t, nil
}

// Tiles is one picture or video as views [Count, 3, side, side].
type Tiles struct {
	m     *Model
	px    []float32
	Count int
	rows  []nn.Mix
	shape *model.Shape
}

// Tiles returns a picture, of which px are the views. rows tells which patches make each row of the
// tokens; nil: a row is a patch.
func (m *Model) Tiles(px []float32, v *model.Views, rows []nn.Mix) *Tiles {
	s := &model.Shape{N: len(v.Source), Fixed: "it cuts pictures into tiles", Views: v}
	if m.fillShape(s); rows != nil {
		s.T = len(rows) + 1
	}
	return &Tiles{m, px, v.Count, rows, s}
}

// Shape implements model.Picture.
func (p *Tiles) Shape() *model.Shape { return p.shape }

// Within implements model.Picture.
func (p *Tiles) Within(r *model.Run, w *methods.Encoding) ([]float32, error) {
	if p.shape.Closed != "" {
		return nil, fmt.Errorf("llava: %s", p.shape.Closed)
	}
	return p.m.vision.EncodeWithin(r, p.px, p.Count, p.m.cfg.Features[0], w)
}

// Shrink implements model.Picture: it returns an error, because tiles cannot be shrunk.
func (p *Tiles) Shrink(*model.Run, int, int) ([]float32, [][]float32, error) {
	return nil, nil, fmt.Errorf("llava: %s", p.shape.Fixed)
}

// Pictures implements model.Multimodal.
func (m *Tiled) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	all, err := m.lay(m, px)
	if err != nil {
		return nil, err
	}
	pics := make([]model.Picture, len(all))
	for i, p := range all {
		pics[i] = p
	}
	return pics, nil
}

// Square reports whether the last axes of a shape are those of square pictures.
func (m *Model) Square(shape []int) bool {
	side, n := m.vision.ImageSide, len(shape)-3
	return n >= 0 && shape[0] > 0 && shape[n] == 3 && shape[n+1] == side && shape[n+2] == side
}

// maxSide is the largest side of a picture in pixels.
const maxSide = 1 << 24

// CheckSize refuses a height and width that no picture has.
func CheckSize(s [2]int) error {
	if min(s[0], s[1]) < 1 || max(s[0], s[1]) > maxSide {
		return fmt.Errorf("llava: image_sizes: got %v, want height and width of 1 to %d", s,
			maxSide)
	}
	return nil
}

// Cut checks px, [pictures, views, 3, side, side], against the config, and returns the pictures.
// pack gives the views and rows of a picture of h by w pixels, as for Tiles; have is how many views
// px has of it.
func (m *Tiled) Cut(
	px *imageproc.Pixels, pack func(h, w, have int) (*model.Views, []nn.Mix),
) ([]*Tiles, error) {
	side := m.vision.ImageSide
	if len(px.Shape) != 5 || !m.Square(px.Shape) {
		return nil, fmt.Errorf("llava: pixel_values: shape %v, want [pictures views 3 %d %d] "+
			"(config's image_size)", px.Shape, side, side)
	}
	if len(px.ImageSizes) != px.Shape[0] {
		return nil, fmt.Errorf("llava: image_sizes: got %d, want one [height width] for "+
			"each of %d pictures", len(px.ImageSizes), px.Shape[0])
	}
	one := 3 * side * side
	pics := make([]*Tiles, px.Shape[0])
	for i, s := range px.ImageSizes {
		if err := CheckSize(s); err != nil {
			return nil, err
		}
		if h, w := imageproc.Canvas(m.cfg.Canvases, s[1], s[0]); i < len(px.CanvasSizes) &&
			px.CanvasSizes[i] != [2]int{h, w} {
			return nil, fmt.Errorf("llava: preprocessor_config.json: image_grid_pinpoints: a "+
				"picture of %v is put on %v, want %v as config.json's image_grid_pinpoints says",
				s, px.CanvasSizes[i], [2]int{h, w})
		}
		have := px.Shape[1]
		if i < len(px.Tiles) {
			have = px.Tiles[i]
		}
		v, rows := pack(s[0], s[1], have)
		if have < v.Count || have > v.Count && i < len(px.Tiles) {
			return nil, fmt.Errorf("llava: pixel_values: %d views for picture %d of %v, want %d "+
				"(config's image_grid_pinpoints)", have, i, s, v.Count)
		}
		first := i * px.Shape[1] * one
		pics[i] = m.Tiles(px.Data[first:first+v.Count*one], v, rows)
	}
	return pics, nil
}

// EncodeWork implements model.Multimodal.
func (m *Tiled) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	pics, err := m.lay(m, px)
	if err != nil {
		return 0, 0
	}
	return m.work(views(pics))
}

// EncodeBytes implements model.Multimodal.
func (m *Tiled) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	pics, err := m.lay(m, px)
	if err != nil {
		return 0
	}
	n := m.bytes(views(pics))
	for _, p := range pics {
		each := m.w2.Out
		if p.rows != nil { // the rows, and their features, too
			each += m.w2.Out + m.w1.In
		}
		n += 4 * int64(p.shape.N) * int64(each)
	}
	return n
}

// views is the number of views of all pictures.
func views(pics []*Tiles) (n int) {
	for _, p := range pics {
		n += p.Count
	}
	return n
}

// Encode implements model.Multimodal.
func (m *Tiled) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px, n := make([][]float32, len(pics)), 0
	for i, p := range pics {
		px[i] = p.(*Tiles).px
		n += p.(*Tiles).Count
	}
	sq, err := m.squares(r, nn.Joined(px), n, need)
	if err != nil {
		return nil, err
	}
	visuals := make([]*model.Visual, len(pics))
	var packed []float32
	n = 0
	for i, p := range pics {
		p := p.(*Tiles)
		visuals[i] = m.visual(r, sq, n, p)
		n += p.Count
		if r.Trace != nil {
			packed = append(packed, visuals[i].X...)
		}
	}
	if r.Trace != nil {
		r.Trace("packed", []int{len(packed) / sq.C, sq.C}, packed)
	}
	return visuals, nil
}

// visual returns the picture whose first view is item first of sq. Where several patches make a
// row, all that reducers read is blended like the tokens.
func (m *Tiled) visual(r *model.Run, sq *squares, first int, p *Tiles) *model.Visual {
	s := p.shape
	v := sq.slice(first, p.Count, s)
	lo, hi := first*sq.N, (first+p.Count)*sq.N
	v.ViewsX = sq.X[lo*sq.C : hi*sq.C]
	if p.rows != nil {
		blend := func(src []float32, width int) []float32 {
			return nn.BlendHeads(r.Pool, src, p.rows, sq.Heads, sq.N, lo, hi, width)
		}
		v.ViewsX = make([]float32, len(p.rows)*sq.C)
		nn.Blend(r.Pool, v.ViewsX, sq.X[lo*sq.C:hi*sq.C], p.rows, sq.C)
		v.Hidden = make([]float32, s.T*sq.Cv)
		nn.Blend(r.Pool, v.Hidden[sq.Cv:], sq.Selected[lo*sq.Cv:hi*sq.Cv], p.rows, sq.Cv)
		v.CellDim, v.Cells = sq.Cv, v.Hidden[sq.Cv:]
		v.ClsAttn, v.Keys = blend(sq.ClsAttn, 1), blend(sq.Keys, sq.KeyDim)
		for block, received := range sq.Received {
			v.Received[block] = blend(received, 1)
		}
	}
	v.X = make([]float32, s.N*sq.C)
	nn.GatherFill(v.X, v.ViewsX, s.Views.Source, sq.C, m.newline)
	return v
}

// Map is the stitched map of a picture's tiles, in patches, without the padding of the canvas.
type Map struct {
	Views      int // of the picture: the whole, and the tiles
	Rows, Cols int
	Top, Left  int // rows of padding above and below, columns left and right
	side       int // patches along a tile
	across     int // tiles
}

// Map returns the map of a picture of h by w pixels.
func (c *Config) Map(h, w int) *Map {
	ch, cw := imageproc.Canvas(c.Canvases, w, h)
	down, across := ch/c.Vision.ImageSide, cw/c.Vision.ImageSide
	m := &Map{Views: 1 + down*across, side: c.Vision.Grid(), across: across}
	rows, cols := down*m.side, across*m.side
	m.Top, m.Left = uncovered(h, w, rows, cols)
	m.Rows, m.Cols = rows-2*m.Top, cols-2*m.Left
	return m
}

// Patch returns the view that shows a place of the map, also one of the padding, and the index of
// the place's patch.
func (m *Map) Patch(y, x int) (view, index int) {
	y, x = y+m.Top, x+m.Left
	view = 1 + y/m.side*m.across + x/m.side
	return view, (view*m.side+y%m.side)*m.side + x%m.side
}

// uncovered returns how many rows at top and bottom, or columns at left and right, of a rows by
// cols map show nothing of a picture of h by w pixels. An odd excess leaves one row or column of
// padding.
func uncovered(h, w, rows, cols int) (top, left int) {
	if float64(w)/float64(h) > float64(cols)/float64(rows) {
		return (rows - scaled(h, float64(cols)/float64(w))) / 2, 0
	}
	return 0, (cols - scaled(w, float64(rows)/float64(h))) / 2
}

// scaled returns n·by, rounded to 7 decimals and then truncated, so that a product just below a
// whole number becomes that number.
func scaled(n int, by float64) int {
	f, _ := strconv.ParseFloat(strconv.FormatFloat(float64(n)*by, 'f', 7, 64), 64)
	return int(f)
}
