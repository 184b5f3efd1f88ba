// Package internvl is InternVL 2.5, 3 and 3.5 in transformers' form: an InternViT encoder, a
// projector of cells of patches, and a Qwen2, Qwen3 or LLaMA decoder, for pictures in tiles and for
// videos, whose frames are pictures of one tile.
// Source: InternVL 1.5 (arXiv 2404.16821, tiles and pixel shuffle), InternVL3 (arXiv 2504.10479),
// and Hugging Face transformers 5.24 InternVLForConditionalGeneration.
//
//	z_c = [h_p1, h_p2, …] of the patches of cell c, row by row, h = InternViT(view)   (1)
//	X = W2·GELU(W1·LN(z) + b1) + b2                                                  (2)
//	sequence = [X of tile 1, X of tile 2, …, X of the whole picture]                  (3)
//
// A picture of one tile has no view of the whole. In the encoder the whole comes first (see
// [model.Views]). What reducers read of a cell is the mean over its patches; its features are z,
// and the class token's stand there once for each patch of a cell.
package internvl

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Tokens that stand for a picture in a prompt, and before and after it, and what templates write
// for a video.
const (
	place      = "<IMG_CONTEXT>"
	before     = "<img>"
	after      = "</img>"
	videoPlace = "<video>"
)

// wholeAndTiles is the number of views of a square picture of three by three tiles, the case for
// which Sizes are reported.
const wholeAndTiles = 10

// Model is a bound model.
type Model struct {
	llama.Model
	cfg    *Config
	vision *clip.Encoder
	norm   *nn.LayerNorm
	w1, w2 *nn.Linear
	order  []int32 // rows of a view that make its class row and its cells, see [cells]
}

var (
	_ model.Framed = (*Model)(nil)
	_ model.Timed  = (*Model)(nil)
)

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	c.Text.Tie(b.Has(decoder + "lm_head.weight"))
	m := &Model{cfg: c, vision: clip.New(b.In(tower), c.Vision)}
	p, width, hidden := b.In("multi_modal_projector."), m.cfg.width(), c.Text.Hidden
	m.norm = p.LayerNorm("layer_norm", "vision hidden * cell", width, 1e-5)
	m.w1 = p.Linear("linear_1", "text hidden, vision hidden * cell", hidden, width, true)
	m.w2 = p.Linear("linear_2", "text hidden, text hidden", hidden, hidden, true)
	m.Text = llama.New(b.In(decoder), c.Text)
	m.Image, m.Video = c.ImageToken, c.ImageToken
	if err := m.Finish(b, architecture); err != nil {
		return nil, err
	}
	m.order = cells(c.Vision.Grid(), c.Vision.Grid(), c.Merge)
	m.describe()
	return m, nil
}

// describe fills in info.
func (m *Model) describe() {
	v, t, info := &m.cfg.Vision, &m.cfg.Text, &m.About
	info.Vision = []model.Field{
		{Name: "tile side (px)", Value: v.ImageSide}, {Name: "patch (px)", Value: v.Patch},
		{Name: "patches per visual token", Value: m.cfg.cell()},
		{Name: "visual tokens per tile", Value: m.cfg.tokens()}, {Name: "hidden", Value: v.Hidden},
		{Name: "heads", Value: v.Heads}, {Name: "layers", Value: v.Layers},
		{Name: "mlp", Value: v.MLP}, {Name: "feature state", Value: m.cfg.Feature},
	}
	info.Sizes = &model.Sizes{
		Tokens: wholeAndTiles * m.cfg.tokens(), Views: wholeAndTiles, Cell: m.cfg.cell(),
		Features: m.cfg.width(), Patch: 3 * v.Patch * v.Patch, Vocab: t.Vocab,
		Vision:    v.Tower(m.cfg.Feature),
		Text:      t.Tower(),
		Projector: []int{m.cfg.width(), t.Hidden, t.Hidden},
	}
}

// cells returns the rows of a view of rows by cols patches, below its class token, cell by cell:
// first the class token's, as often as a cell has patches.
func cells(rows, cols, merge int) []int32 {
	order := make([]int32, merge*merge, merge*merge+rows*cols)
	for y := 0; y < rows; y += merge {
		for x := 0; x < cols; x += merge {
			for p := range merge * merge {
				order = append(order, int32(1+(y+p/merge)*cols+x+p%merge))
			}
		}
	}
	return order
}

// Clip implements model.Timed.
func (m *Model) Clip() (place, template string) { return videoPlace, "" }

// Frame implements model.Framed: the processor writes these tokens, not the chat template.
func (m *Model) Frame() (place, first, last string) { return "", before, after }

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	return m.vision.Work(px.Shape[0], m.cfg.Feature)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	items := px.Shape[0]
	// features twice, two products, and X again in the order of the prompt
	each := 2*m.w1.In + m.w1.Out + 2*m.w2.Out
	return m.vision.EncodeBytes(items, 1) + 4*int64(items*(m.cfg.tokens()+1))*int64(each) +
		4*int64(items)*int64(3*m.vision.ImageSide*m.vision.ImageSide)
}

