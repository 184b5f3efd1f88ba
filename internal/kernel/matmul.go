package kernel

import "fmt"

// The assembly of arm64. The directive stands here because go generate skips files of other
// architectures.
//go:generate sh -c "cd _gen && go run . -kernel neon"

// MatMul computes dst[i,o] = Σₖ x[i,k]·W[o,k] + bias[o] with float32
// accumulation. x is [m, K], dst [m, N], both dense and not overlapping; bias
// is [N] or nil. The weight is read in its stored type. 2·m·N·K flops.
//
// The work is split over outputs, so the result does not depend on the number of threads. The
// assembly sums a row in one of two orders, one for up to 16 or 18 rows and one for more; the
// reference has one order. So a row's last bits may differ between a call with few rows and one
// with many, but not among calls of one kind. NaN and infinities propagate as in scalar arithmetic;
// denormals are kept. MatMul panics if a slice is too short.
//
// With a weight in Q8, Q4, Q4M or IQ4, the rows of x are rounded to int8 in blocks of 32, as
// [Quantize] does with weights but with a float32 scale; sums within a block are exact. With a
// weight in BF16Dot they are rounded to bfloat16; products are exact. A row's bits depend neither
// on threads nor on the other rows. Results below the normal range may be zero. With a weight in
// Q12, amd64's assembly rounds them to int16 in blocks of 128; sums within a block are exact.
//
// On amd64, x is rounded in spans of 256 instead, and so are the weights, with one scale for a
// column's span; Q8 and Q4 stay exact where the blocks' scales agree. With VNNI and with AMX, both
// become int8, with the same bits. Without, Q4 and Q4M keep their values, with the ratio of a
// block's scale and the span's rounded to an integer, and for Q8 and IQ4 x and the weights become
// int16. In products with a pool of [Pool.Step] the weights keep the blocks of 32, and so does x,
// unless there are AVX-512 and VNNI, with which it is rounded in spans. Those with BF16Dot do
// without tiles of AMX, which add in another order.
func MatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	w.check("MatMul")
	if m < 0 || len(x) < m*w.K || len(dst) < m*w.N || (bias != nil && len(bias) < w.N) {
		panic(fmt.Sprintf(
			"kernel.MatMul: weight [%d %d], %d rows: dst has %d elements, x %d, bias %d", w.N, w.K,
			m, len(dst), len(x), len(bias)))
	}
	if m == 0 || w.N == 0 {
		return
	}
	on := computing()
	switch {
	case p.steps() || w.K == 0:
	case on.tiled(w.Format):
		tileMatMul(p, dst[:m*w.N], x[:m*w.K], m, w, bias)
		return
	case on.spans(w.Format):
		spanMatMul(p, dst[:m*w.N], x[:m*w.K], m, w, bias)
		return
	}
	switch w.Format {
	case Q8, Q4, Q4M, IQ4:
		quantMatMul(p, dst[:m*w.N], x[:m*w.K], m, w, bias)
		return
	case BF16Dot:
		pairsMatMul(p, dst[:m*w.N], x[:m*w.K], m, w, bias)
		return
	case Q12:
		wordsMatMul(p, dst[:m*w.N], x[:m*w.K], m, w, bias)
		return
	}
	matMul(p, dst[:m*w.N], x[:m*w.K], m, w, bias)
}

// FewRows returns the most rows of a product with weights in f whose bits do not depend on the
// number of rows.
func FewRows(f Format) int { return fewRows(f) }

// anyRows is FewRows for formats whose bits never depend on the number of rows: more rows than a
// caller needs.
const anyRows = 1 << 10

// goPanel is the number of outputs that the reference computes per task.
const goPanel = 16

// matMulGo is the reference: every output is summed over k in ascending order
// in one float32 accumulator, products rounded before they are added.
func matMulGo(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	p.Run((w.N+goPanel-1)/goPanel, func(panel int) {
		rows := make([]float32, 4*w.K)
		end := min(w.N, (panel+1)*goPanel)
		for o := panel * goPanel; o < end; o += 4 {
			n := min(4, end-o)
			for r := range n {
				w.Row(rows[r*w.K:], o+r)
			}
			for i := range m {
				var s [4]float32
				xi := x[i*w.K : (i+1)*w.K]
				if n == 4 {
					s = dot4Go(xi, rows)
				} else {
					for r := range n {
						s[r] = dot1Go(xi, rows[r*w.K:])
					}
				}
				for r := range n {
					if bias != nil {
						s[r] += bias[o+r]
					}
					dst[i*w.N+o+r] = s[r]
				}
			}
		}
	})
}

// dot4Go returns the products of x with four consecutive rows of the same length.
func dot4Go(x, rows []float32) (s [4]float32) {
	k := len(x)
	w0, w1, w2, w3 := rows[:k], rows[k:2*k], rows[2*k:3*k], rows[3*k:4*k]
	var s0, s1, s2, s3 float32
	for i, v := range x {
		s0 += float32(v * w0[i])
		s1 += float32(v * w1[i])
		s2 += float32(v * w2[i])
		s3 += float32(v * w3[i])
	}
	return [4]float32{s0, s1, s2, s3}
}

func dot1Go(x, row []float32) (s float32) {
	row = row[:len(x)]
	for i, v := range x {
		s += float32(v * row[i])
	}
	return s
}
