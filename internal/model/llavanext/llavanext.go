// Package llavanext is LLaVA-NeXT (LLaVA-1.6): LLaVA-1.5 with any-resolution
// pictures and a LLaMA (Vicuna) or Mistral decoder. Source: LLaVA-NeXT
// (llava-vl.github.io/blog/2024-01-30-llava-next) and Hugging Face transformers
// 4.49 LlavaNextForConditionalGeneration.
//
//	tiles = [base; canvas cut row by row],  X_t = Projector(CLIP(tile t))      (1)
//	M = X_1 … X_T stitched to one map, without the canvas's padding            (2)
//	sequence = [X_0; for each row y of M: M_y, newline]                        (3)
//
// All tiles of all pictures of a request go through the encoder as one batch.
package llavanext

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/nn"
)

// wholeAndTiles is the number of views of a square picture on a canvas of two by two tiles, the
// case for which Sizes are reported.
const wholeAndTiles = 5

// Model is a bound LLaVA-NeXT.
type Model struct {
	*llava.Model
	cfg     *Config
	newline []float32 // [text hidden]
	info    model.Info
}

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{Model: llava.Bind(b, c.Config), cfg: c}
	m.newline = b.Vector("image_newline", "text hidden", c.Text.Hidden)
	if err := b.Finish(); err != nil {
		return nil, err
	}
	if err := c.Text.Check(); err != nil {
		return nil, err
	}
	m.info = m.Describe(architecture, b)
	m.info.Sizes.Views = wholeAndTiles
	m.info.Sizes.Tokens *= wholeAndTiles
	m.info.Vision = append(m.info.Vision, model.Field{
		Name: "canvases (height, width)", Value: c.Canvases,
	})
	return m, nil
}

// Info implements model.Multimodal.
func (m *Model) Info() model.Info { return m.info }

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	ls, err := m.layouts(m.spread(px))
	if err != nil {
		return 0, 0
	}
	tiles := 0
	for i := range ls {
		tiles += ls[i].tiles
	}
	return m.SquaresWork(tiles)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	ls, err := m.layouts(m.spread(px))
	if err != nil {
		return 0
	}
	tiles, tokens := 0, 0
	for i := range ls {
		tiles, tokens = tiles+ls[i].tiles, tokens+len(ls[i].source)
	}
	return m.SquaresBytes(tiles) + 4*int64(tokens)*int64(m.Decoder().Shape().Hidden)
}

// maxSide is the largest side of a picture in pixels.
const maxSide = 1 << 24

func checkSize(s [2]int) error {
	if min(s[0], s[1]) < 1 || max(s[0], s[1]) > maxSide {
		return fmt.Errorf("llavanext: image_sizes: got %v, want height and width of 1 to %d", s,
			maxSide)
	}
	return nil
}

// spread adds an axis for pictures to px if it has the tiles of all pictures concatenated, [tiles,
// 3, side, side], which transformers accepts too.
func (m *Model) spread(px *imageproc.Pixels) *imageproc.Pixels {
	side := m.cfg.Vision.ImageSide
	if len(px.Shape) != 4 || px.Shape[1] != 3 || px.Shape[2] != side || px.Shape[3] != side {
		return px
	}
	most, total := 0, 0
	counts := make([]int, len(px.ImageSizes))
	for i, s := range px.ImageSizes {
		if checkSize(s) != nil {
			return px
		}
		l := m.cfg.pack(s[0], s[1])
		counts[i] = l.tiles
		most, total = max(most, l.tiles), total+l.tiles
	}
	if total != px.Shape[0] {
		return px
	}
	one := 3 * side * side
	out := *px
	out.Shape = []int{len(counts), most, 3, side, side}
	out.Data = make([]float32, len(counts)*most*one)
	from := 0
	for i, n := range counts {
		from += copy(out.Data[i*most*one:], px.Data[from:from+n*one])
	}
	return &out
}

