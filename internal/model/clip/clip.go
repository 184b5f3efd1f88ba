// Package clip is the CLIP vision transformer (ViT with pre-norm blocks, a class token and learned
// positions) as LLaVA uses it, SigLIP, the same without class token and LN_pre, also as Idefics3
// uses it, and InternViT, the same without LN_pre. Source: the CLIP paper (arXiv 2103.00020, §2.4),
// the SigLIP paper (arXiv 2303.15343), InternVL (arXiv 2312.14238), and Hugging Face transformers
// 4.49 CLIPVisionModel and SiglipVisionModel, and 5.24 Idefics3VisionTransformer and
// InternVLVisionModel.
//
//	e = [class; Conv(px)] + P                                  (1)
//	x = LN_pre(e)                                              (2)
//	h = x + Wo·Attn(Wq·n + bq, Wk·n + bk, Wv·n + bv) + bo,  n = LN1(x)   (3)
//	y = h + W2·act(W1·m + b1) + b2,  m = LN2(h)                (4)
//
// SigLIP has no row of its own for a class: e = Conv(px) + bias + P, and x = e. Its scores for
// reducers are the attention that each patch receives, averaged over the patches of the picture.
//
// InternViT has a bias on the convolution, x = e, and scales what blocks add: h = x + λ1 ⊙ (…), y =
// h + λ2 ⊙ (…). Its larger size has RMSNorm for LN1 and LN2, no biases on q, k and v, and an
// RMSNorm of all heads of q and of k together.
//
// Departures: LLaVA never uses the final post_layernorm, so it is checked if a file has it but not
// computed; for Idefics3 see [Encoder.Last]. SigLIP's pooling head is not read. Blocks after the
// last feature layer run only for a trace. Idefics3 looks for a patch's fraction of the side among
// those at which the rows of the table of positions begin, which gives each patch of a whole tile
// its own row; with some numbers of patches along a side (19, 25, 29, …; no published model has
// one), the rounding in transformers gives a few the row before.
package clip

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Config holds the encoder's sizes.
type Config struct {
	Hidden, Heads, Layers, MLP int
	ImageSide, Patch           int // pixels
	Eps                        float64
	Act                        string
	SigLIP, Intern             bool
	LastNorm                   bool // the norm after the last block is part of the model
	RMS                        bool // InternViT: RMSNorm for LN1 and LN2
	QKNorm                     bool // InternViT: RMSNorm of q and k
	NoBias                     bool // InternViT: on q, k and v
}

// ParseConfig reads a vision_config object. Absent keys take the defaults of transformers'
// CLIPVisionConfig. Pixels beyond whole patches are not read.
func ParseConfig(v *model.Values) Config {
	c := sizes(v, clipDefaults, "clip_vision_model")
	c.Act = v.Activation("hidden_act", "quick_gelu")
	return c
}

// Defaults of absent keys in transformers: of CLIPVisionConfig, Idefics3VisionConfig and
// InternVLVisionConfig.
var (
	clipDefaults = Config{
		Hidden: 768, Heads: 12, Layers: 12, MLP: 3072, ImageSide: 224, Patch: 32, Eps: 1e-5,
	}
	idefics3Defaults = Config{
		Hidden: 1152, Heads: 16, Layers: 12, MLP: 3072, ImageSide: 224, Patch: 32, Eps: 1e-6,
	}
	internDefaults = Config{
		Hidden: 1024, Heads: 16, Layers: 24, MLP: 4096, ImageSide: 448, Patch: 14, Eps: 1e-6,
	}
)

// SigLIPType is the model_type of a SigLIP tower.
const SigLIPType = "siglip_vision_model"

// ParseSigLIP reads a vision_config object of a SigLIP tower. Absent keys take the defaults of
// transformers' SiglipVisionConfig.
func ParseSigLIP(v *model.Values) Config {
	def := clipDefaults
	def.Patch, def.Eps = 16, 1e-6
	return siglip(v, def, SigLIPType)
}

// ParseIdefics3 reads a vision_config object of an Idefics3 or SmolVLM tower. Absent keys take the
// defaults of transformers' Idefics3VisionConfig and SmolVLMVisionConfig.
func ParseIdefics3(v *model.Values) Config {
	c := siglip(v, idefics3Defaults, "idefics3_vision", "idefics3", "smolvlm_vision", "smolvlm")
	c.LastNorm = true
	return c
}

