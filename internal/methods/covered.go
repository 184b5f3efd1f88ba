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
		sharpness := meanSharpness(c)
		if !c.fine && !(sharpness > 0 && sharpness < sharpest) {
			if c, err = columnsOf(w.pool, in.X, in.N, in.C, true, "X"); err != nil {
				return nil, err
			}
			sharpness = meanSharpness(c)
		}
		d := newDeterminant(c, sharpness, kept, len(kept)+o.Merge)
		r.Anchors, r.Gains = d.pick(o.Merge)
	}
	return c, nil
}

// determinant is the greedy maximum of det L over the chosen tokens, L_ij =
// exp(−(1−C_ij)·sharpness), with C the cosines of the features.
//
// A block is a number of successive pivots. What the pivots before the block take from the columns
// of its tokens is one product. The columns of the factor are float64 where the cosines are, and
// then there is only one block; else they are float32.
type determinant struct {
	c         *columns
	sharpness float64
	v         []float64 // conditional variance of every token
	used      []bool
	most      int
	pivots    []int32
	fine      []float64           // [n, most]: columns of the pivoted Cholesky factor, in float64
	e         []float32           // [n/tokensPerTask, blockPivots, tokensPerTask]: the block's
	past      []float32           // [n, most]: the columns before the block; 0 in those that follow
	start     int                 // number of pivots before the block
	taken     map[int32][]float32 // by token of the block: what the columns before it take
}

const (
	diagonal     = 1.001 // L_ii in v: above 1, so that copies of a token remain distinct
	leastPivot   = 1e-9
	sameFeatures = 1e-12 // 1 − C̄ below it counts as 0: all tokens are equal
	sharpest     = 100   // above it the rounding of a float32 cosine would decide
)

