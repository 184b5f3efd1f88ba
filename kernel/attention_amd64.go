//go:build !purego

package kernel

//go:generate sh -c "cd _gen && go run . -kernel attention"

// attnOps is one instruction set's kernels; see attention_stub_amd64.go for what each computes.
type attnOps struct {
	lanes  int
	widths []int // of a panel, widest first; the last divides the others and pads every panel row
	tiles  []func(a *float32, lda int, b, c *float32, ldc, k, tiles, add int)
	// packed is the size in floats of the packed keys (and of the packed values) of one block of keys,
	// half of what the second-level cache holds beside the scores.
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
	dots      func(dst, q, k *float32, stride, n int)
	weighted  func(out, p, x *float32, stride, rows, n int)

	dotsHalf     func(dst, q *float32, k *uint16, stride, n int)
	weightedHalf func(out, p *float32, x *uint16, stride, rows, n int)
	narrow       func(dst *uint16, x *float32, n int)
}

var attnAVX2 = attnOps{
	lanes:     8,
	widths:    []int{16},
	tiles:     []func(a *float32, lda int, b, c *float32, ldc, k, tiles, add int){attnTile16AVX2},
	packed:    1 << 15,
	transpose: attnTransposeAVX2,
	copyRows:  attnCopyAVX2,
	rowMax:    attnMaxAVX2,
	addMax:    attnAddMaxAVX2,
	expSum:    attnExpSumAVX2,
	bias:      attnBiasAVX2,
	addWindow: attnAddWindowAVX2,
	axpy:      attnAxpyAVX2,
	peak:      attnPeakAVX2,
	dots:      attnDotsAVX2,
	weighted:  attnWeightedAVX2,

	dotsHalf:     attnDotsHalfAVX2,
	weightedHalf: attnWeightedHalfAVX2,
	narrow:       attnNarrowAVX2,
}

var attnAVX512 = attnOps{
	lanes:     16,
	widths:    []int{64, 32, 16},
	tiles:     []func(a *float32, lda int, b, c *float32, ldc, k, tiles, add int){attnTile64AVX512, attnTile32AVX512, attnTile16AVX512},
	packed:    1 << 16,
	transpose: attnTransposeAVX512,
	copyRows:  attnCopyAVX512,
	rowMax:    attnMaxAVX512,
	addMax:    attnAddMaxAVX512,
	expSum:    attnExpSumAVX512,
	bias:      attnBiasAVX512,
	addWindow: attnAddWindowAVX512,
	axpy:      attnAxpyAVX512,
	peak:      attnPeakAVX512,
	dots:      attnDotsAVX512,
	weighted:  attnWeightedAVX512,

	dotsHalf:     attnDotsHalfAVX512,
	weightedHalf: attnWeightedHalfAVX512,
	narrow:       attnNarrowAVX512,
}

// laneMask holds the masks of 0 to 8 lanes for AVX2: rem lanes are those from 8-rem on.
//
//lint:ignore U1000 the assembly reads it
var laneMask = [16]int32{-1, -1, -1, -1, -1, -1, -1, -1}

func attend(p *Pool, a *Attention) {
	switch impl() {
	case implAVX512:
		attendTiled(p, a, &attnAVX512)
	case implAVX2:
		attendTiled(p, a, &attnAVX2)
	default:
		attendGo(p, a)
	}
}

// narrowHalf rounds whole vectors of x and returns how many elements that were.
func narrowHalf(dst []uint16, x []float32) int {
	ops := &attnAVX2
	switch impl() {
	case implAVX512:
		ops = &attnAVX512
	case implAVX2:
	default:
		return 0
	}
	n := len(x) &^ (ops.lanes - 1)
	if n > 0 {
		ops.narrow(&dst[0], &x[0], n)
	}
	return n
}
