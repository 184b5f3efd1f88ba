//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel spans"

// The product of many rows. x and the weights are rounded to integers in spans of 256 of K, with a
// scale for each row and column; a span's sums are exact and added in float32 in ascending order of
// k. A block of 32 has a scale of its own in the weight, which costs two instructions or three for
// every eight that multiply; a span's costs as many for every 64. A row's bits depend neither on
// the other rows nor on how the work is split.
//
// With VNNI both are rounded to int8, as tiles of AMX do, with the same bits. Without, x is rounded
// to int8 for weights of 4 bits, which stay what they are, with the ratio of a block's scale and
// the span's in 12 bits; for Q8 and IQ4 both are rounded to int16.
const (
	paramBytes = 256 // of spanScales, for 32 of K
	spanFetch  = 384
	// spanPanels is the most panels of a task, and spanRowBlock approximately the most rows. The
	// accumulators of all panels and the rows of one span then fit the second-level cache together.
	spanPanels   = 4
	spanRowBlock = 640
	// spanRound rounds, and turns int8 into bytes with 128 added.
	spanRound = 128 + 128<<8
	// spanSums is the most sums that a tile has in memory.
	spanSums = 6 * quantPanel / 2
	// spanUnit is the most bytes of an unpacked block.
	spanUnit = 2 * quantPanel * quantBlock
)

// spanTile adds the products of tiles of rows with an unpacked span of a panel to the accumulators
// c, rows of 32, or sets them if first is not 0. x and c of the tiles follow one another. scales
// are those of the columns, before the parameters of the blocks. If dst is not nil, the sums and
// the bias go to its rows, ldd floats apart, and c is not written. For every 32 of K it prefetches
// spanFetch bytes from next on, until end.
type spanTile = func(c *float32, x, w *byte, scales *float32, blocks, tiles, first int,
	next, end uintptr, dst *float32, ldd int, bias *float32)

// spanOps lists the kernels of one instruction set, for some formats.
type spanOps struct {
	tiles []spanTile // by number of rows
	// row rounds a span of one row of x.
	row func(dst *byte, x *float32, steps int)
	// scales computes the scales of a panel's columns in a span, and the parameters of its blocks,
	// with round added to every product; unpack unpacks the blocks for tiles.
	round  int
	scales [formatCount]func(params *byte, scales *float32, w *byte, blocks, round int)
	unpack [formatCount]func(to, w, params *byte, blocks int)
}

var spansAVX512 = spanOps{
	tiles: []spanTile{
		spanTile1AVX512, spanTile2AVX512, spanTile3AVX512, spanTile4AVX512, spanTile5AVX512,
		spanTile6AVX512, spanTile7AVX512, spanTile8AVX512, spanTile9AVX512, spanTile10AVX512,
		spanTile11AVX512, spanTile12AVX512,
	},
	row:   spanRowAVX512,
	round: spanRound,
	scales: [formatCount]func(*byte, *float32, *byte, int, int){
		Q8: spanScalesQ8AVX512, Q4: spanScalesQ4AVX512, Q4M: spanScalesQ4MAVX512,
		IQ4: spanScalesQ8AVX512,
	},
	unpack: [formatCount]func(*byte, *byte, *byte, int){
		Q8: spanUnpackQ8AVX512, Q4: spanUnpackQ4AVX512, Q4M: spanUnpackQ4MAVX512,
		IQ4: spanUnpackQ8AVX512,
	},
}

var spansAVXVNNI = spanOps{
	tiles: []spanTile{spanTile1AVXVNNI, spanTile2AVXVNNI, spanTile3AVXVNNI},
	row:   spanRowAVX2,
	round: spanRound,
	scales: [formatCount]func(*byte, *float32, *byte, int, int){
		Q8: spanScalesQ8AVX2, Q4: spanScalesQ4AVX2, Q4M: spanScalesQ4MAVX2, IQ4: spanScalesQ8AVX2,
	},
	unpack: [formatCount]func(*byte, *byte, *byte, int){
		Q8: spanUnpackQ8AVX2, Q4: spanUnpackQ4AVX2, Q4M: spanUnpackQ4MAVX2, IQ4: spanUnpackQ8AVX2,
	},
}

