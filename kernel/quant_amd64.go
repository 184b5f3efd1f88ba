//go:build !purego

package kernel

import (
	"sync"
	"time"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel quant"

// quantTile computes rows of consecutive panels: dst[i·ldd+c] = bias[c] + Σ over
// blocks, then the same 32 floats on in dst and biasStep bytes on in bias. Every
// block it prefetches 128 bytes at pf, or where pfStep is quantStream (AVX2: half a
// block) as many as that, and moves pf by pfStep; one or two rows ask for their own
// weights, well before their use.
type quantTile = func(dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias *float32, biasStep, panels int, pf uintptr, pfStep int)

// The tiles by number of rows.
var (
	q8VNNI = []quantTile{q8VNNI1, q8VNNI2, q8VNNI3, q8VNNI4, q8VNNI5, q8VNNI6, q8VNNI7}
	q4VNNI = []quantTile{q4VNNI1, q4VNNI2, q4VNNI3, q4VNNI4, q4VNNI5, q4VNNI6}
	// q8Wide takes two panels at once and ignores biasStep and panels.
	q8Wide = []quantTile{q8Wide1, q8Wide2, q8Wide3}

	q8AVXVNNI = []quantTile{q8AVXVNNI1, q8AVXVNNI2, q8AVXVNNI3, q8AVXVNNI4, q8AVXVNNI5, q8AVXVNNI6}
	q4AVXVNNI = []quantTile{q4AVXVNNI1, q4AVXVNNI2, q4AVXVNNI3, q4AVXVNNI4, q4AVXVNNI5, q4AVXVNNI6}

	q8AVX2 = []quantTile{q8AVX21, q8AVX22, q8AVX23, q8AVX24}
	q4AVX2 = []quantTile{q4AVX21, q4AVX22, q4AVX23, q4AVX24}
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

// quantTiles are the tiles of a level and format.
func quantTiles(level implementation, f Format) []quantTile {
	vnni := level == implAVX512 && hasVNNI
	switch {
	case vnni && f == Q8:
		return q8VNNI
	case vnni:
		return q4VNNI
	case avxVNNI() && f == Q8:
		return q8AVXVNNI
	case avxVNNI():
		return q4AVXVNNI
	case f == Q8:
		return q8AVX2
	}
	return q4AVX2
}

// quantAhead is how far before its use a weight is asked for that one tile reads
// straight from memory.
const quantAhead = 4096

// quantStream is the most that is asked for during a block, all of one in Q4: with
// more, a kernel waits for the memory it asks.
const quantStream = 576

// quantPace is how far ahead, and by how much a block, a single tile asks for the
// weights of the panels that it walks over.
func quantPace(level implementation, block, blocks int) (ahead, pace int) {
	switch {
	case level != implAVX512 || !hasVNNI:
		return block * blocks, block / 2 // it passes over a panel twice
	case block == quantStream:
		return quantAhead, block
	}
	return 0, 0
}

// quantScratch is what a thread needs beside the panel.
type quantScratch struct {
	bias [2 * quantPanel]float32
	tail [7 * quantPanel]float32 // outputs of the last panel
}

var quantScratches = sync.Pool{New: func() any { return new(quantScratch) }}

// quantPanelRows computes rows first … end-1 of some panels.
func quantPanelRows(t *quantProduct, panel, panels, first, end int) {
	if t.level == implGo || t.blocks == 0 {
		for i := range panels {
			quantPanelGo(t, panel+i, first, end)
		}
		return
	}
	s := quantScratches.Get().(*quantScratch)
	n, col := t.w.N, panel*quantPanel
	kernels := quantTiles(t.level, t.w.Format)
	whole := min(panels, n/quantPanel-panel)
	if rows := end - first; rows > 0 && rows <= len(kernels) && whole > 1 {
		// one call, so that nothing comes between one panel and the next
		clear(s.bias[:])
		bias, step := &s.bias[0], 0
		if t.bias != nil {
			bias, step = &t.bias[col], 4*quantPanel
		}
		size := quantBlockSize(t.w.Format)
		ahead, pace := quantPace(t.level, size, t.blocks)
		w := &t.w.Data[panel*t.blocks*size]
		kernels[rows-1](&t.dst[first*n+col], n, &t.acts[first*t.blocks*actBlock], t.blocks*actBlock, w, t.blocks,
			bias, step, whole, uintptr(unsafe.Pointer(w))+uintptr(ahead), pace)
		panel, panels = panel+whole, panels-whole
	}
	wide := wideTiles(t.level, t.w.Format, end-first)
	for panels > 0 {
		if wide && panels > 1 && (panel+2)*quantPanel <= n {
			quantTiled(t, s, q8Wide, panel, 2, first, end)
			panel, panels = panel+2, panels-2
			continue
		}
		quantTiled(t, s, kernels, panel, 1, first, end)
		panel, panels = panel+1, panels-1
	}
	quantScratches.Put(s)
}

// wideTiles tells whether products of that many rows take q8Wide.
func wideTiles(level implementation, f Format, rows int) bool {
	return level == implAVX512 && hasVNNI && f == Q8 && rows > len(q8VNNI) && preferWide()
}

// preferWide tells which tiles of Q8 are faster on this machine, 7 rows of one
// panel or 3 of two: on CPUs that load 512 bits twice a cycle the former, on those
// that do it once the latter. Both give the same bits. A wrong answer, on a machine
// that was busy, costs a few per cent.
var preferWide = sync.OnceValue(func() bool {
	const blocks, tries = 16, 12
	w, x := make([]byte, 2*blocks*quantBlockSize(Q8)), make([]byte, 7*blocks*actBlock)
	dst, bias := make([]float32, 7*2*quantPanel), make([]float32, 2*quantPanel)
	rate := func(tiles []quantTile, width int) float64 {
		best := 0.0
		for range tries {
			start := time.Now()
			for range 20 {
				tiles[len(tiles)-1](&dst[0], 2*quantPanel, &x[0], blocks*actBlock, &w[0], blocks, &bias[0], 0, 1, uintptr(unsafe.Pointer(&w[0])), 0)
			}
			best = max(best, float64(len(tiles)*width)/time.Since(start).Seconds())
		}
		return best
	}
	return rate(q8Wide, 2) > 1.05*rate(q8VNNI, 1)
})

// quantTiled computes rows first … end-1 of one panel or, with the wide kernels, of
// two. While it does, it asks for those after them, the first tiles a part each.
func quantTiled(t *quantProduct, s *quantScratch, kernels []quantTile, panel, panels, first, end int) {
	n, col := t.w.N, panel*quantPanel
	width := min(panels*quantPanel, n-col)
	clear(s.bias[:])
	if t.bias != nil {
		copy(s.bias[:], t.bias[col:col+width])
	}
	block := panels * quantBlockSize(t.w.Format)
	size := t.blocks * block
	w := unsafe.Pointer(&t.w.Data[panel*t.blocks*quantBlockSize(t.w.Format)])
	pf, left := uintptr(w)+uintptr(size), size
	rows := end - first
	tiles := (rows + len(kernels) - 1) / len(kernels)
	passes, pace := 1, 128
	if t.level != implAVX512 || !hasVNNI {
		passes = 2
	}
	if tiles*passes*pace < block { // too few tiles for that
		pace = min(quantStream, block/passes)
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
		kernels[e-r-1](dst, ldd, &t.acts[r*t.blocks*actBlock], t.blocks*actBlock, (*byte)(w), t.blocks, &s.bias[0], 0, 1, pf, step)
		pf += uintptr(passes * t.blocks * step)
		left -= passes * t.blocks * step
		if width < panels*quantPanel {
			for i := r; i < e; i++ {
				copy(t.dst[i*n+col:i*n+col+width], s.tail[(i-r)*quantPanel:])
			}
		}
	}
}
