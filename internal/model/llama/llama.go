// Package llama is the LLaMA decoder (pre-norm blocks, RoPE, SwiGLU, grouped key-value heads) with
// the additions of other models: Mistral's sliding window, Qwen2's biases on q, k and v and
// rotation on three axes, Qwen3's norms of queries and keys, the rows that Qwen3-VL adds to
// pictures (DeepStack), Gemma 3's norms of what blocks add, GELU, and layers of two kinds,
// Ministral 3's rotation within the context of its training, and Granite's factors.
// Source: LLaMA (arXiv 2302.13971), GQA (arXiv 2305.13245), Mistral 7B (arXiv
// 2310.06825), Qwen2-VL (arXiv 2409.12191, §2.1), Qwen3 (arXiv 2505.09388), DeepStack (arXiv
// 2406.04334), Gemma 3 (arXiv 2503.19786), Hugging Face transformers 4.49 LlamaModel, MistralModel
// and Qwen2_5_VLModel, 5.23 Qwen3VLTextModel, and 5.24 Gemma3TextModel.
//
//	n = RMSNorm(x)                                                    (1)
//	h = x + Wo·Attn(RoPE(Wq·n + bq), RoPE(Wk·n + bk), Wv·n + bv)      (2)
//	    with HeadNorm: RoPE(RMSNorm(Wq·n)), RoPE(RMSNorm(Wk·n)), each head by itself
//	y = h + Wd·(SiLU(Wg·m) ⊙ Wu·m),  m = RMSNorm(h)                   (3)
//	    in the first Deep layers, y += the picture's rows for that layer
//	    with Sandwich: h = x + RMSNorm(Wo·…), y = h + RMSNorm(Wd·…)
//	    with Residual: h = x + Residual·Wo·…, y = h + Residual·Wd·…
//	logits = Wh·RMSNorm(y)                                            (4)
//
// Attn adds the calibration bias of the span (RESTORE, Eq. 4) inside the kernel.
package llama

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Config holds the decoder's sizes and the ids that end an answer.
type Config struct {
	Hidden, Heads, KVHeads, HeadDim, Layers, MLP, Vocab int
	MaxPositions                                        int
	// number of last keys that a row sees, including its own; 0: all
	Window     int
	Eps, Theta float64
	// numbers of rotary pairs that follow time, height, width in turn; nil: one axis
	Sections    []int
	Stretch     nn.Stretch // of the rotation; Factor 0: none
	Interleaved bool       // the axes of Sections alternate from pair to pair
	Bias        bool       // on q, k and v
	HeadNorm    bool       // RMS norm of each head of q and k, before the rotation
	// queries after the context in training are scaled by their positions, which is not computed:
	// contexts end there
	Graded bool
	Deep   int     // first layers after which pictures have rows to add
	Tied   bool    // the head is the embedding
	Denied bool    // config.json says on top that it is not; see Tie
	EOS    []int32 // ids that end an answer

	// layers that Window applies to, [Layers]; nil: all. They turn by LocalTheta, not stretched
	Sliding    []bool
	LocalTheta float64
	Blocks     bool    // the rows of a picture see each other
	Scale      float64 // of the scores; 0: 1/sqrt(HeadDim)
	EmbedScale float64 // of the tokens' embeddings; 0: 1
	Offset     bool    // norms store the difference of their weights from 1
	Sandwich   bool    // norms also of what attention and MLP add
	GELU       bool    // tanh form, in the place of SiLU
	Residual   float64 // of what attention and MLP add; 0: 1
	Rows       float64 // of all rows that enter layer 0; 0: 1
}

// Tower returns the sizes of the layers.
func (c *Config) Tower() model.Tower {
	return model.Tower{
		Blocks: c.Layers, Run: c.Layers, Hidden: c.Hidden, Heads: c.Heads,
		Query: c.Heads * c.HeadDim, Key: c.KVHeads * c.HeadDim, MLP: c.MLP, Products: 3,
	}
}