// Without VNNI: for 4 bits, and for Q8.
var (
	nibblesAVX512 = spanOps{
		tiles: []spanTile{
			spanTile1NibblesAVX512, spanTile2NibblesAVX512, spanTile3NibblesAVX512,
			spanTile4NibblesAVX512, spanTile5NibblesAVX512, spanTile6NibblesAVX512,
		},
		row: spanRowNibblesAVX512,
		scales: [formatCount]func(*byte, *float32, *byte, int, int){
			Q4: spanScalesQ4NibblesAVX512, Q4M: spanScalesQ4MNibblesAVX512,
		},
		unpack: [formatCount]func(*byte, *byte, *byte, int){
			Q4: spanUnpackQ4NibblesAVX512, Q4M: spanUnpackQ4MNibblesAVX512,
		},
	}
	nibblesAVX2 = spanOps{
		tiles: []spanTile{
			spanTile1NibblesAVX2, spanTile2NibblesAVX2, spanTile3NibblesAVX2,
			spanTile4NibblesAVX2, spanTile5NibblesAVX2, spanTile6NibblesAVX2,
		},
		row: spanRowNibblesAVX2,
		scales: [formatCount]func(*byte, *float32, *byte, int, int){
			Q4: spanScalesQ4NibblesAVX2, Q4M: spanScalesQ4MNibblesAVX2,
		},
		unpack: [formatCount]func(*byte, *byte, *byte, int){
			Q4: spanUnpackQ4NibblesAVX2, Q4M: spanUnpackQ4MNibblesAVX2,
		},
	}
	wordsAVX512 = spanOps{
		tiles: []spanTile{
			spanTile1WordsAVX512, spanTile2WordsAVX512, spanTile3WordsAVX512, spanTile4WordsAVX512,
			spanTile5WordsAVX512, spanTile6WordsAVX512,
		},
		row: spanRowWordsAVX512,
		scales: [formatCount]func(*byte, *float32, *byte, int, int){
			Q8: spanScalesQ8WordsAVX512, IQ4: spanScalesQ8WordsAVX512,
		},
		unpack: [formatCount]func(*byte, *byte, *byte, int){
			Q8: spanUnpackQ8WordsAVX512, IQ4: spanUnpackQ8WordsAVX512,
		},
	}
	wordsAVX2 = spanOps{
		tiles: []spanTile{
			spanTile1WordsAVX2, spanTile2WordsAVX2, spanTile3WordsAVX2, spanTile4WordsAVX2,
			spanTile5WordsAVX2, spanTile6WordsAVX2,
		},
		row: spanRowWordsAVX2,
		scales: [formatCount]func(*byte, *float32, *byte, int, int){
			Q8: spanScalesQ8WordsAVX2, IQ4: spanScalesQ8WordsAVX2,
		},
		unpack: [formatCount]func(*byte, *byte, *byte, int){
			Q8: spanUnpackQ8WordsAVX2, IQ4: spanUnpackQ8WordsAVX2,
		},
	}
)

// spanKernels returns the kernels for a format.
func spanKernels(on isa, f Format) *spanOps {
	words, wide := f == Q8 || f == IQ4, on.level() == implAVX512
	switch {
	case !on.madd() && wide:
		return &spansAVX512
	case !on.madd():
		return &spansAVXVNNI
	case words && wide:
		return &wordsAVX512
	case words:
		return &wordsAVX2
	case wide:
		return &nibblesAVX512
	}
	return &nibblesAVX2
}

// spanProduct is one product in spans. It is recycled.
type spanProduct struct {
	dst, x   []float32
	ops      *spanOps
	m        int
	w        *Matrix
	bias     []float32
	blocks   int    // of K
	spans    int    // of K
	tiles    int    // of rows
	acts     []byte // x rounded, [spans][m] records
	act      int    // bytes of a record
	rows     int    // of x that a task rounds
	panels   int    // of a task
	parts    int    // of the rows
	runActs  func(int)
	runTasks func(int)
}

