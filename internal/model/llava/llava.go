// Package llava is LLaVA-1.5: a CLIP or SigLIP encoder, a two-layer projector and a LLaMA, Mistral
// or Qwen decoder. Source: arXiv 2310.03744 and Hugging Face transformers 4.49
// LlavaForConditionalGeneration.
//
//	z = [state_f1, state_f2, …] of the encoder, without class token or ("full") with it   (1)
//	X = W2·GELU(W1·z + b1) + b2                                                           (2)
//
// X takes the place of the picture's placeholder in the prompt.
//
// Models in tiles (LLaVA-NeXT, LLaVA-OneVision) are the same model with another layout of pictures.
// They see a picture in square views: the whole of it, squashed, and the tiles of the canvas on
// which it lies.
package llava

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Config is a LLaVA-1.5 config.json.
type Config struct {
	Vision     clip.Config
	Text       llama.Config
	ImageToken int32
	Features   []int // encoder states that enter the projector: 0 the embedding, k block k−1
	Full       bool  // the class token enters the projector too
	Act        string
	Bias       bool

	VideoToken int32    // -1: there are no videos
	Canvases   [][2]int // [height, width] in pixels to which a picture in tiles is resized
}

// ParseConfig reads config.json; every problem is in the error.
var ParseConfig = model.Parser(ReadConfig)

// ReadConfig reads the settings that LLaVA-1.5 and LLaVA-NeXT share, and records problems in v.
func ReadConfig(v *model.Values) *Config {
	vision, towerOf := v.Object("vision_config", true), clip.ParseConfig
	if vision.String("model_type", "clip_vision_model", "clip_vision_model",
		clip.SigLIPType) == clip.SigLIPType {
		towerOf = clip.ParseSigLIP
	}
	c := &Config{
		Text:   ReadText(v, "llama"),
		Vision: towerOf(vision),
		Full:   v.String("vision_feature_select_strategy", "default", "default", "full") == "full",
		Act:    v.Activation("projector_hidden_act", "gelu"),
		Bias:   v.Bool("multimodal_projector_bias", true),

		VideoToken: -1,
	}
	c.ImageToken = v.ImageToken(-1, -1<<30, c.Text.Vocab)
	c.Features = v.EncoderStates(c.Vision.Layers, -2)
	if c.Vision.SigLIP && !c.Full {
		vision.Fail("model_type", "got %q with vision_feature_select_strategy default, which "+
			"takes the tower's first patch for a class token, want full", clip.SigLIPType)
	}
	c.Full = c.Full && !c.Vision.SigLIP
	return c
}

// ReadText reads the decoder's part, whose model_type is kind if absent. A tied head is said in
// text_config or in v.
func ReadText(v *model.Values, kind string) llama.Config {
	c := llama.ParseText(v, kind)
	onTop := v.Bool("tie_word_embeddings", false)
	c.Tied = c.Tied || onTop
	return c
}

// Model is a bound model of this family.
type Model struct {
	llama.Model
	cfg     *Config
	vision  *clip.Encoder
	w1, w2  *nn.Linear
	newline []float32 // [text hidden]; nil: pictures are not cut into tiles
	lay     Lay
}

// Lay returns the pictures of px, or its video.
type Lay func(m *Model, px *imageproc.Pixels) ([]*Picture, error)

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := bind(b, c, squared)
	if err := m.finish(b, architecture); err != nil {
		return nil, err
	}
	return m, nil
}

// bind binds the parts that models of this family share.
func bind(b *model.Binder, c *Config, lay Lay) *Model {
	m := &Model{cfg: c, vision: clip.New(b.In(tower), c.Vision), lay: lay}
	p := b.In("multi_modal_projector.")
	m.w1 = p.Linear("linear_1", "text hidden, vision hidden * feature layers", c.Text.Hidden,
		c.Vision.Hidden*len(c.Features), c.Bias)
	m.w2 = p.Linear("linear_2", "text hidden, text hidden", c.Text.Hidden, c.Text.Hidden, c.Bias)
	m.Text = llama.New(b.In(decoder), c.Text)
	return m
}

// finish describes a model to which b has bound all of its weights.
func (m *Model) finish(b *model.Binder, architecture string) error {
	m.Image, m.Video = m.cfg.ImageToken, m.cfg.VideoToken
	if err := m.Finish(b, architecture); err != nil {
		return err
	}
	v, t, info := &m.cfg.Vision, &m.cfg.Text, &m.About
	info.Vision = []model.Field{
		{Name: "picture side (px)", Value: v.ImageSide}, {Name: "patch (px)", Value: v.Patch},
		{Name: "visual tokens per picture", Value: m.tokens()}, {Name: "hidden", Value: v.Hidden},
		{Name: "heads", Value: v.Heads}, {Name: "layers", Value: v.Layers},
		{Name: "mlp", Value: v.MLP},
		{Name: "feature states", Value: m.cfg.Features},
	}
	info.Sizes = &model.Sizes{
		Tokens: m.tokens(), Views: 1, NoClass: v.Class() == 0,
		Patch: 3 * v.Patch * v.Patch, Vocab: t.Vocab,
		Vision:    v.Tower(slices.Max(m.cfg.Features)),
		Text:      t.Tower(),
		Projector: []int{v.Hidden * len(m.cfg.Features), t.Hidden, t.Hidden},
	}
	return nil
}

