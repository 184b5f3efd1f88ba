package methods

// CDPruner: "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in
// MLLMs" (arXiv:2506.10967).

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const (
	cdPrunerSmall = 1e-6 // ε of the form genai, and in the relevance of the form paper
	cdPrunerSpent = 1e-9 // share of the largest diagonal below which nothing is left to span
)

var cdPrunerMethod = &method{
	Method: reduce.Method{
		Name:    "cdpruner",
		Title:   "CDPruner: diverse tokens, weighted by the question (determinants)",
		Summary: "Keeps patches that differ from each other, and that have to do with the prompt.",
		Paper:   "https://arxiv.org/abs/2506.10967",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.PromptText},
		Text:    true,
		Minimum: "1 token",
		PerView: true,
		Cost:    "k·N·C/2 (cosines to the kept tokens) and k²·N/8, in halves",
		Notes: reduce.Notes{
			Equations: `
t is the mean of the decoder's embeddings of the prompt's text, with template and system prompt. With
u(x) = x/sqrt(|x|² + eps), eps = 10^-6: S_ij = u(x_i)·u(x_j), after the projector; r_i =
sign·u(x_i)·u(t); q_i = (r_i - min r)/(max r - min r + eps); K = (1-w)·S + w·q_i·S_ij·q_j. Tokens
are chosen greedily for the largest determinant of K: d_i = K_ii at first; the unused token j of
largest d is taken, e_i = (K_ji - sum of e_j·e_i of the earlier choices)/sqrt(d_j + eps), d_i is
lowered by e_i². The first half of the tokens gives half of the k, rounded down, the second half the
rest, each with its own min and max. When nothing is left to span (largest d at most 10^-9 of the
largest K_ii, plus 10 eps), the rest are the unused tokens of largest K_ii.

Form paper: K_ij = q_i·C_ij·q_j with cosines C in one piece, eps 0 in the choice, and q_i = (r_i -
min r + 10^-6)/(max r - min r), 1 if all are equal. r_i = sign·mean cosine of the token and the text
in CLIP's common space where a file has both (sign -1), otherwise the cosine of x_i and t.`,
			Departures: `
Form genai is OpenVINO GenAI's, which ships for models without CLIP's text tower what the paper
suggests for them. sign auto is positive without a class token and negative with one: CLIP's patch
features point away from matching text. Nobody has published accuracies of this form with one;
measure both signs. GenAI lets text after the picture continue from the largest kept position + 1;
here it continues as without reduction. Its budgets are whole percentages. The paper has no 10^-6
in q; the authors' code takes min and max over all views of a picture at once, here each view is
by itself with an equal share, and returns fewer tokens or NaN on equal relevances, zero rows or a
budget above the rank. Without any text all relevances are 0. The choice holds for one text only: in
a conversation every question chooses again.`,
			Licence: "The authors' code and OpenVINO GenAI: Apache-2.0.",
		},
	},
	parameters: func() own { return new(cdPrunerParams) },
	pick:       cdPruner,
	raster:     true,
	ops: func(o *Plan, d Dims) float64 {
		n, k, parts := float64(o.N), float64(o.Keep), 1.0
		if c := o.own.(*cdPrunerParams); c.form == "genai" && c.halves {
			parts = 2
		}
		return k*n*float64(d.C)/parts + k*k*n/(2*parts*parts)
	},
}

// cdPrunerParams are CDPruner's parameters.
type cdPrunerParams struct {
	form, sign string
	weight     float64
	halves     bool
}

// Declare implements own.
func (c *cdPrunerParams) Declare(d *reduce.Declaration) {
	*c = cdPrunerParams{form: "genai", sign: "auto", weight: 0.5, halves: true}
	d.Choice(&c.form, reduce.Parameter{
		Name: "cdpruner-form", Values: []string{"genai", "paper"},
		Help: "kernel of OpenVINO GenAI, or of the paper",
	})
	d.Float(&c.weight, reduce.Parameter{
		Name: "cdpruner-weight", Unit: "share", Least: new(0.), Most: new(1.),
		Help: "weight of relevance against diversity; form genai",
	})
	d.Bool(&c.halves, reduce.Parameter{
		Name: "cdpruner-halves",
		Help: "choose in the two halves of the tokens separately; form genai",
	})
	d.Choice(&c.sign, reduce.Parameter{
		Name: "cdpruner-sign", Values: []string{"auto", "positive", "negative"},
		Help: "sign of the similarity to the text; auto is positive without a class token",
	})
}

// complete refuses parameters of the other form.
func (c *cdPrunerParams) complete(_ *Plan, d *reduce.Declaration) error {
	for _, name := range []string{"cdpruner-weight", "cdpruner-halves"} {
		if c.form == "paper" && d.Given(name) {
			return useless(name, shown(valueOf(d, name)), "with cdpruner-form paper")
		}
	}
	return nil
}

// negative reports whether similarity to the text counts against a token.
func (c *cdPrunerParams) negative(noClass bool) bool {
	return c.sign == "negative" || c.sign == "auto" && !noClass
}