// layouts checks px against the config and returns each picture's layout.
func (m *Model) layouts(px *imageproc.Pixels) ([]layout, error) {
	side := m.cfg.Vision.ImageSide
	if len(px.Shape) != 5 || px.Shape[0] < 1 || px.Shape[2] != 3 || px.Shape[3] != side ||
		px.Shape[4] != side {
		return nil, fmt.Errorf("llavanext: pixel_values: shape %v, want [pictures tiles 3 "+
			"%d %d] (config's image_size)", px.Shape, side, side)
	}
	if len(px.ImageSizes) != px.Shape[0] {
		return nil, fmt.Errorf("llavanext: image_sizes: got %d, want one [height width] for "+
			"each of %d pictures", len(px.ImageSizes), px.Shape[0])
	}
	ls := make([]layout, px.Shape[0])
	for i, s := range px.ImageSizes {
		if err := checkSize(s); err != nil {
			return nil, err
		}
		ls[i] = m.cfg.pack(s[0], s[1])
		if h, w := imageproc.Canvas(m.cfg.Canvases, s[1], s[0]); i < len(px.CanvasSizes) &&
			px.CanvasSizes[i] != [2]int{h, w} {
			return nil, fmt.Errorf(
				"llavanext: preprocessor_config.json: image_grid_pinpoints: a picture of %v "+
					"is put on %v, want %v as config.json's image_grid_pinpoints says", s,
				px.CanvasSizes[i], [2]int{h, w})
		}
		have := px.Shape[1]
		if i < len(px.Tiles) {
			have = px.Tiles[i]
		}
		if have < ls[i].tiles || have > ls[i].tiles && i < len(px.Tiles) {
			return nil, fmt.Errorf(
				"llavanext: pixel_values: %d tiles for picture %d of %v, want %d (config's "+
					"image_grid_pinpoints)", have, i, s, ls[i].tiles)
		}
	}
	return ls, nil
}

// Pictures implements model.Multimodal. px.Data: [pictures, tiles, 3, side, side].
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	px = m.spread(px)
	ls, err := m.layouts(px)
	if err != nil {
		return nil, err
	}
	one := 3 * m.cfg.Vision.ImageSide * m.cfg.Vision.ImageSide
	pics := make([]model.Picture, len(ls))
	for i := range ls {
		l := &ls[i]
		shape := &model.Shape{N: len(l.source), Fixed: "it cuts pictures into tiles"}
		m.FillShape(shape)
		shape.Views = &model.Views{
			Count: l.tiles, Source: l.source, All: l.all, Grids: l.grids, Side: m.cfg.Vision.Grid(),
		}
		first := i * px.Shape[1] * one
		pics[i] = &picture{m, px.Data[first : first+l.tiles*one], shape}
	}
	return pics, nil
}

// picture is one picture as tiles [views, 3, side, side].
type picture struct {
	m     *Model
	tiles []float32
	shape *model.Shape
}

// Shape implements model.Picture.
func (p *picture) Shape() *model.Shape { return p.shape }

// Within implements model.Picture.
func (p *picture) Within(r *model.Run, w *methods.Encoding) ([]float32, error) {
	return p.m.SquaresWithin(r, p.tiles, p.shape.Views.Count, w)
}

// Shrink implements model.Picture: it returns an error, because tiles cannot be shrunk.
func (p *picture) Shrink(*model.Run, int, int) ([]float32, [][]float32, error) {
	return nil, nil, fmt.Errorf("llavanext: %s", p.shape.Fixed)
}

// Encode implements model.Multimodal.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	tiles, views, total := make([][]float32, len(pics)), 0, 0
	for i, p := range pics {
		p := p.(*picture)
		tiles[i] = p.tiles
		views, total = views+p.shape.Views.Count, total+p.shape.N
	}
	sq, err := m.Squares(r, nn.Joined(tiles), views, need) // (1)
	if err != nil {
		return nil, err
	}
	packed := make([]float32, total*sq.C)
	visuals := make([]*model.Visual, len(pics))
	tile, row := 0, 0
	for i, p := range pics {
		s := p.Shape()
		x := packed[row*sq.C : (row+s.N)*sq.C]
		nn.GatherFill(x, sq.X[tile*sq.N*sq.C:], s.Views.Source, sq.C, m.newline) // (2), (3)
		visuals[i] = sq.Views(tile, s.Views.Count, s, x)
		tile, row = tile+s.Views.Count, row+s.N
	}
	if r.Trace != nil {
		r.Trace("packed", []int{total, sq.C}, packed)
	}
	return visuals, nil
}
