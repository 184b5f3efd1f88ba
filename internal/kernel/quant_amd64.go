//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel quant"

// quantTile computes rows of consecutive panels: dst[i·ldd+c] = bias[c] + Σ over blocks. For each
// further panel, dst moves 32 floats and bias biasStep bytes. In every block it prefetches 128
// bytes at pf, or pfStep bytes if pfStep is the value of [quantStream] (AVX2: half a block), and
// moves pf by pfStep. Kernels of one or two rows prefetch their own weights, well before their use.
// Without VNNI, a nil bias continues the sums in dst, of one panel.
type quantTile = func(dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias *float32,
	biasStep, panels int, pf uintptr, pfStep int)

// quantPiped is a quantTile of one panel and one block of K. If bias is nil, it continues the sums
// at from, rows of 32. Offsets of x include actMagic. It prefetches 128 bytes per block.
type quantPiped = func(
	dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias, from *float32,
	pf uintptr, pfStep int)

// Tiles by number of rows.
var (
	q8VNNI = []quantTile{q8VNNI1, q8VNNI2, q8VNNI3, q8VNNI4, q8VNNI5, q8VNNI6, q8VNNI7}
	q4VNNI = []quantTile{q4VNNI1, q4VNNI2, q4VNNI3, q4VNNI4, q4VNNI5, q4VNNI6}
	// for formats with minima
	q4mVNNI = []quantTile{q4mVNNI1, q4mVNNI2, q4mVNNI3, q4mVNNI4, q4mVNNI5, q4mVNNI6}
	// q8Wide computes two panels at once and ignores biasStep and panels.
	q8Wide = []quantTile{q8Wide1, q8Wide2, q8Wide3}

	// q8Piped is for planBlocks.
	q8Piped = []quantPiped{q8Piped1, q8Piped2, q8Piped3, q8Piped4, q8Piped5, q8Piped6}

	q8AVXVNNI  = []quantTile{q8AVXVNNI1, q8AVXVNNI2, q8AVXVNNI3, q8AVXVNNI4, q8AVXVNNI5, q8AVXVNNI6}
	q4AVXVNNI  = []quantTile{q4AVXVNNI1, q4AVXVNNI2, q4AVXVNNI3, q4AVXVNNI4, q4AVXVNNI5, q4AVXVNNI6}
	q4mAVXVNNI = []quantTile{
		q4mAVXVNNI1, q4mAVXVNNI2, q4mAVXVNNI3, q4mAVXVNNI4, q4mAVXVNNI5, q4mAVXVNNI6,
	}

	q8AVX2  = []quantTile{q8AVX21, q8AVX22, q8AVX23, q8AVX24}
	q4AVX2  = []quantTile{q4AVX21, q4AVX22, q4AVX23, q4AVX24}
	q4mAVX2 = []quantTile{q4mAVX21, q4mAVX22, q4mAVX23, q4mAVX24}
)

func quantizeRow(level implementation, dst []byte, x []float32, blocks, offset int) {
	switch {
	case blocks == 0:
	case level == implAVX512:
		quantizeRowAVX512(&dst[0], &x[0], blocks, offset)
	case level == implAVX2:
		quantizeRowAVX2(&dst[0], &x[0], blocks, offset)
	default:
		quantizeRowGo(dst, x, blocks, offset)
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

// turnsTiles returns the tiles of planTurns: the 256-bit kernels of one and two rows, which read
// four panels in turn. On some processors with AVX-512 one core reads a single stream from memory
// slower than four.
func turnsTiles(on isa, f Format) []quantTile {
	if on.avxVNNI {
		return [...][]quantTile{Q8: q8AVXVNNI, Q4: q4AVXVNNI, Q4M: q4mAVXVNNI}[f]
	}
	return [...][]quantTile{Q8: q8AVX2, Q4: q4AVX2, Q4M: q4mAVX2}[f]
}

// quantAhead is how many bytes before its use a weight is prefetched if a single tile reads it
// straight from memory.
const quantAhead = 4096

// quantStream returns the most bytes to prefetch during a block, which is a whole block of 4 bits.
// With more, a kernel waits for its prefetches.
func quantStream(f Format) int {
	if f == Q8 {
		f = Q4
	}
	return quantBlockSize(f)
}

// quantPace returns how far ahead a single tile prefetches the weights of the panels that it goes
// over, and how many bytes per block.
func quantPace(on isa, f Format, blocks int) (ahead, pace int) {
	block := quantBlockSize(f)
	switch {
	case !on.vnni:
		return block * blocks, block / 2 // it goes over a panel twice
	case f != Q8:
		return quantAhead, block
	}
	return 0, 0
}

// quantScratch is one thread's scratch memory.
type quantScratch struct {
	bias [2 * quantPanel]float32
	tail [7 * quantPanel]float32 // outputs of the last panel
	// one block of K: of 4 bits as Q8, or of two strips
	wide [2 * planDepth * (64 + quantPanel*quantBlock)]byte
	rows []int // for quantStrips
	// for planBlocks, [panels][rows][32] float32
	sums []byte
}

var quantScratches = sync.Pool{New: func() any { return new(quantScratch) }}

// quantPanelRows computes rows first … end-1 of some panels. data starts with their weights, in
// format f.
func quantPanelRows(t *quantProduct, f Format, data []byte, panel, panels, first, end int) {
	s := quantScratches.Get().(*quantScratch)
	n, col := t.w.N, panel*quantPanel
	kernels := quantTiles(t.on, f)
	if t.plan == planTurns {
		kernels = turnsTiles(t.on, f)
	}
	size := quantBlockSize(f)
	whole := min(panels, n/quantPanel-panel)
	rows := end - first
	switch {
	case t.on.strips() && rows > 2 && rows <= partRows && whole > 0:
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
		ahead, pace := quantPace(t.on, f, t.blocks)
		w := &data[0]
		kernels[rows-1](&t.dst[first*n+col], n, &t.acts[first*t.blocks*actBlock], t.blocks*actBlock,
			w, t.blocks,
			bias, step, whole, uintptr(unsafe.Pointer(w))+uintptr(ahead), pace)
		data = data[whole*t.blocks*size:]
		panel, panels = panel+whole, panels-whole
	}
	wide := t.plan == planWide && end-first > len(q8VNNI)
	for panels > 0 {
		tiles, some := kernels, 1
		if wide && panels > 1 && (panel+2)*quantPanel <= n {
			tiles, some = q8Wide, 2
		}
		quantTiled(t, s, tiles, f, data, panel, some, first, end)
		data = data[some*t.blocks*size:]
		panel, panels = panel+some, panels-some
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
	pace := 128
	if tiles*2*pace < size { // too few tiles for that pace
		pace = min(quantStream(f), size/2)
	}
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
				pf += uintptr(2 * depth * step)
				left -= 2 * depth * step
			}
			bias = nil
		}
	}
}

