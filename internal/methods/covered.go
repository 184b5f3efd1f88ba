package methods

// Covered anchors (not in the paper), for budgets below a ninth of the tokens.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

// coveredAnchors chooses anchors that neither kept tokens nor other anchors cover, and returns the
// cosines to all of them and to the kept tokens. If there are no anchors to choose it returns only
// the cosines.
func (w *work) coveredAnchors(r *reduce.Reduction) (similarity, error) {
	in, o := w.in, w.o
	kept := slices.DeleteFunc(slices.Sorted(slices.Values(r.Kept)),
		func(t int32) bool { return t < 0 })
	c, err := newColumns(w.pool, in.X, in.N, in.C, len(kept)+o.Merge, "X")
	if err != nil {
		return nil, err
	}
	if o.Merge == len(r.Rest) { // all other tokens are anchors
		r.Anchors = slices.Clone(r.Rest)
		return c, nil
	}
	if o.Merge > 0 {
		d := newDeterminant(c, meanSharpness(c), kept, len(kept)+o.Merge)
		r.Anchors, r.Gains = d.pick(o.Merge)
	}
	c.load(slices.Concat(kept, r.Anchors))
	return c, nil
}

// determinant is the greedy maximum of det L over the chosen tokens, L_ij =
// exp(−(1−C_ij)·sharpness), with C the cosines of the features.
//
// A variance only falls as tokens are chosen. So the variance of a token that is far from the
// maximum is computed only when the token reaches the top; until then an upper bound is used.
type determinant struct {
	c         *columns
	sharpness float64
	v         []float64 // conditional variance of every token, or an upper bound
	computed  []float64 // conditional variance given the pivots of the known columns of e
	e         []float64 // [n, most]: columns of the pivoted Cholesky factor, one row per token
	known     []int     // number of columns of e that are computed, by token
	bounded   int       // pivots included in the bounds
	most      int
	pivots    []int32   // the chosen tokens, in order
	cosines   []column  // cosines of all tokens to each pivot
	scale     []float64 // 1/√v of each pivot when it was chosen
	used      []bool
	queue     []int32 // heap of unused tokens by falling v, the lower token on ties
}

const (
	diagonal     = 1.001 // L_ii in v: above 1, so that copies of a token remain distinct
	leastPivot   = 1e-9
	sameFeatures = 1e-12 // 1 − C̄ below it counts as 0: all tokens are equal
)

// newDeterminant starts with the kept tokens chosen; at most most tokens will be chosen.
func newDeterminant(c *columns, sharpness float64, kept []int32, most int) *determinant {
	d := &determinant{
		c: c, sharpness: sharpness, most: most, v: make([]float64, c.n), known: make([]int, c.n),
		computed: make([]float64, c.n),
		e:        make([]float64, c.n*most), used: make([]bool, c.n), queue: iota32(c.n),
	}
	for i := range d.v {
		d.v[i], d.computed[i] = diagonal, diagonal
	}
	c.load(kept)
	for _, t := range kept {
		d.update(t)
		d.choose(t)
	}
	d.queue = slices.DeleteFunc(d.queue, func(t int32) bool { return d.used[t] })
	d.bound()
	return d
}

// bound lowers v of every token to its variance given only one pivot, the nearest of the new ones,
// plus a margin for rounding, and sorts the queue by it.
func (d *determinant) bound() {
	fresh := d.cosines[d.bounded:]
	d.bounded = len(d.cosines)
	if len(fresh) > 0 {
		d.c.pool.Run((len(d.queue)+tokensPerTask-1)/tokensPerTask, func(task int) {
			for _, t := range d.queue[task*tokensPerTask : min((task+1)*tokensPerTask,
				len(d.queue))] {
				nearest := math.Inf(-1)
				for _, c := range fresh {
					nearest = max(nearest, c.at(t))
				}
				alone := diagonal - math.Exp(2*(nearest-1)*d.sharpness)/diagonal
				d.v[t] = min(d.v[t], alone+leastPivot)
			}
		})
	}
	for i := len(d.queue)/2 - 1; i >= 0; i-- {
		d.sink(i)
	}
}

// meanSharpness is 1/(1−C̄), with C̄ the mean of all cosines; 0 if all tokens are equal.
func meanSharpness(c *columns) float64 {
	if away := 1 - c.mean(); away > sameFeatures {
		return 1 / away
	}
	return 0
}

// tokensPerTask is how many tokens a thread updates at once.
const tokensPerTask = 64

