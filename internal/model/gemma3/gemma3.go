// Package gemma3 is Gemma 3 with pictures: a SigLIP encoder, means over squares of patches, and a
// decoder of two kinds of layers. Source: Gemma 3 (arXiv 2503.19786), and Hugging Face transformers
// 5.24 Gemma3ForConditionalGeneration.
//
//	z = mean of LayerNorm(SigLIP(picture)) over the patches of a cell   (1)
//	X = Wᵀ·RMSNorm(z)                                                   (2)
//
// The decoder's blocks are [llama.Decoder]'s. Layers with a window see the last keys only, and turn
// by another base. In all layers, the rows of a picture see each other; a reduced picture has fewer
// rows, which still do. A window counts rows, of which a merged one is one.
//
// What reducers read is the mean over a cell's patches. There is no class token: scores are the
// attention that a patch receives in the last block, averaged over the patches of the picture.
//
// Departures: transformers rounds the scale of embeddings to the type of the weights, here it is a
// float32. Pictures are not cut into crops (do_pan_and_scan).
package gemma3

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Tokens of a picture in a prompt: the template's, which also stands before it, and the one after.
const (
	before = "<start_of_image>"
	after  = "<end_of_image>"
)

// Model is a bound model.
type Model struct {
	llama.Model
	cfg    *Config
	vision *clip.Encoder
	norm   *nn.RMSNorm
	proj   *nn.Linear
	cells  []nn.Mix // the patches of each token
}

var _ model.Framed = (*Model)(nil)

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{cfg: c, vision: clip.New(b.In(tower), c.Vision)}
	p, width, hidden := b.In("multi_modal_projector."), c.Vision.Hidden, c.Text.Hidden
	m.norm = p.OffsetRMSNorm("mm_soft_emb_norm", "vision hidden", width, c.Vision.Eps)
	m.proj = p.Transposed("mm_input_projection_weight", "vision hidden, text hidden", hidden, width)
	if !b.In(decoder).Has("lm_head.weight") {
		c.Text.Tie(false) // a head that equals the embedding is not kept twice
	}
	m.Text = llama.New(b.In(decoder), c.Text)
	m.Image, m.Video = c.ImageToken, -1
	if err := m.Finish(b, architecture); err != nil {
		return nil, err
	}
	m.cells = c.cells(c.Vision.Grid(), c.Vision.Grid())
	m.describe()
	return m, nil
}

// cells returns the patches of each cell of rows by cols patches.
func (c *Config) cells(rows, cols int) []nn.Mix {
	var cells []nn.Mix
	for y := 0; y < rows; y += c.Pool {
		for x := 0; x < cols; x += c.Pool {
			var patches []int32
			for p := range c.Pool * c.Pool {
				patches = append(patches, int32((y+p/c.Pool)*cols+x+p%c.Pool))
			}
			cells = append(cells, nn.Mix{From: patches})
		}
	}
	return cells
}

// describe fills in info.
func (m *Model) describe() {
	v, t, info := &m.cfg.Vision, &m.cfg.Text, &m.About
	info.Vision = []model.Field{
		{Name: "picture side (px)", Value: v.ImageSide}, {Name: "patch (px)", Value: v.Patch},
		{Name: "patches per visual token", Value: m.cfg.Pool * m.cfg.Pool},
		{Name: "visual tokens per picture", Value: len(m.cells)},
		{Name: "hidden", Value: v.Hidden}, {Name: "heads", Value: v.Heads},
		{Name: "layers", Value: v.Layers}, {Name: "mlp", Value: v.MLP},
	}
	info.Sizes = &model.Sizes{
		Tokens: len(m.cells), Views: 1, NoClass: true, Cell: m.cfg.Pool * m.cfg.Pool,
		Features: v.Hidden, Patch: 3 * v.Patch * v.Patch, Vocab: t.Vocab,
		Vision: v.Tower(v.Layers), Text: t.Tower(), Projector: []int{v.Hidden, t.Hidden},
	}
}

// Frame implements model.Framed: the template writes a token that is not the picture's, and the
// processor texts around it.
func (m *Model) Frame() (place, first, last string) {
	return before, "\n\n" + before, after + "\n\n"
}

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	return m.vision.Work(px.Shape[0], m.vision.Layers)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	items := px.Shape[0]
	// the means, and their norms, and the tokens
	each := 2*m.proj.In + m.proj.Out
	return m.vision.EncodeBytes(items, 1) + 4*int64(items*len(m.cells))*int64(each)
}

