package cells

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Eps is the epsilon of every norm of Qwen's towers. It is not in the config.
const Eps = 1e-6

// Whole is a tower whose blocks see the whole picture, of a video one moment. The equations of its
// blocks are
//
//	h = x + Wo·Attn(RoPE₂(Wq·n + bq), RoPE₂(Wk·n + bk), Wv·n + bv) + bo,  n = Norm(x)       (1)
//	y = h + W2·Act(W1·m + b1) + b2,  m = Norm(h)                                            (2)
//	    with a gate: y = h + W2·(Act(Wg·m) ⊙ W1·m)
//
// Scores come from the last block.
type Whole struct {
	Tower
	Attn  nn.Attention
	Patch *nn.Linear
	// Enter changes the rows x [patches, hidden] that enter block 0; nil: it does not.
	Enter func(r *model.Run, x []float32, lay *Layout)
	// After returns what the decoder reads of the output x of block i, nil if it reads nothing; a
	// nil After: of no block.
	After  func(r *model.Run, i int, x []float32) []float32
	Blocks []Block
	RoPE   *nn.RoPE
	Act    func(p *nn.Pool, x []float32)        // of blocks without a gate
	Gated  func(p *nn.Pool, gate, up []float32) // gate = Act(gate) ⊙ up, of blocks with one
	// Join returns one row [Out] for each cell of the last block's output x [patches, hidden],
	// which it does not change.
	Join func(r *model.Run, x []float32) []float32
}

// Block is the weights of one block.
type Block struct {
	Norm1, Norm2   Norm
	QKV            []*nn.Linear // one layer for all three, or one for each
	Proj, Up, Down *nn.Linear
	Gate           *nn.Linear // nil: none
}

// Norm is LayerNorm or RMSNorm.
type Norm interface {
	Apply(p *nn.Pool, y, x []float32, rows int)
}

// WholeNames are the names of weights that differ between models.
type WholeNames struct {
	Up, Down string // of a block's MLP
	Merger   MergerNames
	Biased   bool // the patch embedding has a bias
}

// NewWhole binds the weights of a tower of Qwen's under b: LayerNorms, and biases on all layers.
// act is the activation of its blocks.
func NewWhole(
	b *model.Binder, t Tower, names WholeNames, act func(p *nn.Pool, x []float32),
) *Whole {
	d := t.Hidden
	e := &Whole{Tower: t, Attn: b.Tower(d, t.Heads), RoPE: nn.NewAxialRoPE(d/t.Heads, t.Theta),
		Act: act}
	e.Patch = b.ConvOf("patch_embed.proj", "hidden, 3, frames, patch, patch", d, 3, t.Frames,
		t.Patch, t.Patch)
	if names.Biased {
		e.Patch.B = b.Vector("patch_embed.proj.bias", "hidden", d)
	}
	for i := range t.Layers {
		in := b.In(fmt.Sprintf("blocks.%d.", i))
		e.Blocks = append(e.Blocks, Block{
			Norm1: in.LayerNorm("norm1", "hidden", d, Eps),
			QKV:   []*nn.Linear{in.Linear("attn.qkv", "3 * hidden, hidden", 3*d, d, true)},
			Proj:  in.Linear("attn.proj", "hidden, hidden", d, d, true),
			Norm2: in.LayerNorm("norm2", "hidden", d, Eps),
			Up:    in.Linear(names.Up, "mlp, hidden", t.MLP, d, true),
			Down:  in.Linear(names.Down, "hidden, mlp", d, t.MLP, true),
		})
	}
	e.Join = NewMerger(b.In("merger."), t, names.Merger, false).Merge
	return e
}

// Merger joins the patches of a cell:
//
//	X = W2·GELU(W1·c + b1) + b2,  c = the LN rows of a cell side by side                    (3)
//
// The norm sees each patch, or, of a joined one, the whole cell.
type Merger struct {
	Tower
	joined   bool
	norm     *nn.LayerNorm
	up, down *nn.Linear
}

// MergerNames are the names of a merger's weights.
type MergerNames struct{ Norm, Up, Down string }

// NewMerger binds a merger's weights under b.
func NewMerger(b *model.Binder, t Tower, names MergerNames, joined bool) *Merger {
	wide := t.Hidden * t.Cell()
	width, why := t.Hidden, "hidden"
	if joined {
		width, why = wide, "hidden * merge²"
	}
	return &Merger{
		Tower: t, joined: joined, norm: b.LayerNorm(names.Norm, why, width, Eps),
		up:   b.Linear(names.Up, "hidden * merge², hidden * merge²", wide, wide, true),
		down: b.Linear(names.Down, "out hidden, hidden * merge²", t.Out, wide, true),
	}
}