var spanProducts = sync.Pool{New: func() any {
	t := new(spanProduct)
	t.runActs, t.runTasks = t.round, t.task
	return t
}}

// spanScratch is one thread's scratch memory.
type spanScratch struct {
	*spanVectors
	tail []float32 // outputs of an incomplete panel
	sums []byte    // accumulators, [panels][rows][32] float32
	wide []byte    // a span of IQ4 as Q8
}

// spanVectors is read and written in whole vectors, which take longer where they cross cache lines.
type spanVectors struct {
	units [spanBlocks * spanUnit]byte // a span of a panel, unpacked
	// scales are those of a panel's columns in a span; the parameters of its blocks follow, and
	// room for a tile's sums
	scales [quantPanel + (spanBlocks+1)*paramBytes/4 + spanSums]float32
	bias   [quantPanel]float32
	part   [orderedPart]float32 // of a row of x
}

var spanScratches = sync.Pool{New: func() any {
	return &spanScratch{spanVectors: newSpanVectors()}
}}

func newSpanVectors() *spanVectors {
	memory := alignedFloats(int(unsafe.Sizeof(spanVectors{}) / 4))
	return (*spanVectors)(unsafe.Pointer(&memory[0]))
}

// alignedFloats returns n floats that start at a cache line.
func alignedFloats(n int) []float32 {
	b := make([]float32, n+16)
	for uintptr(unsafe.Pointer(&b[0]))%64 != 0 {
		b = b[1:]
	}
	return b[:n]
}

func spanMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	t := spanProducts.Get().(*spanProduct)
	t.dst, t.x, t.m, t.w, t.bias = dst, x, m, w, bias
	t.ops, t.act = spanKernels(computing(), w.Format), computing().spanAct(w.Format)
	t.blocks = quantBlocks(w.K)
	t.spans = (t.blocks + spanBlocks - 1) / spanBlocks
	t.tiles = (m + len(t.ops.tiles) - 1) / len(t.ops.tiles)
	t.acts = growWork(t.acts, t.spans*m*t.act)
	if m*w.N*w.K < quantSerialWork {
		p = nil
	}
	t.rows = p.share(m, quantRows)
	p.Run((m+t.rows-1)/t.rows, t.runActs)
	panels := (w.N + quantPanel - 1) / quantPanel
	t.panels = max(1, min(spanPanels, panels/(4*p.Threads())))
	tasks := (panels + t.panels - 1) / t.panels
	t.parts = p.parts(tasks, (m+spanRowBlock-1)/spanRowBlock, t.tiles)
	p.Run(tasks*t.parts, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	spanProducts.Put(t)
}

// round rounds some rows of x.
func (t *spanProduct) round(task int) {
	k := t.w.K
	s := spanScratches.Get().(*spanScratch)
	for i := task * t.rows; i < min(t.m, (task+1)*t.rows); i++ {
		row := t.x[i*k : (i+1)*k]
		for span := range t.spans {
			from := span * spanDepth
			n := min(spanDepth, k-from)
			x := row[from : from+n]
			if t.w.Order != nil {
				x = t.w.gather(&s.part, row, from, n)
			}
			if n%64 != 0 { // a whole number of steps, the rest zeros
				clear(s.part[copy(s.part[:], x):])
				x = s.part[:]
			}
			t.ops.row(&t.acts[(span*t.m+i)*t.act], &x[0], (n+63)/64)
		}
	}
	spanScratches.Put(s)
}

// rowOf returns the first row of a tile, or the number of rows after the last one. The first m mod
// tiles tiles have one row more than the others.
func (t *spanProduct) rowOf(tile int) int {
	return tile*(t.m/t.tiles) + min(tile, t.m%t.tiles)
}

