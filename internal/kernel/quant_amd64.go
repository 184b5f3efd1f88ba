//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel quant"

// quantTile computes rows of consecutive panels: dst[i·ldd+c] = bias[c] + Σ over blocks, with VNNI
// over spans of spanBlocks, of which the last may be shorter. For each further panel, dst moves 32
// floats and bias biasStep bytes. In every block it prefetches a line at pf and moves pf by pfStep,
// as often as [quantFetches] says. Without VNNI it prefetches 128 bytes once, or half a block if
// pfStep is that. Kernels of one or two rows prefetch their own weights, well before their use.
// Without VNNI, a nil bias continues the sums in dst, of one panel.
type quantTile = func(dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias *float32,
	biasStep, panels int, pf uintptr, pfStep int)

// Tiles by number of rows.
var (
	q8VNNI = []quantTile{q8VNNI1, q8VNNI2, q8VNNI3, q8VNNI4, q8VNNI5, q8VNNI6, q8VNNI7}
	q4VNNI = []quantTile{q4VNNI1, q4VNNI2, q4VNNI3, q4VNNI4, q4VNNI5, q4VNNI6}
	// for formats with minima
	q4mVNNI = []quantTile{q4mVNNI1, q4mVNNI2, q4mVNNI3, q4mVNNI4, q4mVNNI5, q4mVNNI6}

	q8AVXVNNI  = []quantTile{q8AVXVNNI1, q8AVXVNNI2, q8AVXVNNI3, q8AVXVNNI4, q8AVXVNNI5, q8AVXVNNI6}
	q4AVXVNNI  = []quantTile{q4AVXVNNI1, q4AVXVNNI2, q4AVXVNNI3, q4AVXVNNI4, q4AVXVNNI5, q4AVXVNNI6}
	q4mAVXVNNI = []quantTile{
		q4mAVXVNNI1, q4mAVXVNNI2, q4mAVXVNNI3, q4mAVXVNNI4, q4mAVXVNNI5, q4mAVXVNNI6,
	}

	q8AVX2  = []quantTile{q8AVX21, q8AVX22, q8AVX23, q8AVX24}
	q4AVX2  = []quantTile{q4AVX21, q4AVX22, q4AVX23, q4AVX24}
	q4mAVX2 = []quantTile{q4mAVX21, q4mAVX22, q4mAVX23, q4mAVX24}
)

// quantizeRow is quantizeRowGo with the blocks for one scale that the kernels of quantTiles want.
func quantizeRow(on isa, dst []byte, x []float32, blocks, offset int) {
	switch {
	case blocks == 0:
	case on.vnni:
		quantizeSpanAVX512(&dst[0], &x[0], blocks, offset)
	case on.impl == implGo:
		quantizeRowGo(dst, x, blocks, 1, offset)
	default:
		quantizeRowAVX2(&dst[0], &x[0], blocks, offset)
	}
}

func quantizeWeights(q []uint8, scales, v []float32, f Format) {
	level, blocks := impl(), len(scales)
	switch {
	case blocks == 0:
	case level == implAVX512 && f == Q8:
		quantizeQ8AVX512(&q[0], &scales[0], &v[0], blocks)
	case level == implAVX512:
		quantizeQ4AVX512(&q[0], &scales[0], &v[0], blocks)
	case level == implAVX2 && f == Q8:
		quantizeQ8AVX2(&q[0], &scales[0], &v[0], blocks)
	case level == implAVX2:
		quantizeQ4AVX2(&q[0], &scales[0], &v[0], blocks)
	default:
		quantizeWeightsGo(q, scales, v, f)
	}
}

// quantizeMinima is quantizeMinimaGo, in assembly if possible.
func quantizeMinima(q []uint8, scales, minima, v []float32) {
	level, blocks := impl(), len(scales)
	switch {
	case blocks == 0:
	case level == implAVX512:
		quantizeQ4MAVX512(&q[0], &scales[0], &minima[0], &v[0], blocks)
	case level == implAVX2:
		quantizeQ4MAVX2(&q[0], &scales[0], &minima[0], &v[0], blocks)
	default:
		quantizeMinimaGo(q, scales, minima, v)
	}
}

