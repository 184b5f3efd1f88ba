package qwen3vl

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/nn"
)

const visionEps = 1e-6 // of the encoder's norms; not in the config

// encoder is a bound vision tower.
type encoder struct {
	VisionConfig
	patch  *nn.Linear
	table  []float32 // [Table², hidden] learned positions
	blocks []block
	rope   *nn.RoPE
	attn   nn.Attention
	merger merger
	deep   []merger // of the blocks in Deep
}

type block struct {
	norm1, norm2        *nn.LayerNorm
	qkv, proj, up, down *nn.Linear
}

// merger joins the patches of a cell. The norm sees each patch, or, if joined is set, the whole
// cell.
type merger struct {
	joined   bool
	norm     *nn.LayerNorm
	up, down *nn.Linear
}

// newEncoder binds the tower's weights under b.
func newEncoder(b *model.Binder, c VisionConfig) *encoder {
	d := c.Hidden
	e := &encoder{VisionConfig: c, rope: nn.NewAxialRoPE(d/c.Heads, c.Theta)}
	e.attn = b.Tower(d, c.Heads)
	e.patch = b.ConvOf("patch_embed.proj", "hidden, 3, frames, patch, patch", d, 3, c.Frames,
		c.Patch, c.Patch)
	e.patch.B = b.Vector("patch_embed.proj.bias", "hidden", d)
	e.table = b.Table("pos_embed.weight", "positions, hidden", c.Table*c.Table, d)
	for i := range c.Layers {
		in := b.In(fmt.Sprintf("blocks.%d.", i))
		e.blocks = append(e.blocks, block{
			norm1: in.LayerNorm("norm1", "hidden", d, visionEps),
			qkv:   in.Linear("attn.qkv", "3 * hidden, hidden", 3*d, d, true),
			proj:  in.Linear("attn.proj", "hidden, hidden", d, d, true),
			norm2: in.LayerNorm("norm2", "hidden", d, visionEps),
			up:    in.Linear("mlp.linear_fc1", "mlp, hidden", c.MLP, d, true),
			down:  in.Linear("mlp.linear_fc2", "hidden, mlp", d, c.MLP, true),
		})
	}
	e.merger = newMerger(b.In("merger."), &c, false)
	for i := range c.Deep {
		e.deep = append(e.deep,
			newMerger(b.In(fmt.Sprintf("deepstack_merger_list.%d.", i)), &c, true))
	}
	return e
}

func newMerger(b *model.Binder, c *VisionConfig, joined bool) merger {
	wide := c.Hidden * c.Cell()
	width, why := c.Hidden, "hidden"
	if joined {
		width, why = wide, "hidden * merge²"
	}
	return merger{
		joined: joined, norm: b.LayerNorm("norm", why, width, visionEps),
		up:   b.Linear("linear_fc1", "hidden * merge², hidden * merge²", wide, wide, true),
		down: b.Linear("linear_fc2", "out hidden, hidden * merge²", c.Out, wide, true),
	}
}

// layout describes the patches of one batch of parts, in block order.
type layout struct {
	parts   []cells.Part
	pos     []nn.Pos  // [patches] row and column
	bounds  []int32   // of parts, in patches
	logSize []float32 // [patches] what attention adds to the scores of keys; nil: nothing
}

// lay lays out parts.
func (e *encoder) lay(parts []cells.Part) *layout {
	l := &layout{parts: parts, bounds: []int32{0}, logSize: cells.LogSizes(parts, e.Merge)}
	for i := range parts {
		l.pos = append(l.pos, parts[i].Positions(e.Merge)...)
		l.bounds = append(l.bounds, int32(len(l.pos)))
	}
	return l
}

// encode runs parts; px: [patches, 3·frames·patch²], the patches that are encoded, block order.
func (e *encoder) encode(
	r *model.Run, px []float32, parts []cells.Part, need model.Needs,
) (*cells.Encoded, error) {
	lay := e.lay(parts)
	d, n, dim := e.Hidden, len(lay.pos), e.attn.HeadDim
	x := r.Buffer("qwen3vl.x", n*d)
	e.embed(r, x, px, lay)
	cos, sin := r.Buffer("qwen3vl.cos", n*dim/2), r.Buffer("qwen3vl.sin", n*dim/2)
	e.rope.Tables(cos, sin, lay.pos)
	if r.Trace != nil {
		r.Trace("vision.rope_cos", []int{n, dim}, nn.Twice(cos, n, dim/2))
		r.Trace("vision.rope_sin", []int{n, dim}, nn.Twice(sin, n, dim/2))
		r.TraceInts("vision.cu_seqlens", []int{len(lay.bounds)}, lay.bounds)
	}
	out := &cells.Encoded{Taps: map[int][]float32{}, Needs: need}
	for i := range e.blocks {
		if err := r.Pause(); err != nil {
			return nil, err
		}
		e.block(r, i, x, cos, sin, lay, need, out)
		if k := slices.Index(e.Deep, i); k >= 0 {
			rows := e.deep[k].merge(r, x, n, &e.VisionConfig)
			if r.Trace != nil {
				r.Trace(fmt.Sprintf("vision.deepstack.%d", len(out.Deep)),
					[]int{n / e.Cell(), e.Out}, rows)
			}
			out.Deep = append(out.Deep, rows)
		}
	}
	if need.Cells {
		out.Cells = e.perCell(x, d)
	}
	out.X = e.merger.merge(r, x, n, &e.VisionConfig)
	if r.Trace != nil {
		r.Trace("vision.merger", []int{n / e.Cell(), e.Out}, out.X)
	}
	return out, nil
}

