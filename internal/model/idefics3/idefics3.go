// Package idefics3 is Idefics3, SmolVLM and SmolVLM2: a SigLIP encoder, a linear connector over
// cells of patches, and a LLaMA decoder. Source: arXiv 2408.12637, arXiv 2504.05299 and Hugging
// Face transformers 5.24 Idefics3ForConditionalGeneration and SmolVLMForConditionalGeneration.
//
//	z = LayerNorm(SigLIP(view))                                           (1)
//	X = W·[z of the patches of a cell, row by row]                        (2)
//	picture: for each row of tiles: fake <row_r_col_c> X of each tile, newline;
//	         then newline fake <global-img> X of the whole picture fake   (3)
//	video of SmolVLM2: each sampled frame as a picture without tiles, after a text with its time
//
// The texts between the views are tokens of the decoder, a part of the picture. What reducers read
// is the mean over a cell's patches. There is no class token: scores are the attention that a patch
// receives in the last block, averaged over the patches of its view.
package idefics3

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Prefixes of the canonical names.
const (
	tower   = "model.vision_model."
	decoder = "language_model."
)

// Model is a bound model.
type Model struct {
	llama.Model
	cfg    *Config
	vision *clip.Encoder
	proj   *nn.Linear
	spell  func(text string) ([]int32, error) // nil: the files have no tokenizer
}

var (
	_ model.Spelled = (*Model)(nil)
	_ model.Timed   = (*Model)(nil)
)

// newModel binds ck, of the given class; the error lists every weight that does not fit
// config.json.
func newModel(ck *model.Source, class string) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{cfg: c, vision: clip.New(b.In(tower), c.Vision)}
	m.proj = b.Linear("model.connector.modality_projection.proj",
		"text hidden, vision hidden * scale_factor²", c.Text.Hidden, c.wide(), false)
	m.Text = llama.New(b.In(decoder), c.Text)
	m.Image, m.Video = c.ImageToken, c.ImageToken
	if err := m.Finish(b, class); err != nil {
		return nil, err
	}
	m.describe()
	if ck.Make != nil {
		m.spell = m.standIn
	}
	return m, nil
}

// wide returns the width of a cell's patches together.
func (c *Config) wide() int { return c.Scale * c.Scale * c.Vision.Hidden }

// across is the number of tiles along the side of a square picture in published settings, for which
// Sizes are reported.
const across = 4

// describe describes encoder and sizes.
func (m *Model) describe() {
	v, t, info := &m.cfg.Vision, &m.cfg.Text, &m.About
	n := m.cfg.side() * m.cfg.side()
	info.Vision = []model.Field{
		{Name: "side of a view (px)", Value: v.ImageSide}, {Name: "patch (px)", Value: v.Patch},
		{Name: "patches along a token", Value: m.cfg.Scale},
		{Name: "visual tokens per view", Value: n}, {Name: "hidden", Value: v.Hidden},
		{Name: "heads", Value: v.Heads}, {Name: "layers", Value: v.Layers},
		{Name: "mlp", Value: v.MLP},
	}
	views := across*across + 1
	info.Sizes = &model.Sizes{
		Tokens: views * n, Views: views, NoClass: true, Cell: m.cfg.Scale * m.cfg.Scale,
		Patch: 3 * v.Patch * v.Patch, Vocab: t.Vocab,
		Vision: v.Tower(v.Layers),
		Text:   t.Tower(), Projector: []int{m.cfg.wide(), t.Hidden},
	}
}

// Clip implements model.Timed.
func (m *Model) Clip() (place, template string) { return videoPlace, videoTemplate }

// Spell implements model.Spelled.
func (m *Model) Spell(ids func(text string) ([]int32, error)) { m.spell = ids }

// standIn returns as many ids as the published models' tokenizers give for the text of a picture:
// one for each <…> and one for newlines together. It is for models that are only measured, which
// have no tokenizer.
func (m *Model) standIn(text string) (ids []int32, _ error) {
	for text != "" {
		n := len(text) - len(strings.TrimLeft(text, "\n"))
		if n == 0 {
			n = strings.Index(text, ">") + 1
		}
		id := int32(0)
		if text[:n] == place {
			id = m.cfg.ImageToken
		}
		ids, text = append(ids, id), text[n:]
	}
	return ids, nil
}

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	return m.vision.Work(views(px), m.vision.Layers)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	n, t := views(px), m.vision.Tokens()
	// the states' cells, then the tokens, twice with the texts
	return m.vision.EncodeBytes(n, 1) + 4*int64(n*t)*int64(m.vision.Hidden) +
		3*4*int64(n*m.cfg.side()*m.cfg.side())*int64(m.proj.Out)
}

// views returns the number of views of all pictures of px, or of the video.
func views(px *imageproc.Pixels) (n int) {
	if px.SecondsPerMoment > 0 {
		return px.Shape[0]
	}
	for _, s := range px.Splits {
		n += s[0]*s[1] + 1
	}
	return n
}

// Project implements model.Multimodal: features already passed the connector.
func (m *Model) Project(_ *model.Run, features []float32, rows int) []float32 {
	return append([]float32(nil), features[:rows*m.proj.Out]...)
}

// errNoTokenizer is returned for pictures if the files have no tokenizer.
var errNoTokenizer = errors.New("idefics3: picture: its views stand between texts, and the " +
	"model's files have no tokenizer")