// tokens returns the visual tokens of one picture before reduction.
func (m *Model) tokens() int {
	n := m.vision.Grid() * m.vision.Grid()
	if m.cfg.Full {
		n++
	}
	return n
}

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, _ float64) (rows int, attention float64) {
	pics, err := m.lay(m, px)
	if err != nil {
		return 0, 0
	}
	return m.vision.Work(views(pics), slices.Max(m.cfg.Features))
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, _ float64) int64 {
	pics, err := m.lay(m, px)
	if err != nil {
		return 0
	}
	items := views(pics)
	n := m.vision.EncodeBytes(items, len(m.cfg.Features)) +
		4*int64(items*m.tokens())*int64(m.w1.In+m.w1.Out+m.w2.Out)
	for _, p := range pics {
		if p.shape.Views == nil {
			continue
		}
		each := m.w2.Out
		if p.rows != nil { // the rows, and their features, too
			each += m.w2.Out + m.w1.In
		}
		n += 4 * int64(p.shape.N) * int64(each)
	}
	return n
}

// views is the number of views of all pictures.
func views(pics []*Picture) (n int) {
	for _, p := range pics {
		n += p.Count
	}
	return n
}

// Project implements model.Multimodal (2).
func (m *Model) Project(r *model.Run, features []float32, rows int) []float32 {
	h := r.Buffer("llava.h", rows*m.w1.Out)
	m.w1.Apply(r.Pool, h, features, rows)
	nn.Activations[m.cfg.Act](r.Pool, h)
	x := make([]float32, rows*m.w2.Out)
	m.w2.Apply(r.Pool, x, h, rows)
	return x
}

// Pictures implements model.Multimodal.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
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

// Square reports whether a shape ends with the axes of square pictures.
func (m *Model) Square(shape []int) bool {
	side, n := m.vision.ImageSide, len(shape)-3
	return n >= 0 && shape[0] > 0 && shape[n] == 3 && shape[n+1] == side && shape[n+2] == side
}

// squared returns the pictures of px, [items, 3, side, side].
func squared(m *Model, px *imageproc.Pixels) ([]*Picture, error) {
	side := m.vision.ImageSide
	if len(px.Shape) != 4 || !m.Square(px.Shape) {
		return nil, fmt.Errorf("llava: pixel_values: shape %v, want [pictures 3 %d %d] "+
			"(config's image_size)", px.Shape, side, side)
	}
	shape := &model.Shape{N: m.tokens()}
	m.fillShape(shape)
	if m.cfg.Full {
		shape.Fixed = "a picture's tokens include the class token and so are no grid"
	} else {
		shape.GridH, shape.GridW = m.vision.Grid(), m.vision.Grid()
	}
	one := 3 * side * side
	pics := make([]*Picture, px.Shape[0])
	var rows []nn.Mix
	if shape.NoClass {
		rows, shape.T = patches(shape.N), shape.N+1
	}
	for i := range pics {
		pics[i] = &Picture{m, px.Data[i*one : (i+1)*one], 1, rows, shape}
	}
	return pics, nil
}

// patches returns n rows of a patch each, for a tower without a class token: rows come after the
// place of its row.
func patches(n int) (rows []nn.Mix) {
	for i := range n {
		rows = append(rows, nn.Mix{From: []int32{int32(i)}})
	}
	return rows
}

// Picture is one picture or video as square views [Count, 3, side, side].
type Picture struct {
	m     *Model
	px    []float32
	Count int
	rows  []nn.Mix // the patches of each row that tokens show; nil: rows are patches
	shape *model.Shape
}

// Shape implements model.Picture.
func (p *Picture) Shape() *model.Shape { return p.shape }

// Within implements model.Picture.
func (p *Picture) Within(r *model.Run, w *methods.Encoding) ([]float32, error) {
	if p.shape.Closed != "" {
		return nil, fmt.Errorf("llava: %s", p.shape.Closed)
	}
	return p.m.vision.EncodeWithin(r, p.px, p.Count, p.m.cfg.Features[0], w)
}

// Shrink implements model.Picture.
func (p *Picture) Shrink(
	r *model.Run, rows, cols int,
) (x []float32, deep [][]float32, err error) {
	if p.shape.Fixed != "" {
		return nil, nil, fmt.Errorf("llava: %s", p.shape.Fixed)
	}
	m := p.m
	side, patch, cv, n := m.vision.ImageSide, m.vision.Patch, m.w1.In, rows*cols
	small := nn.Resize(p.px, 3, side, side, 1, rows*patch, cols*patch, true)
	out, err := m.vision.At(rows, cols).Encode(r, small, 1, m.cfg.Features, model.Needs{})
	if err != nil {
		return nil, nil, err
	}
	return m.Project(r, out.Selected[m.vision.Class()*cv:], n), nil, nil
}