// embed computes the rows that enter block 0 (1), (2).
func (e *encoder) embed(r *model.Run, x, px []float32, lay *layout) {
	d, n := e.Hidden, len(x)/e.Hidden
	cells.InParts(n, func(lo, hi int) {
		e.patch.Apply(r.Pool, x[lo*d:], px[lo*e.patch.In:], hi-lo)
	})
	if r.Trace != nil {
		r.Trace("vision.patch_embed", []int{n, d}, x)
	}
	table := r.Buffer("qwen3vl.positions", n*d)
	for i := range lay.parts {
		g := lay.parts[i].Grid
		lo, hi := int(lay.bounds[i]), int(lay.bounds[i+1])
		ys, xs := nn.Corners(e.Table, g[1]), nn.Corners(e.Table, g[2])
		var mixes []nn.Mix
		for _, p := range lay.pos[lo:hi] {
			mixes = append(mixes, ys[int(p[1])].Across(xs[int(p[2])], func(y, x int) int {
				return y*e.Table + x
			}))
		}
		nn.Blend(r.Pool, table[lo*d:hi*d], e.table, mixes, d)
	}
	nn.Add(r.Pool, x, table)
	if r.Trace != nil {
		r.Trace("vision.pos_embed", []int{n, d}, table)
		r.Trace("vision.block_in", []int{n, d}, x)
	}
}

// block runs block i over x [patches, hidden] in place. The scores come from the last block.
func (e *encoder) block(
	r *model.Run, i int, x, cos, sin []float32, lay *layout, need model.Needs, out *cells.Encoded,
) {
	l, d, n := &e.blocks[i], e.Hidden, len(x)/e.Hidden
	qkv, a, h := r.Buffer("qwen3vl.qkv", n*3*d), r.Buffer("qwen3vl.a", n*d),
		r.Buffer("qwen3vl.n", min(n, cells.MostRows)*d)
	cells.InParts(n, func(lo, hi int) {
		l.norm1.Apply(r.Pool, h, x[lo*d:hi*d], hi-lo)
		l.qkv.Apply(r.Pool, qkv[lo*3*d:], h, hi-lo)
	})
	e.rope.ApplyWithin(r.Pool, qkv, 3*d, n, 2*e.Heads, cos, sin) // queries and keys
	var received []float32
	last, tapped := i == len(e.blocks)-1, slices.Contains(need.Received, i)
	if last && (need.ClsAttn || r.Trace != nil) || tapped {
		received = make([]float32, e.Heads*n)
	}
	e.attn.Segmented(r.Pool, a, qkv, lay.bounds, lay.logSize, received) // (3)
	var merged []float32
	if received != nil {
		merged = e.perCell(received, 1)
	}
	if tapped {
		out.Taps[i] = merged
	}
	if last {
		out.Received = merged
	}
	if last && need.Keys {
		out.Keys = e.perCell(nn.Columns(qkv, n, 3*d, d, d), d)
	}
	if received != nil && r.Trace != nil {
		cells.TraceAttention(r, &e.attn, i, qkv, lay.bounds, lay.logSize, received, merged)
	}
	cells.InParts(n, func(lo, hi int) { // (4)
		m, rows, added := hi-lo, x[lo*d:hi*d], a[lo*d:hi*d]
		l.proj.Apply(r.Pool, h, added, m)
		nn.Add(r.Pool, rows, h[:m*d])
		l.norm2.Apply(r.Pool, h, rows, m)
		u := r.Buffer("qwen3vl.u", m*e.MLP)
		l.up.Apply(r.Pool, u, h, m)
		nn.GELUTanh(r.Pool, u)
		l.down.Apply(r.Pool, added, u, m)
		nn.Add(r.Pool, rows, added)
	})
	if r.Trace != nil {
		r.Trace(fmt.Sprintf("vision.block.%d.out", i), []int{n, d}, x)
	}
}

// perCell averages rows of v [patches, width] over each cell: [cells, width].
func (e *encoder) perCell(v []float32, width int) []float32 {
	out := make([]float32, len(v)/e.Cell())
	nn.GroupMean(out, v, e.Cell(), width)
	return out
}

// merge returns one row for each cell of x [patches, hidden] (5), (6). x is not changed.
func (m *merger) merge(r *model.Run, x []float32, patches int, c *VisionConfig) []float32 {
	wide := c.Hidden * c.Cell()
	n := patches / c.Cell()
	out := make([]float32, n*c.Out)
	cells.InParts(n, func(lo, hi int) {
		k := hi - lo
		h, g := r.Buffer("qwen3vl.h", k*wide), r.Buffer("qwen3vl.g", k*wide)
		rows := k
		if !m.joined {
			rows = k * c.Cell()
		}
		m.norm.Apply(r.Pool, h, x[lo*wide:hi*wide], rows)
		m.up.Apply(r.Pool, g, h, k)
		nn.GELU(r.Pool, g)
		m.down.Apply(r.Pool, out[lo*c.Out:], g, k)
	})
	return out
}