// Pictures implements model.Multimodal. px has the shape [pictures, views, 3, side, side], or of a
// video [frames, 3, side, side].
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	if m.spell == nil {
		return nil, errNoTokenizer
	}
	side, shape, splits := m.cfg.Vision.ImageSide, px.Shape, px.Splits
	video := px.SecondsPerMoment > 0 && len(shape) == 4
	if video {
		shape = slices.Insert(slices.Clone(shape), 1, 1)
		splits = make([][2]int, shape[0])
	}
	if len(shape) != 5 || shape[0] < 1 || !slices.Equal(shape[2:], []int{3, side, side}) {
		return nil, fmt.Errorf("idefics3: pixel_values: shape %v, want [pictures views 3 %d %d] "+
			"(config's image_size, the processor's max_image_size), or of a video "+
			"[frames 3 %[2]d %[3]d]", px.Shape, side, side)
	}
	if len(splits) != shape[0] {
		return nil, fmt.Errorf("idefics3: image_splits: got %d, want one [rows columns] of tiles "+
			"for each of %d pictures", len(splits), shape[0])
	}
	if ids, err := m.spell(fake); err != nil {
		return nil, err
	} else if len(ids) != 1 {
		return nil, fmt.Errorf("idefics3: tokenizer: got %d tokens for %s, want a token of its own",
			len(ids), fake)
	}
	one, most := 3*side*side, shape[1]
	pics := make([]model.Picture, shape[0])
	for i, s := range splits {
		if min(s[0], s[1]) < 0 || (s[0] == 0) != (s[1] == 0) || max(s[0], s[1]) > most ||
			s[0]*s[1]+1 > most {
			return nil, fmt.Errorf("idefics3: image_splits: picture %d: got %v, want rows and "+
				"columns of tiles, at most the %d views of pixel_values with the whole picture", i,
				s, most)
		}
		ids, err := m.spell(spelled(s[0], s[1]))
		if err != nil {
			return nil, err
		}
		l, err := m.cfg.layout(s[0], s[1], ids)
		if err != nil {
			return nil, err
		}
		of, n := m.shape(l), l.Count*one
		of.Video = video
		if i < len(px.Times) {
			of.Before, of.After = around(px, i)
		}
		pics[i] = &picture{px.Data[i*most*one : i*most*one+n], l, model.Rigid{Of: of}}
	}
	return pics, nil
}

// shape returns the shape of a picture laid out as l.
func (m *Model) shape(l *layout) *model.Shape {
	return &model.Shape{
		N: len(l.Source), C: m.proj.Out, NoClass: true, T: len(l.cells) + 1, Cv: m.proj.Out,
		Blocks: m.vision.Layers, Depth: m.vision.Layers, Views: &l.Views,
		Fixed: "it cuts pictures into tiles",
		Closed: fmt.Sprintf("its connector joins %dx%[1]d patches; no such method is defined "+
			"for this", m.cfg.Scale),
	}
}

// picture is one picture as square views [Count, 3, side, side], the whole of it last.
type picture struct {
	px  []float32
	lay *layout
	model.Rigid
}

// Encode implements model.Multimodal.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px, n := make([][]float32, len(pics)), 0
	for i, p := range pics {
		px[i] = p.(*picture).px
		n += p.(*picture).lay.Count
	}
	out, err := m.vision.Encode(r, nn.Joined(px), n, []int{m.vision.Layers}, need)
	if err != nil {
		return nil, err
	}
	t, d := m.vision.Tokens(), m.vision.Hidden
	m.vision.Last(r, out.Selected, n*t) // (1)
	if r.Trace != nil {
		r.Trace("vision.post_ln", []int{n, t, d}, out.Selected)
	}
	visuals := make([]*model.Visual, len(pics))
	first := 0
	for i, p := range pics {
		if visuals[i], err = m.visual(r, out, first, p.(*picture), need); err != nil {
			return nil, err
		}
		first += p.(*picture).lay.Count
	}
	if r.Trace != nil {
		var x []float32
		for _, v := range visuals {
			x = append(x, v.ViewsX...)
		}
		r.Trace("projector.out", []int{n, len(x) / n / m.proj.Out, m.proj.Out}, x)
	}
	return visuals, nil
}

// visual returns the picture whose first view is item first of out.
func (m *Model) visual(
	r *model.Run, out *clip.Output, first int, p *picture, need model.Needs,
) (*model.Visual, error) {
	t, d, c, cells := m.vision.Tokens(), m.vision.Hidden, m.proj.Out, p.lay.cells
	lo, hi := first*t, (first+p.lay.Count)*t
	states := out.Selected[lo*d : hi*d]
	v := &model.Visual{
		Shape: p.Of, Needs: need, ViewsX: m.connect(r, states, cells),
	}
	m.vision.Read(r.Pool, v, out, cells, lo, hi)
	texts := make([]float32, len(p.lay.Texts)*c)
	if err := m.Text.Embed(texts, p.lay.Texts); err != nil {
		return nil, err
	}
	v.X = nn.Gathered(nn.Joined([][]float32{v.ViewsX, texts}), p.lay.Rows(len(cells)), c) // (3)
	v.Hidden = nn.BelowZeros(v.ViewsX, c)
	if need.Cells {
		v.CellDim, v.Cells = d, make([]float32, len(cells)*d)
		nn.Blend(r.Pool, v.Cells, states, cells, d)
	}
	return v, nil
}

// connect returns the tokens of states [patches, hidden] (2): [cells, text hidden].
func (m *Model) connect(r *model.Run, states []float32, cells []nn.Mix) []float32 {
	order := make([]int32, 0, len(states)/m.vision.Hidden)
	for i := range cells {
		order = append(order, cells[i].From...)
	}
	wide := r.Buffer("idefics3.cells", len(states))
	nn.Gather(wide, states, order, m.vision.Hidden)
	x := make([]float32, len(cells)*m.proj.Out)
	m.proj.Apply(r.Pool, x, wide, len(cells))
	return x
}