// Project implements model.Multimodal (2).
func (m *Model) Project(r *model.Run, features []float32, rows int) []float32 {
	n, h := r.Buffer("internvl.n", rows*m.w1.In), r.Buffer("internvl.h", rows*m.w1.Out)
	m.norm.Apply(r.Pool, n, features, rows)
	m.w1.Apply(r.Pool, h, n, rows)
	nn.GELU(r.Pool, h)
	x := make([]float32, rows*m.w2.Out)
	m.w2.Apply(r.Pool, x, h, rows)
	return x
}

// Encode implements model.Multimodal. All views of all pictures go through the encoder as one
// batch.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px, views := make([][]float32, len(pics)), 0
	for i, p := range pics {
		px[i] = p.(*picture).px
		views += p.(*picture).views
	}
	out, err := m.vision.Encode(r, nn.Joined(px), views, []int{m.cfg.Feature}, need)
	if err != nil {
		return nil, err
	}
	hidden := m.joined(out.Selected, views)
	t, n, width := m.cfg.tokens()+1, m.cfg.tokens(), m.cfg.width()
	z := r.Buffer("internvl.z", views*n*width)
	for i := range views {
		nn.CopyRows(z[i*n*width:], width, 0, hidden[(i*t+1)*width:], width, 0, n, width)
	}
	x := m.Project(r, z, views*n)
	if r.Trace != nil {
		r.Trace("vision.selected", []int{views, n, width}, z)
		r.Trace("projector.out", []int{views, n, m.w2.Out}, x)
	}
	visuals := make([]*model.Visual, len(pics))
	first := 0
	for i, p := range pics {
		visuals[i] = m.visual(out, need, p.(*picture), first, hidden, x)
		first += p.(*picture).views
	}
	return visuals, nil
}

// joined returns the features of cells, below those of the class token [views, 1+cells, width], of
// encoder states [views, tokens, hidden] (1).
func (m *Model) joined(states []float32, views int) []float32 {
	t, d := m.vision.Tokens(), m.vision.Hidden
	one := len(m.order) * d
	z := make([]float32, views*one)
	for i := range views {
		nn.Gather(z[i*one:(i+1)*one], states[i*t*d:], m.order, d)
	}
	return z
}

// means returns the means over the patches of each cell, below the class token's row, of n groups
// of rows, [n, tokens, width], from group lo on: [n, 1+cells, width]. nil stays nil.
func (m *Model) means(all []float32, lo, n, width int) []float32 {
	if all == nil {
		return nil
	}
	t, cell := m.vision.Tokens(), m.cfg.cell()
	rows, one := make([]float32, len(m.order)*width), len(m.order)/cell*width
	out := make([]float32, n*one)
	for i := range n {
		nn.Gather(rows, all[(lo+i)*t*width:], m.order, width)
		nn.GroupMean(out[i*one:(i+1)*one], rows, cell, width)
	}
	return out
}

// visual returns the picture p, whose first view is the encoder's view first. hidden are the
// features of all views, and x their tokens.
func (m *Model) visual(
	out *clip.Output, need model.Needs, p *picture, first int, hidden, x []float32,
) *model.Visual {
	heads, dim, d := m.vision.Heads, m.vision.Hidden/m.vision.Heads, m.vision.Hidden
	n, lo, hi := p.views, first, first+p.views
	perHead := func(all []float32, width int) []float32 {
		return m.means(all, lo*heads, n*heads, width)
	}
	tap := func(all map[int][]float32) map[int][]float32 {
		part := make(map[int][]float32, len(all))
		for block, a := range all {
			part[block] = perHead(a, 1)
		}
		return part
	}
	row, one := (m.cfg.tokens()+1)*m.cfg.width(), m.cfg.tokens()*m.w2.Out
	v := &model.Visual{
		Shape: p.Of, X: x[lo*one : hi*one], Heads: heads, KeyDim: dim, Needs: need,
		Hidden: hidden[lo*row : hi*row], ClsAttn: perHead(out.ClsAttn, 1),
		Keys: perHead(out.Keys, dim), Class: tap(out.Class), Received: tap(out.Received),
		LastKeys: m.means(out.LastKeys, lo, n, d),
	}
	if out.LastQuery != nil {
		v.LastQuery = out.LastQuery[lo*d : hi*d]
	}
	if need.Cells {
		t := make([]int, n)
		for i := range t {
			t[i] = m.cfg.tokens() + 1
		}
		v.CellDim, v.Cells = d, nn.WithoutFirst(m.means(out.Selected, lo, n, d), t, d)
	}
	if p.Of.Views != nil { // (3)
		v.ViewsX = v.X
		v.X = nn.Gathered(v.ViewsX, p.Of.Views.Source, v.C)
	}
	return v
}