// newDeterminant starts with the kept tokens chosen; at most most tokens will be chosen.
func newDeterminant(c *columns, sharpness float64, kept []int32, most int) *determinant {
	d := &determinant{
		c: c, sharpness: sharpness, most: most,
		v: slices.Repeat([]float64{diagonal}, c.n), used: make([]bool, c.n),
	}
	c.load(kept)
	if c.fine {
		d.fine = make([]float64, c.n*most)
		for _, t := range kept {
			d.choose(t)
		}
		return d
	}
	d.past = make([]float32, c.n*most)
	d.e = make([]float32, (c.n+tokensPerTask-1)/tokensPerTask*blockPivots*tokensPerTask)
	for block := range slices.Chunk(kept, blockPivots) {
		d.end()
		d.begin(block)
		for _, t := range block {
			d.choose(t)
		}
	}
	return d
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

// tokens runs f over ranges of all tokens.
func (c *columns) tokens(f func(lo, hi int)) {
	c.pool.Run((c.n+tokensPerTask-1)/tokensPerTask, func(task int) {
		f(task*tokensPerTask, min((task+1)*tokensPerTask, c.n))
	})
}

// end ends the block: its columns become earlier ones.
func (d *determinant) end() {
	m := len(d.pivots) - d.start
	d.c.tokens(func(lo, hi int) {
		e := d.e[lo*blockPivots:]
		for i := lo; i < hi; i++ {
			past := d.past[i*d.most+d.start:][:m]
			for k := range past {
				past[k] = e[k*tokensPerTask+i-lo]
			}
		}
	})
	d.start += m
}

// begin starts a block, whose pivots will be tokens of list.
func (d *determinant) begin(list []int32) {
	n := d.c.n
	d.taken = make(map[int32][]float32, len(list))
	rows, taken := d.pastOf(list), make([]float32, len(list)*n)
	if d.start > 0 {
		kernel.MatMul(d.c.pool, taken, rows, len(list), kernel.MatrixF32(n, d.most, d.past), nil)
	}
	for k, t := range list {
		d.taken[t] = taken[k*n:][:n]
	}
}

// pastOf returns the rows of d.past of a list of tokens.
func (d *determinant) pastOf(list []int32) []float32 {
	rows := make([]float32, len(list)*d.most)
	for k, t := range list {
		copy(rows[k*d.most:][:d.most], d.past[int(t)*d.most:])
	}
	return rows
}

// choose makes token p the next pivot: with v_p as it is now, for all i, e_i = (L_ip −
// Σ_c e_ic·e_pc)/√max(v_p, 1e−9) and v_i = max(0, v_i − e_i²).
func (d *determinant) choose(p int32) {
	scale := 1 / math.Sqrt(max(d.v[p], leastPivot))
	if d.c.fine {
		d.c.tokens(d.finely(p, scale))
	} else {
		d.c.tokens(d.coarsely(p, scale))
	}
	d.pivots, d.used[p] = append(d.pivots, p), true
}

// finely returns the work of choose on a range of tokens, in float64.
func (d *determinant) finely(p int32, scale float64) func(lo, hi int) {
	cosines, m := d.c.to(p), len(d.pivots)
	own := slices.Clone(d.fine[int(p)*d.most:][:m])
	return func(lo, hi int) {
		for i := lo; i < hi; i++ {
			l := 1.0
			if i != int(p) {
				l = math.Exp((cosines[i] - 1) * d.sharpness)
			}
			row := d.fine[i*d.most:][:m+1]
			e := (l - dotWide(row[:m], own)) * scale
			row[m] = e
			d.v[i] = max(0, d.v[i]-float64(e*e))
		}
	}
}

// coarsely returns the work of choose on tokensPerTask tokens or the last ones, in float32. The
// vectors are whole, so that copies of a token have the same bits.
func (d *determinant) coarsely(p int32, scale float64) func(lo, hi int) {
	cosines, taken, m := d.c.to(p), d.taken[p], len(d.pivots)-d.start
	own, at := make([]float32, m), int(p)%tokensPerTask
	for k := range own {
		own[k] = d.e[(int(p)-at)*blockPivots+k*tokensPerTask+at]
	}
	return func(lo, hi int) {
		before := d.e[lo*blockPivots:][:(m+1)*tokensPerTask]
		e := before[m*tokensPerTask:]
		for i, c := range cosines[lo:hi] {
			e[i] = float32((c - 1) * d.sharpness)
		}
		kernel.Exp(e)
		if lo <= int(p) && int(p) < hi {
			e[at] = 1
		}
		var sum [tokensPerTask]float32
		kernel.WeightedSum(sum[:], own, before[:m*tokensPerTask])
		for i, t := range taken[lo:hi] {
			e[i] = (e[i] - t - sum[i]) * float32(scale)
			d.v[lo+i] = max(0, d.v[lo+i]-float64(float64(e[i])*float64(e[i])))
		}
	}
}

// pick chooses count more tokens, each the unused one with the largest v, the lower token on ties,
// and returns them in order, with their gains.
func (d *determinant) pick(count int) (picks []int32, gains []float64) {
	for len(picks) < count {
		p := largest(d.v, d.used)
		d.ahead(int32(p), count-len(picks))
		picks, gains = append(picks, int32(p)), append(gains, d.v[p])
		d.choose(int32(p))
	}
	return picks, gains
}

// blockPivots is the most pivots of a block.
const blockPivots = 64

// blockColumns is how many columns are computed at once, if that is cheaper than one after another:
// the columns of the tokens that will probably be chosen next. They are foreseen among candidates
// times as many.
const (
	blockColumns = 40
	candidates   = 3
)

// amongRows is how many rows of cosines are computed at once among candidates, so that much of the
// triangle below the diagonal is skipped.
const amongRows = 42

// fewColumns columns take hardly longer than one, because the features are read once either way.
const fewColumns = 24

// ahead starts a block with p, the next pivot, unless p is in the block and the block has room. The
// block's tokens are those that will probably be chosen among the left tokens, and those among the
// candidates for it whose columns are there.
func (d *determinant) ahead(p int32, left int) {
	if d.c.fine {
		return
	}
	if _, ok := d.taken[p]; ok && len(d.pivots)-d.start < blockPivots {
		return
	}
	d.end()
	if len(d.pivots) == 0 {
		d.begin([]int32{p})
		return
	}
	many := blockColumns
	if left <= many {
		many = max(left, fewColumns)
	}
	likely := d.likely(candidates * many)
	list := d.foresee(likely, many)
	d.c.load(list)
	for _, t := range likely {
		if d.c.has(t) && !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	d.begin(list)
}

// likely returns unused tokens by falling v, the lower token on ties, at most many.
func (d *determinant) likely(many int) []int32 {
	var v []float64
	for i, x := range d.v {
		if !d.used[i] {
			v = append(v, x)
		}
	}
	slices.Sort(v)
	least := v[max(0, len(v)-many)]
	var list []int32
	for i, x := range d.v {
		if !d.used[i] && x >= least {
			list = append(list, int32(i))
		}
	}
	slices.SortFunc(list, func(a, b int32) int {
		return cmp.Or(cmp.Compare(d.v[b], d.v[a]), cmp.Compare(a, b))
	})
	return list[:min(many, len(list))]
}

// foresee returns the tokens of list that would be chosen first, starting with list[0], if there
// were no other tokens.
func (d *determinant) foresee(list []int32, many int) []int32 {
	n := len(list)
	many = min(many, n)
	rows, taken := d.pastOf(list), make([]float32, n*n)
	kernel.MatMul(d.c.pool, taken, rows, n, kernel.MatrixF32(n, d.most, rows), nil)
	near := d.c.among(list)
	v, e := make([]float64, n), make([]float64, n*many)
	for i, t := range list {
		v[i] = d.v[t]
	}
	out, used := make([]int32, 0, many), make([]bool, n)
	for p := 0; len(out) < many; {
		m := len(out)
		out, used[p] = append(out, list[p]), true
		scale := 1 / math.Sqrt(max(v[p], leastPivot))
		own, next := e[p*many:][:m], -1
		for i := range v {
			x := math.Exp((near[i*n+p]-1)*d.sharpness) - float64(taken[i*n+p])
			x = (x - dotWide(e[i*many:][:m], own)) * scale
			e[i*many+m] = x
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
	sums     [][]float64 // by block: the sum of rows scaled to length 1; nil if fine
	rep      []int32     // the first equal row: copies have equal cosines
	pool     *kernel.Pool
	fine     bool                // compute in float64; otherwise products are float32
	col      map[int32][]float64 // cosines of all rows to a row
	rows     []float32           // scratch
	product  []float32
}

// fineWork is the most multiply-adds for which float64 is used, wideWork where a small error in a
// cosine becomes a large one later.
const (
	fineWork = 1 << 24
	wideWork = 1 << 27
)

// newColumns prepares cosines to about most of the n rows of x [n, width].
func newColumns(p *kernel.Pool, x []float32, n, width, most int, name string) (*columns, error) {
	return columnsOf(p, x, n, width, n*width*most <= fineWork, name)
}

// columnsOf prepares cosines to some of the n rows of x [n, width], in float64 if fine is set.
func columnsOf(
	p *kernel.Pool, x []float32, n, width int, fine bool, name string,
) (*columns, error) {
	c := &columns{
		n: n, width: width, x: x, norm: make([]float64, n), rep: make([]int32, n), pool: p,
		fine: fine, col: map[int32][]float64{},
	}
	if c.fine {
		c.tokens(func(lo, hi int) {
			for i := lo; i < hi; i++ {
				c.norm[i] = norm(x[i*width:][:width])
			}
		})
	} else {
		c.sums = c.blocks(c.sumFew)
	}
	first := map[float64][]int32{}
next:
	for i, v := range c.norm {
		if !finite(v) {
			return nil, fmt.Errorf("methods: %s: row %d holds NaN, an infinity or values too "+
				"large to square, want finite numbers", name, i)
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
	if c.fine {
		c.sums = nil
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
	total := 0.0
	for _, s := range c.sum() {
		total += float64(s * s)
	}
	return total / float64(c.n) / float64(c.n)
}

// sum is the sum of all rows, scaled to length 1.
func (c *columns) sum() []float64 {
	parts := c.sums
	if parts == nil {
		parts = c.blocks(c.sumFewFine)
	}
	sum := make([]float64, c.width)
	for _, part := range parts {
		for k, v := range part {
			sum[k] += v
		}
	}
	return sum
}

// cosine turns the product of rows i and j into their cosine.
func (c *columns) cosine(i, j int32, product float32) float64 {
	if scale := c.norm[i] * c.norm[j]; scale > 0 {
		return float64(product) / scale
	}
	return 0
}

// blocks returns what sum adds for each block of rows.
func (c *columns) blocks(sum func(part []float64, lo, hi int)) [][]float64 {
	const block = 256
	parts := make([][]float64, (c.n+block-1)/block)
	c.pool.Run(len(parts), func(b int) {
		parts[b] = make([]float64, c.width)
		for i, end := b*block, min((b+1)*block, c.n); i < end; i += fewSummed {
			sum(parts[b], i, min(i+fewSummed, end))
		}
	})
	return parts
}

// fewSummed is the most rows, scaled to length 1, that are summed in float32.
const fewSummed = 16

// sumFew computes the norms of rows lo to hi and adds these rows, scaled to length 1, to sum, so
// that they are read from memory once.
func (c *columns) sumFew(sum []float64, lo, hi int) {
	var scale [fewSummed]float32
	for i := lo; i < hi; i++ {
		c.norm[i] = math.Sqrt(kernel.SumSquares(c.x[i*c.width:][:c.width]))
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

// sumFewFine adds rows lo to hi, scaled to length 1, to sum, in float64.
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
	out := make([]float64, n*n)
	for lo := 0; lo < n; lo += amongRows {
		hi := min(lo+amongRows, n)
		kernel.MatMul(c.pool, c.product, c.rows[lo*c.width:], hi-lo,
			kernel.MatrixF32(n-lo, c.width, c.rows[lo*c.width:]), nil)
		for i := lo; i < hi; i++ {
			for j := i; j < n; j++ {
				v := c.cosine(list[i], list[j], c.product[(i-lo)*(n-lo)+j-lo])
				out[i*n+j], out[j*n+i] = v, v
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
func (c *columns) has(t int32) bool { return c.col[c.rep[t]] != nil }

// to returns the cosines of all rows to row t.
func (c *columns) to(t int32) []float64 {
	if !c.has(t) {
		c.load([]int32{t})
	}
	return c.col[c.rep[t]]
}

// nearestHeads implements similarity.
func (c *columns) nearestHeads(list, heads []int32) ([]int32, error) {
	c.load(heads)
	to := make([][]float64, len(heads))
	for k, t := range heads {
		to[k] = c.to(t)
	}
	return nearestColumns(c.pool, list, to), nil
}

// load computes the cosines to the given rows at once.
func (c *columns) load(list []int32) {
	var todo []int32
	for _, t := range list {
		if t = c.rep[t]; !c.has(t) {
			todo = append(todo, t)
			c.col[t] = []float64{}
		}
	}
	m := len(todo)
	if m == 0 {
		return
	}
	batch := make([]float64, c.n*m)
	for k, t := range todo {
		c.col[t] = batch[k*c.n:][:c.n]
	}
	fill := c.exactly
	if !c.fine {
		c.gather(todo)
		c.product = grown(c.product, m*c.n)
		kernel.MatMul(c.pool, c.product, c.rows, m, kernel.MatrixF32(c.n, c.width, c.x), nil)
		fill = c.scaled
	}
	c.tokens(func(lo, hi int) { fill(todo, lo, hi) })
	for i, r := range c.rep {
		if int(r) != i {
			for _, t := range todo {
				c.col[t][i] = c.col[t][r]
			}
		}
	}
}

// scaled turns the products of rows lo to hi into cosines.
func (c *columns) scaled(list []int32, lo, hi int) {
	for k, t := range list {
		col, product := c.col[t], c.product[k*c.n:][:c.n]
		for i := lo; i < hi; i++ {
			col[i] = c.cosine(int32(i), t, product[i])
		}
	}
}

// exactly computes the cosines of rows lo to hi in float64.
func (c *columns) exactly(list []int32, lo, hi int) {
	for i := lo; i < hi; i++ {
		if c.norm[i] == 0 {
			continue
		}
		a := c.x[i*c.width:][:c.width]
		for _, t := range list {
			if c.norm[t] == 0 {
				continue
			}
			own := c.x[int(t)*c.width:][:c.width]
			c.col[t][i] = dotWide(a, own) / c.norm[i] / c.norm[t]
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

// dotWide is Σ a_i·b_i in float64, in four interleaved parts, the same on every machine.
func dotWide[A, B float32 | float64](a []A, b []B) float64 {
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