// siglip reads a tower without a class token.
func siglip(v *model.Values, def Config, kinds ...string) Config {
	c := sizes(v, def, kinds...)
	c.Act = v.Activation("hidden_act", "gelu_pytorch_tanh")
	c.SigLIP = true
	return c
}

// ParseIntern reads a vision_config object of an InternViT tower. Absent keys take the defaults of
// transformers' InternVLVisionConfig.
func ParseIntern(v *model.Values) Config {
	c := sizes(v, internDefaults, "internvl_vision")
	c.Act = v.Activation("hidden_act", "gelu")
	c.Intern = true
	c.RMS = v.String("norm_type", "layer_norm", "layer_norm", "rms_norm") == "rms_norm"
	c.QKNorm = v.Bool("use_qk_norm", false)
	c.NoBias = !v.Bool("attention_bias", false)
	v.Unsupported(map[string]string{
		"use_absolute_position_embeddings": "true", "use_mean_pooling": "true",
	})
	if c.Patch <= c.ImageSide && c.ImageSide%c.Patch != 0 {
		v.Fail("image_size", "got %d, want a multiple of patch_size %d", c.ImageSide, c.Patch)
	}
	return c
}

// side reads one number, or the same number twice (height and width).
func side(v *model.Values, key string, def, most int) int {
	n := v.Ints(key, []int{def})
	if len(n) < 1 || len(n) > 2 || n[0] != n[len(n)-1] || n[0] < 1 || n[0] > most {
		v.Fail(key, "got %v, want one number of 1 to %d, for height and width", n, most)
		return def
	}
	return n[0]
}

// sizes reads what all towers have. kinds are the tower's model_types.
func sizes(v *model.Values, def Config, kinds ...string) Config {
	c := Config{
		Hidden:    v.Int("hidden_size", def.Hidden, 1, 1<<16),
		Heads:     v.Int("num_attention_heads", def.Heads, 1, 1<<10),
		Layers:    v.Int("num_hidden_layers", def.Layers, 1, 1<<10),
		MLP:       v.Int("intermediate_size", def.MLP, 1, 1<<18),
		ImageSide: side(v, "image_size", def.ImageSide, 1<<14),
		Patch:     side(v, "patch_size", def.Patch, 1<<10),
		Eps:       v.Float("layer_norm_eps", def.Eps),
	}
	v.Unsupported(map[string]string{"num_channels": "3"})
	v.String("model_type", kinds[0], kinds...)
	if c.Hidden%c.Heads != 0 {
		v.Fail("num_attention_heads", "got %d, which does not divide hidden_size %d", c.Heads,
			c.Hidden)
	}
	if c.Patch > c.ImageSide {
		v.Fail("patch_size", "got %d, want at most image_size %d", c.Patch, c.ImageSide)
	}
	return c
}

// Grid returns the number of patches along one side.
func (c *Config) Grid() int { return c.ImageSide / c.Patch }

// Class returns the number of class tokens.
func (c *Config) Class() int {
	if c.SigLIP {
		return 0
	}
	return 1
}

// Tokens returns the number of patches plus the class token.
func (c *Config) Tokens() int { return c.Grid()*c.Grid() + c.Class() }

// Encoder is a bound vision tower.
type Encoder struct {
	Config
	class, pos    []float32 // [hidden], [tokens, hidden]
	rows, cols    int       // of patches
	height, width int       // of a picture in pixels
	patch         *nn.Linear
	pre           *nn.LayerNorm // nil: SigLIP, InternViT
	last          *nn.LayerNorm // after the last block; nil: the files have none
	layers        []layer
	attn          nn.Attention
}

type layer struct {
	norm1, norm2   norm
	q, k, v, o     *nn.Linear
	qNorm, kNorm   *nn.RMSNorm // nil: none
	up, down       *nn.Linear
	scale1, scale2 []float32 // [hidden] λ1, λ2; nil: none
}

// norm is LayerNorm or RMSNorm.
type norm interface {
	Apply(p *nn.Pool, y, x []float32, rows int)
}