// update computes the missing columns of e for token i: for every pivot p, with v_p at its choice,
// e_i = (L_ip − Σ_c e_ic·e_pc)/√max(v_p, 1e−9) and v_i = max(0, v_i − e_i²).
func (d *determinant) update(i int32) {
	row, v := d.e[int(i)*d.most:][:len(d.pivots)], d.computed[i]
	for m := d.known[i]; m < len(row); m++ {
		p, l := d.pivots[m], 1.0
		if i != p {
			l = math.Exp((d.cosines[m].at(i) - 1) * d.sharpness)
		}
		row[m] = (l - dot64(row[:m], d.e[int(p)*d.most:][:m])) * d.scale[m]
		v = max(0, v-float64(row[m]*row[m]))
	}
	d.computed[i], d.known[i] = v, len(row)
	d.v[i] = v
}

// choose makes token p, which must be up to date, the next pivot.
func (d *determinant) choose(p int32) {
	d.cosines = append(d.cosines, d.c.to(p))
	d.pivots = append(d.pivots, p)
	d.scale = append(d.scale, 1/math.Sqrt(max(d.v[p], leastPivot)))
	d.used[p] = true
}

// pick chooses count more tokens, each the unused one with the largest v, and returns them in
// order, with their gains.
func (d *determinant) pick(count int) (picks []int32, gains []float64) {
	for len(picks) < count {
		p := d.queue[0]
		if d.known[p] < len(d.pivots) {
			d.update(p)
			d.sink(0)
			continue
		}
		last := len(d.queue) - 1
		d.queue[0] = d.queue[last]
		d.queue = d.queue[:last]
		d.sink(0)
		picks, gains = append(picks, p), append(gains, d.v[p])
		d.ahead(p, count-len(picks))
		d.choose(p)
	}
	return picks, gains
}

// before is the order of the queue.
func (d *determinant) before(a, b int32) bool {
	return d.v[a] > d.v[b] || d.v[a] == d.v[b] && a < b
}

// sink restores the heap below node i.
func (d *determinant) sink(i int) {
	for q := d.queue; ; {
		first := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(q) && d.before(q[child], q[first]) {
				first = child
			}
		}
		if first == i {
			return
		}
		q[i], q[first] = q[first], q[i]
		i = first
	}
}

// columnsAhead is how many columns are computed at once, if that is cheaper than one after another:
// the columns of the tokens that will probably be chosen next.
const columnsAhead = 40

// fewColumns columns take hardly longer than one, because the features are read once either way.
const fewColumns = 24

// ahead computes the columns of p, the next pivot, and of the tokens that will probably be
// chosen among the left tokens after it. It looks for them at the front of the queue, after
// updating them.
func (d *determinant) ahead(p int32, left int) {
	if d.c.fine || d.c.has(p) || len(d.pivots) == 0 {
		return
	}
	d.bound()
	first := d.queue[:min(len(d.queue), 8*columnsAhead)]
	likely := slices.Clone(first)
	d.c.pool.Run((len(likely)+tokensPerTask-1)/tokensPerTask, func(task int) {
		for _, t := range likely[task*tokensPerTask : min((task+1)*tokensPerTask, len(likely))] {
			d.update(t)
		}
	})
	for i := len(first) - 1; i >= 0; i-- {
		d.sink(i)
	}
	slices.SortFunc(likely, func(a, b int32) int {
		return cmp.Or(cmp.Compare(d.v[b], d.v[a]), cmp.Compare(a, b))
	})
	many := columnsAhead
	if left < many {
		many = max(left, fewColumns)
	}
	d.c.load(d.foresee(append([]int32{p}, likely[:min(len(likely), 3*many)]...), 1+many))
}

// foresee returns the tokens of list that would be chosen first, starting with list[0], if there
// were no other tokens. All of them must be up to date.
func (d *determinant) foresee(list []int32, many int) []int32 {
	n, m := len(list), len(d.pivots)
	near := d.c.among(list)
	rows, known := make([]float32, n*m), make([]float32, n*n)
	for i, t := range list {
		for k, e := range d.e[int(t)*d.most:][:m] {
			rows[i*m+k] = float32(e)
		}
	}
	if m > 0 {
		kernel.MatMul(d.c.pool, known, rows, n, kernel.MatrixF32(n, m, rows), nil)
	}
	v, e := make([]float64, n), make([]float64, 0, n*many)
	for i, t := range list {
		v[i] = d.v[t]
	}
	out, used := make([]int32, 0, many), make([]bool, n)
	for p := 0; len(out) < min(many, n); {
		out, used[p] = append(out, list[p]), true
		scale := 1 / math.Sqrt(max(v[p], leastPivot))
		next := -1
		for i := range v {
			x := math.Exp((near[i*n+p]-1)*d.sharpness) - float64(known[i*n+p])
			for k := range len(out) - 1 {
				x -= e[k*n+i] * e[k*n+p]
			}
			e = append(e, x*scale)
		}
		for i := range v {
			x := e[(len(out)-1)*n+i]
			if v[i] = max(0, v[i]-x*x); !used[i] && (next < 0 || v[i] > v[next]) {
				next = i
			}
		}
		p = next
	}
	return out
}