func cdPruner(w *work, k int) (*selection, error) {
	in, c := w.in, w.o.own.(*cdPrunerParams)
	if c.sign != "auto" && c.aligns(in) {
		return nil, useless("cdpruner-sign", c.sign,
			"with clip_image and clip_text (in whose space it is negative)")
	}
	parts := [][2]int{{in.N, k}} // tokens, and how many of them are kept
	if c.form == "genai" && c.halves && in.N > 1 {
		parts = [][2]int{{in.N / 2, k / 2}, {in.N - in.N/2, k - k/2}}
	}
	relevance := c.relevance(w)
	sel, value, lo := &selection{}, []float32(nil), 0
	for _, part := range parts {
		n, keep := part[0], part[1]
		d, err := newConditional(w.pool, in.X[lo*in.C:(lo+n)*in.C], n, in.C, keep)
		if err != nil {
			return nil, err
		}
		d.weigh(c, relevance[lo:lo+n])
		copy(relevance[lo:], d.q)
		for _, t := range d.pick(keep) {
			sel.kept = append(sel.kept, int32(lo)+t)
		}
		value, lo = append(value, d.value...), lo+n
	}
	sel.scores = map[string][]float32{"relevance": float32s(relevance)}
	if !w.o.inViews { // a picture's scores are its tokens', one each
		sel.scores["value"] = value
	}
	return sel, nil
}

// aligns reports whether relevance comes from CLIP's common space.
func (c *cdPrunerParams) aligns(in *reduce.Input) bool {
	return c.form == "paper" && in.ClipImage != nil
}

// relevance returns r of all tokens.
func (c *cdPrunerParams) relevance(w *work) []float64 {
	in, sign := w.in, 1.0
	if c.negative(in.NoClass) {
		sign = -1
	}
	r := make([]float64, in.N)
	if c.aligns(in) {
		d := in.ClipDim
		rows := len(in.ClipText) / d
		w.pool.Run(in.N, func(i int) {
			for m := range rows {
				r[i] -= alignment(in.ClipImage[i*d:(i+1)*d], in.ClipText[m*d:(m+1)*d], 0) /
					float64(rows)
			}
		})
		return r
	}
	eps := cdPrunerSmall
	if c.form == "paper" {
		eps = 0
	}
	t := make([]float64, in.C)
	for row := range slices.Chunk(in.Text, in.C) {
		for i, v := range row {
			t[i] += float64(v) / float64(len(in.Text)/in.C)
		}
	}
	w.pool.Run(in.N, func(i int) {
		r[i] = sign * alignment(in.X[i*in.C:(i+1)*in.C], t, eps)
	})
	return r
}

// alignment is a·b/sqrt((|a|²+eps)·(|b|²+eps)), 0 if a or b is 0.
func alignment[A, B float32 | float64](a []A, b []B, eps float64) float64 {
	size := math.Sqrt(dotWide(a, a)+eps) * math.Sqrt(dotWide(b, b)+eps)
	if size == 0 {
		return 0
	}
	return dotWide(a, b) / size
}

// conditional is the greedy choice for the largest determinant of K.
type conditional struct {
	c        *columns
	q        []float64   // [n] relevance, normalised
	shrink   []float64   // [n] |x|/sqrt(|x|²+ε)
	own, eps float64     // share of S in K; ε of the choice
	d        []float64   // [n]
	e        [][]float64 // [n] of each choice
	value    []float32   // d of each choice while something is left to span
}

// newConditional prepares the choice of at most k of the n rows of x.
func newConditional(p *kernel.Pool, x []float32, n, width, k int) (*conditional, error) {
	c, err := columnsOf(p, x, n, width, n*width*k <= wideWork, "X")
	return &conditional{c: c}, err
}

// weigh sets K by the relevances of the tokens.
func (d *conditional) weigh(c *cdPrunerParams, r []float64) {
	n := d.c.n
	d.q, d.shrink, d.d = make([]float64, n), make([]float64, n), make([]float64, n)
	least, most := slices.Min(r), slices.Max(r)
	for i := range r {
		d.shrink[i] = 1
		switch {
		case c.form == "genai":
			d.own, d.eps = 1-c.weight, cdPrunerSmall
			d.q[i] = (r[i] - least) / (most - least + cdPrunerSmall)
			d.shrink[i] = d.c.norm[i] / math.Sqrt(d.c.norm[i]*d.c.norm[i]+cdPrunerSmall)
		case most == least:
			d.q[i] = 1
		default:
			d.q[i] = (r[i] - least + cdPrunerSmall) / (most - least)
		}
	}
	for i := range d.d {
		if d.c.norm[i] > 0 {
			d.d[i] = d.kernel(i, i, 1)
		}
	}
}

// kernel is K_ij for a cosine.
func (d *conditional) kernel(i, j int, cosine float64) float64 {
	return cosine * d.shrink[i] * d.shrink[j] * (d.own + (1-d.own)*d.q[i]*d.q[j])
}

// pick chooses k tokens, in order.
func (d *conditional) pick(k int) []int32 {
	diagonal, used := slices.Clone(d.d), make([]bool, len(d.d))
	spent := cdPrunerSpent*slices.Max(diagonal) + 10*d.eps
	var kept []int32
	for len(kept) < k {
		j := largest(d.d, used)
		if d.d[j] > spent {
			d.value = append(d.value, float32(d.d[j]))
			d.condition(j)
		} else {
			j = largest(diagonal, used)
		}
		kept, used[j] = append(kept, int32(j)), true
	}
	return kept
}

// condition lowers d by what token j spans.
func (d *conditional) condition(j int) {
	cosines, e := d.c.to(int32(j)), make([]float64, len(d.d))
	scale := 1 / math.Sqrt(d.d[j]+d.eps)
	d.c.tokens(func(lo, hi int) {
		for i := lo; i < hi; i++ {
			e[i] = d.kernel(i, j, cosines[i])
		}
		for _, before := range d.e {
			own := before[j]
			for i := lo; i < hi; i++ {
				e[i] -= float64(own * before[i])
			}
		}
		for i := lo; i < hi; i++ {
			e[i] *= scale
			d.d[i] -= float64(e[i] * e[i])
		}
	})
	d.e = append(d.e, e)
}
