package methods

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/kernel"
)

// cosines is the matrix C of Eq. 5 over a list of rows: C[i][j] = x_i·x_j / (|x_i| |x_j|), exactly
// symmetric. A row of zeros has cosine 0 with every row, including itself; any other row has cosine
// 1 with itself. Exact copies of a row have exactly equal cosines, even at the edges of the
// kernel's tiles, so that ties between copies remain ties.
type cosines struct {
	n    int
	pool *kernel.Pool
	c    []float32 // [n, n]
	norm []float64 // [n] in float64
	rep  []int     // [n] equal for rows that are copies of each other

	x      []float32          // [n, width]
	first  []int              // the first row of each rep
	fine   map[[2]int]float64 // float64 cosines that exact has computed one by one, by rep
	size   map[int]float64    // and their norms, by row
	alone  []int              // how many those are, by rep
	unit   []float64          // rows of length 1 by rep, [*, width]; nil until whole needs them
	wholes [][]float64        // by rep, a row of float64 cosines with every rep, or nil
}

// nearestHeads implements similarity.
func (c *cosines) nearestHeads(list, heads []int32) ([]int32, error) {
	to := make([][]float64, len(heads))
	for k, t := range heads {
		to[k] = widen(c.row(t))
	}
	return nearestColumns(c.pool, list, to), nil
}

func (c *cosines) row(i int32) []float32 { return c.c[int(i)*c.n:][:c.n] }

// cosine returns C over all N rows of X, computed once per Reduce.
func (w *work) cosine() (*cosines, error) {
	if w.cos == nil {
		c, err := newCosines(w.pool, w.in.X, w.in.N, w.in.C, "X")
		if err != nil {
			return nil, err
		}
		w.cos = c
	}
	return w.cos, nil
}

// cosineOf returns C over rows lo..hi of X without computing other rows.
func (w *work) cosineOf(lo, hi int) (*cosines, error) {
	if w.cos == nil {
		return newCosines(w.pool, w.in.X[lo*w.in.C:hi*w.in.C], hi-lo, w.in.C, "X")
	}
	n := hi - lo
	sub := &cosines{
		n: n, c: make([]float32, 0, n*n), norm: w.cos.norm[lo:hi], rep: w.cos.rep[lo:hi],
	}
	for i := lo; i < hi; i++ {
		sub.c = append(sub.c, w.cos.row(int32(i))[lo:hi]...)
	}
	return sub, nil
}

// stripe is how many rows of C one product computes, so that most of the triangle below the
// diagonal is skipped.
const stripe = 72

// mirrorRows is how many rows of a product are written at once to both sides of the diagonal: as
// many values as fit in a cache line.
const mirrorRows = 16

// plainNorms is the limit of norms whose products neither overflow nor lose bits in float32.
const plainNorms = 1 << 40

// gather returns the given rows of x and the factors that turn their products into cosines: the
// original rows if float32 holds their products, else rows scaled to length 1.
func gather(
	p *kernel.Pool, x []float32, list []int, norms []float64, width int,
) (rows []float32, scale []float64) {
	scale = make([]float64, len(list))
	plain := true
	for d, i := range list {
		if n := norms[i]; n > 0 {
			scale[d] = 1 / n
			plain = plain && n > 1./plainNorms && n < plainNorms
		}
	}
	if plain && len(list)*width == len(x) {
		return x, scale
	}
	rows = make([]float32, len(list)*width)
	p.Run(len(list), func(d int) {
		src, dst := x[list[d]*width:][:width], rows[d*width:][:width]
		if plain {
			copy(dst, src)
			return
		}
		for k, v := range src {
			dst[k] = float32(float64(v) * scale[d])
		}
		scale[d] = 1
	})
	return rows, scale
}

