// Package qwen2 is the Qwen2 decoder as Qwen2.5-VL uses it: LLaMA's block with
// biases on q, k and v, and a rotation that follows three axes (M-RoPE). Source:
// Qwen2.5-VL (arXiv 2502.13923), Qwen2-VL (arXiv 2409.12191, §2.1), Hugging Face
// transformers 4.49 Qwen2_5_VLModel.
//
//	n = RMSNorm(x)                                                    (1)
//	h = x + Wo·Attn(RoPE(Wq·n + bq), RoPE(Wk·n + bk), Wv·n + bv)      (2)
//	y = h + Wd·(SiLU(Wg·m) ⊙ Wu·m),  m = RMSNorm(h)                   (3)
//	logits = Wh·RMSNorm(y)                                            (4)
//
// Rotary pair j turns by p_a(j)·θ^(−2j/headDim), a(j) being the axis (time,
// height, width) of the section that j lies in; text has the same position on
// all three. Attn adds the calibration bias of the span (RESTORE, Eq. 4 with the
// distance of Appendix A) inside the kernel.
package qwen2

import (
	"fmt"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
)

// Decoder is a bound Qwen2 language model.
type Decoder struct {
	Config
	embed  *nn.Embedding
	layers []layer
	norm   *nn.RMSNorm
	head   *nn.Linear
	rope   *nn.RoPE
	attn   nn.Attention
}

type layer struct {
	attnNorm, mlpNorm *nn.RMSNorm
	q, k, v, o        *nn.Linear
	gate, up, down    *nn.Linear
}

// New binds the decoder under b: "model.*" and "lm_head.weight".
func New(b *model.Binder, c Config) *Decoder {
	d := &Decoder{
		Config: c,
		rope:   nn.NewRoPE(c.HeadDim, c.Theta, c.Sections),
		attn:   nn.Attention{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim},
	}
	b = b.Decoder()
	b.Ignore("rotary_emb.inv_freq")
	d.embed = b.Embedding("model.embed_tokens", "vocab, hidden", c.Vocab, c.Hidden)
	for i := range c.Layers {
		d.layers = append(d.layers, bindLayer(b.In(fmt.Sprintf("model.layers.%d.", i)), &c))
	}
	d.norm = b.RMSNorm("model.norm", "hidden", c.Hidden, c.Eps)
	head := "lm_head"
	if c.Tied {
		b.Tied("lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings")
		head = "model.embed_tokens"
	}
	d.head = b.Head(head, "vocab, hidden", c.Vocab, c.Hidden)
	return d
}

func bindLayer(b *model.Binder, c *Config) layer {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return layer{
		attnNorm: b.RMSNorm("input_layernorm", "hidden", c.Hidden, c.Eps),
		q:        b.Linear("self_attn.q_proj", "heads*headDim, hidden", q, c.Hidden, true),
		k:        b.Linear("self_attn.k_proj", "kvHeads*headDim, hidden", kv, c.Hidden, true),
		v:        b.Linear("self_attn.v_proj", "kvHeads*headDim, hidden", kv, c.Hidden, true),
		o:        b.Linear("self_attn.o_proj", "hidden, heads*headDim", c.Hidden, q, false),
		mlpNorm:  b.RMSNorm("post_attention_layernorm", "hidden", c.Hidden, c.Eps),
		gate:     b.Linear("mlp.gate_proj", "mlp, hidden", c.MLP, c.Hidden, false),
		up:       b.Linear("mlp.up_proj", "mlp, hidden", c.MLP, c.Hidden, false),
		down:     b.Linear("mlp.down_proj", "hidden, mlp", c.Hidden, c.MLP, false),
	}
}

// Shape returns the decoder's sizes.
func (d *Decoder) Shape() model.DecoderShape {
	return model.DecoderShape{
		Hidden: d.Hidden, Layers: d.Layers, Heads: d.Heads, KVHeads: d.KVHeads, HeadDim: d.HeadDim,
		MLP: d.MLP, Vocab: d.Vocab, MaxPositions: d.MaxPositions, RoPE: d.rope,
	}
}

// Embed writes the embedding rows of ids into dst [len(ids), Hidden].
func (d *Decoder) Embed(dst []float32, ids []int32) error { return d.embed.Lookup(dst, ids) }

