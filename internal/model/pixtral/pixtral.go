// Package pixtral is Pixtral, Mistral Small 3.1 and Ministral 3: a vision transformer on pictures
// of any size, a projector and a Mistral decoder. Source: arXiv 2410.07073 and Hugging Face
// transformers 5.24 LlavaForConditionalGeneration with PixtralVisionModel, and
// Mistral3ForConditionalGeneration.
//
//	x = RMSNorm(Conv(px))                                                                   (1)
//	h = x + Wo·Attn(RoPE₂(Wq·n), RoPE₂(Wk·n), Wv·n),  n = RMSNorm(x)                        (2)
//	y = h + W2·(Act(Wg·m) ⊙ W1·m),  m = RMSNorm(h)                                          (3)
//	z = Wm·c,  c = the RMSNorm rows of a cell, feature by feature; of Pixtral z = y         (4)
//	X = W2·GELU(W1·z + b1) + b2                                                             (5)
//	picture: for each row of tokens: X, [IMG_BREAK]; after the last one [IMG_END] instead   (6)
//
// RoPE₂ turns the first half of a head's pairs by the patch's row and the second half by its
// column. Attn sees one whole picture. The tokens that end rows are tokens of the decoder, a part
// of the picture: they are not among the tokens that are reduced, and stay. A picture's tokens have
// positions one after another, these among them.
//
// There is no class token. The scores for reducers are the attention that a token's patches receive
// in each head of the last block, averaged over the queries of the picture and over the patches.
// The keys are that block's, after the rotation, averaged over the patches. The features are z.
package pixtral