// Fields describes the sizes.
func (c *Config) Fields() []model.Field {
	fields := []model.Field{
		{Name: "hidden", Value: c.Hidden}, {Name: "heads", Value: c.Heads},
		{Name: "kv heads", Value: c.KVHeads}, {Name: "head dim", Value: c.HeadDim},
		{Name: "layers", Value: c.Layers}, {Name: "mlp", Value: c.MLP},
		{Name: "vocabulary", Value: c.Vocab}, {Name: "context (positions)", Value: c.MaxPositions},
		{Name: "RoPE base", Value: c.Theta},
	}
	if c.Stretch.Factor > 0 {
		fields = append(fields, model.Field{Name: "RoPE factor", Value: c.Stretch.Factor})
	}
	if c.Window > 0 {
		fields = append(fields, model.Field{Name: "sliding window (keys)", Value: c.Window})
	}
	if c.Sliding != nil {
		fields = append(fields, model.Field{Name: "layers with a window", Value: c.sliding()},
			model.Field{Name: "RoPE base in these", Value: c.LocalTheta})
	}
	if c.Sections != nil {
		fields = append(fields,
			model.Field{Name: "RoPE pairs (time, height, width)", Value: c.Sections})
	}
	return fields
}

// sliding returns the number of layers in Sliding.
func (c *Config) sliding() (n int) {
	for _, s := range c.Sliding {
		if s {
			n++
		}
	}
	return n
}

// Decoder is a bound LLaMA language model.
type Decoder struct {
	Config
	embed  *nn.Embedding
	layers []layer
	norm   *nn.RMSNorm
	head   *nn.Linear
	ropes  []*nn.RoPE // of each layer
	scale  []float32  // [hidden] Residual / Rows; nil: 1
}

type layer struct {
	attnNorm, mlpNorm *nn.RMSNorm
	attnLast, mlpLast *nn.RMSNorm // of what is added; nil: none
	q, k, v, o        *nn.Linear
	qNorm, kNorm      *nn.RMSNorm // nil: none
	gate, up, down    *nn.Linear
	attn              nn.Attention
}

// New binds the decoder under b: "model.*" and "lm_head.weight".
func New(b *model.Binder, c Config) *Decoder {
	d := &Decoder{Config: c}
	// Additions to rows, and Eps, are divided by Rows, so that norms are the same.
	rows := cmp.Or(c.Rows, 1)
	c.Eps /= rows * rows
	if f := float32(cmp.Or(c.Residual, 1) / rows); f != 1 {
		d.scale = slices.Repeat([]float32{f}, c.Hidden)
	}
	rope := nn.NewRoPE(c.HeadDim, c.Theta, c.Sections)
	if c.Interleaved {
		rope = nn.NewInterleavedRoPE(c.HeadDim, c.Theta, c.Sections)
	}
	if c.Stretch.Factor > 0 {
		rope.Stretch(c.Stretch)
	}
	local := rope
	if c.Sliding != nil {
		local = nn.NewRoPE(c.HeadDim, c.LocalTheta, nil)
	}
	if c.HeadDim%2 != 0 { // weights of other shapes say more than this
		b.Refuse("hidden_size/num_attention_heads: got %d, want an even number (rotary pairs)",
			c.HeadDim)
	}
	b = b.Decoder()
	d.embed = b.Embedding("model.embed_tokens", "vocab, hidden", c.Vocab, c.Hidden)
	if d.embed != nil {
		d.embed.Scale = float32(c.EmbedScale)
	}
	for i := range c.Layers {
		l := bindLayer(b.In(fmt.Sprintf("model.layers.%d.", i)), &c)
		l.attn = b.Attention(nn.Attention{
			Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Window: c.Window,
			Scale: c.Scale, Rounding: l.rounding(),
		})
		if c.Sliding == nil || c.Sliding[i] {
			d.ropes = append(d.ropes, local)
		} else {
			d.ropes, l.attn.Window = append(d.ropes, rope), 0
		}
		d.layers = append(d.layers, l)
	}
	d.norm = c.normOf(b)("model.norm", "hidden", c.Hidden, c.Eps)
	head := "lm_head"
	if c.Tied {
		b.Tied("lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings")
		head = "model.embed_tokens"
	}
	d.head = b.Head(head, "vocab, hidden", c.Vocab, c.Hidden)
	return d
}

