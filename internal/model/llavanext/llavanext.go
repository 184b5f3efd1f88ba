// Package llavanext is LLaVA-NeXT (LLaVA-1.6): LLaVA-1.5 with any-resolution
// pictures and a LLaMA (Vicuna) or Mistral decoder. Source: LLaVA-NeXT
// (llava-vl.github.io/blog/2024-01-30-llava-next) and Hugging Face transformers
// 4.49 LlavaNextForConditionalGeneration.
//
//	tiles = [base; canvas cut row by row],  X_t = Projector(CLIP(tile t))      (1)
//	M = X_1 … X_T stitched to one map, without the canvas's padding            (2)
//	sequence = [X_0; for each row y of M: M_y, newline]                        (3)
package llavanext

import (
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/nn"
)

// wholeAndTiles is the number of views of a square picture on a canvas of two by two tiles, the
// case for which Sizes are reported.
const wholeAndTiles = 5

// ParseConfig reads config.json; every problem is in the error.
var ParseConfig = model.Parser(func(v *model.Values) *llava.Config {
	c, strategy := llava.ReadConfig(v), "default"
	if c.Vision.SigLIP {
		strategy = "full"
	}
	c.ReadTiles(v, imageproc.Canvases, strategy)
	return c
})

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	return llava.NewTiled(ck, c, architecture, wholeAndTiles,
		func(m *llava.Model, px *imageproc.Pixels) ([]*llava.Picture, error) {
			return m.Cut(spread(m, c, px), func(tiles *llava.Map, _ int) (*model.Views, []nn.Mix) {
				return pack(c, tiles), nil
			})
		})
}

// spread adds an axis for pictures to px if it has the tiles of all pictures concatenated, [tiles,
// 3, side, side], which transformers accepts too.
func spread(m *llava.Model, c *llava.Config, px *imageproc.Pixels) *imageproc.Pixels {
	if len(px.Shape) != 4 || !m.Square(px.Shape) {
		return px
	}
	most, total := 0, 0
	counts := make([]int, len(px.ImageSizes))
	for i, s := range px.ImageSizes {
		if llava.CheckSize(s) != nil {
			return px
		}
		counts[i] = c.Map(s[0], s[1]).Views
		most, total = max(most, counts[i]), total+counts[i]
	}
	if total != px.Shape[0] {
		return px
	}
	side := px.Shape[3]
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

// pack lays out a picture: the base tile's grid, then m, the stitched map of the tiles, cut to the
// part that shows the picture (2), with a newline after each of its rows (3).
func pack(c *llava.Config, m *llava.Map) *model.Views {
	p := c.Vision.Grid()
	v := &model.Views{
		Count: m.Views, Side: p, Grids: [][2]int{{p, p}, {m.Rows + 2*m.Top, m.Cols + 2*m.Left}},
	}
	for i := range p * p {
		v.Source, v.All = append(v.Source, int32(i)), append(v.All, int32(i))
	}
	for y := -m.Top; y < m.Rows+m.Top; y++ {
		shown := y >= 0 && y < m.Rows
		for x := -m.Left; x < m.Cols+m.Left; x++ {
			_, i := m.Patch(y, x)
			v.All = append(v.All, int32(i))
			if shown && x >= 0 && x < m.Cols {
				v.Source = append(v.Source, int32(i))
			}
		}
		if shown {
			v.Source = append(v.Source, llava.Newline)
		}
	}
	return v
}
