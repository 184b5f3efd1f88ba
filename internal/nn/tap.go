package nn

import (
	"slices"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Tap records the attention of some queries in a [Call].
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

// TapLast computes the attention of the last query of a [Call], without values; t then holds row 0.
// q is that query [Heads·HeadDim], pos its position.
func (a *Attention) TapLast(
	p *kernel.Pool, q []float32, pos Pos, l *LayerKV, c *Calibration, t *Tap,
) {
	out := make([]float32, a.Heads*a.HeadDim)
	a.Causal(p, Call{Out: out, Q: q, Pos: []Pos{pos}, Cache: l, Calib: c, Tap: t})
}
