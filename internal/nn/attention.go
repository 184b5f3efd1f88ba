package nn

import (
	"math"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Calibration is the attention bias ln(s_n·(c − D(Δ))) of the paper's Eq. 4 for one request: which
// of its terms apply, and the values of the distance term.
type Calibration struct {
	Size           bool // the term ln s_n
	Distance       bool // the term ln(c − D(Δ))
	DecodeDistance bool // the distance term also while decoding (one query row)
	// fractional distances are truncated, as in the released code
	Truncate  bool
	Distances *Distances // the distance term's values; needed when Distance
	// first layer in which it applies: a reducer inside the decoder leaves earlier layers
	// uncalibrated
	From int
	// Layers, when not nil, is what applies in each layer instead: the same with other distances,
	// where rotations differ
	Layers []*Calibration
}

// At returns the calibration of layer i, nil if there is none.
func (c *Calibration) At(i int) *Calibration {
	if c == nil || i < c.From {
		return nil
	}
	if c.Layers != nil {
		return c.Layers[i]
	}
	return c
}

// bias builds the kernel's bias for queries at pos over the keys of l, or nil if it would be zero
// everywhere. l owns the result, which is valid until the next call.
func (c *Calibration) bias(l *LayerKV, pos []Pos, decoding bool) *kernel.Bias {
	if c == nil {
		return nil
	}
	size := c.Size && l.sized > 0
	distance := c.Distance && (!decoding || c.DecodeDistance)
	if !size && !distance {
		return nil
	}
	s := &l.scratch
	s.bias = kernel.Bias{}
	if c.Size {
		s.bias.LogSize = l.logSize
	}
	if !distance {
		return &s.bias
	}
	s.queries = s.queries[:0]
	table := l.frac == 0
	for _, p := range pos {
		s.queries = append(s.queries, int32(p[0]))
		table = table && whole(p)
	}
	if table {
		s.bias.QueryPos, s.bias.KeyPos, s.bias.Table = s.queries, l.ipos, c.Distances.Line()
		return &s.bias
	}
	s.calib, s.pos = c, pos
	if s.row == nil {
		s.row = l.biasRow
	}
	s.bias.Row = s.row
	return &s.bias
}

// causalScratch is the memory that calls of Causal share, so that a decoded token allocates none.
type causalScratch struct {
	bias    kernel.Bias
	queries []int32
	ends    []int32
	calib   *Calibration
	pos     []Pos
	calls   []kernel.Attention
	row     func(dst []float32, query, k0 int) // the layer's biasRow
}

// biasRow writes the bias of keys k0, k0+1, … for the scratch's calibration and query.
func (l *LayerKV) biasRow(dst []float32, query, k0 int) {
	s := &l.scratch
	s.calib.Distances.Row(dst, s.pos[query], l.Pos[k0:], s.calib.Truncate)
	if s.calib.Size {
		for j, v := range l.logSize[k0 : k0+len(dst)] {
			dst[j] += v
		}
	}
}

// Rows returns the bias of every query at pos over every key of l as [len(pos), keys], for traces.
// It is zero where no calibration applies.
func (c *Calibration) Rows(l *LayerKV, pos []Pos, decoding bool) []float32 {
	n := len(l.Pos)
	out := make([]float32, len(pos)*n)
	b := c.bias(l, pos, decoding)
	if b == nil {
		return out
	}
	for i := range pos {
		biasRow(b, out[i*n:(i+1)*n], i)
	}
	return out
}

// biasRow writes the bias of one query over the first len(dst) keys.
func biasRow(b *kernel.Bias, dst []float32, query int) {
	if b.Row != nil {
		b.Row(dst, query, 0)
		return
	}
	clear(dst)
	copy(dst, b.LogSize)
	if b.Table != nil {
		for j := range dst {
			d := b.QueryPos[query] - b.KeyPos[j]
			dst[j] += b.Table[max(d, -d)]
		}
	}
}

// Attention is softmax(q·kᵀ/sqrt(HeadDim) + bias)·v with Heads query heads over
// KVHeads key-value heads.
type Attention struct {
	Heads, KVHeads, HeadDim int
	Rounding                Rounding // of products; with a cache, only of prompts
	// causal rows see only the last Window keys, including their own; 0: all
	Window int
	Scale  float64 // of the scores; 0: 1/sqrt(HeadDim)
	Work   *Work   // counts it; nil: not counted
}

// Block is rows First … End-1 of a causal call, which also see the later ones among them. Blocks
// ascend and do not overlap.
type Block struct{ First, End int }

// attend computes calls.
func (a *Attention) attend(p *kernel.Pool, calls ...kernel.Attention) {
	if a.Work != nil {
		defer a.Work.attend(calls, time.Now())
	}
	kernel.AttendEach(p, calls)
}

func (a *Attention) kernel(out, q []float32, rows int) kernel.Attention {
	scale := a.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(a.HeadDim))
	}
	return kernel.Attention{
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Tq: rows, Scale: float32(scale),
		Q: q, Out: out,
	}
}