// rounding is how far attention may round what it multiplies: to bfloat16, if all products that
// lead to it round activations.
func (l *layer) rounding() nn.Rounding {
	if l.q.Rounds() && l.k.Rounds() && l.v.Rounds() {
		return nn.RoundPairs
	}
	return nn.Exact
}

// normOf returns how b binds a norm.
func (c *Config) normOf(b *model.Binder) func(name, why string, n int, eps float64) *nn.RMSNorm {
	if c.Offset {
		return b.OffsetRMSNorm
	}
	return b.RMSNorm
}

func bindLayer(b *model.Binder, c *Config) layer {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	norm, beforeMLP := c.normOf(b), "post_attention_layernorm"
	if c.Sandwich {
		beforeMLP = "pre_feedforward_layernorm"
	}
	l := layer{
		attnNorm: norm("input_layernorm", "hidden", c.Hidden, c.Eps),
		q:        b.Linear("self_attn.q_proj", "heads*headDim, hidden", q, c.Hidden, c.Bias),
		k:        b.Linear("self_attn.k_proj", "kvHeads*headDim, hidden", kv, c.Hidden, c.Bias),
		v:        b.Linear("self_attn.v_proj", "kvHeads*headDim, hidden", kv, c.Hidden, c.Bias),
		o:        b.Linear("self_attn.o_proj", "hidden, heads*headDim", c.Hidden, q, false),
		mlpNorm:  norm(beforeMLP, "hidden", c.Hidden, c.Eps),
		gate:     b.Linear("mlp.gate_proj", "mlp, hidden", c.MLP, c.Hidden, false),
		up:       b.Linear("mlp.up_proj", "mlp, hidden", c.MLP, c.Hidden, false),
		down:     b.Linear("mlp.down_proj", "hidden, mlp", c.Hidden, c.MLP, false),
	}
	if c.HeadNorm {
		l.qNorm = norm("self_attn.q_norm", "head dim", c.HeadDim, c.Eps)
		l.kNorm = norm("self_attn.k_norm", "head dim", c.HeadDim, c.Eps)
	}
	if c.Sandwich {
		l.attnLast = norm("post_attention_layernorm", "hidden", c.Hidden, c.Eps)
		l.mlpLast = norm("post_feedforward_layernorm", "hidden", c.Hidden, c.Eps)
	}
	return l
}

// Shape returns the decoder's sizes.
func (d *Decoder) Shape() model.DecoderShape {
	return model.DecoderShape{
		Hidden: d.Hidden, Layers: d.Layers, Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim,
		MLP: d.MLP, Vocab: d.Vocab, MaxPositions: d.MaxPositions, RoPE: d.ropes, Deep: d.Deep,
		Blocks: d.Blocks,
	}
}

// Embed writes the embedding rows of ids into dst [len(ids), Hidden].
func (d *Decoder) Embed(dst []float32, ids []int32) error { return d.embed.Lookup(dst, ids) }

// Forward implements model.Decoder. Linear layers process the rows of all spans together; attention
// processes each span with its own cache.
func (d *Decoder) Forward(r *model.Run, x []float32, spans []model.Span) {
	p := model.NewPassage(r, d, spans)
	tracing := p.Tracing()
	if tracing && d.Sections != nil {
		d.traceAxes(spans)
	}
	for i := range d.layers {
		if !p.Enter(i, x) {
			return
		}
		if i == 0 && tracing {
			p.Trace("text.rope_cos", d.HeadDim, nn.Twice(p.Cos, p.Rows, d.HeadDim/2))
			p.Trace("text.rope_sin", d.HeadDim, nn.Twice(p.Sin, p.Rows, d.HeadDim/2))
		}
		d.block(r, p, i, x)
		if tracing && i < d.Deep {
			p.Trace(fmt.Sprintf("text.layer.%d.raw", i), d.Hidden, x)
		}
		p.Deepen(i, x)
		if tracing {
			p.Trace(fmt.Sprintf("text.layer.%d.out", i), d.Hidden, x)
		}
	}
}

