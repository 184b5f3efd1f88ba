package nn

import (
	"math"

	"github.com/restore-vlm/restore/kernel"
)

// Calibration is the attention bias ln(s_n·(c − D(Δ))) of the paper's Eq. 4 for
// one request: which of its terms act, and the distance term's values.
type Calibration struct {
	Size           bool      // the term ln s_n
	Distance       bool      // the term ln(c − D(Δ))
	DecodeDistance bool      // the distance term also while decoding (one query row)
	Truncate       bool      // fractional distances are cut to whole ones, as the released code does
	Table          []float32 // ln(c − D(d)) for whole distances d = 0 … len−1
	Exact          func(q, k Pos) float32
}

// bias builds the kernel's bias for queries at pos over the keys of l, or nil
// when the result would be zero everywhere.
func (c *Calibration) bias(l *LayerKV, pos []Pos, decoding bool) *kernel.Bias {
	if c == nil {
		return nil
	}
	size := c.Size && l.sized > 0
	distance := c.Distance && (!decoding || c.DecodeDistance)
	if !size && !distance {
		return nil
	}
	b := &kernel.Bias{}
	if size || c.Size {
		b.LogSize = l.logSize
	}
	if !distance {
		return b
	}
	qpos := make([]int32, len(pos))
	table := l.frac == 0
	for i, p := range pos {
		qpos[i] = int32(p[0])
		table = table && whole(p)
	}
	if table {
		b.QueryPos, b.KeyPos, b.Table = qpos, l.ipos, c.Table
		if b.LogSize == nil {
			b.LogSize = make([]float32, len(l.Pos))
		}
		return b
	}
	sized := b.LogSize
	b.Row = func(dst []float32, query, k0 int) {
		for j := range dst {
			var v float32
			if c.Truncate {
				v = c.Table[int(math.Abs(pos[query][0]-l.Pos[k0+j][0]))]
			} else {
				v = c.Exact(pos[query], l.Pos[k0+j])
			}
			if sized != nil {
				v += sized[k0+j]
			}
			dst[j] = v
		}
	}
	return b
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
		row := out[i*n : (i+1)*n]
		if b.Row != nil {
			b.Row(row, i, 0)
			continue
		}
		copy(row, b.LogSize)
		if b.Table != nil {
			for j := range row {
				d := b.QueryPos[i] - b.KeyPos[j]
				row[j] += b.Table[max(d, -d)]
			}
		}
	}
	return out
}

// Attention is softmax(q·kᵀ/sqrt(HeadDim) + bias)·v with Heads query heads over
// KVHeads key-value heads.
type Attention struct {
	Heads, KVHeads, HeadDim int
}

func (a *Attention) kernel(out, q []float32, rows int) kernel.Attention {
	return kernel.Attention{
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Tq: rows,
		Scale: float32(1 / math.Sqrt(float64(a.HeadDim))), Q: q, Out: out,
	}
}

// Causal attends with rows queries at pos, the newest rows of l (already
// appended), over all of l. q, out: [rows, Heads·HeadDim].
func (a *Attention) Causal(p *kernel.Pool, out, q []float32, pos []Pos, l *LayerKV, c *Calibration, decoding bool) {
	k := a.kernel(out, q, len(pos))
	k.K, k.V, k.Tk, k.Causal = l.K, l.V, len(l.Pos), true
	k.Bias = c.bias(l, pos, decoding)
	kernel.Attend(p, &k)
}

// CausalProbs returns the probabilities [Heads, len(pos), keys] of Causal, for traces.
func (a *Attention) CausalProbs(q []float32, pos []Pos, l *LayerKV, c *Calibration, decoding bool) []float32 {
	k := a.kernel(nil, q, len(pos))
	k.K, k.V, k.Tk, k.Causal = l.K, l.V, len(l.Pos), true
	k.Bias = c.bias(l, pos, decoding)
	return kernel.AttentionProbs(&k)
}

// Bidirectional attends over items independent sequences of rows rows each.
// q, k, v, out: [items·rows, Heads·HeadDim]. first, when not nil, receives the
// probabilities of each item's first query: [items, Heads, rows].
func (a *Attention) Bidirectional(p *kernel.Pool, out, q, k, v []float32, items, rows int, first []float32) {
	n := rows * a.Heads * a.HeadDim
	for i := range items {
		at := a.kernel(out[i*n:(i+1)*n], q[i*n:(i+1)*n], rows)
		at.K, at.V, at.Tk = k[i*n:(i+1)*n], v[i*n:(i+1)*n], rows
		if first != nil {
			at.RowTap = first[i*a.Heads*rows : (i+1)*a.Heads*rows]
		}
		kernel.Attend(p, &at)
	}
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