// Call is causal attention of the queries at Pos, the last rows of Cache, over all of Cache.
type Call struct {
	Out, Q []float32 // [len(Pos), Heads·HeadDim]
	// K and V, [len(Pos), KVHeads·HeadDim], are written to Cache first, which is extended by the
	// rows; nil: Cache has them
	K, V     []float32
	Pos      []Pos
	Blocks   []Block // rows that see each other; may be nil
	Cache    *LayerKV
	Calib    *Calibration
	Decoding bool
	Tap      *Tap // records probabilities; may be nil
}

// Causal computes calls, which have different caches. Calls of few rows, as of a decoding step's
// sequences, are computed side by side.
func (a *Attention) Causal(p *kernel.Pool, calls ...Call) {
	if len(calls) == 0 {
		return
	}
	s := &calls[0].Cache.scratch
	s.calls = s.calls[:0]
	for i := range calls {
		k := a.causal(&calls[i])
		if t := calls[i].Tap; t != nil {
			t.before(&k)
		}
		s.calls = append(s.calls, k)
	}
	a.attend(p, s.calls...)
	for i := range calls {
		if t := calls[i].Tap; t != nil {
			t.after(&s.calls[i])
		}
	}
	clear(s.calls)
}

func (a *Attention) causal(c *Call) kernel.Attention {
	k, l := a.kernel(c.Out, c.Q, len(c.Pos)), c.Cache
	k.K, k.V = c.K, c.V
	k.Tk, k.Causal, k.Pages, k.Rounding = len(l.Pos), true, l.pages, a.Rounding
	if a.Window < k.Tk {
		k.Window = a.Window
	}
	if len(c.Blocks) > 0 {
		l.scratch.ends = ends(l.scratch.ends[:0], len(c.Pos), k.Tk, c.Blocks)
		k.Ends = l.scratch.ends
	}
	k.Bias = c.Calib.bias(l, c.Pos, c.Decoding)
	return k
}

// ends appends the key before which each of the last rows of keys sees all.
func ends(dst []int32, rows, keys int, blocks []Block) []int32 {
	for i := range rows {
		for len(blocks) > 0 && i >= blocks[0].End {
			blocks = blocks[1:]
		}
		end := i + 1
		if len(blocks) > 0 && i >= blocks[0].First {
			end = blocks[0].End
		}
		dst = append(dst, int32(keys-rows+end))
	}
	return dst
}

// CausalProbs returns the probabilities [Heads, len(c.Pos), keys] of c, whose keys the cache has,
// for traces.
func (a *Attention) CausalProbs(p *kernel.Pool, c Call) []float32 {
	c.Out, c.K, c.V = nil, nil, nil
	k := a.causal(&c)
	return kernel.AttentionProbs(p, &k)
}

var firstRow = []int32{0}

