package methods

// Dense anchors among many tokens. Eq. 8 needs two numbers of a token: R, which is a product with
// the sum of all features, and its highest cosine to some others. A product with few bits finds the
// cosines that may be the highest; only these are computed in float32.

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"

	"github.com/restore-vlm/restore/internal/kernel"
)

const (
	// screenTokens is the least number of tokens for which it is worth it.
	screenTokens = 1024
	// screenStripe is how many rows one product screens; a multiple of 64, so that a weight may be
	// encoded in such parts.
	screenStripe = 128
	// screenSample is how many tokens the error is measured among.
	screenSample = 48
	// screenErrors is the margin below the highest coarse cosine, as a multiple of the errors' root
	// mean square. A difference of two errors has 1.4 times that.
	screenErrors = 10
	// screenWorst is the least margin as a multiple of the largest error that a row has shown.
	screenWorst = 3
	// fewNear is how many cosines of a row are always computed alone.
	fewNear = 32
	// dotCost is how many cosines a float32 product computes in the time of one alone.
	dotCost = 16
)

// screenFormat returns the format whose products are several times as fast as those of float32, if
// there is one.
func screenFormat() (f kernel.Format, ok bool) {
	switch use := kernel.InUse(); {
	case use.VNNI:
		return kernel.Q8, true
	case use.Words: // AVX2 alone
		return kernel.Q4, true
	}
	return 0, false
}

// screens reports whether dense anchors are chosen without the cosines of all tokens to all, and in
// which format.
func (w *work) screens() (f kernel.Format, ok bool) {
	f, ok = screenFormat()
	return f, ok && w.cos == nil && w.in.N >= screenTokens &&
		(w.o.Anchors == "paper" || w.o.Anchors == "released")
}

// density is Eq. 5 over the tokens of pool without the matrix: R_i is the product of token i,
// scaled to length 1, with the sum of the pool's. R has an element for every token.
func (c *columns) density(pool []int32) (R, sum []float64) {
	sum = c.sum()
	for _, t := range others(c.n, pool) {
		if c.norm[t] == 0 {
			continue
		}
		scale := 1 / c.norm[t]
		for k, v := range c.x[int(t)*c.width:][:c.width] {
			sum[k] -= float64(float64(v) * scale)
		}
	}
	R = make([]float64, c.n)
	c.tokens(func(lo, hi int) {
		for t := lo; t < hi; t++ {
			if c.norm[t] > 0 {
				R[t] = dotWide(c.x[t*c.width:][:c.width], sum) / c.norm[t]
			}
		}
	})
	return R, sum
}

// screen finds highest cosines. Features are scaled to length √width; what they have in common is
// taken away before they are rounded to few bits.
type screen struct {
	*columns
	format kernel.Format
	axis   []float32 // what features have in common, of length 1
	along  []float32 // by token: the part of its feature along axis
	margin float64   // of products, which are width times a cosine
	out    []float32 // scratch
}

// against are the tokens that others are compared with.
type against struct {
	list   []int32
	weight *kernel.Matrix // the parts across the axis of list, as far as they are encoded
	plain  []float32      // the features of list, if they were needed
}

// newScreen takes R and the sum of features from density; list are the tokens to measure errors
// among.
func newScreen(c *columns, f kernel.Format, R, sum []float64, list []int32) (*screen, error) {
	s := &screen{
		columns: c, format: f, axis: make([]float32, c.width), along: make([]float32, c.n),
	}
	if length := math.Sqrt(dotWide(sum, sum)); length > 0 {
		for k, v := range sum {
			s.axis[k] = float32(v / length)
		}
		for t, r := range R {
			s.along[t] = float32(r / length * math.Sqrt(float64(s.width)))
		}
	}
	sample := gridTokens(len(list), min(screenSample, len(list)))
	for i, at := range sample {
		sample[i] = list[at]
	}
	return s, s.measure(sample)
}

