package nn

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/kernel"
)

// Calibration is the attention bias ln(s_n·(c − D(Δ))) of the paper's Eq. 4 for
// one request: which of its terms act, and the distance term's values.
type Calibration struct {
	Size           bool       // the term ln s_n
	Distance       bool       // the term ln(c − D(Δ))
	DecodeDistance bool       // the distance term also while decoding (one query row)
	Truncate       bool       // fractional distances are cut to whole ones, as the released code does
	Distances      *Distances // the distance term's values; needed when Distance
	From           int        // first layer in which it acts: reducers inside the decoder leave those before them alone
}

// At returns c as it acts in layer i: nil where it does not.
func (c *Calibration) At(i int) *Calibration {
	if c == nil || i < c.From {
		return nil
	}
	return c
}

// bias builds the kernel's bias for queries at pos over the keys of l, or nil
// when the result would be zero everywhere. It is l's and valid until the next call.
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
	s.bias, s.skip = kernel.Bias{}, 0
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

// biasScratch is what bias reuses from call to call, so that a decoded token
// allocates nothing.
type biasScratch struct {
	bias    kernel.Bias
	queries []int32
	calib   *Calibration
	pos     []Pos
	skip    int                                // keys before the first that row is asked for
	row     func(dst []float32, query, k0 int) // the layer's biasRow
}

// biasRow is the bias of keys k0, k0+1, … for the scratch's calibration and query.
func (l *LayerKV) biasRow(dst []float32, query, k0 int) {
	s := &l.scratch
	k0 += s.skip
	s.calib.Distances.Row(dst, s.pos[query], l.Pos[k0:], s.calib.Truncate)
	if s.calib.Size {
		for j, v := range l.logSize[k0 : k0+len(dst)] {
			dst[j] += v
		}
	}
}

// Rows returns the bias of every query at pos over every key of l as
// [len(pos), keys], for traces. It is zero where no calibration acts.
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
	Window                  int // causal rows see the newest Window keys, their own included; 0: all
}

func (a *Attention) kernel(out, q []float32, rows int) kernel.Attention {
	return kernel.Attention{
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Tq: rows,
		Scale: float32(1 / math.Sqrt(float64(a.HeadDim))), Q: q, Out: out,
	}
}

// Causal attends with rows queries at pos, the newest rows of l (already
// appended), over all of l. q, out: [rows, Heads·HeadDim]. tap looks on; it may be
// nil.
func (a *Attention) Causal(p *kernel.Pool, out, q []float32, pos []Pos, l *LayerKV, c *Calibration, decoding bool, tap *Tap) {
	k := a.kernel(out, q, len(pos))
	k.Tk, k.Causal = len(l.Pos), true
	k.K, k.V, k.HalfK, k.HalfV = l.k, l.v, l.halfK, l.halfV
	k.Bias = c.bias(l, pos, decoding)
	if tap != nil {
		tap.before(&k)
		defer tap.after(&k)
	}
	if a.Window == 0 || k.Tk <= a.Window {
		kernel.Attend(p, &k)
		return
	}
	if k.Tq == 1 && tap == nil {
		a.newest(p, k, l)
		return
	}
	a.windowed(p, k)
}

// newest is Causal of one row whose window does not reach the first key.
func (a *Attention) newest(p *kernel.Pool, k kernel.Attention, l *LayerKV) {
	skip := k.Tk - a.Window
	from := skip * a.KVHeads * a.HeadDim
	k.Tk = a.Window
	if k.HalfK != nil {
		k.HalfK, k.HalfV = k.HalfK[from:], k.HalfV[from:]
	} else {
		k.K, k.V = k.K[from:], k.V[from:]
	}
	if b := k.Bias; b != nil { // l's own
		l.scratch.skip = skip
		if b.LogSize != nil {
			b.LogSize = b.LogSize[skip:]
		}
		if b.Table != nil {
			b.KeyPos = b.KeyPos[skip:]
		}
	}
	kernel.Attend(p, &k)
}