// quantTiled computes rows first … end-1 of one panel or, with the wide kernels, of two. Meanwhile
// the tiles prefetch the next panels, each tile a part, starting with the first.
func quantTiled(t *quantProduct, s *quantScratch, kernels []quantTile, f Format, data []byte,
	panel, panels, first, end int) {
	n, col := t.w.N, panel*quantPanel
	width := min(panels*quantPanel, n-col)
	clear(s.bias[:])
	if t.bias != nil {
		copy(s.bias[:], t.bias[col:col+width])
	}
	block := panels * quantBlockSize(f)
	size := t.blocks * block
	w := unsafe.Pointer(&data[0])
	pf, left := uintptr(w)+uintptr(size), size
	if f != t.w.Format {
		left = 0 // the panel stands alone
	}
	rows := end - first
	tiles := (rows + len(kernels) - 1) / len(kernels)
	passes, pace := 1, 128
	if !t.on.vnni {
		passes = 2
	}
	if tiles*passes*pace < block { // too few tiles for that pace
		pace = min(quantStream(f), block/passes)
	}
	for tile := range tiles {
		r, e := first+tile*rows/tiles, first+(tile+1)*rows/tiles
		dst, ldd := &s.tail[0], quantPanel
		if width == panels*quantPanel {
			dst, ldd = &t.dst[r*n+col], n
		}
		step := 0
		if left > 0 {
			step = pace
		}
		kernels[e-r-1](dst, ldd, &t.acts[r*t.blocks*actBlock], t.blocks*actBlock, (*byte)(w),
			t.blocks, &s.bias[0], 0, 1, pf, step)
		pf += uintptr(passes * t.blocks * step)
		left -= passes * t.blocks * step
		if width < panels*quantPanel {
			for i := r; i < e; i++ {
				copy(t.dst[i*n+col:i*n+col+width], s.tail[(i-r)*quantPanel:])
			}
		}
	}
}

// planDepth is how many blocks of 32 along K planBlocks multiplies at once: 17 KB of weights.
const planDepth = 16

// quantKBlocks computes rows first … end-1 of some panels by planBlocks. It widens 4 bits once for
// all rows.
func quantKBlocks(t *quantProduct, data []byte, panel, panels, first, end int) {
	s := quantScratches.Get().(*quantScratch)
	f, n, rows := t.w.Format, t.w.N, end-first
	size := quantBlockSize(f)
	tiles := (rows + len(q8Piped) - 1) / len(q8Piped)
	parts := (t.blocks + planDepth - 1) / planDepth
	// Sums of finished blocks are kept close together. In dst, whose rows are often a power of two
	// apart, they would evict one another from the caches.
	s.sums = growWork(s.sums, panels*rows*4*quantPanel)
	sumsAt := func(panel, row int) *float32 {
		return (*float32)(unsafe.Pointer(&s.sums[(panel*rows+row-first)*4*quantPanel]))
	}
	for part := range parts {
		k, stop := part*t.blocks/parts, (part+1)*t.blocks/parts
		depth := stop - k
		for i := range panels {
			col := (panel + i) * quantPanel
			w := data[(i*t.blocks+k)*size:]
			pf, left := uintptr(unsafe.Pointer(&w[0]))+uintptr(t.blocks*size), depth*size
			if i+1 == panels { // prefetch the first panel's next block
				pf = uintptr(unsafe.Pointer(&data[0])) + uintptr(stop*size)
			}
			switch f {
			case Q4:
				widenQ4AVX2(&s.wide[0], &w[0], depth)
				w = s.wide[:]
			case IQ4:
				widenIQ4AVX2(&s.wide[0], &w[0], depth)
				w = s.wide[:]
			}
			var bias *float32 // nil: continue the sums
			if part == 0 {
				clear(s.bias[:])
				if t.bias != nil {
					copy(s.bias[:], t.bias[col:col+quantPanel])
				}
				bias = &s.bias[0]
			}
			for tile := range tiles {
				r, e := first+tile*rows/tiles, first+(tile+1)*rows/tiles
				step := 0
				if left > 0 {
					step = 128
				}
				from := sumsAt(i, r)
				dst, ldd := from, quantPanel
				if part+1 == parts {
					dst, ldd = &t.dst[r*n+col], n
				}
				q8Piped[e-r-1](dst, ldd, &t.acts[(r*t.blocks+k)*actBlock],
					t.blocks*actBlock, &w[0], depth, bias, from, pf, step)
				pf += uintptr(depth * step)
				left -= depth * step
			}
		}
	}
	quantScratches.Put(s)
}