// Encode implements model.Multimodal. All views of all pictures go through the encoder as one
// batch.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px, n := make([][]float32, len(pics)), 0
	for i, p := range pics {
		px[i] = p.(*Picture).px
		n += p.(*Picture).Count
	}
	sq, err := m.squares(r, nn.Joined(px), n, need)
	if err != nil {
		return nil, err
	}
	visuals := make([]*model.Visual, len(pics))
	n = 0
	for i, p := range pics {
		visuals[i] = m.visual(r, sq, n, p.(*Picture))
		n += p.(*Picture).Count
	}
	if r.Trace != nil && m.newline != nil {
		var packed []float32
		for _, v := range visuals {
			packed = append(packed, v.X...)
		}
		r.Trace("packed", []int{len(packed) / sq.C, sq.C}, packed)
	}
	return visuals, nil
}

// visual returns the picture whose first view is item first of sq.
func (m *Model) visual(r *model.Run, sq *squares, first int, p *Picture) *model.Visual {
	v := sq.slice(first, p.Count, p.shape)
	v.X = sq.X[first*sq.N*sq.C : (first+p.Count)*sq.N*sq.C]
	if p.rows != nil {
		p.blend(r, v, sq, first)
	}
	if p.shape.Views != nil {
		m.stitch(v)
	}
	return v
}

// fillShape sets the fields that pictures of this family's models have in common.
func (m *Model) fillShape(s *model.Shape) {
	f := m.cfg.Features[0]
	s.C, s.T, s.Cv = m.w2.Out, m.vision.Tokens(), m.w1.In
	s.Class, s.NoClass = !m.vision.SigLIP, m.vision.SigLIP
	s.Blocks, s.Depth = f, m.vision.Layers
	switch {
	case s.NoClass:
		s.Closed = "its encoder has no class token; no such method is defined for this"
	case len(m.cfg.Features) > 1:
		s.Closed = fmt.Sprintf("it passes on the states of %d layers (vision_feature_layer), "+
			"and only the last would be reduced", len(m.cfg.Features))
	case m.cfg.Full:
		s.Closed = "the class token is one of its pictures' tokens " +
			"(vision_feature_select_strategy full)"
	case f == 0:
		s.Closed = "it passes on the embedding, before any block (vision_feature_layer)"
	}
}

// squares is a batch of square pictures, or tiles of pictures, after encoder and projector.
type squares struct {
	*clip.Output
	Items, N, C   int
	X             []float32 // [Items, N, C]
	Heads, KeyDim int
	T, Cv         int // tokens with any class token; width before the projector
	Needs         model.Needs
}

// squares runs px [items, 3, side, side] through the encoder as one batch and
// through the projector.
func (m *Model) squares(r *model.Run, px []float32, items int, need model.Needs) (*squares, error) {
	t, n, cv := m.vision.Tokens(), m.tokens(), m.w1.In
	out, err := m.vision.Encode(r, px, items, m.cfg.Features, need)
	if err != nil {
		return nil, err
	}
	z := r.Buffer("llava.z", items*n*cv)
	for i := range items { // (1)
		nn.CopyRows(z[i*n*cv:], cv, 0, out.Selected[(i*t+t-n)*cv:], cv, 0, n, cv)
	}
	x := m.Project(r, z, items*n)
	if r.Trace != nil {
		r.Trace("vision.selected", []int{items, n, cv}, z)
		r.Trace("projector.out", []int{items, n, m.w2.Out}, x)
	}
	return &squares{
		Output: out, Items: items, N: n, C: m.w2.Out, X: x, Heads: m.vision.Heads,
		KeyDim: m.vision.Hidden / m.vision.Heads, T: t, Cv: cv, Needs: need,
	}, nil
}

// slice returns n items from lo on as one picture, without its tokens; it shares the batch's
// memory.
func (s *squares) slice(lo, n int, shape *model.Shape) *model.Visual {
	v := &model.Visual{Shape: shape, Heads: s.Heads, KeyDim: s.KeyDim, Needs: s.Needs}
	v.Hidden = s.Selected[lo*s.T*s.Cv : (lo+n)*s.T*s.Cv]
	if w := s.Heads * s.T; s.ClsAttn != nil {
		v.ClsAttn = s.ClsAttn[lo*w : (lo+n)*w]
	}
	v.Class, v.Received = s.taps(s.Class, lo, n), s.taps(s.Received, lo, n)
	if w := s.Heads * s.T * s.KeyDim; s.Keys != nil {
		v.Keys = s.Keys[lo*w : (lo+n)*w]
	}
	if w := len(s.LastQuery) / s.Items; w > 0 {
		v.LastQuery, v.LastKeys = s.LastQuery[lo*w:(lo+n)*w], s.LastKeys[lo*s.T*w:(lo+n)*s.T*w]
	}
	return v
}

// taps returns the part of n items from lo on of attention [Items, Heads, T] of blocks.
func (s *squares) taps(all map[int][]float32, lo, n int) map[int][]float32 {
	out, w := make(map[int][]float32, len(all)), s.Heads*s.T
	for block, v := range all {
		out[block] = v[lo*w : (lo+n)*w]
	}
	return out
}