// widenIQ4 is widenIQ4Go in assembly.
func widenIQ4(dst, src []byte, blocks int) {
	widenIQ4AVX2(&dst[0], &src[0], blocks)
}

// quantTiles returns the tiles for a format.
func quantTiles(on isa, f Format) []quantTile {
	byFormat := [...][]quantTile{Q8: q8AVX2, Q4: q4AVX2, Q4M: q4mAVX2}
	switch {
	case on.vnni:
		byFormat = [...][]quantTile{Q8: q8VNNI, Q4: q4VNNI, Q4M: q4mVNNI}
	case on.impl == implAVXVNNI:
		byFormat = [...][]quantTile{Q8: q8AVXVNNI, Q4: q4AVXVNNI, Q4M: q4mAVXVNNI}
	}
	return byFormat[f]
}

// quantAhead is how many bytes before its use a weight is prefetched if a single tile reads it
// straight from memory.
const quantAhead = 4096

// quantFetches returns how often a tile with VNNI prefetches in a block. With more lines than there
// are in a block of 4 bits, a kernel waits for them.
func quantFetches(f Format) int {
	if f == Q4M {
		return 10
	}
	return 9
}

// quantShare returns the pfStep with which tiles fetch a panel, whose blocks have some bytes, while
// they go over another one, and the bytes that each fetches in the time of a block.
func quantShare(on isa, f Format, tiles, block int) (step, share int) {
	if on.vnni {
		n := quantFetches(f)
		step = min(64, (block+tiles*n-1)/(tiles*n))
		return step, n * step
	}
	step = 128
	if tiles*2*step < block { // too few tiles for that pace
		step = min(quantBlockSize(Q4), block/2)
	}
	return step, 2 * step // a tile goes over a panel twice
}

// quantPace returns how far ahead a single tile prefetches the weights of the panels that it goes
// over, and its pfStep.
func quantPace(on isa, f Format, blocks int) (ahead, step int) {
	block := quantBlockSize(f)
	switch {
	case !on.vnni:
		return block * blocks, block / 2 // it goes over a panel twice
	case f != Q8:
		return quantAhead, 64
	}
	return 0, 0
}

// quantScratch is one thread's scratch memory.
type quantScratch struct {
	bias [quantPanel]float32
	tail [7 * quantPanel]float32 // outputs of the last panel
}

var quantScratches = sync.Pool{New: func() any { return new(quantScratch) }}

// quantPanelRows computes rows first … end-1 of some panels. data starts with their weights, in
// format f.
func quantPanelRows(t *quantProduct, f Format, data []byte, panel, panels, first, end int) {
	s := quantScratches.Get().(*quantScratch)
	n, col := t.w.N, panel*quantPanel
	kernels := quantTiles(t.on, f)
	size := quantBlockSize(f)
	whole := min(panels, n/quantPanel-panel)
	rows := end - first
	switch {
	case t.on.madd() && rows > 2 && rows <= partRows && whole > 0:
		quantParts(t, s, f, data, panel, whole, first, end)
		data = data[whole*t.blocks*size:]
		panel, panels = panel+whole, panels-whole
	case rows > 0 && rows <= len(kernels) && whole > 1:
		// one call, so that there is no pause between panels
		clear(s.bias[:])
		bias, step := &s.bias[0], 0
		if t.bias != nil {
			bias, step = &t.bias[col], 4*quantPanel
		}
		ahead, fetch := quantPace(t.on, f, t.blocks)
		w := &data[0]
		kernels[rows-1](&t.dst[first*n+col], n, &t.acts[first*t.blocks*actBlock], t.blocks*actBlock,
			w, t.blocks,
			bias, step, whole, uintptr(unsafe.Pointer(w))+uintptr(ahead), fetch)
		data = data[whole*t.blocks*size:]
		panel, panels = panel+whole, panels-whole
	}
	for range panels {
		quantTiled(t, s, kernels, f, data, panel, first, end)
		data = data[t.blocks*size:]
		panel++
	}
	quantScratches.Put(s)
}