// columns are the cosines of all rows to some of them.
type columns struct {
	n, width int
	x        []float32
	norm     []float64
	rep      []int32 // the first equal row: copies have equal cosines
	pool     *kernel.Pool
	fine     bool // compute in float64; otherwise products are float32
	col      map[int32]column
	rows     []float32 // scratch
	product  []float32
}

// column holds the cosines of all rows to one row. It is stored together with the columns computed
// with it, because rows are read one after another, each for all columns.
type column struct {
	batch []float64 // [n, width]
	width int
	place int
}

// at is the cosine of row i.
func (c column) at(i int32) float64 { return c.batch[int(i)*c.width+c.place] }

// fineWork is the most multiply-adds for which float64 is used.
const fineWork = 1 << 24

// newColumns prepares cosines to about most of the n rows of x [n, width].
func newColumns(p *kernel.Pool, x []float32, n, width, most int, name string) (*columns, error) {
	c := &columns{
		n: n, width: width, x: x, norm: make([]float64, n), rep: make([]int32, n), pool: p,
		fine: n*width*most <= fineWork, col: map[int32]column{},
	}
	p.Run((n+tokensPerTask-1)/tokensPerTask, func(task int) {
		for i := task * tokensPerTask; i < min((task+1)*tokensPerTask, n); i++ {
			if row := x[i*width:][:width]; c.fine {
				c.norm[i] = norm(row)
			} else {
				c.norm[i] = math.Sqrt(kernel.SumSquares(row))
			}
		}
	})
	first := map[float64][]int32{}
next:
	for i, v := range c.norm {
		if !finite(v) {
			return nil, fmt.Errorf("reduce: %s: row %d holds NaN, an infinity or values too large "+
				"to square, want finite numbers", name, i)
		}
		c.fine = c.fine || v != 0 && !(v > 1./plainNorms && v < plainNorms)
		for _, r := range first[v] {
			if sameRow(x[int(r)*width:][:width], x[i*width:][:width]) {
				c.rep[i] = r
				continue next
			}
		}
		c.rep[i], first[v] = int32(i), append(first[v], int32(i))
	}
	return c, nil
}

func sameRow(a, b []float32) bool {
	for k, v := range a {
		if v != b[k] {
			return false
		}
	}
	return true
}

// mean is C̄, the mean of all n² cosines: |Σ x_i/|x_i||²/n².
func (c *columns) mean() float64 {
	sum := c.sumFew
	if c.fine {
		sum = c.sumFewFine
	}
	const block = 256 // rows per partial sum
	parts := make([][]float64, (c.n+block-1)/block)
	c.pool.Run(len(parts), func(b int) {
		parts[b] = make([]float64, c.width)
		for i, end := b*block, min((b+1)*block, c.n); i < end; i += fewSummed {
			sum(parts[b], i, min(i+fewSummed, end))
		}
	})
	total := 0.0
	for k := range c.width {
		s := 0.0
		for _, part := range parts {
			s += part[k]
		}
		total += float64(s * s)
	}
	return total / float64(c.n) / float64(c.n)
}

// fewSummed is the most rows, scaled to length 1, that are summed in float32.
const fewSummed = 16

// sumFew adds rows lo to hi, scaled to length 1, to sum.
func (c *columns) sumFew(sum []float64, lo, hi int) {
	var scale [fewSummed]float32
	for i := lo; i < hi; i++ {
		if c.norm[i] > 0 {
			scale[i-lo] = float32(1 / c.norm[i])
		}
	}
	few := make([]float32, c.width)
	kernel.WeightedSum(few, scale[:hi-lo], c.x[lo*c.width:hi*c.width])
	for k, v := range few {
		sum[k] += float64(v)
	}
}

// sumFewFine is sumFew in float64.
func (c *columns) sumFewFine(sum []float64, lo, hi int) {
	for i := lo; i < hi; i++ {
		if c.norm[i] == 0 {
			continue
		}
		scale := 1 / c.norm[i]
		for k, v := range c.x[i*c.width:][:c.width] {
			sum[k] += float64(float64(v) * scale)
		}
	}
}