// Layout describes the patches of one batch of parts, in block order.
type Layout struct {
	Parts   []Part
	Pos     []nn.Pos  // [patches] row and column
	Bounds  []int32   // of parts, in patches
	logSize []float32 // [patches] what attention adds to the scores of keys; nil: nothing
}

// lay lays out parts.
func (e *Whole) lay(parts []Part) *Layout {
	l := &Layout{Parts: parts, Bounds: []int32{0}, logSize: LogSizes(parts, e.Merge)}
	for i := range parts {
		l.Pos = append(l.Pos, parts[i].Positions(e.Merge)...)
		l.Bounds = append(l.Bounds, int32(len(l.Pos)))
	}
	return l
}

// Encode runs parts; px: [patches, 3·frames·patch²], the patches that are encoded, block order.
func (e *Whole) Encode(
	r *model.Run, px []float32, parts []Part, need model.Needs,
) (*Encoded, error) {
	lay := e.lay(parts)
	d, n, dim := e.Hidden, len(lay.Pos), e.Attn.HeadDim
	x := r.Buffer("cells.x", n*d)
	InParts(n, func(lo, hi int) {
		e.Patch.Apply(r.Pool, x[lo*d:], px[lo*e.Patch.In:], hi-lo)
	})
	if r.Trace != nil {
		r.Trace("vision.patch_embed", []int{n, d}, x)
	}
	if e.Enter != nil {
		e.Enter(r, x, lay)
	}
	cos, sin := r.Buffer("cells.cos", n*dim/2), r.Buffer("cells.sin", n*dim/2)
	e.RoPE.Tables(cos, sin, lay.Pos)
	if r.Trace != nil {
		r.Trace("vision.rope_cos", []int{n, dim}, nn.Twice(cos, n, dim/2))
		r.Trace("vision.rope_sin", []int{n, dim}, nn.Twice(sin, n, dim/2))
		r.TraceInts("vision.cu_seqlens", []int{len(lay.Bounds)}, lay.Bounds)
	}
	out := &Encoded{Taps: map[int][]float32{}, Needs: need}
	for i := range e.Blocks {
		if err := r.Pause(); err != nil {
			return nil, err
		}
		e.block(r, i, x, cos, sin, lay, need, out)
		if e.After == nil {
			continue
		}
		rows := e.After(r, i, x)
		if rows == nil {
			continue
		}
		if r.Trace != nil {
			r.Trace(fmt.Sprintf("vision.deepstack.%d", len(out.Deep)), []int{n / e.Cell(), e.Out},
				rows)
		}
		out.Deep = append(out.Deep, rows)
	}
	if need.Cells {
		out.Cells = e.perCell(x, d)
	}
	out.X = e.Join(r, x)
	if r.Trace != nil {
		r.Trace("vision.merger", []int{n / e.Cell(), e.Out}, out.X)
	}
	return out, nil
}

// block runs block i over x [patches, hidden] in place.
func (e *Whole) block(
	r *model.Run, i int, x, cos, sin []float32, lay *Layout, need model.Needs, out *Encoded,
) {
	l, d, n := &e.Blocks[i], e.Hidden, len(x)/e.Hidden
	qkv, a, h := r.Buffer("cells.qkv", n*3*d), r.Buffer("cells.a", n*d),
		r.Buffer("cells.n", min(n, MostRows)*d)
	InParts(n, func(lo, hi int) {
		l.Norm1.Apply(r.Pool, h, x[lo*d:hi*d], hi-lo)
		l.project(r, qkv[lo*3*d:], h, hi-lo)
	})
	e.RoPE.ApplyWithin(r.Pool, qkv, 3*d, n, 2*e.Heads, cos, sin) // queries and keys
	var received []float32
	last, tapped := i == len(e.Blocks)-1, slices.Contains(need.Received, i)
	if last && (need.ClsAttn || r.Trace != nil) || tapped {
		received = make([]float32, e.Heads*n)
	}
	e.Attn.Segmented(r.Pool, a, qkv, lay.Bounds, lay.logSize, received) // (1)
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
	if r.Trace != nil {
		TraceAttention(r, &e.Attn, i, qkv, lay.Bounds, lay.logSize, received, merged)
	}
	InParts(n, func(lo, hi int) { // (2)
		m, rows, added := hi-lo, x[lo*d:hi*d], a[lo*d:hi*d]
		l.Proj.Apply(r.Pool, h, added, m)
		nn.Add(r.Pool, rows, h[:m*d])
		l.Norm2.Apply(r.Pool, h, rows, m)
		u := r.Buffer("cells.u", m*e.MLP)
		l.Up.Apply(r.Pool, u, h, m)
		if l.Gate != nil {
			g := r.Buffer("cells.g", m*e.MLP)
			l.Gate.Apply(r.Pool, g, h, m)
			e.Gated(r.Pool, g, u)
			u = g
		} else {
			e.Act(r.Pool, u)
		}
		l.Down.Apply(r.Pool, added, u, m)
		nn.Add(r.Pool, rows, added)
	})
	if r.Trace != nil {
		r.Trace(fmt.Sprintf("vision.block.%d.out", i), []int{n, d}, x)
	}
}