// newCosines computes C for x [n, width]. About n²·width flops.
func newCosines(p *kernel.Pool, x []float32, n, width int, name string) (*cosines, error) {
	c := &cosines{
		n: n, pool: p, c: make([]float32, n*n), norm: make([]float64, n), x: x,
		fine: map[[2]int]float64{}, size: map[int]float64{},
	}
	p.Run(n, func(i int) { c.norm[i] = math.Sqrt(kernel.SumSquares(x[i*width:][:width])) })
	for i, v := range c.norm {
		if !finite(v) {
			return nil, fmt.Errorf(
				"methods: %s: row %d holds NaN, an infinity or values too large to square, "+
					"want finite numbers", name, i)
		}
	}
	// Copies of a row are computed once: rep[i] is the index of row i among the distinct rows.
	rep, distinct := make([]int, n), make([]int, 0, n)
	c.rep = rep
	byNorm := make(map[float64][]int, n)
next:
	for i := range n {
		xi := x[i*width:][:width]
		for _, d := range byNorm[c.norm[i]] {
			if slices.Equal(x[distinct[d]*width:][:width], xi) {
				rep[i] = d
				continue next
			}
		}
		rep[i] = len(distinct)
		byNorm[c.norm[i]] = append(byNorm[c.norm[i]], rep[i])
		distinct = append(distinct, i)
	}
	m := len(distinct)
	c.first, c.alone, c.wholes = distinct, make([]int, m), make([][]float64, m)
	rows, scale := gather(p, x, distinct, c.norm, width)
	full := c.c
	if m < n {
		full = make([]float32, m*m)
	}
	panel := make([]float32, min(stripe, m)*m)
	for lo := 0; lo < m; lo += stripe {
		high, cols := min(stripe, m-lo), m-lo
		out := panel[:high*cols]
		kernel.MatMul(p, out, rows[lo*width:][:high*width], high,
			kernel.MatrixF32(cols, width, rows[lo*width:]), nil)
		p.Run((high+mirrorRows-1)/mirrorRows, func(b int) {
			for j := b * mirrorRows; j < cols; j++ {
				for i := b * mirrorRows; i < min((b+1)*mirrorRows, high, j+1); i++ {
					v := float32(float64(out[i*cols+j]) * scale[lo+i] * scale[lo+j])
					full[(lo+i)*m+lo+j], full[(lo+j)*m+lo+i] = v, v
				}
			}
		})
	}
	for d, i := range distinct {
		if c.norm[i] > 0 {
			full[d*m+d] = 1
		}
	}
	if m < n {
		for i := range n {
			for j := range n {
				c.c[i*n+j] = full[rep[i]*m+rep[j]]
			}
		}
	}
	return c, nil
}

// float32Margin bounds the error of an element of C: the rounding of both rows and a sum in any
// order, about ten times the error seen with rows of 1024 values. A choice between closer values
// uses exact, so that every kernel makes the same choice.
const float32Margin = 2e-5

// exact returns C[i][j] computed in float64 with fused multiply-adds, so it is the same on every
// machine. Not safe for concurrent use.
func (c *cosines) exact(i, j int32) float64 {
	if c.norm[i] == 0 || c.norm[j] == 0 {
		return 0
	}
	a, b := min(c.rep[i], c.rep[j]), max(c.rep[i], c.rep[j])
	if row := c.wholes[a]; row != nil {
		return row[b]
	}
	if row := c.wholes[b]; row != nil {
		return row[a]
	}
	v, ok := c.fine[[2]int{a, b}]
	if !ok {
		for _, r := range [2]int{a, b} {
			if c.alone[r]++; c.alone[r] > len(c.first)/wholeShare {
				c.whole(r)
				return c.wholes[r][a+b-r]
			}
		}
		width := len(c.x) / c.n
		x, y := c.x[int(i)*width:][:width], c.x[int(j)*width:][:width]
		in, jn := c.exactNorm(i), c.exactNorm(j)
		for k, w := range x {
			v = math.FMA(float64(w)/in, float64(y[k])/jn, v)
		}
		c.fine[[2]int{a, b}] = v
	}
	return v
}

// wholeShare is the share of a row's cosines, one in so many, that takes as long to compute one by
// one as the row takes at once.
const wholeShare = 32