const (
	// partDepth is how many blocks of 32 along K quantParts multiplies at once, and partRows the
	// most rows for it. With more, the gaps between parts cost more than it saves.
	partDepth = 16
	partRows  = 32
)

// quantParts computes rows first … end-1 of whole panels, a part of K at a time, which stays in the
// first-level cache while the tiles go over it. Meanwhile they prefetch the next part.
func quantParts(
	t *quantProduct, s *quantScratch, f Format, data []byte, panel, panels, first, end int,
) {
	n, rows, kernels := t.w.N, end-first, quantTiles(t.on, f)
	size := quantBlockSize(f)
	tiles := (rows + len(kernels) - 1) / len(kernels)
	pace, share := quantShare(t.on, f, tiles, size)
	parts := (t.blocks + partDepth - 1) / partDepth
	for i := range panels {
		col := (panel + i) * quantPanel
		clear(s.bias[:])
		if t.bias != nil {
			copy(s.bias[:], t.bias[col:col+quantPanel])
		}
		bias := &s.bias[0]
		for part := range parts {
			k, stop := part*t.blocks/parts, (part+1)*t.blocks/parts
			depth := stop - k
			w := &data[(i*t.blocks+k)*size]
			pf, left := uintptr(unsafe.Pointer(w))+uintptr(depth*size), depth*size
			if f != t.w.Format {
				left = 0 // the panel stands alone
			}
			for tile := range tiles {
				r, e := first+tile*rows/tiles, first+(tile+1)*rows/tiles
				step := 0
				if left > 0 {
					step = pace
				}
				kernels[e-r-1](&t.dst[r*n+col], n, &t.acts[(r*t.blocks+k)*actBlock],
					t.blocks*actBlock, w, depth, bias, 0, 1, pf, step)
				pf += uintptr(depth * share)
				left -= depth * share
			}
			bias = nil
		}
	}
}

// quantTiled computes rows first … end-1 of one panel. Meanwhile the tiles prefetch the next panel,
// each tile a part, starting with the first.
func quantTiled(t *quantProduct, s *quantScratch, kernels []quantTile, f Format, data []byte,
	panel, first, end int) {
	n, col := t.w.N, panel*quantPanel
	width := min(quantPanel, n-col)
	clear(s.bias[:])
	if t.bias != nil {
		copy(s.bias[:], t.bias[col:col+width])
	}
	block := quantBlockSize(f)
	size := t.blocks * block
	w := unsafe.Pointer(&data[0])
	pf, left := uintptr(w)+uintptr(size), size
	if f != t.w.Format {
		left = 0 // the panel stands alone
	}
	rows := end - first
	tiles := (rows + len(kernels) - 1) / len(kernels)
	pace, share := quantShare(t.on, f, tiles, block)
	for tile := range tiles {
		r, e := first+tile*rows/tiles, first+(tile+1)*rows/tiles
		dst, ldd := &s.tail[0], quantPanel
		if width == quantPanel {
			dst, ldd = &t.dst[r*n+col], n
		}
		step := 0
		if left > 0 {
			step = pace
		}
		kernels[e-r-1](dst, ldd, &t.acts[r*t.blocks*actBlock], t.blocks*actBlock, (*byte)(w),
			t.blocks, &s.bias[0], 0, 1, pf, step)
		pf += uintptr(t.blocks * share)
		left -= t.blocks * share
		if width < quantPanel {
			for i := r; i < e; i++ {
				copy(t.dst[i*n+col:i*n+col+width], s.tail[(i-r)*quantPanel:])
			}
		}
	}
}