// windowed is Causal where the window does not reach the first key from every row.
func (a *Attention) windowed(p *kernel.Pool, k kernel.Attention) {
	full := max(0, a.Window-(k.Tk-k.Tq)) // rows whose window reaches the first key
	if full > 0 {
		a.attendPart(p, &k, 0, full, 0)
	}
	p.Run(k.Tq-full, func(i int) {
		a.attendPart(nil, &k, full+i, full+i+1, k.Tk-k.Tq+full+i+1-a.Window)
	})
}

// attendPart attends with the rows [lo, hi) of k and brings what it taps to its
// place: of the taps of k, only rows of the part are written.
func (a *Attention) attendPart(p *kernel.Pool, k *kernel.Attention, lo, hi, k0 int) {
	s := a.part(k, lo, hi, k0)
	from, _ := slices.BinarySearch(k.RowTapQueries, int32(lo))
	to, _ := slices.BinarySearch(k.RowTapQueries, int32(hi))
	for _, q := range k.RowTapQueries[from:to] {
		s.RowTapQueries = append(s.RowTapQueries, q-int32(lo))
	}
	if s.RowTapQueries != nil {
		s.RowTap = make([]float32, k.Heads*(to-from)*s.Tk)
	}
	if k.MaxTap != nil {
		s.MaxTap = make([]float32, s.Tq*s.Tk)
	}
	kernel.Attend(p, &s)
	for h := range k.Heads {
		for i := range to - from {
			copy(k.RowTap[(h*len(k.RowTapQueries)+from+i)*k.Tk+k0:][:s.Tk], s.RowTap[(h*(to-from)+i)*s.Tk:])
		}
	}
	for i := range hi - lo {
		if k.MaxTap != nil {
			copy(k.MaxTap[(lo+i)*k.Tk+k0:][:s.Tk], s.MaxTap[i*s.Tk:])
		}
	}
}

// part narrows k to the rows [lo, hi) and the keys from k0 to the newest that row hi−1 sees.
func (a *Attention) part(k *kernel.Attention, lo, hi, k0 int) kernel.Attention {
	qw, kw, k1 := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim, k.Tk-k.Tq+hi
	s := *k
	s.RowTap, s.RowTapQueries, s.MaxTap = nil, nil, nil
	s.Tq, s.Tk = hi-lo, k1-k0
	s.Q = k.Q[lo*qw : hi*qw]
	if k.HalfK != nil {
		s.HalfK, s.HalfV = k.HalfK[k0*kw:k1*kw], k.HalfV[k0*kw:k1*kw]
	} else {
		s.K, s.V = k.K[k0*kw:k1*kw], k.V[k0*kw:k1*kw]
	}
	if k.Out != nil {
		s.Out = k.Out[lo*qw : hi*qw]
	}
	if k.Bias != nil {
		b := *k.Bias
		if b.LogSize != nil {
			b.LogSize = b.LogSize[k0:k1]
		}
		if b.Table != nil {
			b.QueryPos, b.KeyPos = b.QueryPos[lo:hi], b.KeyPos[k0:k1]
		}
		if row := b.Row; row != nil {
			b.Row = func(dst []float32, query, j int) { row(dst, lo+query, k0+j) }
		}
		s.Bias = &b
	}
	return s
}

