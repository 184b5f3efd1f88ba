package qwen25vl

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// VisionConfig holds the encoder's sizes.
type VisionConfig struct {
	cells.Tower
	Window int // pixels along a window's side
	Full   []int
	Rate   int // positions of time per second
}

// parseVision reads a vision_config object. Absent keys take the defaults of
// transformers' Qwen2_5_VLVisionConfig.
func parseVision(v *model.Values) VisionConfig {
	c := VisionConfig{Tower: cells.Tower{
		Hidden: v.Int("hidden_size", -1, 1, 1<<16),
		Heads:  v.Int("num_heads", 16, 1, 1<<10),
		Layers: v.Int("depth", 32, 1, 1<<10),
		MLP:    v.Int("intermediate_size", 3420, 1, 1<<18),
		Out:    v.Int("out_hidden_size", 3584, 1, 1<<16),
		Patch:  v.Int("patch_size", 14, 1, 512),
		Frames: v.Int("temporal_patch_size", 2, 1, 16),
		Merge:  v.Int("spatial_merge_size", 2, 1, 16),
		Theta:  cells.Theta(v),
	}}
	c.Window = v.Int("window_size", 112, 1, 1<<16)
	c.Rate = v.Int("tokens_per_second", 4, 1, 1<<10)
	v.String("hidden_act", "silu", llama.SiLU...)
	v.Unsupported(map[string]string{"in_chans": "3", "in_channels": "3"})
	c.CheckHeads(v, "num_heads", "hidden_size")
	if cell := c.Merge * c.Patch; c.Window%cell != 0 {
		v.Fail("window_size", "got %d, want a multiple of %d (spatial_merge_size * patch_size)",
			c.Window, cell)
	}
	c.Full = v.Ints("fullatt_block_indexes", []int{7, 15, 23, 31})
	if len(c.Full) == 0 {
		v.Fail("fullatt_block_indexes", "got an empty list, want one block at least")
	}
	for _, i := range c.Full {
		if i < 0 || i >= c.Layers {
			v.Fail("fullatt_block_indexes", "got %d, want 0 to %d (depth %d)", i, c.Layers-1,
				c.Layers)
		}
	}
	return c
}

// side returns the number of cells along a window's side.
func (c *VisionConfig) side() int { return c.Window / c.Merge / c.Patch }

// wholes returns the layers that see the whole picture, ascending; nil: all.
func (c *VisionConfig) wholes() []int {
	full := slices.Compact(slices.Sorted(slices.Values(c.Full)))
	if len(full) == c.Layers {
		return nil
	}
	return full
}

// encoder is a bound vision tower.
type encoder struct {
	VisionConfig
	patch    *nn.Linear
	blocks   []block
	rope     *nn.RoPE
	attn     nn.Attention
	norm     *nn.RMSNorm // of the merger
	up, down *nn.Linear  // of the merger
}

type block struct {
	norm1, norm2     *nn.RMSNorm
	qkv, proj        *nn.Linear
	gate, mlpUp, out *nn.Linear
	full             bool // sees the whole picture
	tap              bool // the last block that sees the whole picture; the scores come from it
}

// newEncoder binds the tower's weights under b.
func newEncoder(b *model.Binder, c VisionConfig) *encoder {
	d := c.Hidden
	e := &encoder{VisionConfig: c, rope: nn.NewAxialRoPE(d/c.Heads, c.Theta)}
	e.attn = b.Tower(d, c.Heads)
	e.patch = b.ConvOf("patch_embed.proj", "hidden, 3, frames, patch, patch", d, 3, c.Frames,
		c.Patch, c.Patch)
	for i := range c.Layers {
		in := b.In(fmt.Sprintf("blocks.%d.", i))
		e.blocks = append(e.blocks, block{
			norm1: in.RMSNorm("norm1", "hidden", d, cells.Eps),
			qkv:   in.Linear("attn.qkv", "3 * hidden, hidden", 3*d, d, true),
			proj:  in.Linear("attn.proj", "hidden, hidden", d, d, true),
			norm2: in.RMSNorm("norm2", "hidden", d, cells.Eps),
			gate:  in.Linear("mlp.gate_proj", "mlp, hidden", c.MLP, d, true),
			mlpUp: in.Linear("mlp.up_proj", "mlp, hidden", c.MLP, d, true),
			out:   in.Linear("mlp.down_proj", "hidden, mlp", d, c.MLP, true),
		})
	}
	last := 0
	for _, i := range c.Full {
		e.blocks[i].full = true
		last = max(last, i)
	}
	e.blocks[last].tap = true
	m := b.In("merger.")
	e.norm = m.RMSNorm("ln_q", "hidden", d, cells.Eps)
	e.up = m.Linear("mlp.0", "hidden * merge², hidden * merge²", d*c.Cell(), d*c.Cell(), true)
	e.down = m.Linear("mlp.2", "out hidden, hidden * merge²", c.Out, d*c.Cell(), true)
	return e
}

