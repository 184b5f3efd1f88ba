package nn

import (
	"slices"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Tap records the attention of some queries in a call of Causal.
type Tap struct {
	// queries in ascending order; Mean gets the mean over heads of their probabilities, Largest the
	// maximum
	Mean, Largest []int32

	keys          int
	mean, largest []float32 // [len(Mean), keys], [len(Largest), keys]
}

// Row returns the probabilities of all keys for a query of Mean or of Largest, 0 for keys that it
// does not see.
func (t *Tap) Row(query int32, largest bool) []float32 {
	list, probs := t.Mean, t.mean
	if largest {
		list, probs = t.Largest, t.largest
	}
	k, _ := slices.BinarySearch(list, query)
	return probs[k*t.keys:][:t.keys]
}

// before sets the taps of k that t needs.
func (t *Tap) before(k *kernel.Attention) {
	t.keys = k.Tk
	if len(t.Mean) > 0 {
		k.RowTap, k.RowTapQueries = make([]float32, k.Heads*len(t.Mean)*k.Tk), t.Mean
	}
	if len(t.Largest) > 0 {
		k.MaxTap = make([]float32, k.Tq*k.Tk)
	}
}

// after reads the results from the taps of k.
func (t *Tap) after(k *kernel.Attention) {
	n := len(t.Mean) * k.Tk
	t.mean = make([]float32, n)
	for h := range k.Heads {
		for i, v := range k.RowTap[h*n:][:n] {
			t.mean[i] += v / float32(k.Heads)
		}
	}
	t.largest = make([]float32, 0, len(t.Largest)*k.Tk)
	for _, q := range t.Largest {
		t.largest = append(t.largest, k.MaxTap[int(q)*k.Tk:][:k.Tk]...)
	}
}

// Look computes the attention of the last query of Causal, without values; t then holds row 0. q is
// that query [Heads·HeadDim], pos its position.
func (a *Attention) Look(p *kernel.Pool, q []float32, pos Pos, l *LayerKV, c *Calibration, t *Tap) {
	out := make([]float32, a.Heads*a.HeadDim)
	a.Causal(p, out, q, []Pos{pos}, l, c, false, t)
}

// Mix is one row made from others: their mean, weighted by Weight if it is not nil. A single row is
// copied.
type Mix struct {
	From   []int32
	Weight []float32
}

// Blend writes the rows mixes of src [*, width] to dst [len(mixes), width]. It sums in float64.
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

// BlendParts replaces the rows of each part of x [Σ rows, width] in place by mixes of them and
// returns the rest of x. A part whose mixes are nil stays as it is; nil mixes leave all parts.
func BlendParts(p *kernel.Pool, x []float32, rows []int, mixes [][]Mix, width int) []float32 {
	if mixes == nil {
		return x
	}
	made := make([]float32, 0, len(x))
	at := 0
	for i, n := range rows {
		part := x[at*width : (at+n)*width]
		if m := mixes[i]; m == nil {
			made = append(made, part...)
		} else {
			lo := len(made)
			made = made[:lo+len(m)*width]
			Blend(p, made[lo:], part, m, width)
		}
		at += n
	}
	copy(x, made)
	return x[:len(made)]
}

// Replace replaces the rows [first, first+old) of x [rows, width] by mixes and moves the rows after
// them forward; len(mixes) is at most old.
func Replace(p *kernel.Pool, x []float32, rows, width, first, old int, mixes []Mix) {
	part := x[first*width : (first+old)*width]
	last, moves := int32(-1), true // rows that only move forward need no temporary copy
	for i := range mixes {
		from := mixes[i].From
		if moves = len(from) == 1 && from[0] > last; !moves {
			break
		}
		last = from[0]
	}
	if moves {
		for i := range mixes {
			if from := int(mixes[i].From[0]); from != i {
				copy(part[i*width:(i+1)*width], part[from*width:])
			}
		}
	} else {
		made := make([]float32, len(mixes)*width)
		Blend(p, made, part, mixes, width)
		copy(part, made)
	}
	copy(x[(first+len(mixes))*width:], x[(first+old)*width:rows*width])
}
