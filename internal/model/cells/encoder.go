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

// Encoder is a tower whose blocks see the whole picture, of a video one moment, or windows of it.
// The equations of its blocks are
//
//	h = x + Wo·Attn(RoPE₂(Wq·n + bq), RoPE₂(Wk·n + bk), Wv·n + bv) + bo,  n = Norm(x)       (1)
//	y = h + W2·Act(W1·m + b1) + b2,  m = Norm(h)                                            (2)
//	    with a gate: y = h + W2·(Act(Wg·m) ⊙ W1·m)
//
// Scores come from the last block that sees the whole picture.
type Encoder struct {
	Tower
	Attn  nn.Attention
	Patch *nn.Linear
	// Enter changes the rows x [patches, hidden] that enter block 0; nil: it does not.
	Enter func(r *model.Run, x []float32, lay *Layout)
	// After returns what the decoder reads of the output x of block i, nil if it reads nothing; a
	// nil After: of no block.
	After   func(r *model.Run, i int, x []float32) []float32
	Blocks  []Block
	Windows *Windows // nil: every block sees the whole picture
	RoPE    *nn.RoPE
	Act     func(p *nn.Pool, x []float32)        // of blocks without a gate
	Gated   func(p *nn.Pool, gate, up []float32) // gate = Act(gate) ⊙ up, of blocks with one
	// Join returns one row [Out] for each cell of the last block's output x [patches, hidden],
	// which it does not change.
	Join func(r *model.Run, x []float32) []float32
}

// Windows are what some blocks of a tower see.
type Windows struct {
	Patches int // of a window that no edge cuts
	// Cut returns the cells of parts that are encoded, window by window, and the windows' bounds in
	// patches. Windows may be empty.
	Cut func(parts []Part) (order, bounds []int32)
}

// Block is the weights of one block.
type Block struct {
	Norm1, Norm2   Norm
	QKV            []*nn.Linear // one layer for all three, or one for each
	Proj, Up, Down *nn.Linear
	Gate           *nn.Linear // nil: none
	Windowed       bool       // attends within windows
}

// Norm is LayerNorm or RMSNorm.
type Norm interface {
	Apply(p *nn.Pool, y, x []float32, rows int)
}

// Names are the names of weights that differ between models.
type Names struct {
	Up, Down string // of a block's MLP
	Gate     string // of MLPs with a gate; "": there is none
	Merger   MergerNames
	Biased   bool // the patch embedding has a bias
}

// norm binds a norm: towers with gates have RMSNorms, the others LayerNorms.
func (n *Names) norm(b *model.Binder, name string, width int) Norm {
	if n.Gate != "" {
		return b.RMSNorm(name, "hidden", width, Eps)
	}
	return b.LayerNorm(name, "hidden", width, Eps)
}

// NewEncoder binds the weights of a tower of Qwen's under b: biases on all layers. The caller sets
// the activation of its blocks.
func NewEncoder(b *model.Binder, t Tower, names Names) *Encoder {
	d := t.Hidden
	e := &Encoder{Tower: t, Attn: b.Tower(d, t.Heads), RoPE: nn.NewAxialRoPE(d/t.Heads, t.Theta)}
	e.Patch = b.ConvOf("patch_embed.proj", "hidden, 3, frames, patch, patch", d, 3, t.Frames,
		t.Patch, t.Patch)
	if names.Biased {
		e.Patch.B = b.Vector("patch_embed.proj.bias", "hidden", d)
	}
	for i := range t.Layers {
		in := b.In(fmt.Sprintf("blocks.%d.", i))
		l := Block{
			Norm1: names.norm(in, "norm1", d),
			QKV:   []*nn.Linear{in.Linear("attn.qkv", "3 * hidden, hidden", 3*d, d, true)},
			Proj:  in.Linear("attn.proj", "hidden, hidden", d, d, true),
			Norm2: names.norm(in, "norm2", d),
			Up:    in.Linear(names.Up, "mlp, hidden", t.MLP, d, true),
			Down:  in.Linear(names.Down, "hidden, mlp", d, t.MLP, true),
		}
		if names.Gate != "" {
			l.Gate = in.Linear(names.Gate, "mlp, hidden", t.MLP, d, true)
		}
		e.Blocks = append(e.Blocks, l)
	}
	m := b.In("merger.")
	e.Join = bindMerger(m, t, names.Merger, names.norm(m, names.Merger.Norm, d), false).Merge
	return e
}

// Merger joins the patches of a cell:
//
//	X = W2·GELU(W1·c + b1) + b2,  c = the Norm rows of a cell side by side                  (3)
//
// The norm sees each patch, or, of a joined one, the whole cell.
type Merger struct {
	Tower
	joined   bool
	norm     Norm
	up, down *nn.Linear
}