// Pictures implements model.Multimodal: px are the views of all pictures, [views, 3, side, side],
// each picture's tiles row by row and then the whole. A video's are its frames.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	side := m.vision.ImageSide
	if s := px.Shape; len(s) != 4 || s[0] < 1 || s[1] != 3 || s[2] != side || s[3] != side {
		return nil, fmt.Errorf("internvl: pixel_values: shape %v, want [views 3 %d %d] "+
			"(config's image_size)", s, side, side)
	}
	canvases := px.CanvasSizes
	if canvases == nil {
		for range px.Shape[0] {
			canvases = append(canvases, [2]int{side, side})
		}
	}
	one, first := 3*side*side, 0
	var pics []model.Picture
	for i, c := range canvases {
		rows, cols := c[0]/side, c[1]/side
		if rows < 1 || cols < 1 || c[0]%side != 0 || c[1]%side != 0 ||
			rows > imageproc.MaxTiles || cols > imageproc.MaxTiles ||
			rows*cols > imageproc.MaxTiles {
			return nil, fmt.Errorf("internvl: canvas_sizes: picture %d: got %v, want multiples of "+
				"the tile side %d and at most %d tiles", i, c, side, imageproc.MaxTiles)
		}
		views := imageproc.CropViews(rows, cols)
		if first+views > px.Shape[0] {
			first += views
			break
		}
		part := px.Data[first*one : (first+views)*one]
		if views > 1 { // the whole first
			last := (views - 1) * one
			part = nn.Joined([][]float32{part[last:], part[:last]})
		}
		s := m.shape(rows, cols)
		if px.SecondsPerMoment > 0 {
			s.Video, s.Before = true, fmt.Sprintf("\nFrame%d: ", i+1)
			if i == 0 {
				s.Before = s.Before[1:]
			}
		}
		pics = append(pics, &picture{m, part, views, model.Rigid{Of: s}})
		first += views
	}
	if first != px.Shape[0] {
		return nil, fmt.Errorf("internvl: pixel_values: %d views, want as many as the canvases %v "+
			"have (a tile of %d pixels each, and the whole picture after two or more)",
			px.Shape[0], canvases, side)
	}
	return pics, nil
}

// shape describes a picture of rows by cols tiles.
func (m *Model) shape(rows, cols int) *model.Shape {
	s := &model.Shape{
		N: imageproc.CropViews(rows, cols) * m.cfg.tokens(), C: m.w2.Out, T: m.cfg.tokens() + 1,
		Cv: m.cfg.width(), Class: true, Blocks: m.cfg.Feature, Depth: m.cfg.Vision.Layers,
	}
	if m.cfg.cell() > 1 {
		s.Closed = fmt.Sprintf("it joins %d patches to one token; no such method is defined for "+
			"this", m.cfg.cell())
	} else {
		s.Closed = "its blocks scale what they add; no such method is defined for this"
	}
	if rows*cols == 1 {
		s.GridH, s.GridW = m.cfg.side(), m.cfg.side()
		return s
	}
	s.Fixed = "it cuts pictures into tiles"
	s.Views = layout(rows, cols, m.cfg.side())
	return s
}

// layout tells how the tokens of a picture of rows by cols tiles of side by side cells lie in its
// views: the whole, which is view 0 and the prompt's last, and the tiles.
func layout(rows, cols, side int) *model.Views {
	n := side * side
	v := &model.Views{
		Count: 1 + rows*cols, Side: side, Grids: [][2]int{{side, side}, {rows * side, cols * side}},
	}
	for i := range rows * cols * n {
		v.Source = append(v.Source, int32(n+i))
	}
	for i := range n {
		v.Source, v.All = append(v.Source, int32(i)), append(v.All, int32(i))
	}
	for y := range rows * side {
		for x := range cols * side {
			view := 1 + y/side*cols + x/side
			v.All = append(v.All, int32((view*side+y%side)*side+x%side))
		}
	}
	return v
}

// picture is one picture as views [views, 3, side, side]: one tile, or the whole and its tiles.
type picture struct {
	m     *Model
	px    []float32
	views int
	model.Rigid
}

// Shrink implements model.Picture.
func (p *picture) Shrink(
	r *model.Run, rows, cols int,
) (x []float32, deep [][]float32, err error) {
	if p.Of.Fixed != "" {
		return p.Rigid.Shrink(r, rows, cols)
	}
	m := p.m
	side, merge := m.vision.ImageSide, m.cfg.Merge
	h, w := rows*merge, cols*merge
	small := nn.Resize(p.px, 3, side, side, 1, h*m.vision.Patch, w*m.vision.Patch, true)
	out, err := m.vision.At(h, w).Encode(r, small, 1, []int{m.cfg.Feature}, model.Needs{})
	if err != nil {
		return nil, nil, err
	}
	z := r.Buffer("internvl.z", rows*cols*m.cfg.width())
	nn.Gather(z, out.Selected, cells(h, w, merge)[m.cfg.cell():], m.vision.Hidden)
	return m.Project(r, z, rows*cols), nil, nil
}
