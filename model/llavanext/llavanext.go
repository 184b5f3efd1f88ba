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

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/model/llava"
	"github.com/restore-vlm/restore/nn"
)

// wholeAndTiles is the number of views of a square picture on a canvas of two by two tiles, which sizes are told for.
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
	m.info = m.Describe("LlavaNextForConditionalGeneration", b)
	m.info.Sizes.Views = wholeAndTiles
	m.info.Sizes.Tokens *= wholeAndTiles
	m.info.Vision = append(m.info.Vision, model.Field{Name: "canvases (height, width)", Value: c.Canvases})
	return m, nil
}

// Info implements model.Multimodal.
func (m *Model) Info() model.Info { return m.info }

// PictureTokens implements model.Multimodal: newlines count. It is 0 where px
// does not tell the picture's size.
func (m *Model) PictureTokens(px *imageproc.Pixels, i int) int {
	if i >= len(px.ImageSizes) || checkSize(px.ImageSizes[i]) != nil {
		return 0
	}
	return len(m.cfg.pack(px.ImageSizes[i][0], px.ImageSizes[i][1]).source)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels) int64 {
	ls, err := m.layouts(px)
	if err != nil {
		return 0
	}
	tiles, tokens := 0, 0
	for i := range ls {
		tiles, tokens = tiles+ls[i].tiles, tokens+len(ls[i].source)
	}
	side := m.cfg.Vision.ImageSide
	return m.SquaresBytes(tiles) + 4*(int64(tiles)*int64(3*side*side)+int64(tokens)*int64(m.Decoder().Shape().Hidden))
}

// maxSide bounds a picture's side in pixels.
const maxSide = 1 << 24

func checkSize(s [2]int) error {
	if min(s[0], s[1]) < 1 || max(s[0], s[1]) > maxSide {
		return fmt.Errorf("llavanext: image_sizes: got %v, want height and width of 1 to %d", s, maxSide)
	}
	return nil
}

// layouts returns each picture's layout after checking px against the config.
func (m *Model) layouts(px *imageproc.Pixels) ([]layout, error) {
	side := m.cfg.Vision.ImageSide
	if len(px.Shape) != 5 || px.Shape[0] < 1 || px.Shape[2] != 3 || px.Shape[3] != side || px.Shape[4] != side {
		return nil, fmt.Errorf("llavanext: pixel_values: shape %v, want [pictures tiles 3 %d %d] (config's image_size)", px.Shape, side, side)
	}
	if len(px.ImageSizes) != px.Shape[0] {
		return nil, fmt.Errorf("llavanext: image_sizes: got %d, want one [height width] for each of %d pictures", len(px.ImageSizes), px.Shape[0])
	}
	ls := make([]layout, px.Shape[0])
	for i, s := range px.ImageSizes {
		if err := checkSize(s); err != nil {
			return nil, err
		}
		ls[i] = m.cfg.pack(s[0], s[1])
		if h, w := imageproc.Canvas(m.cfg.Canvases, s[1], s[0]); i < len(px.CanvasSizes) && px.CanvasSizes[i] != [2]int{h, w} {
			return nil, fmt.Errorf("llavanext: preprocessor_config.json: image_grid_pinpoints: a picture of %v is put on %v, want %v as config.json's image_grid_pinpoints says", s, px.CanvasSizes[i], [2]int{h, w})
		}
		have := px.Shape[1]
		if i < len(px.Tiles) {
			have = px.Tiles[i]
		}
		if have < ls[i].tiles || have > ls[i].tiles && i < len(px.Tiles) {
			return nil, fmt.Errorf("llavanext: pixel_values: %d tiles for picture %d of %v, want %d (config's image_grid_pinpoints)", have, i, s, ls[i].tiles)
		}
	}
	return ls, nil
}

// Encode implements model.Multimodal. px.Data: [pictures, tiles, 3, side, side].
func (m *Model) Encode(r *model.Run, px *imageproc.Pixels, need model.Needs) ([]*model.Visual, error) {
	ls, err := m.layouts(px)
	if err != nil {
		return nil, err
	}
	var tiles []int32
	for i := range ls {
		for t := range ls[i].tiles {
			tiles = append(tiles, int32(i*px.Shape[1]+t))
		}
	}
	if need.Later {
		visuals := make([]*model.Visual, len(ls))
		for i := range ls {
			visuals[i] = m.later(px, i, &ls[i])
		}
		return visuals, nil
	}
	one := 3 * m.cfg.Vision.ImageSide * m.cfg.Vision.ImageSide
	batch := r.Buffer("llavanext.tiles", len(tiles)*one)
	nn.Gather(batch, px.Data, tiles, one)
	sq, err := m.Squares(r, batch, len(tiles), need) // (1)
	if err != nil {
		return nil, err
	}
	total := 0
	for i := range ls {
		total += len(ls[i].source)
	}
	packed := make([]float32, total*sq.C)
	visuals := make([]*model.Visual, len(ls))
	tile, row := 0, 0
	for i := range ls {
		n := len(ls[i].source)
		x := packed[row*sq.C : (row+n)*sq.C]
		nn.GatherFill(x, sq.X[tile*sq.N*sq.C:], ls[i].source, sq.C, m.newline) // (2), (3)
		visuals[i] = sq.Views(tile, ls[i].tiles)
		v := visuals[i]
		v.N, v.X, v.Views.Source, v.Views.All = n, x, ls[i].source, ls[i].all
		v.Views.Grids, v.Views.Side = ls[i].grids, m.cfg.Vision.Grid()
		m.again(v, px, i, &ls[i])
		tile, row = tile+ls[i].tiles, row+n
	}
	if r.Trace != nil {
		r.Trace("packed", []int{total, sq.C}, packed)
	}
	return visuals, nil
}

// again says how picture i of px is encoded anew.
func (m *Model) again(v *model.Visual, px *imageproc.Pixels, i int, l *layout) {
	one := 3 * m.cfg.Vision.ImageSide * m.cfg.Vision.ImageSide
	first := i * px.Shape[1] * one
	v.Again.Fixed = "it cuts pictures into tiles"
	m.Inside(&v.Again, px.Data[first:first+l.tiles*one], l.tiles)
}

// later is picture i of px, to be encoded anew.
func (m *Model) later(px *imageproc.Pixels, i int, l *layout) *model.Visual {
	v := &model.Visual{N: len(l.source), C: len(m.newline), Cv: m.cfg.Vision.Hidden * len(m.cfg.Features), T: m.cfg.Vision.Tokens()}
	v.Views = &model.Views{Count: l.tiles, Source: l.source, All: l.all, Grids: l.grids, Side: m.cfg.Vision.Grid()}
	m.again(v, px, i, l)
	one := 3 * m.cfg.Vision.ImageSide * m.cfg.Vision.ImageSide
	first, size := i*px.Shape[1]*one, px.Shape[1]*one
	v.Again.Whole = func(r *model.Run) (*model.Visual, error) {
		alone := &imageproc.Pixels{Shape: append([]int{1}, px.Shape[1:]...), Data: px.Data[first : first+size], ImageSizes: px.ImageSizes[i : i+1]}
		if i < len(px.Tiles) {
			alone.Tiles = px.Tiles[i : i+1]
		}
		v, err := m.Encode(r, alone, model.Needs{})
		if err != nil {
			return nil, err
		}
		return v[0], nil
	}
	return v
}
