// Package onevision is LLaVA-OneVision: a SigLIP encoder, a two-layer projector and a Qwen2
// decoder, for one picture in tiles, several pictures, or a video. Source: arXiv 2408.03326 and
// Hugging Face transformers 5.23 LlavaOnevisionForConditionalGeneration.
//
//	X_t = Projector(SigLIP(view t))                                                    (1)
//	one picture:      [X_0; for each row y of M: M_y, newline], M = X_1 … X_T stitched,
//	                  without the canvas's padding, at most Most views large           (2)
//	of several, each: [X_0; newline]                                                   (3)
//	video:            [X_0 … X_T at half the side; newline]                            (4)
//
// Where M is shrunk, and in videos, a token is a blend of up to four patches. What reducers read is
// blended with the same weights. There is no class token: scores are the attention that a patch
// receives in the last layer, averaged over the patches of its view.
package onevision

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/nn"
)

// wholeAndTiles is the number of views of a square picture on a canvas of three by three tiles, the
// case for which Sizes are reported.
const wholeAndTiles = 10

// Model is a bound LLaVA-OneVision.
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
	m.info = m.Describe(architecture, b)
	m.info.Sizes.Views = wholeAndTiles
	m.info.Sizes.Tokens *= wholeAndTiles
	m.info.Vision = append(m.info.Vision, model.Field{
		Name: "canvases (height, width)", Value: c.Canvases,
	}, model.Field{Name: "most views in a map of tiles", Value: c.Most})
	return m, nil
}

// Info implements model.Multimodal.
func (m *Model) Info() model.Info { return m.info }

// VideoToken implements model.Multimodal.
func (m *Model) VideoToken() int32 { return m.cfg.VideoToken }

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	ls, err := m.layouts(px)
	if err != nil {
		return 0, 0
	}
	views, _ := total(ls)
	return m.SquaresWork(views)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	ls, err := m.layouts(px)
	if err != nil {
		return 0
	}
	views, tokens := total(ls)
	return m.SquaresBytes(views) +
		4*int64(tokens)*int64(2*m.cfg.Text.Hidden+m.cfg.Vision.Hidden*len(m.cfg.Features))
}

// total returns the numbers of views and of tokens.
func total(ls []*layout) (views, tokens int) {
	for _, l := range ls {
		views, tokens = views+l.views, tokens+len(l.source)
	}
	return views, tokens
}

// maxSide is the largest side of a picture in pixels.
const maxSide = 1 << 24

// layouts checks px against the config and returns the layout of each picture, or of the video: px
// has the shape [pictures, views, 3, side, side], or [frames, 3, side, side].
func (m *Model) layouts(px *imageproc.Pixels) ([]*layout, error) {
	side, n := m.cfg.Vision.ImageSide, len(px.Shape)
	if n < 4 || n > 5 || px.Shape[0] < 1 || px.Shape[n-3] != 3 || px.Shape[n-2] != side ||
		px.Shape[n-1] != side {
		return nil, fmt.Errorf("onevision: pixel_values: shape %v, want [pictures views 3 %d %d] "+
			"(config's image_size), or of a video [frames 3 %[2]d %[3]d]", px.Shape, side, side)
	}
	if n == 4 {
		return []*layout{m.cfg.clip(px.Shape[0])}, nil
	}
	if len(px.ImageSizes) != px.Shape[0] {
		return nil, fmt.Errorf("onevision: image_sizes: got %d, want one [height width] for "+
			"each of %d pictures", len(px.ImageSizes), px.Shape[0])
	}
	ls := make([]*layout, px.Shape[0])
	for i, s := range px.ImageSizes {
		if min(s[0], s[1]) < 1 || max(s[0], s[1]) > maxSide {
			return nil, fmt.Errorf("onevision: image_sizes: got %v, want height and width of 1 "+
				"to %d", s, maxSide)
		}
		have := px.Shape[1]
		if i < len(px.Tiles) {
			have = px.Tiles[i]
		}
		if have == 1 { // of several; a picture in tiles has two views at least
			ls[i] = m.cfg.single()
			continue
		}
		ls[i] = m.cfg.pack(s[0], s[1])
		if have < ls[i].views || have > ls[i].views && i < len(px.Tiles) {
			return nil, fmt.Errorf("onevision: pixel_values: %d views for picture %d of %v, want "+
				"%d (config's image_grid_pinpoints)", have, i, s, ls[i].views)
		}
	}
	return ls, nil
}