// New binds the tower's weights under b.
func New(b *model.Binder, c Config) *Encoder {
	e := &Encoder{
		Config: c, rows: c.Grid(), cols: c.Grid(), height: c.ImageSide, width: c.ImageSide,
		attn: b.Tower(c.Hidden, c.Heads),
	}
	if c.Intern {
		e.bindIntern(b)
		return e
	}
	e.patch = b.Conv("embeddings.patch_embedding", "hidden, 3, patch, patch", c.Hidden, c.Patch)
	e.pos = b.Table("embeddings.position_embedding.weight", "tokens, hidden", c.Tokens(), c.Hidden)
	if c.SigLIP {
		e.patch.B = b.Vector("embeddings.patch_embedding.bias", "hidden", c.Hidden)
		b.Unread("head.")
	} else {
		e.class = b.Vector("embeddings.class_embedding", "hidden", c.Hidden)
		e.pre = b.LayerNorm("pre_layrnorm", "hidden", c.Hidden, c.Eps)
	}
	for i := range c.Layers {
		e.layers = append(e.layers, bindLayer(b.In(fmt.Sprintf("encoder.layers.%d.", i)), &c))
	}
	if c.LastNorm || b.Has("post_layernorm.weight") || b.Has("post_layernorm.bias") {
		e.last = b.LayerNorm("post_layernorm", "hidden", c.Hidden, c.Eps)
	}
	return e
}

// Last applies the norm after the last block to x [rows, hidden] in place. LastNorm must be set.
func (e *Encoder) Last(r *model.Run, x []float32, rows int) {
	e.last.Apply(r.Pool, x, x, rows)
}

func bindLayer(b *model.Binder, c *Config) layer {
	h := c.Hidden
	return layer{
		norm1: b.LayerNorm("layer_norm1", "hidden", h, c.Eps),
		q:     b.Linear("self_attn.q_proj", "hidden, hidden", h, h, true),
		k:     b.Linear("self_attn.k_proj", "hidden, hidden", h, h, true),
		v:     b.Linear("self_attn.v_proj", "hidden, hidden", h, h, true),
		o:     b.Linear("self_attn.out_proj", "hidden, hidden", h, h, true),
		norm2: b.LayerNorm("layer_norm2", "hidden", h, c.Eps),
		up:    b.Linear("mlp.fc1", "mlp, hidden", c.MLP, h, true),
		down:  b.Linear("mlp.fc2", "hidden, mlp", h, c.MLP, true),
	}
}

// bindIntern binds the weights of InternViT. A token for masked patches, which only training reads,
// may be in the file.
func (e *Encoder) bindIntern(b *model.Binder) {
	c := &e.Config
	const patches = "embeddings.patch_embeddings.projection"
	e.patch = b.Conv(patches, "hidden, 3, patch, patch", c.Hidden, c.Patch)
	e.patch.B = b.Vector(patches+".bias", "hidden", c.Hidden)
	e.class = b.Table("embeddings.cls_token", "1, 1, hidden", 1, 1, c.Hidden)
	e.pos = b.Table("embeddings.position_embeddings", "1, tokens, hidden", 1, c.Tokens(), c.Hidden)
	b.Unread("embeddings.mask_token")
	for i := range c.Layers {
		e.layers = append(e.layers, internLayer(b.In(fmt.Sprintf("encoder.layer.%d.", i)), c))
	}
}

func internLayer(b *model.Binder, c *Config) layer {
	h := c.Hidden
	normed := func(name string) norm {
		if c.RMS {
			return b.RMSNorm(name, "hidden", h, c.Eps)
		}
		return b.LayerNorm(name, "hidden", h, c.Eps)
	}
	l := layer{
		norm1:  normed("layernorm_before"),
		q:      b.Linear("attention.q_proj", "hidden, hidden", h, h, !c.NoBias),
		k:      b.Linear("attention.k_proj", "hidden, hidden", h, h, !c.NoBias),
		v:      b.Linear("attention.v_proj", "hidden, hidden", h, h, !c.NoBias),
		o:      b.Linear("attention.projection_layer", "hidden, hidden", h, h, true),
		scale1: b.Vector("lambda_1", "hidden", h),
		norm2:  normed("layernorm_after"),
		up:     b.Linear("mlp.fc1", "mlp, hidden", c.MLP, h, true),
		down:   b.Linear("mlp.fc2", "hidden, mlp", h, c.MLP, true),
		scale2: b.Vector("lambda_2", "hidden", h),
	}
	if c.QKNorm {
		l.qNorm = b.RMSNorm("attention.q_norm", "hidden", h, QKEps)
		l.kNorm = b.RMSNorm("attention.k_norm", "hidden", h, QKEps)
	}
	return l
}