func (t *spanProduct) task(task int) {
	part, panel := task%t.parts, task/t.parts*t.panels
	panels := min(t.panels, (t.w.N+quantPanel-1)/quantPanel-panel)
	first, end := part*t.tiles/t.parts, (part+1)*t.tiles/t.parts
	rows := t.rowOf(end) - t.rowOf(first)
	s := spanScratches.Get().(*spanScratch)
	s.sums = growWork(s.sums, panels*rows*4*quantPanel)
	size := quantBlockSize(t.w.Format)
	for i := range t.spans * panels {
		span, at := i/panels, i%panels
		data := t.spanOf(panel+at, span)
		var next []byte // the weights that are needed next
		if i+1 < t.spans*panels {
			next = t.spanOf(panel+(i+1)%panels, (i+1)/panels)
		}
		blocks := len(data) / size
		fetched := (end - first) * blocks * spanFetch // by the tiles
		if lines := (len(next) - fetched + 63) / 64; lines > 0 {
			spanFetchRest(&next[max(0, len(next)-64*lines)], lines)
		}
		s.unpack(t.ops, t.w.Format, data, blocks)
		s.multiply(t, panel+at, s.sums[at*rows*4*quantPanel:], span, blocks, first, end, next)
	}
	spanScratches.Put(s)
}

// spanOf returns the bytes of a span of a panel.
func (t *spanProduct) spanOf(panel, span int) []byte {
	size := quantBlockSize(t.w.Format)
	first, end := span*spanBlocks, min((span+1)*spanBlocks, t.blocks)
	return t.w.Data[(panel*t.blocks+first)*size : (panel*t.blocks+end)*size]
}

// unpack unpacks the blocks of a span of a panel.
func (s *spanScratch) unpack(ops *spanOps, f Format, data []byte, blocks int) {
	if f == IQ4 {
		s.wide = grow(s.wide, spanBlocks*quantBlockSize(Q8))
		widenIQ4(s.wide, data, blocks)
		data = s.wide
	}
	params := (*byte)(unsafe.Pointer(&s.scales[quantPanel]))
	ops.scales[f](params, &s.scales[0], &data[0], blocks, ops.round)
	ops.unpack[f](&s.units[0], &data[0], params, blocks)
}

// multiply multiplies tiles first … end-1 with the unpacked span of a panel, and adds to the
// accumulators c or, in the last span, writes the outputs.
func (s *spanScratch) multiply(t *spanProduct, panel int, c []byte, span, blocks, first, end int,
	next []byte) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(next)))
	stop := from + uintptr(len(next))
	begin := 0
	if span == 0 {
		begin = 1
	}
	var dst []float32
	ldd, top, col := t.w.N, t.rowOf(first), panel*quantPanel
	width := min(quantPanel, t.w.N-col)
	if span == t.spans-1 {
		clear(s.bias[:])
		if t.bias != nil {
			copy(s.bias[:width], t.bias[col:])
		}
		dst = t.dst[top*ldd+col:]
		if width < quantPanel {
			s.tail = grow(s.tail, (t.rowOf(end)-top)*quantPanel)
			dst, ldd = s.tail, quantPanel
		}
	}
	for larger, tile := t.m%t.tiles, first; tile < end; {
		last, rows := end, t.m/t.tiles
		if tile < larger {
			last, rows = min(end, larger), rows+1
		}
		var out *float32
		if dst != nil {
			out = &dst[(t.rowOf(tile)-top)*ldd]
		}
		tiles := last - tile
		t.ops.tiles[rows-1]((*float32)(unsafe.Pointer(&c[0])),
			&t.acts[(span*t.m+t.rowOf(tile))*t.act], &s.units[0], &s.scales[0], blocks, tiles,
			begin, from, stop, out, ldd, &s.bias[0])
		c = c[tiles*rows*4*quantPanel:]
		from = min(stop, from+uintptr(tiles*blocks*spanFetch))
		tile = last
	}
	if dst == nil || width == quantPanel {
		return
	}
	for r := range t.rowOf(end) - top {
		copy(t.dst[(top+r)*t.w.N+col:][:width], s.tail[r*quantPanel:])
	}
}