// Pictures implements model.Multimodal.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	ls, err := m.layouts(px)
	if err != nil {
		return nil, err
	}
	one := 3 * m.cfg.Vision.ImageSide * m.cfg.Vision.ImageSide
	stride := len(px.Data) / len(ls)
	pics := make([]model.Picture, len(ls))
	for i, l := range ls {
		views := px.Data[i*stride : i*stride+l.views*one]
		pics[i] = &picture{m, views, l, m.shape(l, len(px.Shape) == 4)}
	}
	return pics, nil
}

// picture is one picture or video as views [views, 3, side, side].
type picture struct {
	m     *Model
	views []float32
	*layout
	shape *model.Shape
}

// Shape implements model.Picture.
func (p *picture) Shape() *model.Shape { return p.shape }

// Within implements model.Picture: it returns an error, because no method is defined for this
// encoder.
func (p *picture) Within(*model.Run, *methods.Encoding) ([]float32, error) {
	return nil, fmt.Errorf("onevision: %s", p.shape.Closed)
}

// Shrink implements model.Picture: it returns an error, because tiles cannot be shrunk.
func (p *picture) Shrink(*model.Run, int, int) ([]float32, [][]float32, error) {
	return nil, nil, fmt.Errorf("onevision: %s", p.shape.Fixed)
}

// Encode implements model.Multimodal.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	views, n := make([][]float32, len(pics)), 0
	for i, p := range pics {
		views[i] = p.(*picture).views
		n += p.(*picture).layout.views
	}
	sq, err := m.Squares(r, nn.Joined(views), n, need) // (1)
	if err != nil {
		return nil, err
	}
	visuals := make([]*model.Visual, len(pics))
	var packed []float32
	n = 0
	for i, p := range pics {
		p := p.(*picture)
		visuals[i] = m.visual(r, sq, n, p)
		n += p.layout.views
		packed = append(packed, visuals[i].X...)
	}
	if r.Trace != nil {
		r.Trace("packed", []int{len(packed) / sq.C, sq.C}, packed)
	}
	return visuals, nil
}

// visual returns the picture whose first view is item first of sq.
func (m *Model) visual(r *model.Run, sq *llava.Squares, first int, p *picture) *model.Visual {
	s, lo, hi, rows := p.shape, first*sq.N, (first+p.layout.views)*sq.N, len(p.rows)
	v := &model.Visual{
		Shape: s, Heads: sq.Heads, KeyDim: sq.KeyDim, Needs: sq.Needs,
		Received: map[int][]float32{},
	}
	v.ViewsX = make([]float32, rows*sq.C)
	nn.Blend(r.Pool, v.ViewsX, sq.X[lo*sq.C:hi*sq.C], p.rows, sq.C)
	v.X = make([]float32, s.N*sq.C)
	nn.GatherFill(v.X, v.ViewsX, s.Views.Source, sq.C, m.newline) // (2), (3), (4)
	v.Hidden = make([]float32, s.T*sq.Cv)
	nn.Blend(r.Pool, v.Hidden[sq.Cv:], sq.Selected[lo*sq.Cv:hi*sq.Cv], p.rows, sq.Cv)
	v.CellDim, v.Cells = sq.Cv, v.Hidden[sq.Cv:]
	v.ClsAttn = nn.BlendHeads(r.Pool, sq.ClsAttn, p.rows, sq.Heads, sq.N, lo, hi, 1)
	for block, received := range sq.Received {
		v.Received[block] = nn.BlendHeads(r.Pool, received, p.rows, sq.Heads, sq.N, lo, hi, 1)
	}
	v.Keys = nn.BlendHeads(r.Pool, sq.Keys, p.rows, sq.Heads, sq.N, lo, hi, sq.KeyDim)
	return v
}