import (
	"errors"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Tokens after the rows of a picture.
const (
	rowEnd  = "[IMG_BREAK]"
	lastEnd = "[IMG_END]"
)

// eps is the epsilon of every norm of the tower. It is not in the config.
const eps = 1e-5

// Model is a bound model.
type Model struct {
	llama.Model
	cfg    *Config
	vision *cells.Encoder
	merger *merger // nil: a token is one patch
	w1, w2 *nn.Linear
	spell  func(text string) ([]int32, error) // nil: the files have no tokenizer
}

var _ model.Spelled = (*Model)(nil)

// newModel binds ck, of the given class; the error lists every weight that does not fit
// config.json.
func newModel(
	ck *model.Source, class string, parse func([]byte) (*Config, error),
) (model.Multimodal, error) {
	c, err := parse(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{cfg: c, vision: bindTower(b.In(tower), c.Vision, c.Act)}
	p, width, hidden := b.In(projector), c.Vision.Hidden, c.Text.Hidden
	m.vision.Join = func(_ *model.Run, x []float32) []float32 { return slices.Clone(x) }
	if class == mistral3 {
		m.merger = bindMerger(p, c)
		m.vision.Join = m.merger.merge
	}
	m.w1 = p.Linear("linear_1", "text hidden, vision hidden", hidden, width, c.Bias)
	m.w2 = p.Linear("linear_2", "text hidden, text hidden", hidden, hidden, c.Bias)
	if class == mistral3 && ck.Make == nil {
		c.Text.Tie(b.In(decoder).Has("lm_head.weight"))
	}
	m.Text = llama.New(b.In(decoder), c.Text)
	m.Image, m.Video = c.ImageToken, -1
	if err := m.Finish(b, class); err != nil {
		return nil, err
	}
	m.About.SizesOf, m.About.Vision = m.sizes, c.Vision.Fields()
	if ck.Make != nil { // a model that is only measured has no tokenizer
		m.spell = func(string) ([]int32, error) { return []int32{0}, nil }
	}
	return m, nil
}

// gates are act(gate) ⊙ up by the name of the activation act.
var gates = map[string]func(p *nn.Pool, gate, up []float32){
	"silu": nn.SwiGLU, "swish": nn.SwiGLU, "gelu": nn.GEGLUErf,
}

// bindTower binds the weights under b of a tower with the activation act (1)–(3).
func bindTower(b *model.Binder, t cells.Tower, act string) *cells.Encoder {
	d := t.Hidden
	e := &cells.Encoder{
		Tower: t, Attn: b.Tower(d, t.Heads), RoPE: nn.NewInterlacedRoPE(d/t.Heads, t.Theta),
		Patch: b.Conv("patch_conv", "hidden, 3, patch, patch", d, t.Patch), Gated: gates[act],
	}
	first := b.RMSNorm("ln_pre", "hidden", d, eps)
	e.Enter = func(r *model.Run, x []float32, _ *cells.Layout) {
		first.Apply(r.Pool, x, x, len(x)/d)
		if r.Trace != nil {
			r.Trace("vision.block_in", []int{len(x) / d, d}, x)
		}
	}
	for i := range t.Layers {
		in := b.In(fmt.Sprintf("transformer.layers.%d.", i))
		square := func(name string) *nn.Linear {
			return in.Linear("attention."+name, "hidden, hidden", d, d, false)
		}
		e.Blocks = append(e.Blocks, cells.Block{
			Norm1: in.RMSNorm("attention_norm", "hidden", d, eps),
			QKV:   []*nn.Linear{square("q_proj"), square("k_proj"), square("v_proj")},
			Proj:  square("o_proj"),
			Norm2: in.RMSNorm("ffn_norm", "hidden", d, eps),
			Gate:  in.Linear("feed_forward.gate_proj", "mlp, hidden", t.MLP, d, false),
			Up:    in.Linear("feed_forward.up_proj", "mlp, hidden", t.MLP, d, false),
			Down:  in.Linear("feed_forward.down_proj", "hidden, mlp", d, t.MLP, false),
		})
	}
	return e
}

// merger joins the patches of a cell (4).
type merger struct {
	cell int // patches
	norm *nn.RMSNorm
	join *nn.Linear
}

func bindMerger(b *model.Binder, c *Config) *merger {
	d, n := c.Vision.Hidden, c.Vision.Cell()
	return &merger{
		cell: n, norm: b.RMSNorm("norm", "vision hidden", d, c.Text.Eps),
		join: b.Linear("patch_merger.merging_layer",
			"vision hidden, vision hidden * spatial_merge_size²", d, d*n, false),
	}
}

// merge returns one row for each cell of x [patches, hidden], which it does not change.
func (m *merger) merge(r *model.Run, x []float32) []float32 {
	wide, d := m.join.In, m.join.Out
	n := len(x) / wide
	out := make([]float32, n*d)
	cells.InParts(n, func(lo, hi int) {
		h := r.Buffer("pixtral.cells", (hi-lo)*wide)
		m.norm.Apply(r.Pool, h, x[lo*wide:hi*wide], (hi-lo)*m.cell)
		for c := range hi - lo {
			cell := h[c*wide : (c+1)*wide]
			copy(cell, nn.Transposed(cell, d))
		}
		m.join.Apply(r.Pool, out[lo*d:], h, hi-lo)
	})
	return out
}

// sizes returns the sizes for a picture of that many visual tokens.
func (m *Model) sizes(tokens int) *model.Sizes {
	t := &m.cfg.Vision
	s := t.Sizes(tokens)
	s.Vision.Products = 3
	s.Projector = []int{t.Hidden, m.w1.Out, m.w2.Out}
	if m.merger != nil {
		s.Projector = append([]int{m.merger.join.In}, s.Projector...)
	}
	s.Text, s.Vocab = m.cfg.Text.Tower(), m.cfg.Text.Vocab
	return s
}

// Spell implements model.Spelled.
func (m *Model) Spell(ids func(text string) ([]int32, error)) { m.spell = ids }

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	return m.vision.Work(px, 1)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	n := px.Shape[0] / m.cfg.Vision.Cell()
	// the projector's MLP, its tokens, and these with the rows' ends
	return m.vision.Bytes(px, 1, 0) + 4*int64(n)*int64(m.w1.Out+2*m.w2.Out)
}

// Project implements model.Multimodal (5).
func (m *Model) Project(r *model.Run, features []float32, rows int) []float32 {
	h := r.Buffer("pixtral.h", rows*m.w1.Out)
	m.w1.Apply(r.Pool, h, features, rows)
	nn.GELU(r.Pool, h)
	x := make([]float32, rows*m.w2.Out)
	m.w2.Apply(r.Pool, x, h, rows)
	return x
}

// errNoTokenizer is returned for pictures if the files have no tokenizer.
var errNoTokenizer = errors.New("pixtral: picture: its rows end with tokens of their own, and " +
	"the model's files have no tokenizer")

// token returns the id of a token that ends rows.
func (m *Model) token(text string) (int32, error) {
	if m.spell == nil {
		return 0, errNoTokenizer
	}
	ids, err := m.spell(text)
	if err != nil {
		return 0, err
	}
	if len(ids) != 1 {
		return 0, fmt.Errorf("pixtral: tokenizer: got %d tokens for %s, want a token of its own",
			len(ids), text)
	}
	return ids[0], nil
}

// Pictures implements model.Multimodal. px.Data: [patches, 3·patch²], the patches of all pictures
// concatenated, cell by cell; px.GridTHW: their grids.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	end, err := m.token(rowEnd)
	if err != nil {
		return nil, err
	}
	last, err := m.token(lastEnd)
	if err != nil {
		return nil, err
	}
	row := m.cfg.Vision.Values()
	if err := cells.Check(px, row, m.cfg.Vision.Merge, "pixtral"); err != nil {
		return nil, err
	}
	pics, at := make([]model.Picture, len(px.GridTHW)), 0
	for i, g := range px.GridTHW {
		n := g[1] * g[2] * row
		pics[i] = &picture{px.Data[at : at+n], g, model.Rigid{Of: m.shape(g, end, last)}}
		at += n
	}
	return pics, nil
}