// among returns the cosines among the rows of list, in float32 precision.
func (c *columns) among(list []int32) []float64 {
	n := len(list)
	c.gather(list)
	c.product = grown(c.product, n*n)
	kernel.MatMul(c.pool, c.product, c.rows, n, kernel.MatrixF32(n, c.width, c.rows), nil)
	out := make([]float64, n*n)
	for i, t := range list {
		for j, u := range list {
			if scale := c.norm[t] * c.norm[u]; scale > 0 {
				out[i*n+j] = float64(c.product[i*n+j]) / scale
			}
		}
	}
	return out
}

// gather copies the rows of a list to c.rows.
func (c *columns) gather(list []int32) {
	c.rows = grown(c.rows, len(list)*c.width)
	for i, t := range list {
		copy(c.rows[i*c.width:][:c.width], c.x[int(t)*c.width:])
	}
}

// has reports whether the cosines to row t are computed.
func (c *columns) has(t int32) bool { return c.col[c.rep[t]].batch != nil }

// to returns the cosines of all rows to row t.
func (c *columns) to(t int32) column {
	if !c.has(t) {
		c.load([]int32{t})
	}
	return c.col[c.rep[t]]
}

// load computes the cosines to the given rows at once.
func (c *columns) load(list []int32) {
	var todo []int32
	for _, t := range list {
		if t = c.rep[t]; !c.has(t) {
			todo = append(todo, t)
			c.col[t] = column{batch: []float64{}}
		}
	}
	m := len(todo)
	if m == 0 {
		return
	}
	batch := make([]float64, c.n*m)
	for k, t := range todo {
		c.col[t] = column{batch: batch, width: m, place: k}
	}
	fill := c.exactly
	if !c.fine {
		c.gather(todo)
		c.product = grown(c.product, m*c.n)
		kernel.MatMul(c.pool, c.product, c.rows, m, kernel.MatrixF32(c.n, c.width, c.x), nil)
		fill = c.scaled
	}
	c.pool.Run((c.n+tokensPerTask-1)/tokensPerTask, func(task int) {
		fill(batch, todo, task*tokensPerTask, min((task+1)*tokensPerTask, c.n))
	})
	for i, r := range c.rep {
		if int(r) != i {
			copy(batch[i*m:][:m], batch[int(r)*m:])
		}
	}
}

// scaled turns the products of rows lo to hi into cosines.
func (c *columns) scaled(batch []float64, list []int32, lo, hi int) {
	for k, t := range list {
		for i := lo; i < hi; i++ {
			if scale := c.norm[i] * c.norm[t]; scale > 0 {
				batch[i*len(list)+k] = float64(c.product[k*c.n+i]) / scale
			}
		}
	}
}

// exactly computes the cosines of rows lo to hi in float64.
func (c *columns) exactly(batch []float64, list []int32, lo, hi int) {
	for i := lo; i < hi; i++ {
		if c.norm[i] == 0 {
			continue
		}
		a := c.x[i*c.width:][:c.width]
		for k, t := range list {
			if c.norm[t] == 0 {
				continue
			}
			own := c.x[int(t)*c.width:][:c.width]
			batch[i*len(list)+k] = dotWide(a, own) / c.norm[i] / c.norm[t]
		}
	}
}

// grown returns a slice of n values; it reuses v if v is large enough.
func grown(v []float32, n int) []float32 {
	if cap(v) < n {
		return make([]float32, n)
	}
	return v[:n]
}

// dotWide is Σ a_i·b_i in float64, in four interleaved parts.
func dotWide(a, b []float32) float64 {
	var s0, s1, s2, s3 float64
	b = b[:len(a)]
	k := 0
	for ; k+4 <= len(a); k += 4 {
		p, q := a[k:k+4:k+4], b[k:k+4:k+4]
		s0 += float64(float64(p[0]) * float64(q[0]))
		s1 += float64(float64(p[1]) * float64(q[1]))
		s2 += float64(float64(p[2]) * float64(q[2]))
		s3 += float64(float64(p[3]) * float64(q[3]))
	}
	for ; k < len(a); k++ {
		s0 += float64(float64(a[k]) * float64(b[k]))
	}
	return (s0 + s1) + (s2 + s3)
}

// dot64 is Σ a_i·b_i in four interleaved parts, the same on every machine.
func dot64(a, b []float64) float64 {
	var s0, s1, s2, s3 float64
	b = b[:len(a)]
	k := 0
	for ; k+4 <= len(a); k += 4 {
		p, q := a[k:k+4:k+4], b[k:k+4:k+4]
		s0 += float64(p[0] * q[0])
		s1 += float64(p[1] * q[1])
		s2 += float64(p[2] * q[2])
		s3 += float64(p[3] * q[3])
	}
	for ; k < len(a); k++ {
		s0 += float64(a[k] * b[k])
	}
	return (s0 + s1) + (s2 + s3)
}
