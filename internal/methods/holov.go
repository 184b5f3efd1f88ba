package methods

// HoloV: "Don't Just Chase 'Highlighted Tokens' in MLLMs: Revisiting Visual Holistic Context
// Retention" (arXiv:2510.02912).

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

const (
	holovPatches = 16
	holovAlpha   = 0.09
	holovEps     = 1e-6
	holovScale   = 1000
)

var holovMethod = &method{
	Method: reduce.Method{
		Name:    "holov",
		Title:   "HoloV: attention spread over runs of the picture",
		Summary: "Keeps what stands out, in every part of the picture rather than in one.",
		Paper:   "https://arxiv.org/abs/2510.02912",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.ClsAttn},
		Minimum: "1 token",
		Cost:    "N²·C/16 (cosines within the runs)",
		Notes: reduce.Notes{
			Equations: `
The token sequence is cut into P runs (16; the first N mod P are one longer). A run's score Q is
the mean over its tokens of a' + 0.09·lambda·var, where a' is 1000 times the class token's
attention (mean over heads), var the variance of a token's cosines within the run and lambda the
ratio of the means of a' and var. Run p gets floor(w_p·k) of the k tokens, w = Q/sum Q; the
remainder goes to the largest w. Inside a run the tokens of highest attention are kept.`,
			Departures: `
As in the authors' code: runs are one-dimensional, not crops; the zero on the diagonal of the
cosine matrix counts in the variance; a run of one token scores its plain attention. If a run
gets more than it has, "redistribute" gives the excess to the runs with room of largest w, round
by round, as RESTORE's code does; "zero" is the authors' own rule, which adds vectors of zeros at
the end. If every Q is 0, runs share equally. With k = N both rules keep all tokens in raster
order.

Without a class token (the authors' code for M-RoPE models) P is floor(1024/576·N/n), at least
1, and attention is the attention that patches receive. The authors leave it in the encoder's
window order; here it is in raster order like the tokens. The authors' code keeps original
positions there, so compat released does too.`,
		},
	},
	parameters: func() own { return new(holovParams) },
	pick:       holov,
	ops: func(o *Plan, d Dims) (sum float64) {
		if o.allCosines() { // runs use parts of the anchors' matrix
			return 0
		}
		b := runs(o.N, o.own.(*holovParams).patches)
		for i := range b[1:] {
			n := float64(b[i+1] - b[i])
			sum += n * n * float64(d.C)
		}
		return sum
	},
}

// holovParams are HoloV's parameters.
type holovParams struct {
	patches  int
	overflow string
}

// Declare implements own.
func (h *holovParams) Declare(d *reduce.Declaration) {
	h.overflow = "redistribute"
	d.Int(&h.patches, reduce.Parameter{
		Name: "holov-patches", Unit: "N", Default: strconv.Itoa(holovPatches), Least: new(1.),
		Help: "number of 1-D runs into which the tokens are split",
	})
	d.Choice(&h.overflow, reduce.Parameter{
		Name: "holov-overflow", Values: []string{"redistribute", "zero"},
		Help: "what to do when a run gets more tokens than it has",
	})
}

// complete sets the number of runs. Like the authors' code it refuses more runs than tokens.
func (h *holovParams) complete(p *Plan, d *reduce.Declaration) error {
	switch {
	case h.patches == 0:
		h.patches = min(p.N, holovRuns(p.N, p.NVis, p.NoClass))
	case h.patches > p.N && p.Compat != "released" && !p.facts.any:
		return refused("holov-patches", errs.TooLarge, strconv.Itoa(h.patches),
			fmt.Sprintf("at most %d", p.N), "the picture's tokens")
	}
	return nil
}

// holovRuns is the default number of runs for a budget of k tokens of n.
func holovRuns(n, k int, noClass bool) int {
	if noClass {
		return max(1, int(1024.0/576*float64(n)/float64(k)))
	}
	return holovPatches
}