// across computes the parts of features that are not along the axis.
func (s *screen) across(tokens []int32) []float32 {
	s.rows = grown(s.rows, len(tokens)*s.width)
	s.pool.Run(len(tokens), func(i int) {
		t := int(tokens[i])
		to, x, axis := s.rows[i*s.width:][:s.width], s.x[t*s.width:][:s.width], s.axis[:s.width]
		if s.norm[t] == 0 {
			clear(to)
			return
		}
		scale, along := float32(math.Sqrt(float64(s.width))/s.norm[t]), s.along[t]
		for k, v := range x {
			to[k] = float32(v*scale) - float32(along*axis[k])
		}
	})
	return s.rows[:len(tokens)*s.width]
}

// measure sets the margin from the errors among a sample of tokens.
func (s *screen) measure(sample []int32) error {
	n := len(sample)
	rows := s.across(sample)
	exact := kernel.MatrixF32(n, s.width, rows)
	weight, err := kernel.Quantize(s.pool, exact, s.format)
	if err != nil {
		return err
	}
	want, got := make([]float32, n*n), make([]float32, n*n)
	kernel.MatMul(s.pool, want, rows, n, exact, nil)
	kernel.MatMul(s.pool, got, rows, n, weight, nil)
	sum := 0.0
	for i := range n {
		for j := range n {
			if e := float64(got[i*n+j]) - float64(want[i*n+j]); i != j {
				sum += e * e
			}
		}
	}
	s.margin = screenErrors*math.Sqrt(sum/float64(max(1, n*n-n))) + float32Margin*float64(s.width)
	return nil
}

// against prepares comparisons with the tokens of list; encode must follow.
func (s *screen) against(list []int32) *against {
	a := &against{list: list, weight: &kernel.Matrix{Format: s.format, N: len(list), K: s.width}}
	a.weight.Data = make([]byte, a.weight.Bytes())
	return a
}

// encode encodes up to screenStripe tokens of a from lo on, and returns their rows.
func (s *screen) encode(a *against, lo int) (rows []float32, err error) {
	m := min(screenStripe, len(a.list)-lo)
	rows = s.across(a.list[lo : lo+m])
	part := *a.weight
	part.N = lo
	part.N, part.Data = m, a.weight.Data[part.Bytes():]
	return rows, kernel.Encode(s.pool, &part, kernel.MatrixF32(m, s.width, rows))
}

// highest returns, for each token of pool, its highest cosine to the tokens of pool with lower R,
// or with higher R; −∞ if there are none. The slice has an element for every token.
func (s *screen) highest(pool []int32, R []float64, higher bool) ([]float64, error) {
	seen, list := make([]bool, s.n), make([]int32, 0, len(pool)) // copies of a token are one
	for _, t := range pool {
		if t = s.rep[t]; !seen[t] {
			seen[t], list = true, append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b int32) int {
		if higher {
			a, b = b, a
		}
		return cmp.Or(cmp.Compare(R[a], R[b]), cmp.Compare(a, b))
	})
	before := make([]int, len(list)) // how many come before a token and have a different R
	for i := 1; i < len(list); i++ {
		before[i] = before[i-1]
		if R[list[i]] != R[list[i-1]] {
			before[i] = i
		}
	}
	a, most := s.against(list), make([]float64, s.n)
	for lo := 0; lo < len(list); lo += screenStripe {
		rows, err := s.encode(a, lo)
		if err != nil {
			return nil, err
		}
		hi := min(lo+screenStripe, len(list))
		s.search(a, list[lo:hi], rows, before[lo:hi], func(i int, top float64, _ int32) {
			most[list[lo+i]] = top
		})
	}
	for _, t := range pool {
		most[t] = most[s.rep[t]]
	}
	return most, nil
}