// project writes queries, keys and values of rows rows of h [rows, hidden] to qkv [rows, 3·hidden].
func (l *Block) project(r *model.Run, qkv, h []float32, rows int) {
	if len(l.QKV) == 1 {
		l.QKV[0].Apply(r.Pool, qkv, h, rows)
		return
	}
	for i, w := range l.QKV {
		part := r.Buffer("cells.part", rows*w.Out)
		w.Apply(r.Pool, part, h, rows)
		nn.CopyRows(qkv, 3*w.Out, i*w.Out, part, w.Out, 0, rows, w.Out)
	}
}

// perCell averages rows of v [patches, width] over each cell: [cells, width].
func (e *Whole) perCell(v []float32, width int) []float32 {
	out := make([]float32, len(v)/e.Cell())
	nn.GroupMean(out, v, e.Cell(), width)
	return out
}

// Merge returns one row for each cell of x [patches, hidden] (3). x is not changed.
func (m *Merger) Merge(r *model.Run, x []float32) []float32 {
	wide := m.Hidden * m.Cell()
	n := len(x) / wide
	out := make([]float32, n*m.Out)
	InParts(n, func(lo, hi int) {
		k := hi - lo
		h, g := r.Buffer("cells.h", k*wide), r.Buffer("cells.g", k*wide)
		rows := k
		if !m.joined {
			rows = k * m.Cell()
		}
		m.norm.Apply(r.Pool, h, x[lo*wide:hi*wide], rows)
		m.up.Apply(r.Pool, g, h, k)
		nn.GELU(r.Pool, g)
		m.down.Apply(r.Pool, out[lo*m.Out:], g, k)
	})
	return out
}

// Work is [model.Multimodal]'s EncodeWork of a model with this tower.
func (e *Whole) Work(px *imageproc.Pixels, share float64) (rows int, attention float64) {
	keys := 0.0
	for _, g := range px.GridTHW {
		n := share * float64(g[1]*g[2])
		keys += float64(g[0]) * n * n
	}
	return int(share * float64(px.Shape[0])), 4 * float64(e.Layers) * keys * float64(e.Hidden)
}

// Bytes is [model.Multimodal]'s EncodeBytes of a model with this tower, of which the decoder reads
// the output of deep blocks too, without what Enter takes.
func (e *Whole) Bytes(px *imageproc.Pixels, share float64, deep int) int64 {
	n := int(share * float64(px.Shape[0]))
	rows, tokens := min(n, MostRows), n/e.Cell()
	mlp, merger := rows*e.MLP, min(tokens, MostRows)*e.Hidden*e.Cell()
	if l := &e.Blocks[0]; l.Gate != nil {
		mlp += rows * (e.MLP + l.QKV[0].Out)
	}
	wide := mlp + 2*merger + max(mlp, merger) // a product keeps its widest input
	return 4 * int64(n*(5*e.Hidden+e.Attn.HeadDim)+rows*e.Hidden+wide+(1+deep)*tokens*e.Out)
}

// Sizes returns the sizes for a picture of that many tokens, without the decoder's.
func (t *Tower) Sizes(tokens int) *model.Sizes {
	s := Sizes(tokens, t.Merge, t.Hidden, t.Out)
	s.Patch, s.Projectors = t.Values(), 1
	s.Vision = model.Tower{
		Blocks: t.Layers, Run: t.Layers, Hidden: t.Hidden, Heads: t.Heads, Query: t.Hidden,
		Key: t.Hidden, MLP: t.MLP, Products: 2,
	}
	return s
}

// Fields returns what the tower is, for people.
func (t *Tower) Fields() []model.Field {
	return []model.Field{
		{Name: "patch (px)", Value: t.Patch}, {Name: "visual token (px)", Value: t.Patch * t.Merge},
		{Name: "hidden", Value: t.Hidden}, {Name: "heads", Value: t.Heads},
		{Name: "layers", Value: t.Layers}, {Name: "mlp", Value: t.MLP},
	}
}
