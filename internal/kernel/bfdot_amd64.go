//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel bfdot"

// pairsTile is C = from + A·B for up to six rows. Rows of C, from and A are ldc, ldf and lda bytes
// apart. B is part of a panel, [4·eights][64][2] bfloat16. Every output is one chain in ascending
// k. For every 8 of k it prefetches 256 bytes at pf and moves pf by pfStep; kernels of one or two
// rows by 64 columns prefetch their own panel instead.
type pairsTile = func(c *float32, ldc int, from *float32, ldf int, a *byte, lda int, b *byte,
	eights int, pf uintptr, pfStep int)

// Tiles by number of rows. Those of pairsVDP read x as bfloat16, the others as float32.
var (
	pairsVDP    = []pairsTile{pairsVDP1, pairsVDP2, pairsVDP3, pairsVDP4, pairsVDP5, pairsVDP6}
	pairsAVX512 = []pairsTile{
		pairsAVX5121, pairsAVX5122, pairsAVX5123, pairsAVX5124, pairsAVX5125, pairsAVX5126,
	}
	pairsAVX2 = []pairsTile{
		pairsAVX21, pairsAVX22, pairsAVX23, pairsAVX24, pairsAVX25, pairsAVX26,
	}
)

// pairsTiles returns the tiles and the number of columns of each.
func pairsTiles(on isa) (tiles []pairsTile, width int) {
	switch {
	case on.bf16:
		return pairsVDP, 64
	case on.level() == implAVX512:
		return pairsAVX512, 64
	}
	return pairsAVX2, 16
}

// pairsFew is the most rows for which AVX2 takes blocks that fit the first-level cache. With more,
// larger blocks are as fast.
const pairsFew = 8

// pairsBlock returns the K of a block for m rows, whose part of a panel fits a cache, and the bytes
// of a stored value of x.
func pairsBlock(on isa, m int) (kc, unit int) {
	switch {
	case on.bf16:
		return 1024, 2
	case on.level() == implAVX2 && m <= pairsFew:
		return 128, 4
	}
	return pairsBlockGo, 4
}

func roundActs(level implementation, dst []byte, x []float32, unit int) {
	lanes := 8
	if level == implAVX512 {
		lanes = 16
	}
	n := len(x) / lanes
	if level == implGo || n == 0 {
		roundActsGo(dst, x, unit)
		return
	}
	switch {
	case unit == 2:
		narrowBF16AVX512(&dst[0], &x[0], n)
	case level == implAVX512:
		roundBF16AVX512(&dst[0], &x[0], n)
	default:
		roundBF16AVX2(&dst[0], &x[0], n)
	}
	roundActsGo(dst[n*lanes*unit:], x[n*lanes:], unit)
}

// pairsScratch is one thread's scratch memory.
type pairsScratch struct {
	bias [pairsPanel]float32
	tail []float32 // outputs of an incomplete panel
}

var pairsScratches = sync.Pool{New: func() any { return new(pairsScratch) }}

// pairsPanelRows computes rows first … end-1 of one panel, a block of K at a time. Each tile
// prefetches a part of the next block.
func pairsPanelRows(t *pairsProduct, panel, first, end int) {
	if t.on.impl == implGo || t.w.K == 0 {
		pairsPanelGo(t, panel, first, end)
		return
	}
	s := pairsScratches.Get().(*pairsScratch)
	defer pairsScratches.Put(s)
	tiles, width := pairsTiles(t.on)
	n, rows, col := t.w.N, end-first, panel*pairsPanel
	whole := min(pairsPanel, n-col)
	clear(s.bias[:])
	if t.bias != nil {
		copy(s.bias[:], t.bias[col:col+whole])
	}
	c, ldc := unsafe.Pointer(nil), n
	if whole == pairsPanel {
		c = unsafe.Pointer(&t.dst[first*n+col])
	} else {
		s.tail = grow(s.tail, rows*pairsPanel)
		c, ldc = unsafe.Pointer(&s.tail[0]), pairsPanel
	}
	depth := pairsDepth(t.w.K)
	data := unsafe.Pointer(&t.w.Data[panel*pairsPanel*depth*2])
	for k := 0; k < depth; k += t.kc {
		eights := min(t.kc, depth-k) / pairsUnit
		a, lda := t.act(first, k)
		b := unsafe.Add(data, k*pairsPanel*2)
		pf := uintptr(b) + uintptr(eights*pairsUnit*pairsPanel*2)
		left := eights * pairsUnit * pairsPanel * 2
		parts := (rows + len(tiles) - 1) / len(tiles)
		for part := range parts {
			r, e := part*rows/parts, (part+1)*rows/parts
			for j := 0; j < pairsPanel; j += width {
				step := 0
				if left > 0 {
					step = 256
				}
				out := (*float32)(unsafe.Add(c, 4*(r*ldc+j)))
				from, ldf := out, 4*ldc
				if k == 0 {
					from, ldf = &s.bias[j], 0
				}
				tiles[e-r-1](out, 4*ldc, from, ldf, &t.acts[a+r*lda], lda,
					(*byte)(unsafe.Add(b, 4*j)), eights, pf, step)
				pf += uintptr(eights * step)
				left -= eights * 256
			}
		}
	}
	if whole < pairsPanel {
		for i := range rows {
			copy(t.dst[(first+i)*n+col:][:whole], s.tail[i*pairsPanel:])
		}
	}
}