// traceAxes gives traced spans the rotation of each axis separately.
func (d *Decoder) traceAxes(spans []model.Span) {
	for i := range spans {
		sp := &spans[i]
		if sp.Trace == nil {
			continue
		}
		c, s := d.ropes[0].AxisTables(sp.Pos)
		sp.Trace("text.rope_cos_3", []int{3, len(sp.Pos), d.HeadDim}, c)
		sp.Trace("text.rope_sin_3", []int{3, len(sp.Pos), d.HeadDim}, s)
	}
}

// Attention implements model.Layers.
func (d *Decoder) Attention(layer int) *nn.Attention { return &d.layers[layer].attn }

// Ahead implements model.Layers.
func (d *Decoder) Ahead(r *model.Run, i int, q, k, x []float32, rows int) {
	l := &d.layers[i]
	n := r.Buffer("llama.n", rows*d.Hidden)
	l.attnNorm.Apply(r.Pool, n, x, rows)
	l.k.Apply(r.Pool, k, n, rows)
	l.q.Apply(r.Pool, q, n[(rows-1)*d.Hidden:], 1)
	d.headNorms(r, l, q, k, 1, rows)
}

// headNorms norms each head of qRows queries and kRows keys.
func (d *Decoder) headNorms(r *model.Run, l *layer, q, k []float32, qRows, kRows int) {
	if l.qNorm != nil {
		l.qNorm.Apply(r.Pool, q, q, qRows*d.Heads)
		l.kNorm.Apply(r.Pool, k, k, kRows*d.KVHeads)
	}
}

// Norm implements model.Layers.
func (d *Decoder) Norm(r *model.Run, dst, x []float32, rows int) {
	d.norm.Apply(r.Pool, dst, x, rows)
}

// block runs layer i over the first p.Rows rows of x [rows, hidden] in place. Of those before
// p.First it computes only keys and values.
func (d *Decoder) block(r *model.Run, p *model.Passage, i int, x []float32) {
	l, all, first := &d.layers[i], p.Rows, p.First(i)
	rows := all - first
	qw, kw := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	n := r.Buffer("llama.n", all*d.Hidden)
	q, k, v := r.Buffer("llama.q", rows*qw), r.Buffer("llama.k", all*kw),
		r.Buffer("llama.v", all*kw)
	a := r.Buffer("llama.a", rows*qw)
	l.attnNorm.Apply(r.Pool, n, x, all) // (1)
	l.q.Apply(r.Pool, q, n[first*d.Hidden:], rows)
	l.k.Apply(r.Pool, k, n, all)
	l.v.Apply(r.Pool, v, n, all)
	d.headNorms(r, l, q, k, rows, all)
	p.Yield()
	p.Attend(i, a, q, k, v, x)
	rows = p.Rows - first
	x, n = x[first*d.Hidden:p.Rows*d.Hidden], n[:rows*d.Hidden]
	l.o.Apply(r.Pool, n, a, rows)
	if l.attnLast != nil {
		l.attnLast.Apply(r.Pool, n, n, rows)
	}
	nn.AddScaled(r.Pool, x, n, d.scale) // (2)
	p.Yield()
	l.mlpNorm.Apply(r.Pool, n, x, rows)
	g, u := r.Buffer("llama.g", rows*d.MLP), r.Buffer("llama.u", rows*d.MLP)
	l.gate.Apply(r.Pool, g, n, rows)
	p.Yield()
	l.up.Apply(r.Pool, u, n, rows)
	if d.GELU {
		nn.GEGLU(r.Pool, g, u)
	} else {
		nn.SwiGLU(r.Pool, g, u)
	}
	p.Yield()
	l.down.Apply(r.Pool, n, g, rows)
	if l.mlpLast != nil {
		l.mlpLast.Apply(r.Pool, n, n, rows)
	}
	nn.AddScaled(r.Pool, x, n, d.scale) // (3)
}

// Logits implements model.Decoder (4).
func (d *Decoder) Logits(r *model.Run, dst, x []float32, rows int) {
	n := r.Buffer("llama.final", rows*d.Hidden)
	d.norm.Apply(r.Pool, n, x, rows)
	if r.Trace != nil {
		r.Trace("text.norm", []int{rows, d.Hidden}, n)
	}
	d.head.Apply(r.Pool, dst, n, rows)
}