// Bidirectional computes attention within each of items independent sequences of rows rows. q, k,
// v, out: [items·rows, Heads·HeadDim]. first, when not nil, receives the probabilities of each
// item's first query, and received the probability that each row receives, averaged over the
// queries: both [items, Heads, rows].
func (a *Attention) Bidirectional(
	p *kernel.Pool, out, q, k, v []float32, items, rows int, first, received []float32,
) {
	n, w := rows*a.Heads*a.HeadDim, a.Heads*rows
	for i := range items {
		at := a.kernel(out[i*n:(i+1)*n], q[i*n:(i+1)*n], rows)
		at.K, at.V, at.Tk = k[i*n:(i+1)*n], v[i*n:(i+1)*n], rows
		at.Rounding = a.Rounding
		if first != nil {
			at.RowTap, at.RowTapQueries = first[i*w:(i+1)*w], firstRow
		}
		if received != nil {
			at.ColTap = received[i*w : (i+1)*w]
		}
		a.attend(p, at)
	}
	for i := range received {
		received[i] /= float32(rows)
	}
}

// Sized is Bidirectional on one sequence whose rows each stand for several tokens: logSize [rows],
// when not nil, is added to the scores of the keys.
func (a *Attention) Sized(
	p *kernel.Pool, out, q, k, v []float32, rows int, logSize, first []float32,
) {
	at := a.kernel(out, q, rows)
	at.K, at.V, at.Tk, at.Rounding = k, v, rows, a.Rounding
	if first != nil {
		at.RowTap, at.RowTapQueries = first, firstRow
	}
	if logSize != nil {
		at.Bias = &kernel.Bias{LogSize: logSize}
	}
	a.attend(p, at)
}

// BidirectionalProbs returns the probabilities [items, Heads, rows, rows], for traces.
func (a *Attention) BidirectionalProbs(p *kernel.Pool, q, k []float32, items, rows int) []float32 {
	n := rows * a.Heads * a.HeadDim
	out := make([]float32, 0, items*a.Heads*rows*rows)
	for i := range items {
		at := a.kernel(nil, q[i*n:(i+1)*n], rows)
		at.K, at.V, at.Tk = k[i*n:(i+1)*n], k[i*n:(i+1)*n], rows
		out = append(out, kernel.AttentionProbs(p, &at)...)
	}
	return out
}

// Segmented computes attention within segments: row i sees only the rows of its own segment. bounds
// holds the segments' first rows and then the number of rows. qkv: [rows, 3·Heads·HeadDim], each
// row queries, keys and values; out: [rows, Heads·HeadDim]. logSize [rows], when not nil, is added
// to the scores of the keys. received, when not nil, gets [Heads, rows]: the probability that each
// row receives in each head, averaged over the queries of its segment.
func (a *Attention) Segmented(
	p *kernel.Pool, out, qkv []float32, bounds []int32, logSize, received []float32,
) {
	k := a.packed(out, qkv, bounds, logSize)
	k.ColTap, k.Rounding = received, a.Rounding
	a.attend(p, k)
	if received == nil {
		return
	}
	for h := range a.Heads {
		for s := 1; s < len(bounds); s++ {
			scale := 1 / float32(bounds[s]-bounds[s-1])
			for i := bounds[s-1]; i < bounds[s]; i++ {
				received[h*k.Tk+int(i)] *= scale
			}
		}
	}
}

// SegmentedProbs returns the probabilities [Heads, rows, rows] of Segmented, for traces.
func (a *Attention) SegmentedProbs(
	p *kernel.Pool, qkv []float32, bounds []int32, logSize []float32,
) []float32 {
	k := a.packed(nil, qkv, bounds, logSize)
	return kernel.AttentionProbs(p, &k)
}

func (a *Attention) packed(
	out, qkv []float32, bounds []int32, logSize []float32,
) kernel.Attention {
	rows, w := int(bounds[len(bounds)-1]), a.Heads*a.HeadDim
	k := a.kernel(out, qkv, rows)
	k.K, k.V, k.Tk, k.Segments = qkv[w:], qkv[2*w:], rows, bounds
	k.QStride, k.KStride, k.VStride = 3*w, 3*w, 3*w
	if logSize != nil {
		k.Bias = &kernel.Bias{LogSize: logSize}
	}
	return k
}