// QKEps is transformers' default eps of RMSNorm, which InternViT's norms of q and k have.
const QKEps = 1e-6

// Tokens returns the number of patches of a picture plus the class token.
func (e *Encoder) Tokens() int { return e.rows*e.cols + e.Class() }

// At returns the encoder for pictures of rows×cols patches: the same weights, with positions
// interpolated as in transformers' interpolate_pos_encoding.
func (e *Encoder) At(rows, cols int) *Encoder {
	other := *e
	other.rows, other.cols = rows, cols
	other.height, other.width = rows*e.Patch, cols*e.Patch
	class := e.Class() * e.Hidden
	other.pos = append([]float32(nil), e.pos[:class]...)
	other.pos = append(other.pos, nn.Resize(e.pos[class:], 1, e.rows, e.cols, e.Hidden, rows,
		cols, false)...)
	return &other
}

// mostRows is enough for the full speed of products, and few enough to limit their memory: a
// picture may have 17 views of 1024 patches.
const mostRows = 2048

// together is how many of items pictures go through the blocks at once.
func (e *Encoder) together(items int) int { return min(items, max(1, mostRows/e.Tokens())) }

// Work returns the rows that Encode multiplies for items pictures if blocks blocks run, and the
// operations of their attention, two per multiply-add.
func (e *Encoder) Work(items, blocks int) (rows int, attention float64) {
	t := float64(e.Tokens())
	return items * e.Tokens(), float64(blocks) * 4 * float64(items) * t * t * float64(e.Hidden)
}

// Tower returns the sizes of the layers, of which run run.
func (c *Config) Tower(run int) model.Tower {
	return model.Tower{
		Blocks: c.Layers, Run: run, Hidden: c.Hidden, Heads: c.Heads, Query: c.Hidden,
		Key: c.Hidden, MLP: c.MLP, Products: 2,
	}
}

// EncodeBytes returns the memory that Encode takes for items pictures and the given number of
// feature states.
func (e *Encoder) EncodeBytes(items, features int) int64 {
	t, n, at := e.Tokens(), e.Grid()*e.Grid(), e.together(items)
	// a product keeps its widest input
	each := int64(t*(6*e.Hidden+2*e.MLP) + n*(e.patch.In+e.Hidden))
	states := int64(t * features * e.Hidden)
	n64 := int64(items)
	if at < items { // the states of pictures that go together, and all
		n64 += int64(at)
	}
	return 4 * (int64(at)*each + n64*states)
}

// Output is the result of Encode; the caller owns it.
type Output struct {
	Selected []float32 // [items, tokens, hidden·len(features)], feature states concatenated
	// [items, heads, tokens] class-token attention in the tap layer; of SigLIP, received attention
	ClsAttn []float32
	Keys    []float32 // [items, heads, tokens, headDim] keys of the tap layer
	// [items, heads, tokens] of each layer in the needs
	Class, Received map[int][]float32

	// [items, hidden] class token's query of the last layer, even if that layer does not run
	LastQuery []float32
	LastKeys  []float32 // [items, tokens, hidden] that layer's keys
}

// Read sets what reducers read of v to means of o over cells of the tokens lo to hi-1 of all items,
// for an encoder without a class token.
func (e *Encoder) Read(p *nn.Pool, v *model.Visual, o *Output, cells []nn.Mix, lo, hi int) {
	v.Heads, v.KeyDim = e.Heads, e.Hidden/e.Heads
	heads := func(src []float32, width int) []float32 {
		return nn.BlendHeads(p, src, cells, e.Heads, e.Tokens(), lo, hi, width)
	}
	v.ClsAttn, v.Keys = heads(o.ClsAttn, 1), heads(o.Keys, v.KeyDim)
	v.Received = make(map[int][]float32, len(o.Received))
	for block, received := range o.Received {
		v.Received[block] = heads(received, 1)
	}
}

