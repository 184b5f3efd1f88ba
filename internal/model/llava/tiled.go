package llava

import (
	"fmt"
	"strconv"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Newline is the source of a newline, see [model.Views].
const Newline = -1

// ReadTiles reads the settings that only models in tiles have. canvases are the default for files
// that leave them out; strategy is the vision_feature_select_strategy that the model has.
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

// NewTiled binds a model in tiles to ck; the error lists every weight that does not fit
// config.json. views is the number of views of the picture whose sizes are reported, and fields are
// more facts about the encoder.
func NewTiled(
	ck *model.Source, c *Config, architecture string, views int, lay Lay, fields ...model.Field,
) (model.Multimodal, error) {
	b := model.NewBinder(ck)
	t := bind(b, c, lay)
	t.newline = b.Vector("image_newline", "text hidden", c.Text.Hidden)
	if err := t.finish(b, architecture); err != nil {
		return nil, err
	}
	t.About.Sizes.Views = views
	t.About.Sizes.Tokens *= views
	t.About.Vision = append(t.About.Vision, model.Field{
		Name: "canvases (height, width)", Value: c.Canvases,
	})
	t.About.Vision = append(t.About.Vision, fields...)
	return t, nil
}

// Tiles returns a picture, of which px are the views. rows tells which patches make each row of the
// tokens; nil: a row is a patch.
func (m *Model) Tiles(px []float32, v *model.Views, rows []nn.Mix) *Picture {
	if n := m.vision.Tokens(); rows == nil && m.vision.SigLIP {
		rows = patches(v.Count * n)
		for i := range rows {
			v.Of = append(v.Of, int32(i/n))
		}
	}
	s := &model.Shape{N: len(v.Source), Fixed: "it cuts pictures into tiles", Views: v}
	if m.fillShape(s); rows != nil {
		s.T = len(rows) + 1
	}
	return &Picture{m, px, v.Count, rows, s}
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
// pack gives the views and rows of a picture with that map, as for Tiles; have is how many views px
// has of it.
func (m *Model) Cut(
	px *imageproc.Pixels, pack func(tiles *Map, have int) (*model.Views, []nn.Mix),
) ([]*Picture, error) {
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
	pics := make([]*Picture, px.Shape[0])
	canvases := imageproc.Within(m.cfg.Canvases, px.MostPixels)
	for i, s := range px.ImageSizes {
		if err := CheckSize(s); err != nil {
			return nil, err
		}
		h, w := imageproc.Canvas(canvases, s[1], s[0])
		if i < len(px.CanvasSizes) && px.CanvasSizes[i] != [2]int{h, w} {
			return nil, fmt.Errorf("llava: preprocessor_config.json: image_grid_pinpoints: a "+
				"picture of %v is put on %v, want %v as config.json's image_grid_pinpoints says",
				s, px.CanvasSizes[i], [2]int{h, w})
		}
		have := px.Shape[1]
		if i < len(px.Tiles) {
			have = px.Tiles[i]
		}
		v, rows := pack(m.cfg.on(h, w, s), have)
		if have < v.Count || have > v.Count && i < len(px.Tiles) {
			return nil, fmt.Errorf("llava: pixel_values: %d views for picture %d of %v, want %d "+
				"(config's image_grid_pinpoints)", have, i, s, v.Count)
		}
		first := i * px.Shape[1] * one
		pics[i] = m.Tiles(px.Data[first:first+v.Count*one], v, rows)
	}
	return pics, nil
}

// blend makes the rows of v, whose first view is item first of sq, of patches: the tokens, and all
// that reducers read, with zeros in the place of the class token's row.
func (p *Picture) blend(r *model.Run, v *model.Visual, sq *squares, first int) {
	lo, hi := first*sq.N, (first+p.Count)*sq.N
	heads := func(src []float32, width int) []float32 {
		return nn.BlendHeads(r.Pool, src, p.rows, sq.Heads, sq.N, lo, hi, width)
	}
	x := make([]float32, len(p.rows)*sq.C)
	nn.Blend(r.Pool, x, v.X, p.rows, sq.C)
	v.X, v.Hidden = x, make([]float32, v.T*sq.Cv)
	nn.Blend(r.Pool, v.Hidden[sq.Cv:], sq.Selected[lo*sq.Cv:hi*sq.Cv], p.rows, sq.Cv)
	v.CellDim, v.Cells = sq.Cv, v.Hidden[sq.Cv:]
	v.ClsAttn, v.Keys = heads(sq.ClsAttn, 1), heads(sq.Keys, sq.KeyDim)
	for block, received := range sq.Received {
		v.Received[block] = heads(received, 1)
	}
}

// stitch makes the tokens of v of the rows of its views.
func (m *Model) stitch(v *model.Visual) {
	v.ViewsX, v.X = v.X, make([]float32, v.N*v.C)
	nn.GatherFill(v.X, v.ViewsX, v.Views.Source, v.C, m.newline)
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
	return c.on(ch, cw, [2]int{h, w})
}

// on returns the map of a picture of that height and width on a canvas of ch by cw pixels.
func (c *Config) on(ch, cw int, size [2]int) *Map {
	down, across := ch/c.Vision.ImageSide, cw/c.Vision.ImageSide
	m := &Map{Views: 1 + down*across, side: c.Vision.Grid(), across: across}
	rows, cols := down*m.side, across*m.side
	m.Top, m.Left = uncovered(size[0], size[1], rows, cols)
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