// Forward implements model.Decoder. Linear layers see all rows of all spans at
// once; attention sees each span with its own cache.
func (d *Decoder) Forward(r *model.Run, x []float32, spans []model.Span) error {
	rows := 0
	for i := range spans {
		rows += len(spans[i].Pos)
	}
	half := d.HeadDim / 2
	cos, sin := r.Buffer("qwen2.cos", rows*half), r.Buffer("qwen2.sin", rows*half)
	var pos []nn.Pos
	for i := range spans {
		pos = append(pos, spans[i].Pos...)
	}
	d.rope.Tables(cos, sin, pos)
	if r.Trace != nil {
		c, s := d.rope.AxisTables(pos)
		r.Trace("text.rope_cos_3", []int{3, rows, d.HeadDim}, c)
		r.Trace("text.rope_sin_3", []int{3, rows, d.HeadDim}, s)
		r.Trace("text.rope_cos", []int{rows, d.HeadDim}, nn.Twice(cos, rows, half))
		r.Trace("text.rope_sin", []int{rows, d.HeadDim}, nn.Twice(sin, rows, half))
	}
	for i := range d.layers {
		if err := r.Err(); err != nil {
			return err
		}
		d.block(r, i, x[:rows*d.Hidden], rows, cos, sin, spans)
	}
	return nil
}

// block runs layer i over x [rows, hidden] in place.
func (d *Decoder) block(r *model.Run, i int, x []float32, rows int, cos, sin []float32, spans []model.Span) {
	l := &d.layers[i]
	qw, kw := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	n := r.Buffer("qwen2.n", rows*d.Hidden)
	q, k, v := r.Buffer("qwen2.q", rows*qw), r.Buffer("qwen2.k", rows*kw), r.Buffer("qwen2.v", rows*kw)
	a := r.Buffer("qwen2.a", rows*qw)
	l.attnNorm.Apply(r.Pool, n, x, rows) // (1)
	l.q.Apply(r.Pool, q, n, rows)
	l.k.Apply(r.Pool, k, n, rows)
	l.v.Apply(r.Pool, v, n, rows)
	d.rope.Apply(r.Pool, q, rows, d.Heads, cos, sin)
	d.rope.Apply(r.Pool, k, rows, d.KVHeads, cos, sin)
	at := 0
	for s := range spans {
		sp := &spans[s]
		m := len(sp.Pos)
		size := sp.Size
		if i == 0 && sp.FirstSize != nil {
			size = sp.FirstSize
		}
		kv := sp.Cache.Layer(i)
		kv.Append(k[at*kw:(at+m)*kw], v[at*kw:(at+m)*kw], sp.Pos, size)
		d.attn.Causal(r.Pool, a[at*qw:(at+m)*qw], q[at*qw:(at+m)*qw], sp.Pos, kv, sp.Calib, sp.Decoding)
		if r.Trace != nil {
			t := len(kv.Pos)
			r.Trace(fmt.Sprintf("text.layer.%d.k", i), []int{d.KVHeads, t, d.HeadDim}, nn.HeadsFirst(kv.K, t, d.KVHeads, d.HeadDim))
			r.Trace(fmt.Sprintf("text.layer.%d.v", i), []int{d.KVHeads, t, d.HeadDim}, nn.HeadsFirst(kv.V, t, d.KVHeads, d.HeadDim))
			r.Trace(fmt.Sprintf("text.layer.%d.attn", i), []int{d.Heads, m, t}, d.attn.CausalProbs(q[at*qw:(at+m)*qw], sp.Pos, kv, sp.Calib, sp.Decoding))
			if sp.Calib != nil {
				r.Trace(fmt.Sprintf("text.layer.%d.bias", i), []int{m, t}, sp.Calib.Rows(kv, sp.Pos, sp.Decoding))
			}
		}
		at += m
	}
	l.o.Apply(r.Pool, n, a, rows)
	nn.Add(r.Pool, x, n) // (2)
	l.mlpNorm.Apply(r.Pool, n, x, rows)
	g, u := r.Buffer("qwen2.g", rows*d.MLP), r.Buffer("qwen2.u", rows*d.MLP)
	l.gate.Apply(r.Pool, g, n, rows)
	l.up.Apply(r.Pool, u, n, rows)
	nn.SwiGLU(r.Pool, g, u)
	l.down.Apply(r.Pool, n, g, rows)
	nn.Add(r.Pool, x, n) // (3)
	if r.Trace != nil {
		r.Trace(fmt.Sprintf("text.layer.%d.out", i), []int{rows, d.Hidden}, x)
	}
}

// Logits implements model.Decoder (4).
func (d *Decoder) Logits(r *model.Run, dst, x []float32, rows int) {
	n := r.Buffer("qwen2.final", rows*d.Hidden)
	d.norm.Apply(r.Pool, n, x, rows)
	if r.Trace != nil {
		r.Trace("text.norm", []int{rows, d.Hidden}, n)
	}
	d.head.Apply(r.Pool, dst, n, rows)
}