// encode runs parts; px: [patches, 3·frames·patch²], the patches that are encoded, block order.
func (e *encoder) encode(
	r *model.Run, px []float32, parts []cells.Part, need model.Needs,
) (*cells.Encoded, error) {
	o := arrange(parts, e.Merge, e.side())
	d, n, dim, pixels := e.Hidden, o.patches, e.attn.HeadDim, e.patch.In
	x, in := r.Buffer("qwen25vl.x", n*d), r.Buffer("qwen25vl.a", n*d)
	cells.InParts(n, func(lo, hi int) {
		e.patch.Apply(r.Pool, in[lo*d:], px[lo*pixels:], hi-lo) // (1)
	})
	nn.Gather(x, in, o.window, e.Cell()*d)
	cos, sin := r.Buffer("qwen25vl.cos", n*dim/2), r.Buffer("qwen25vl.sin", n*dim/2)
	e.rope.Tables(cos, sin, o.inWindows)
	if r.Trace != nil {
		e.traceOrder(r, o)
		r.Trace("vision.patch_embed", []int{n, d}, in)
		r.Trace("vision.block_in", []int{n, d}, x)
	}
	out := &cells.Encoded{Taps: map[int][]float32{}, Needs: need}
	for i := range e.blocks {
		if err := r.Pause(); err != nil {
			return nil, err
		}
		e.block(r, i, x, cos, sin, o, need, out)
	}
	if need.Cells {
		out.Cells = e.perCell(x, o, d)
	}
	e.merge(r, x, o, out)
	return out, nil
}

// block runs block i over x [patches, hidden], window order, in place.
func (e *encoder) block(
	r *model.Run, i int, x, cos, sin []float32, o *order, need model.Needs, out *cells.Encoded,
) {
	l, d, n := &e.blocks[i], e.Hidden, o.patches
	qkv, a, h := r.Buffer("qwen25vl.qkv", n*3*d), r.Buffer("qwen25vl.a", n*d),
		r.Buffer("qwen25vl.n", min(n, cells.MostRows)*d)
	cells.InParts(n, func(lo, hi int) {
		l.norm1.Apply(r.Pool, h, x[lo*d:hi*d], hi-lo)
		l.qkv.Apply(r.Pool, qkv[lo*3*d:], h, hi-lo)
	})
	e.rope.ApplyWithin(r.Pool, qkv, 3*d, n, 2*e.Heads, cos, sin) // queries and keys
	bounds := o.windows
	if l.full {
		bounds = o.pictures
	}
	var received []float32
	tapped := slices.Contains(need.Received, i)
	if l.full && r.Trace != nil || l.tap && need.ClsAttn || tapped {
		received = make([]float32, e.Heads*n)
	}
	e.attn.Segmented(r.Pool, a, qkv, bounds, o.logSize, received) // (2)
	var merged []float32                                          // [heads, cells]
	for at := 0; at < len(received); at += n {
		merged = append(merged, e.perCell(received[at:at+n], o, 1)...)
	}
	if tapped {
		out.Taps[i] = merged
	}
	if l.tap {
		if need.ClsAttn {
			out.Received = merged
		}
		if need.Keys {
			out.Keys = e.perCell(nn.Columns(qkv, n, 3*d, d, d), o, d)
		}
	}
	if r.Trace != nil {
		cells.TraceAttention(r, &e.attn, i, qkv, bounds, o.logSize, received, merged)
	}
	cells.InParts(n, func(lo, hi int) { // (3)
		m, rows, added := hi-lo, x[lo*d:hi*d], a[lo*d:hi*d]
		l.proj.Apply(r.Pool, h, added, m)
		nn.Add(r.Pool, rows, h[:m*d])
		l.norm2.Apply(r.Pool, h, rows, m)
		g, u := r.Buffer("qwen25vl.g", m*e.MLP), r.Buffer("qwen25vl.u", m*e.MLP)
		l.gate.Apply(r.Pool, g, h, m)
		l.mlpUp.Apply(r.Pool, u, h, m)
		nn.SwiGLU(r.Pool, g, u)
		l.out.Apply(r.Pool, added, g, m)
		nn.Add(r.Pool, rows, added)
	})
	if r.Trace != nil {
		r.Trace(fmt.Sprintf("vision.block.%d.out", i), []int{n, d}, x)
	}
}

// perCell averages rows of v [patches, width], in window order, over each cell and puts the cells
// in raster order: [cells, width].
func (e *encoder) perCell(v []float32, o *order, width int) []float32 {
	mean, out := make([]float32, o.cells*width), make([]float32, o.cells*width)
	nn.GroupMean(mean, v, e.Cell(), width)
	nn.Gather(out, mean, o.reverse, width)
	return out
}

// merge computes one row for each cell (4).
func (e *encoder) merge(r *model.Run, x []float32, o *order, out *cells.Encoded) {
	wide := e.Hidden * e.Cell()
	e.norm.Apply(r.Pool, x, x, o.patches)
	y := r.Buffer("qwen25vl.y", o.cells*e.Out)
	cells.InParts(o.cells, func(lo, hi int) {
		m := hi - lo
		g := r.Buffer("qwen25vl.g", m*wide)
		e.up.Apply(r.Pool, g, x[lo*wide:], m)
		nn.GELU(r.Pool, g)
		e.down.Apply(r.Pool, y[lo*e.Out:], g, m)
	})
	out.X = make([]float32, o.cells*e.Out)
	nn.Gather(out.X, y, o.reverse, e.Out)
	if r.Trace != nil {
		r.Trace("vision.merger_window_order", []int{o.cells, e.Out}, y)
		r.Trace("vision.merger", []int{o.cells, e.Out}, out.X)
	}
}

func (e *encoder) traceOrder(r *model.Run, o *order) {
	half := e.attn.HeadDim / 2
	r.Trace("vision.rope_freqs", []int{o.patches, half}, e.rope.Angles(o.pos))
	r.Trace("vision.rope_freqs_window_order", []int{o.patches, half}, e.rope.Angles(o.inWindows))
	for name, v := range map[string][]int32{
		"window_index": o.window, "reverse_index": o.reverse, "cu_window_seqlens_raw": o.raw,
		"cu_window_seqlens": o.windows, "cu_seqlens": o.pictures,
	} {
		r.TraceInts("vision."+name, []int{len(v)}, v)
	}
}