// MergerNames are the names of a merger's weights.
type MergerNames struct{ Norm, Up, Down string }

// NewJoined binds the weights under b of a merger whose norm sees whole cells.
func NewJoined(b *model.Binder, t Tower, names MergerNames) *Merger {
	norm := b.LayerNorm(names.Norm, "hidden * merge²", t.Hidden*t.Cell(), Eps)
	return bindMerger(b, t, names, norm, true)
}

func bindMerger(b *model.Binder, t Tower, names MergerNames, norm Norm, joined bool) *Merger {
	wide := t.Hidden * t.Cell()
	return &Merger{
		Tower: t, joined: joined, norm: norm,
		up:   b.Linear(names.Up, "hidden * merge², hidden * merge²", wide, wide, true),
		down: b.Linear(names.Down, "out hidden, hidden * merge²", t.Out, wide, true),
	}
}

// Layout describes the rows of one batch of parts: their patches in block order, or in window
// order, which keeps the patches of a cell together.
type Layout struct {
	Parts   []Part
	Pos     []nn.Pos  // [patches] row and column
	Bounds  []int32   // of parts, in patches
	windows []int32   // of windows that are not empty
	order   []int32   // [cells] index in window order → cell; nil: block order
	Place   []int32   // [cells] its inverse
	logSize []float32 // [patches] what attention adds to the scores of keys; nil: nothing
}

// lay lays out parts.
func (e *Encoder) lay(parts []Part) *Layout {
	l := &Layout{Parts: parts, Bounds: []int32{0}, logSize: logSizes(parts, e.Merge)}
	for i := range parts {
		l.Pos = append(l.Pos, parts[i].Positions(e.Merge)...)
		l.Bounds = append(l.Bounds, int32(len(l.Pos)))
	}
	if e.Windows == nil {
		return l
	}
	l.order, l.windows = e.Windows.Cut(parts)
	l.windows = slices.Compact(l.windows)
	l.Place = inverse(l.order)
	l.Pos = ordered(l.Pos, l.order, e.Cell())
	if l.logSize != nil {
		l.logSize = ordered(l.logSize, l.order, e.Cell())
	}
	return l
}

// ordered returns groups of n rows in the given order.
func ordered[T any](rows []T, order []int32, n int) []T {
	out := make([]T, 0, len(rows))
	for _, i := range order {
		out = append(out, rows[int(i)*n:(int(i)+1)*n]...)
	}
	return out
}

// raster returns rows of cells [groups, cells, width] with each group in raster order.
func (l *Layout) raster(rows []float32, width int) []float32 {
	if l.Place == nil {
		return rows
	}
	out := make([]float32, len(rows))
	for at := 0; at < len(rows); at += len(l.Place) * width {
		nn.Gather(out[at:], rows[at:], l.Place, width)
	}
	return out
}

// Encode runs parts; px: [patches, 3·frames·patch²], the patches that are encoded, block order.
func (e *Encoder) Encode(
	r *model.Run, px []float32, parts []Part, need model.Needs,
) (*Encoded, error) {
	lay := e.lay(parts)
	d, n, dim := e.Hidden, len(lay.Pos), e.Attn.HeadDim
	x := r.Buffer("cells.x", n*d)
	in := x
	if lay.order != nil {
		in = r.Buffer("cells.a", n*d)
	}
	InParts(n, func(lo, hi int) {
		e.Patch.Apply(r.Pool, in[lo*d:], px[lo*e.Patch.In:], hi-lo)
	})
	if r.Trace != nil {
		r.Trace("vision.patch_embed", []int{n, d}, in)
	}
	if lay.order != nil {
		nn.Gather(x, in, lay.order, e.Cell()*d)
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
		out.Cells = e.perCell(x, d, lay)
	}
	out.X = e.Join(r, x)
	if r.Trace != nil && lay.order != nil {
		r.Trace("vision.merger_window_order", []int{n / e.Cell(), e.Out}, out.X)
	}
	out.X = lay.raster(out.X, e.Out)
	if r.Trace != nil {
		r.Trace("vision.merger", []int{n / e.Cell(), e.Out}, out.X)
	}
	return out, nil
}