// nearestHeads implements similarity.
func (s *screen) nearestHeads(list, heads []int32) ([]int32, error) {
	a := s.against(heads)
	for lo := 0; lo < len(heads); lo += screenStripe {
		if _, err := s.encode(a, lo); err != nil {
			return nil, err
		}
	}
	out, all := make([]int32, len(list)), slices.Repeat([]int{len(heads)}, screenStripe)
	for lo := 0; lo < len(list); lo += screenStripe {
		tokens := list[lo:min(lo+screenStripe, len(list))]
		s.search(a, tokens, s.across(tokens), all[:len(tokens)],
			func(i int, _ float64, at int32) { out[lo+i] = at })
	}
	return out, nil
}

// search finds, for each token, the highest cosine to the first before[i] tokens of a, and the
// first of these that has it. rows are from across.
func (s *screen) search(
	a *against, tokens []int32, rows []float32, before []int, found func(int, float64, int32),
) {
	m, n := len(tokens), slices.Max(before)
	part := *a.weight
	part.N = n
	s.out = grown(s.out, m*n)
	kernel.MatMul(s.pool, s.out, rows, m, &part, nil)
	least := make([]float32, m)
	var pairs, near atomic.Int64
	s.pool.Run(m, func(i int) {
		row, own := s.out[i*n:][:before[i]], s.along[tokens[i]]
		top, count := float32(math.Inf(-1)), 0
		for j, v := range row {
			row[j] = v + float32(own*s.along[a.list[j]])
			top = max(top, row[j])
		}
		least[i] = float32(float64(top) - s.margin)
		for _, v := range row {
			if v >= least[i] {
				count++
			}
		}
		pairs.Add(int64(len(row)))
		near.Add(int64(count))
	})
	if near := near.Load() - fewNear*int64(m); near*dotCost > pairs.Load() {
		s.wholly(a, tokens, before, n, found)
		return
	}
	s.pool.Run(m, func(i int) {
		top, at := s.recheck(tokens[i], a.list, s.out[i*n:][:before[i]], float64(least[i]))
		found(i, top, at)
	})
}

// recheck returns the highest cosine of a token to those of list for which there is a coarse
// product, and the first that has it. Those of least and more are computed first.
func (s *screen) recheck(t int32, list []int32, coarse []float32, least float64) (float64, int32) {
	most, at, worst := math.Inf(-1), int32(0), 0.
	if len(coarse) == 0 {
		return most, at
	}
	top := least + s.margin
	for above := math.Inf(1); ; {
		for j, v := range coarse {
			v := float64(v)
			if v < least || v >= above {
				continue
			}
			c := s.alone(t, list[j])
			if c > most || c == most && int32(j) < at {
				most, at = c, int32(j)
			}
			worst = max(worst, math.Abs(v-c*float64(s.width)))
		}
		if top-least >= screenWorst*worst {
			return most, at
		}
		least, above = top-2*screenWorst*worst, least
	}
}

// alone is the cosine of two tokens.
func (s *screen) alone(i, j int32) float64 {
	x, y := s.x[int(i)*s.width:][:s.width], s.x[int(j)*s.width:][:s.width]
	return s.cosine(i, j, kernel.Dot(x, y))
}

// wholly is search in float32, for tokens that are too similar to be screened.
func (s *screen) wholly(
	a *against, tokens []int32, before []int, n int, found func(int, float64, int32),
) {
	if a.plain == nil {
		s.gather(a.list)
		a.plain, s.rows = s.rows, nil
	}
	s.gather(tokens)
	kernel.MatMul(s.pool, s.out, s.rows, len(tokens), kernel.MatrixF32(n, s.width, a.plain), nil)
	s.pool.Run(len(tokens), func(i int) {
		top, at := math.Inf(-1), int32(0)
		for j, v := range s.out[i*n:][:before[i]] {
			if c := s.cosine(tokens[i], a.list[j], v); c > top {
				top, at = c, int32(j)
			}
		}
		found(i, top, at)
	})
}