func holov(w *work, k int) (*selection, error) {
	in, n := w.in, w.in.N
	a := meanAttention(in)
	if _, ok := w.screens(); w.o.allCosines() && !ok { // use parts of that matrix for the runs
		if _, err := w.cosine(); err != nil {
			return nil, err
		}
	}
	params := w.o.own.(*holovParams)
	bounds := runs(n, params.patches)
	runCount := len(bounds) - 1
	q, bad := make([]float32, runCount), make([]error, runCount)
	w.pool.Run(runCount, func(p int) {
		c, err := w.cosineOf(bounds[p], bounds[p+1])
		if err != nil {
			bad[p] = err
			return
		}
		q[p] = float32(holovScore(c, a[bounds[p]:bounds[p+1]]))
	})
	if err := cmp.Or(bad...); err != nil {
		return nil, err
	}
	weight, err := holovWeights(q)
	if err != nil {
		return nil, err
	}
	alloc, order := runShares(weight, k)
	if params.overflow == "redistribute" || w.o.NVis == n { // all tokens need no filling
		redistribute(alloc, bounds, order, k)
	}

	sel := &selection{
		scores:  map[string][]float32{"attention": float32s(a), "Q": q, "w": weight},
		indices: map[string][]int32{"alloc": alloc},
	}
	for p := range alloc {
		lo, hi := bounds[p], bounds[p+1]
		switch take := int(alloc[p]); {
		case take >= hi-lo:
			for i := lo; i < hi; i++ {
				sel.kept = append(sel.kept, int32(i))
			}
		default:
			for _, i := range topK(a[lo:hi], take) {
				sel.kept = append(sel.kept, int32(lo)+i)
			}
		}
	}
	sel.kept = sel.kept[:min(k, len(sel.kept))]
	sel.rest = others(n, sel.kept)
	slices.SortStableFunc(sel.rest, func(i, j int32) int {
		switch {
		case a[i] > a[j]:
			return -1
		case a[i] < a[j]:
			return 1
		}
		return 0
	})
	for len(sel.kept) < k {
		sel.kept = append(sel.kept, -1)
	}
	return sel, nil
}

// runShares divides k tokens among the runs by weight, and returns the runs in the order of their
// weights: the first ones get the tokens that rounding down leaves.
func runShares(weight []float32, k int) (alloc, order []int32) {
	alloc, order = make([]int32, len(weight)), rank(widen(weight))
	left := k
	for p := range alloc {
		// a float32 product, as in the authors' code: it matters at integers such as 4.0
		alloc[p] = int32(weight[p] * float32(k))
		left -= int(alloc[p])
	}
	for _, p := range order[:min(max(left, 0), len(order))] {
		alloc[p]++
	}
	return alloc, order
}

// runs returns the bounds of at most p runs of n tokens, none of them empty.
func runs(n, p int) []int {
	p = min(p, n)
	b := make([]int, p+1)
	for i := range p {
		b[i+1] = b[i] + n/p
		if i < n%p {
			b[i+1]++
		}
	}
	return b
}

// holovScore is Q of one run with cosines c and attention a.
func holovScore(c *cosines, a []float64) float64 {
	m := len(a)
	if m == 1 {
		return a[0]
	}
	// The authors normalise by |x| + eps.
	shrink := make([]float64, m)
	for i, v := range c.norm {
		shrink[i] = v / (v + holovEps)
	}
	var sumA, sumVar, absA float64
	for i := range m {
		row, mu := c.row(int32(i)), 0.0
		for j, v := range row {
			if j != i {
				mu += float64(v) * shrink[i] * shrink[j]
			}
		}
		mu /= float64(m - 1)
		variance := mu * mu // the diagonal, which is 0
		for j, v := range row {
			if j != i {
				d := float64(v)*shrink[i]*shrink[j] - mu
				variance += d * d
			}
		}
		sumVar += variance / float64(m-1)
		sumA += holovScale * a[i]
		absA += max(holovScale*a[i], -holovScale*a[i])
	}
	lambda := (absA / float64(m)) / (sumVar/float64(m) + holovEps)
	return (sumA + holovAlpha*lambda*sumVar) / float64(m)
}

// holovWeights is w = Q/(sum Q + eps), or equal shares where every Q is 0.
func holovWeights(q []float32) ([]float32, error) {
	var sum float32
	for p, v := range q {
		if sum += v; v < 0 || sum-sum != 0 {
			return nil, fmt.Errorf("methods: holov: cls_attn: run %d of %d scores %v, want 0 and "+
				"more, and a finite sum (attention is a probability)", p, len(q), v)
		}
	}
	w := make([]float32, len(q))
	for p, v := range q {
		if w[p] = v / (sum + holovEps); sum == 0 {
			w[p] = 1 / float32(len(q))
		}
	}
	return w, nil
}

// redistribute clamps alloc to the runs' sizes and gives the excess to runs with room, one token
// per run and round, by falling weight.
func redistribute(alloc []int32, bounds []int, order []int32, k int) {
	for range k + 1 {
		sum := 0
		for p := range alloc {
			alloc[p] = min(alloc[p], int32(bounds[p+1]-bounds[p]))
			sum += int(alloc[p])
		}
		deficit, given := k-sum, false
		for _, p := range order {
			if deficit <= 0 {
				break
			}
			if int(alloc[p]) < bounds[p+1]-bounds[p] {
				alloc[p]++
				deficit--
				given = true
			}
		}
		if !given {
			return
		}
	}
}

func widen(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}