// Encode runs items pictures px [items, 3, height, width] and returns the states features
// (0 is the embedding, k the output of block k−1; see package model), concatenated. The taps come
// from the block that produces features[0]. Only as many pictures go through the blocks at once as
// products need for their full speed; in a trace, all.
func (e *Encoder) Encode(
	r *model.Run, px []float32, items int, features []int, need model.Needs,
) (*Output, error) {
	each := e.together(items)
	if each == items || r.Trace != nil {
		return e.encode(r, px, items, features, need)
	}
	one := len(px) / items
	out := &Output{
		Selected: make([]float32, 0, items*e.Tokens()*e.Hidden*len(features)),
		Class:    map[int][]float32{}, Received: map[int][]float32{},
	}
	for lo := 0; lo < items; lo += each {
		hi := min(lo+each, items)
		part, err := e.encode(r, px[lo*one:hi*one], hi-lo, features, need)
		if err != nil {
			return nil, err
		}
		for _, f := range []struct {
			all  *[]float32
			part []float32
		}{
			{&out.Selected, part.Selected}, {&out.ClsAttn, part.ClsAttn}, {&out.Keys, part.Keys},
			{&out.LastQuery, part.LastQuery}, {&out.LastKeys, part.LastKeys},
		} {
			*f.all = append(*f.all, f.part...)
		}
		for block, attention := range part.Class {
			out.Class[block] = append(out.Class[block], attention...)
		}
		for block, attention := range part.Received {
			out.Received[block] = append(out.Received[block], attention...)
		}
	}
	return out, nil
}

// encode is Encode for pictures that go through the blocks together.
func (e *Encoder) encode(
	r *model.Run, px []float32, items int, features []int, need model.Needs,
) (*Output, error) {
	t, d := e.Tokens(), e.Hidden
	rows := items * t
	x := e.embed(r, px, items)
	if r.Trace != nil {
		r.Trace("vision.pre_ln", []int{items, t, d}, x)
	}
	out := &Output{
		Selected: make([]float32, rows*d*len(features)), Class: map[int][]float32{},
		Received: map[int][]float32{},
	}
	last := 0
	for i, f := range features {
		last = max(last, f)
		if f == 0 {
			nn.CopyRows(out.Selected, d*len(features), i*d, x, d, 0, rows, d)
		}
	}
	if need.Last {
		last = max(last, len(e.layers)-1)
	}
	for i := range e.layers {
		if need.Last && i == len(e.layers)-1 {
			out.LastQuery, out.LastKeys = e.projections(r, i, x, items)
		}
		if i >= last && r.Trace == nil {
			break
		}
		if err := r.Pause(); err != nil {
			return nil, err
		}
		e.block(r, i, x, items, out, need, i+1 == features[0])
		for j, f := range features {
			if f == i+1 {
				nn.CopyRows(out.Selected, d*len(features), j*d, x, d, 0, rows, d)
			}
		}
	}
	return out, nil
}

// embed computes the rows that enter block 0 (1), (2): [items·tokens, hidden].
func (e *Encoder) embed(r *model.Run, px []float32, items int) []float32 {
	t, d, class := e.Tokens(), e.Hidden, e.Class()
	n := t - class
	patches := r.Buffer("clip.patches", items*n*e.patch.In)
	nn.Patches(patches, px, items, 3, e.height, e.width, e.Patch)
	emb := r.Buffer("clip.embed", items*n*d)
	e.patch.Apply(r.Pool, emb, patches, items*n)
	x := r.Buffer("clip.x", items*t*d)
	for i := range items { // (1)
		nn.CopyRows(x[i*t*d:], d, 0, e.class, d, 0, class, d)
		nn.CopyRows(x[(i*t+class)*d:], d, 0, emb[i*n*d:], d, 0, n, d)
	}
	nn.AddRepeated(x, e.pos)
	if r.Trace != nil {
		r.Trace("vision.embed", []int{items, t, d}, x)
	}
	if e.pre != nil {
		e.pre.Apply(r.Pool, x, x, items*t) // (2)
	}
	return x
}

// projections returns the queries and keys of layer i for input x: the class tokens' queries
// [items, hidden] and all keys [items, tokens, hidden].
func (e *Encoder) projections(r *model.Run, i int, x []float32, items int) (query, keys []float32) {
	l, t, d := &e.layers[i], e.Tokens(), e.Hidden
	n := r.Buffer("clip.n", items*t*d)
	l.norm1.Apply(r.Pool, n, x, items*t)
	keys = make([]float32, items*t*d)
	l.k.Apply(r.Pool, keys, n, items*t)
	l.norms(r, nil, keys, items*t)
	class := r.Buffer("clip.q", items*d)
	nn.CopyRows(class, d, 0, n, t*d, 0, items, d)
	query = make([]float32, items*d)
	l.q.Apply(r.Pool, query, class, items)
	l.norms(r, query, nil, items)
	return query, keys
}

