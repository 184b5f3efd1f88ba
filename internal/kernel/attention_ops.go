//go:build (amd64 || arm64) && !purego

package kernel

// attnTile is a product of query rows, or of rows of probabilities, with a panel.
type attnTile = func(a *float32, lda int, b *float32, ldb int, c *float32, ldc, k, tiles, add int)

// attnWordTile is such a product of int16 with scales.
type attnWordTile = func(a *float32, lda int, b *float32, ldb int, c *float32,
	ldc, k, tiles, add int, rows, columns *float32)

// attnOps lists the kernels of one instruction set; the declarations of the assembly document
// them.
type attnOps struct {
	lanes  int
	widths []int // of a panel, widest first; the last divides the others and pads all panel rows
	tiles  []attnTile
	// pairs are tiles whose elements are pairs of bfloat16 along k; round, expRound and pairRows
	// make them; nil without such instructions
	pairs []attnTile
	// tall is such a tile of twice the rows for panels of one vector, whose few sums wait for one
	// another otherwise; nil where it is no faster
	tall attnTile
	// pairHeight is the rows of such a tile, pairUnit the pairs that k is rounded up to
	pairHeight, pairUnit int
	round                func(dst, src *float32, n int)
	expRound             func(dst, x *float32, n int, m float32) float32
	pairRows             func(dst *float32, stride int, x, y *float32, srcStride, rows, n int)
	// quads are tiles of scores whose elements are quads of bytes along k; quadRows makes these,
	// topQuads finds the largest score, and expQuads makes probabilities, in bfloat16 where there
	// are pairs; nil without such instructions, and where pairs are faster
	quads    []attnTile
	quadRows func(dst *float32, stride int, scales, src *float32, srcStride int, sub *float32,
		rows, n int, flip int32, f float32)
	topQuads func(x, scales *float32, n int, f float32) float32
	expQuads func(dst, x, scales *float32, n int, f, m float32) float32
	// probs does both for whole panels of the widest kind; nil without pairs
	probs func(a *float32, lda int, b, scales, p *float32, ldp int, sums, f, m *float32,
		k, tiles int)
	// pairProbs does both with pairs for up to attnFusedPairs of them; nil where scores come first
	pairProbs func(a *float32, lda int, b *float32, panel int, p *float32, ldp int, sums, m,
		scratch *float32, masks *uint32, k, groups, whole, loads, dots, stores, own1, own2, own3,
		own4 int)
	// wordValues are tiles of probabilities and values whose elements are pairs of int16 along k,
	// with scales for rows and columns; scaleWords and wordRows make these, columnHighs finds the
	// columns' scales; nil where others are faster
	wordValues  []attnWordTile
	scaleWords  func(dst, src *float32, n int, f float32)
	wordRows    func(dst *float32, stride int, x, y *float32, srcStride, rows, n int, f *float32)
	columnHighs func(high, x *float32, stride, rows, n int)
	// words are products of int16 with scales, scores of one block and weighted sums of many (see
	// wordScores and wordTile), and roundWords makes them; nil where others are faster
	words      func(c *float32, ldc int, x, w *byte, rounds, tiles int)
	weighWords func(c *float32, ldc int, from *float32, ldf int, x, w *byte, blocks int,
		pf uintptr, pfStep int)
	roundWords func(dst, scales *byte, step int, x *float32, blocks, most int)
	// packed is the size in floats of one block's packed keys (and of its packed values): half of
	// what the second-level cache holds in addition to the scores.
	packed int

	transpose func(dst *float32, stride int, src *float32, srcStride, n int)
	copyRows  func(dst *float32, stride int, src *float32, srcStride, rows, n int, scale float32)
	rowMax    func(x *float32, n int) float32
	addMax    func(x, b *float32, n int) float32
	expSum    func(x *float32, n int, m float32) float32
	bias      func(dst, size *float32, keys *int32, table *float32, n int, pos int32)
	addWindow func(x, size *float32, index, last *int32, table *float32, n int, pos int32) float32
	axpy      func(y, x *float32, n int, a float32)
	peak      func(y, x *float32, n int, a float32)
	weighted  func(out, p, x *float32, stride, rows, n int, next uintptr, step int)
	narrow    func(dst *uint16, x *float32, n int)

	weightedHalf []attnHalves // by number of sums
}

// attnHalves is a kernel that computes some weighted sums of the same rows at once, in blocks of
// columns of up to the given number of vectors.
type attnHalves struct {
	vectors int
	sums    func(out *float32, ldo int, p *float32, ldp int, x *uint16, stride, rows, n int,
		next uintptr, step int)
}

func attend(p *Pool, a *Attention) {
	if ops := attnKernels(); ops != nil {
		attendTiled(p, a, ops)
	} else {
		attendGo(p, a)
	}
}

// transposeRows is transposeRowsGo for whole vectors of rows at a time.
func transposeRows(dst, src []float32, stride, rows, n int) {
	done := 0
	// the kernel writes whole vectors of columns
	if ops := attnKernels(); ops != nil && n%ops.lanes == 0 {
		for ; done+ops.lanes <= rows; done += ops.lanes {
			ops.transpose(&dst[done], PageKeys, &src[done*stride], stride, n)
		}
	}
	if done < rows {
		transposeRowsGo(dst[done:], src[done*stride:], stride, rows-done, n)
	}
}

// narrowHalf rounds the whole vectors of x and returns their number of elements.
func narrowHalf(dst []uint16, x []float32) int {
	ops := attnKernels()
	if ops == nil {
		return 0
	}
	n := len(x) &^ (ops.lanes - 1)
	if n > 0 {
		ops.narrow(&dst[0], &x[0], n)
	}
	return n
}