// CausalProbs returns the probabilities [Heads, len(pos), keys] of Causal, for traces.
func (a *Attention) CausalProbs(q []float32, pos []Pos, l *LayerKV, c *Calibration, decoding bool) []float32 {
	k := a.kernel(nil, q, len(pos))
	k.Tk, k.Causal = len(l.Pos), true
	k.K, k.V, k.HalfK, k.HalfV = l.k, l.v, l.halfK, l.halfV
	k.Bias = c.bias(l, pos, decoding)
	if a.Window == 0 || k.Tk <= a.Window {
		return kernel.AttentionProbs(&k)
	}
	out := make([]float32, a.Heads*k.Tq*k.Tk)
	for i := range k.Tq {
		k1 := k.Tk - k.Tq + i + 1
		k0 := max(0, k1-a.Window)
		row := a.part(&k, i, i+1, k0)
		probs := kernel.AttentionProbs(&row)
		for h := range a.Heads {
			copy(out[(h*k.Tq+i)*k.Tk+k0:], probs[h*(k1-k0):(h+1)*(k1-k0)])
		}
	}
	return out
}

var firstRow = []int32{0}

// Bidirectional attends over items independent sequences of rows rows each.
// q, k, v, out: [items·rows, Heads·HeadDim]. first, when not nil, receives the
// probabilities of each item's first query: [items, Heads, rows].
func (a *Attention) Bidirectional(p *kernel.Pool, out, q, k, v []float32, items, rows int, first []float32) {
	n := rows * a.Heads * a.HeadDim
	for i := range items {
		at := a.kernel(out[i*n:(i+1)*n], q[i*n:(i+1)*n], rows)
		at.K, at.V, at.Tk = k[i*n:(i+1)*n], v[i*n:(i+1)*n], rows
		if first != nil {
			at.RowTap, at.RowTapQueries = first[i*a.Heads*rows:(i+1)*a.Heads*rows], firstRow
		}
		kernel.Attend(p, &at)
	}
}

// Sized is Bidirectional on one sequence whose rows stand for several tokens
// each: logSize [rows], where not nil, is added to the scores of the keys.
func (a *Attention) Sized(p *kernel.Pool, out, q, k, v []float32, rows int, logSize, first []float32) {
	at := a.kernel(out, q, rows)
	at.K, at.V, at.Tk = k, v, rows
	if first != nil {
		at.RowTap, at.RowTapQueries = first, firstRow
	}
	if logSize != nil {
		at.Bias = &kernel.Bias{LogSize: logSize}
	}
	kernel.Attend(p, &at)
}

// BidirectionalProbs returns the probabilities [items, Heads, rows, rows], for traces.
func (a *Attention) BidirectionalProbs(q, k []float32, items, rows int) []float32 {
	n := rows * a.Heads * a.HeadDim
	out := make([]float32, 0, items*a.Heads*rows*rows)
	for i := range items {
		at := a.kernel(nil, q[i*n:(i+1)*n], rows)
		at.K, at.V, at.Tk = k[i*n:(i+1)*n], k[i*n:(i+1)*n], rows
		out = append(out, kernel.AttentionProbs(&at)...)
	}
	return out
}

// Segmented attends within segments: row i sees the rows of its own segment
// only, bounds being the segments' first rows and, last, the number of rows.
// qkv: [rows, 3·Heads·HeadDim], queries, keys and values side by side; out:
// [rows, Heads·HeadDim]. received, when not nil, gets [Heads, rows] the
// probability that each row receives in each head, the mean over the queries of
// its segment.
func (a *Attention) Segmented(p *kernel.Pool, out, qkv []float32, bounds []int32, received []float32) {
	k := a.packed(out, qkv, bounds)
	k.ColTap = received
	kernel.Attend(p, &k)
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
func (a *Attention) SegmentedProbs(qkv []float32, bounds []int32) []float32 {
	k := a.packed(nil, qkv, bounds)
	return kernel.AttentionProbs(&k)
}

func (a *Attention) packed(out, qkv []float32, bounds []int32) kernel.Attention {
	rows, w := int(bounds[len(bounds)-1]), a.Heads*a.HeadDim
	k := a.kernel(out, qkv, rows)
	k.K, k.V, k.Tk, k.Segments = qkv[w:], qkv[2*w:], rows, bounds
	k.QStride, k.KStride, k.VStride = 3*w, 3*w, 3*w
	return k
}
