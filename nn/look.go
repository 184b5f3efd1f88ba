package nn

import (
	"math"

	"github.com/restore-vlm/restore/kernel"
)

// lookRows is how many queries Look works on at once.
const lookRows = 16

// Look computes what chosen queries of Causal attend to, without the values:
// dst [len(rows), keys] gets, per query, the probabilities of all keys as the
// mean over heads, or as the largest of them (largest). rows count the queries
// of q [len(pos), Heads·HeadDim], the newest rows of l. Keys that a query does
// not see get 0. 2·len(rows)·keys·Heads·HeadDim flops.
func (a *Attention) Look(p *kernel.Pool, dst, q []float32, rows []int32, pos []Pos, l *LayerKV, c *Calibration, largest bool) {
	d, group, keys := a.HeadDim, a.Heads/a.KVHeads, len(l.Pos)
	k := HeadsFirst(l.K, keys, a.KVHeads, d)
	bias := c.bias(l, pos, false)
	scale := float32(1 / math.Sqrt(float64(d)))
	clear(dst[:len(rows)*keys])
	p.Run((len(rows)+lookRows-1)/lookRows, func(b int) {
		block := rows[b*lookRows : min((b+1)*lookRows, len(rows))]
		seen := 0
		for _, r := range block {
			seen = max(seen, keys-len(pos)+int(r)+1)
		}
		x, s := make([]float32, len(block)*d), make([]float32, len(block)*seen)
		add := make([]float32, len(block)*keys)
		if bias != nil {
			for i, r := range block {
				biasRow(bias, add[i*keys:(i+1)*keys], int(r))
			}
		}
		for h := range a.Heads {
			for i, r := range block {
				copy(x[i*d:(i+1)*d], q[(int(r)*a.Heads+h)*d:])
			}
			kernel.MatMul(nil, s, x, len(block), kernel.MatrixF32(seen, d, k[h/group*keys*d:]), nil)
			for i, r := range block {
				hi := keys - len(pos) + int(r) + 1
				lo := 0
				if a.Window > 0 {
					lo = max(0, hi-a.Window)
				}
				row := s[i*seen+lo : i*seen+hi]
				for j := range row {
					row[j] = row[j]*scale + add[i*keys+lo+j]
				}
				kernel.Softmax(row)
				out := dst[(b*lookRows+i)*keys+lo:]
				for j, v := range row {
					if !largest {
						out[j] += v / float32(a.Heads)
					} else if v > out[j] {
						out[j] = v
					}
				}
			}
		}
	})
}

// Mix is one row made of others: their mean, weighted by Weight where it is
// not nil. One row alone is copied.
type Mix struct {
	From   []int32
	Weight []float32
}

// Blend writes the rows mixes of src [*, width] to dst [len(mixes), width]. Sums
// are taken in float64.
func Blend(p *kernel.Pool, dst, src []float32, mixes []Mix, width int) {
	p.Run(len(mixes), func(i int) {
		m, out := &mixes[i], dst[i*width:(i+1)*width]
		if len(m.From) == 1 {
			copy(out, src[int(m.From[0])*width:])
			return
		}
		sum, total := make([]float64, width), 0.0
		for j, r := range m.From {
			w := 1.0
			if m.Weight != nil {
				w = float64(m.Weight[j])
			}
			total += w
			for k, v := range src[int(r)*width : (int(r)+1)*width] {
				sum[k] += w * float64(v)
			}
		}
		for k, v := range sum {
			out[k] = float32(v / total)
		}
	})
}

// Replace puts the rows mixes of rows [first, first+old) in their place in x
// [rows, width] and moves up what follows; len(mixes) is at most old.
func Replace(p *kernel.Pool, x []float32, rows, width, first, old int, mixes []Mix) {
	made := make([]float32, len(mixes)*width)
	Blend(p, made, x[first*width:(first+old)*width], mixes, width)
	copy(x[first*width:], made)
	copy(x[(first+len(mixes))*width:], x[(first+old)*width:rows*width])
}