// Project implements model.Multimodal (2).
func (m *Model) Project(r *model.Run, features []float32, rows int) []float32 {
	n := r.Buffer("gemma3.n", rows*m.proj.In)
	m.norm.Apply(r.Pool, n, features, rows)
	x := make([]float32, rows*m.proj.Out)
	m.proj.Apply(r.Pool, x, n, rows)
	return x
}

// Pictures implements model.Multimodal. px has the shape [pictures, 3, side, side].
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	side := m.vision.ImageSide
	if s := px.Shape; len(s) != 4 || s[0] < 1 || s[1] != 3 || s[2] != side || s[3] != side {
		return nil, fmt.Errorf("gemma3: pixel_values: shape %v, want [pictures 3 %d %d] "+
			"(config's image_size)", s, side, side)
	}
	n := m.cfg.side()
	shape := &model.Shape{
		N: len(m.cells), C: m.proj.Out, NoClass: true, T: len(m.cells) + 1, Cv: m.proj.In,
		GridH: n, GridW: n, Blocks: m.vision.Layers, Depth: m.vision.Layers,
		Closed: fmt.Sprintf("it joins %dx%[1]d patches to one token; no such method is defined "+
			"for this", m.cfg.Pool),
	}
	if m.cfg.Pool == 1 {
		shape.Closed = "its encoder has no class token; no such method is defined for this"
	}
	one := 3 * side * side
	pics := make([]model.Picture, px.Shape[0])
	for i := range pics {
		pics[i] = &picture{m, px.Data[i*one : (i+1)*one], model.Rigid{Of: shape}}
	}
	return pics, nil
}

// picture is one picture [3, side, side].
type picture struct {
	m  *Model
	px []float32
	model.Rigid
}

// Shrink implements model.Picture.
func (p *picture) Shrink(
	r *model.Run, rows, cols int,
) (x []float32, deep [][]float32, err error) {
	m := p.m
	side, h, w := m.vision.ImageSide, rows*m.cfg.Pool, cols*m.cfg.Pool
	small := nn.Resize(p.px, 3, side, side, 1, h*m.vision.Patch, w*m.vision.Patch, true)
	out, err := m.vision.At(h, w).Encode(r, small, 1, []int{m.vision.Layers}, model.Needs{})
	if err != nil {
		return nil, nil, err
	}
	m.vision.Last(r, out.Selected, h*w)
	z := make([]float32, rows*cols*m.proj.In)
	nn.Blend(r.Pool, z, out.Selected, m.cfg.cells(h, w), m.proj.In)
	return m.Project(r, z, rows*cols), nil, nil
}

// Encode implements model.Multimodal. All pictures go through the encoder as one batch.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px := make([][]float32, len(pics))
	for i, p := range pics {
		px[i] = p.(*picture).px
	}
	out, err := m.vision.Encode(r, nn.Joined(px), len(pics), []int{m.vision.Layers}, need)
	if err != nil {
		return nil, err
	}
	t, d, n, c := m.vision.Tokens(), m.vision.Hidden, len(m.cells), m.proj.Out
	m.vision.Last(r, out.Selected, len(pics)*t)
	z := make([]float32, len(pics)*n*d)
	for i := range pics { // (1)
		nn.Blend(r.Pool, z[i*n*d:(i+1)*n*d], out.Selected[i*t*d:(i+1)*t*d], m.cells, d)
	}
	x := m.Project(r, z, len(pics)*n)
	if r.Trace != nil {
		r.Trace("vision.post_ln", []int{len(pics), t, d}, out.Selected)
		r.Trace("vision.selected", []int{len(pics), n, d}, z)
		r.Trace("projector.out", []int{len(pics), n, c}, x)
	}
	visuals := make([]*model.Visual, len(pics))
	for i, p := range pics {
		own := z[i*n*d : (i+1)*n*d]
		v := &model.Visual{
			Shape: p.Shape(), X: x[i*n*c : (i+1)*n*c], Hidden: nn.BelowZeros(own, d), Needs: need,
		}
		m.vision.Read(r.Pool, v, out, m.cells, i*t, (i+1)*t)
		if need.Cells {
			v.CellDim, v.Cells = d, own
		}
		visuals[i] = v
	}
	return visuals, nil
}