// block runs block i over x [patches, hidden] in place.
func (e *Encoder) block(
	r *model.Run, i int, x, cos, sin []float32, lay *Layout, need model.Needs, out *Encoded,
) {
	l, d, n := &e.Blocks[i], e.Hidden, len(x)/e.Hidden
	qkv, a, h := r.Buffer("cells.qkv", n*3*d), r.Buffer("cells.a", n*d),
		r.Buffer("cells.n", min(n, mostRows)*d)
	InParts(n, func(lo, hi int) {
		l.Norm1.Apply(r.Pool, h, x[lo*d:hi*d], hi-lo)
		l.project(r, qkv[lo*3*d:], h, hi-lo)
	})
	e.RoPE.ApplyWithin(r.Pool, qkv, 3*d, n, 2*e.Heads, cos, sin) // queries and keys
	bounds := lay.Bounds
	if l.Windowed {
		bounds = lay.windows
	}
	var received []float32
	scored, tapped := e.scored(i), slices.Contains(need.Received, i)
	if scored && need.ClsAttn || tapped || r.Trace != nil && !l.Windowed {
		received = make([]float32, e.Heads*n)
	}
	e.Attn.Segmented(r.Pool, a, qkv, bounds, lay.logSize, received) // (1)
	var merged []float32
	if received != nil {
		merged = e.perCell(received, 1, lay)
	}
	if tapped {
		out.Taps[i] = merged
	}
	if scored {
		out.Received = merged
	}
	if scored && need.Keys {
		out.Keys = e.perCell(nn.Columns(qkv, n, 3*d, d, d), d, lay)
	}
	if r.Trace != nil {
		traceAttention(r, &e.Attn, i, qkv, bounds, lay.logSize, received, merged)
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

// scored reports whether block i is the last one that sees the whole picture.
func (e *Encoder) scored(i int) bool {
	return !e.Blocks[i].Windowed &&
		!slices.ContainsFunc(e.Blocks[i+1:], func(l Block) bool { return !l.Windowed })
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

// perCell averages rows of v [groups, patches, width] over each cell: [groups, cells, width], in
// raster order.
func (e *Encoder) perCell(v []float32, width int, lay *Layout) []float32 {
	out := make([]float32, len(v)/e.Cell())
	nn.GroupMean(out, v, e.Cell(), width)
	return lay.raster(out, width)
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
func (e *Encoder) Work(px *imageproc.Pixels, share float64) (rows int, attention float64) {
	keys := 0.0
	for _, g := range px.GridTHW {
		n := share * float64(g[1]*g[2])
		for i := range e.Blocks {
			seen := n
			if e.Blocks[i].Windowed {
				seen = min(n, share*float64(e.Windows.Patches))
			}
			keys += float64(g[0]) * n * seen
		}
	}
	return int(share * float64(px.Shape[0])), 4 * keys * float64(e.Hidden)
}

// Bytes is [model.Multimodal]'s EncodeBytes of a model with this tower, of which the decoder reads
// the output of deep blocks too, without what Enter takes.
func (e *Encoder) Bytes(px *imageproc.Pixels, share float64, deep int) int64 {
	n := int(share * float64(px.Shape[0]))
	rows, tokens := min(n, mostRows), n/e.Cell()
	mlp, merger := rows*e.MLP, min(tokens, mostRows)*e.Hidden*e.Cell()
	wide := mlp + 2*merger + max(mlp, merger) // a product keeps its widest input
	l := &e.Blocks[0]
	if l.Gate != nil {
		wide += mlp
	}
	if len(l.QKV) > 1 {
		wide += rows * l.QKV[0].Out
	}
	results := 1 + deep
	if e.Windows != nil {
		results++ // also in window order
	}
	return 4 * int64(n*(5*e.Hidden+e.Attn.HeadDim)+rows*e.Hidden+wide+results*tokens*e.Out)
}

// Sizes returns the sizes for a picture of that many tokens, without the decoder's.
func (t *Tower) Sizes(tokens int) *model.Sizes {
	cell := t.Cell()
	return &model.Sizes{
		Tokens: tokens, Views: 1, NoClass: true, Cell: cell, Patch: t.Values(),
		Projector: []int{cell * t.Hidden, cell * t.Hidden, t.Out}, Projectors: 1,
		Vision: model.Tower{
			Blocks: t.Layers, Run: t.Layers, Hidden: t.Hidden, Heads: t.Heads, Query: t.Hidden,
			Key: t.Hidden, MLP: t.MLP, Products: 2,
		},
	}
}

// Fields returns what the tower is, for people.
func (t *Tower) Fields() []model.Field {
	return []model.Field{
		{Name: "patch (px)", Value: t.Patch}, {Name: "visual token (px)", Value: t.Patch * t.Merge},
		{Name: "hidden", Value: t.Hidden}, {Name: "heads", Value: t.Heads},
		{Name: "layers", Value: t.Layers}, {Name: "mlp", Value: t.MLP},
	}
}