// whole computes the float64 cosines of rep r at once, each with the operations of exact. Those of
// a row of zeros are not defined.
func (c *cosines) whole(r int) {
	m, width := len(c.first), len(c.x)/c.n
	if c.unit == nil {
		c.unit = make([]float64, m*width)
		c.pool.Run(m, func(i int) {
			row := c.x[c.first[i]*width:][:width]
			size := norm(row)
			for k, v := range row {
				c.unit[i*width+k] = float64(v) / size
			}
		})
	}
	row, rest := make([]float64, m), make([]int, 0, m+3)
	for i, known := range c.wholes {
		if known != nil {
			row[i] = known[r]
		} else {
			rest = append(rest, i)
		}
	}
	for len(rest)%4 > 0 {
		rest = append(rest, r)
	}
	x := c.unit[r*width:][:width]
	out := make([][4]float64, len(rest)/4)
	c.pool.Run(len(out), func(q int) {
		of := func(i int) []float64 { return c.unit[rest[4*q+i]*width:][:len(x)] }
		y0, y1, y2, y3 := of(0), of(1), of(2), of(3)
		var v0, v1, v2, v3 float64
		for k, w := range x {
			v0, v1 = math.FMA(w, y0[k], v0), math.FMA(w, y1[k], v1)
			v2, v3 = math.FMA(w, y2[k], v2), math.FMA(w, y3[k], v3)
		}
		out[q] = [4]float64{v0, v1, v2, v3}
	})
	for i, j := range rest {
		row[j] = out[i/4][i%4]
	}
	c.wholes[r] = row
}

// exactNorm is the norm of row i, the same on every machine.
func (c *cosines) exactNorm(i int32) float64 {
	v, ok := c.size[int(i)]
	if !ok {
		width := len(c.x) / c.n
		v = norm(c.x[int(i)*width:][:width])
		c.size[int(i)] = v
	}
	return v
}

// highest returns the highest cosine of row t to any of list, exact in float64; top is its float32
// value. Not safe for concurrent use.
func (c *cosines) highest(t int32, list []int32, top float32) float64 {
	row, best := c.row(t), math.Inf(-1)
	for _, j := range list {
		if row[j] >= top-float32Margin {
			best = max(best, c.exact(t, j))
		}
	}
	return best
}

// nearest returns the k tokens of list with the highest cosine to row t, most similar first, ties
// in their order. If float32 cannot tell two apart, float64 decides. Not safe for concurrent use.
func (c *cosines) nearest(t int32, list []int32, k int) []int32 {
	row, v := c.row(t), make([]float64, len(list))
	for i, j := range list {
		v[i] = float64(row[j])
	}
	order := rankExactly(v, k, func(i int32) float64 { return c.exact(t, list[i]) })
	out := make([]int32, k)
	for i := range out {
		out[i] = list[order[i]]
	}
	return out
}

// rankExactly returns the indices of v by falling value, ties in their order; the first k are
// exact. v are cosines from float32; where they are too close, exact computes them again, and v is
// updated.
func rankExactly(v []float64, k int, exact func(i int32) float64) []int32 {
	order := rank(v)
	for lo := 0; lo < k; {
		hi := lo + 1
		for hi < len(order) && v[order[hi-1]]-v[order[hi]] <= 2*float32Margin {
			hi++
		}
		if run := order[lo:hi]; len(run) > 1 {
			for _, i := range run {
				v[i] = exact(i)
			}
			slices.SortFunc(run, func(i, j int32) int {
				return cmp.Or(cmp.Compare(v[j], v[i]), cmp.Compare(i, j))
			})
		}
		lo = hi
	}
	return order
}

// norm is the Euclidean length of x, summed in float64 in eight interleaved parts.
func norm(x []float32) float64 {
	var r [8]float64
	k := 0
	for ; k+8 <= len(x); k += 8 {
		for j := range r {
			r[j] += float64(x[k+j]) * float64(x[k+j])
		}
	}
	s := ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
	for ; k < len(x); k++ {
		s += float64(x[k]) * float64(x[k])
	}
	return math.Sqrt(s)
}