// states are a block's activations in the workspace, in addition to its rows.
type states struct{ n, q, k, v, a []float32 }

// project computes queries, keys and values of layer l for rows rows of x.
func (e *Encoder) project(r *model.Run, l *layer, x []float32, rows int) states {
	w := rows * e.Hidden
	s := states{
		r.Buffer("clip.n", w), r.Buffer("clip.q", w), r.Buffer("clip.k", w), r.Buffer("clip.v", w),
		r.Buffer("clip.a", w),
	}
	l.norm1.Apply(r.Pool, s.n, x, rows)
	l.q.Apply(r.Pool, s.q, s.n, rows)
	l.k.Apply(r.Pool, s.k, s.n, rows)
	l.v.Apply(r.Pool, s.v, s.n, rows)
	l.norms(r, s.q, s.k, rows)
	return s
}

// norms norms rows queries and keys in place, where there is a norm of them; nil: none are given.
func (l *layer) norms(r *model.Run, q, k []float32, rows int) {
	if l.qNorm != nil && q != nil {
		l.qNorm.Apply(r.Pool, q, q, rows)
	}
	if l.kNorm != nil && k != nil {
		l.kNorm.Apply(r.Pool, k, k, rows)
	}
}

// mlp adds the second half of layer l to x (4); n is scratch.
func (e *Encoder) mlp(r *model.Run, l *layer, x, n []float32, rows int) {
	l.norm2.Apply(r.Pool, n, x, rows)
	m := r.Buffer("clip.m", rows*e.MLP)
	l.up.Apply(r.Pool, m, n, rows)
	nn.Activations[e.Act](r.Pool, m)
	l.down.Apply(r.Pool, n, m, rows)
	nn.AddScaled(r.Pool, x, n[:rows*e.Hidden], l.scale2)
}

// block runs layer i over x in place. tap means that this layer returns scores.
func (e *Encoder) block(
	r *model.Run, i int, x []float32, items int, out *Output, need model.Needs, tap bool,
) {
	l, t, d := &e.layers[i], e.Tokens(), e.Hidden
	rows, dim := items*t, e.attn.HeadDim
	s := e.project(r, l, x, rows)
	var first, received []float32
	scores := tap && (need.ClsAttn || e.SigLIP && r.Trace != nil)
	if scores && !e.SigLIP || slices.Contains(need.Class, i) {
		first = make([]float32, items*e.Heads*t)
		out.Class[i] = first
	}
	if scores && e.SigLIP || slices.Contains(need.Received, i) {
		received = make([]float32, items*e.Heads*t)
		out.Received[i] = received
	}
	if scores {
		if out.ClsAttn = first; e.SigLIP {
			out.ClsAttn = received
		}
	}
	e.attn.Bidirectional(r.Pool, s.a, s.q, s.k, s.v, items, t, first, received)
	if tap && need.Keys {
		for it := range items {
			out.Keys = append(out.Keys, nn.HeadsFirst(s.k[it*t*d:(it+1)*t*d], t, e.Heads, dim)...)
		}
	}
	if r.Trace != nil {
		r.Trace(fmt.Sprintf("vision.layer.%d.q", i), []int{items, t, d}, s.q)
		r.Trace(fmt.Sprintf("vision.layer.%d.k", i), []int{items, t, d}, s.k)
		if !r.NoMaps {
			r.Trace(fmt.Sprintf("vision.layer.%d.attn", i), []int{items, e.Heads, t, t},
				e.attn.BidirectionalProbs(r.Pool, s.q, s.k, items, t))
		}
		var mean []float32
		for at := 0; at < len(received); at += e.Heads * t {
			mean = append(mean, nn.MeanRows(received[at:at+e.Heads*t], e.Heads)...)
		}
		if mean != nil {
			r.Trace(fmt.Sprintf("vision.layer.%d.received", i), []int{items, t}, mean)
		}
	}
	l.o.Apply(r.Pool, s.n, s.a, rows)
	nn.AddScaled(r.Pool, x, s.n, l.scale1) // (3)
	e.mlp(r, l, x, s.n, rows)
	if r.Trace != nil {
		r.Trace(fmt.Sprintf("vision.layer.%d.out", i), []int{items, t, d}, x)
	}
}
