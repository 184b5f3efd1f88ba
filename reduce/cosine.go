package reduce

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/kernel"
)

// cosines is the matrix C of Eq. 5 over a list of rows: C[i][j] = x_i·x_j / (|x_i| |x_j|), symmetric to the bit. A row of zeros has
// cosine 0 with every row, itself included; any other row has cosine 1 with itself. Rows that are exact copies of each other have exactly equal cosines, whatever the kernel
// does at the edges of its tiles, so that ties between copies stay ties.
type cosines struct {
	n    int
	c    []float32 // [n, n]
	norm []float64 // [n]
	rep  []int     // [n] equal for rows that are copies of each other

	x    []float32          // [n, width]
	fine map[[2]int]float64 // cosines in float64 as far as exact was asked for them, by rep
}

func (c *cosines) row(i int32) []float32 { return c.c[int(i)*c.n:][:c.n] }

// cosine returns C over all N rows of X, computed once per Reduce.
func (w *work) cosine() (*cosines, error) {
	if w.cos == nil {
		c, err := newCosines(w.in.Pool, w.in.X, w.in.N, w.in.C, "X")
		if err != nil {
			return nil, err
		}
		w.cos = c
	}
	return w.cos, nil
}

// cosineOf returns C over rows lo..hi of X, without computing the others.
func (w *work) cosineOf(lo, hi int) (*cosines, error) {
	if w.cos == nil {
		return newCosines(w.in.Pool, w.in.X[lo*w.in.C:hi*w.in.C], hi-lo, w.in.C, "X")
	}
	n := hi - lo
	sub := &cosines{n: n, c: make([]float32, 0, n*n), norm: w.cos.norm[lo:hi], rep: w.cos.rep[lo:hi]}
	for i := lo; i < hi; i++ {
		sub.c = append(sub.c, w.cos.row(int32(i))[lo:hi]...)
	}
	return sub, nil
}

// stripe is how many rows of C one product computes: the triangle below the diagonal is then mostly left out.
const stripe = 144

// newCosines computes C for x [n, width]. About n²·width flops.
func newCosines(p *kernel.Pool, x []float32, n, width int, name string) (*cosines, error) {
	c := &cosines{n: n, c: make([]float32, n*n), norm: make([]float64, n), x: x, fine: map[[2]int]float64{}}
	p.Run(n, func(i int) { c.norm[i] = norm(x[i*width:][:width]) })
	for i, v := range c.norm {
		if !finite(v) {
			return nil, fmt.Errorf("reduce: %s: row %d holds NaN, an infinity or values too large to square, want finite numbers", name, i)
		}
	}
	// Copies of a row are computed once: rep[i] is the place of row i among the distinct rows.
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
	u := make([]float32, m*width)
	p.Run(m, func(d int) {
		i := distinct[d]
		if c.norm[i] == 0 {
			return
		}
		inv, dst := 1/c.norm[i], u[d*width:][:width]
		for k, v := range x[i*width:][:width] {
			dst[k] = float32(float64(v) * inv)
		}
	})
	full := c.c
	if m < n {
		full = make([]float32, m*m)
	}
	panel := make([]float32, min(stripe, m)*m)
	for lo := 0; lo < m; lo += stripe {
		rows, cols := min(stripe, m-lo), m-lo
		out := panel[:rows*cols]
		kernel.MatMul(p, out, u[lo*width:][:rows*width], rows, kernel.MatrixF32(cols, width, u[lo*width:]), nil)
		for i := range rows {
			for j := i; j < cols; j++ {
				v := out[i*cols+j]
				full[(lo+i)*m+lo+j], full[(lo+j)*m+lo+i] = v, v
			}
		}
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

// float32Margin bounds the error of an element of C: rounding of both rows and a sum in any order, some ten times what rows of 1024
// values showed. Where a choice hangs on less, exact decides: every kernel then chooses alike.
const float32Margin = 2e-5

// exact returns C[i][j] computed in float64 with fused multiply-adds, hence the same on every machine. Not for concurrent use.
func (c *cosines) exact(i, j int32) float64 {
	if c.norm[i] == 0 || c.norm[j] == 0 {
		return 0
	}
	a, b := min(c.rep[i], c.rep[j]), max(c.rep[i], c.rep[j])
	v, ok := c.fine[[2]int{a, b}]
	if !ok {
		width := len(c.x) / c.n
		x, y := c.x[int(i)*width:][:width], c.x[int(j)*width:][:width]
		for k, w := range x {
			v = math.FMA(float64(w)/c.norm[i], float64(y[k])/c.norm[j], v)
		}
		c.fine[[2]int{a, b}] = v
	}
	return v
}

// highest returns the highest cosine of row t to any of list, exact to float64, where float32 says top. Not for concurrent use.
func (c *cosines) highest(t int32, list []int32, top float32) float64 {
	row, best := c.row(t), math.Inf(-1)
	for _, j := range list {
		if row[j] >= top-float32Margin {
			best = max(best, c.exact(t, j))
		}
	}
	return best
}

// nearest returns the k tokens of list with the highest cosine to row t, most similar first, equal ones in their order. Where float32
// cannot tell two apart, float64 does. Not for concurrent use.
func (c *cosines) nearest(t int32, list []int32, k int) []int32 {
	row, v := c.row(t), make([]float64, len(list))
	for i, j := range list {
		v[i] = float64(row[j])
	}
	order := rank(v)
	for lo := 0; lo < k; {
		hi := lo + 1
		for hi < len(order) && v[order[hi-1]]-v[order[hi]] <= 2*float32Margin {
			hi++
		}
		if run := order[lo:hi]; len(run) > 1 {
			for _, i := range run {
				v[i] = c.exact(t, list[i])
			}
			slices.SortFunc(run, func(i, j int32) int { return cmp.Or(cmp.Compare(v[j], v[i]), cmp.Compare(i, j)) })
		}
		lo = hi
	}
	out := make([]int32, k)
	for i := range out {
		out[i] = list[order[i]]
	}
	return out
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