// shape returns the shape of a picture with that grid of patches, and the tokens that end its rows
// (6).
func (m *Model) shape(g [3]int, end, last int32) *model.Shape {
	t := &m.cfg.Vision
	rows, cols := g[1]/t.Merge, g[2]/t.Merge
	v := &model.Views{
		Count: 1, Grids: [][2]int{{rows, cols}}, Texts: slices.Repeat([]int32{end}, rows),
	}
	v.Texts[rows-1] = last
	for y := range rows {
		for x := range cols {
			v.All = append(v.All, int32(y*cols+x))
		}
		v.Source = append(append(v.Source, v.All[y*cols:]...), -1)
	}
	s := &model.Shape{
		N: len(v.Source), C: m.w2.Out, NoClass: true, T: rows*cols + 1, Cv: t.Out,
		Blocks: t.Layers, Depth: t.Layers, Views: v,
		Fixed:  "the tokens that end its rows would have other places",
		Closed: "its encoder has no class token; no such method is defined for this",
	}
	if m.merger != nil {
		s.Closed = fmt.Sprintf("its merger joins %dx%[1]d patches; no such method is defined for "+
			"this", t.Merge)
	}
	return s
}

// picture is the patches [patches, 3·patch²] of one picture.
type picture struct {
	px   []float32
	grid [3]int
	model.Rigid
}

// Encode implements model.Multimodal.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px := make([][]float32, len(pics))
	var parts []cells.Part
	for i, p := range pics {
		p := p.(*picture)
		px[i], parts = p.px, append(parts, cells.Part{Grid: p.grid})
	}
	out, err := m.vision.Encode(r, nn.Joined(px), parts, need)
	if err != nil {
		return nil, err
	}
	c := m.w2.Out
	x := m.Project(r, out.X, len(out.X)/m.w1.In)
	if r.Trace != nil {
		r.Trace("projector.out", []int{len(x) / c, c}, x)
	}
	visuals := out.Visuals(pics, &m.vision.Attn)
	for _, v := range visuals {
		n := (v.T - 1) * c
		v.ViewsX, x = x[:n:n], x[n:]
		texts := make([]float32, len(v.Views.Texts)*c)
		if err := m.Text.Embed(texts, v.Views.Texts); err != nil {
			return nil, err
		}
		v.X = nn.Gathered(nn.Joined([][]float32{v.ViewsX, texts}), v.Views.Rows(v.T-1), c)
	}
	return visuals, nil
}
