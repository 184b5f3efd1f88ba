package methods

// SCOPE: "SCOPE: Saliency-Coverage Oriented Token Pruning for Efficient Multimodel LLMs"
// (arXiv:2510.24214).

import (
	"math"

	"github.com/restore-vlm/restore/reduce"
)

var scopeMethod = &method{
	Method: reduce.Method{
		Name:    "scope",
		Title:   "SCOPE: coverage of all tokens, weighted by attention",
		Summary: "Keeps patches that together cover the whole picture, striking ones first.",
		Paper:   "https://arxiv.org/abs/2510.24214",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.ClsAttn, reduce.Hidden},
		Minimum: "1 token",
		PerView: true,
		Cost:    "N²·Cv (cosines) and k·N² comparisons",
		Notes: reduce.Notes{
			Equations: `
C are cosines of the features before the projector, s_j the class token's attention to token j
(mean over heads), cover_i = 0 at first. Then k times: the gain of token j is s_j^alpha times
the sum over all i of max(0, C_ij - cover_i); the unused token of highest gain is taken, and
cover_i = max(cover_i, C_ij).`,
			Departures: `
The authors sum over heads, which scales every gain alike. Without a class token: the attention that tokens receive in the last block, and cosines of the
features after the projector (ours). If every gain is 0, the lowest unused token is taken. A row of
zeros has cosine 0 with every row. The authors' budgets are per view; here the views share the
budget equally.`,
			Licence: "The authors' code has no licence file; it was not used.",
		},
	},
	parameters: func() own { return new(scopeParams) },
	pick:       scope,
	raster:     true,
	ops: func(o *Plan, d Dims) float64 {
		return float64(o.N) * float64(o.N) * float64(d.Cv)
	},
}

// scopeParams are SCOPE's parameters.
type scopeParams struct{ alpha float64 }

// Declare implements own.
func (s *scopeParams) Declare(d *reduce.Declaration) {
	s.alpha = 1
	d.Float(&s.alpha, reduce.Parameter{
		Name: "scope-alpha", Least: new(0.),
		Help: "exponent of the attention in a token's gain",
	})
}

func scope(w *work, k int) (*selection, error) {
	in, n := w.in, w.in.N
	x, width := in.X, in.C
	if !in.NoClass {
		x, width = in.Hidden[in.Cv:], in.Cv
	}
	c, err := newCosines(w.pool, x, n, width, "hidden")
	if err != nil {
		return nil, err
	}
	weight := meanAttention(in)
	for i, s := range weight {
		weight[i] = math.Pow(s, w.o.own.(*scopeParams).alpha)
	}
	cover, sel := make([]float32, n), &selection{}
	gain := func(j int) float64 {
		sum := 0.0
		for i, v := range c.row(int32(j)) {
			if v > cover[i] {
				sum += float64(v) - float64(cover[i])
			}
		}
		return weight[j] * sum
	}
	take := func(j int) {
		for i, v := range c.row(int32(j)) {
			cover[i] = max(cover[i], v)
		}
	}
	var gains []float64
	sel.kept, gains = coverage(w.pool, k, make([]bool, n), gain, take)
	if !w.o.inViews { // a picture's scores are its tokens', one each
		sel.scores = map[string][]float32{"gain": float32s(gains)}
	}
	return sel, nil
}
