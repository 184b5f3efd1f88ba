//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel amx"

// The product by AMX tiles. x and the weights, after scaling, are rounded to bfloat16. Their
// products are exact and summed in float32 in ascending order of k. A row's bits depend neither on
// the other rows nor on how the work is split. Weights are unpacked strip by strip, a block of K at
// a time, while the first rows are multiplied with them.
const (
	tileRows  = 16
	tileK     = 32
	tileBytes = 1024
	pairRows  = 2 * tileRows
	// tilePage is the alignment of x and of units. The processor compares loads with earlier stores
	// only by their offset in a page of this size, so the tiles of x in one step must not have the
	// offsets of the units that are written for the next.
	tilePage = 4096
	// stripWidth is the number of columns of a strip: two tiles.
	stripWidth = 32
	// stripDepth is the K of a block, the part of a strip that is unpacked at once; a multiple of
	// tileK.
	stripDepth = 512
	// stripGroup is the most strips of a task, and tileRowBlock approximately the most rows. The
	// accumulators of all strips and the rows of one block of K then fit the second-level cache
	// together.
	stripGroup   = 16
	tileRowBlock = 320
)

// amxStrip multiplies tiles·16 rows of x with steps units and adds the products to the accumulators
// c of one strip, or sets them if first is not 0. It unpacks the first packed units from the
// weights at w. Meanwhile it prefetches memory from next to end; with soon also while it unpacks,
// because no step may follow.
type amxStrip = func(config, x *byte, tiles, steps int, units *byte, c *float32, first int, w *byte,
	packed int, next, end uintptr, soon int)

// tileConfig is palette 1 with eight tiles of 16 rows of 64 bytes.
var tileConfig = func() (c [64]byte) {
	c[0] = 1
	for i := range 8 {
		c[16+2*i], c[48+i] = 64, tileRows
	}
	return c
}()

// amxStrips lists the kernels by format.
var amxStrips = map[Format]amxStrip{
	Q8: amxStripQ8, Q4: amxStripQ4, Q4M: amxStripQ4M, IQ4: amxStripQ8, BF16Dot: amxStripPairs,
}

// tileProduct is one product by tiles. It is recycled.
type tileProduct struct {
	dst, x   []float32
	m        int
	w        *Matrix
	bias     []float32
	run      amxStrip
	kBlocks  int
	pairs    int    // of tiles of rows
	memory   []byte // holds acts
	acts     []byte // x rounded, [blocks of K][pairs][units][2][16][32] bfloat16
	group    int    // strips of a task
	rowParts int
	runActs  func(int)
	runTasks func(int)
}

var tileProducts = sync.Pool{New: func() any {
	t := new(tileProduct)
	t.runActs, t.runTasks = t.round, t.task
	return t
}}

// tileScratch is one thread's scratch memory.
type tileScratch struct {
	memory []byte
	units  *byte     // a block of a strip, unpacked
	c      *float32  // accumulators, [strips][tiles][2][16][16]
	tail   []float32 // outputs of an incomplete strip
	bias   [stripGroup * stripWidth]float32
	wide   [stripDepth / quantBlock * (2*quantPanel + quantPanel*quantBlock)]byte // IQ4 as Q8
}

var tileScratches = sync.Pool{New: func() any { return new(tileScratch) }}

const unitBytes = 2 * tileBytes

// stripBytes is the size of an unpacked block.
const stripBytes = stripDepth / tileK * unitBytes

// reserve allocates room for the accumulators of the given number of tiles of rows.
func (s *tileScratch) reserve(tiles int) {
	need := stripBytes + tiles*unitBytes + tilePage
	if len(s.memory) >= need {
		return
	}
	s.memory = growWork(s.memory, need)
	base := unsafe.Pointer(&s.memory[0])
	base = unsafe.Add(base, -uintptr(base)%tilePage)
	s.units = (*byte)(base)
	s.c = (*float32)(unsafe.Add(base, stripBytes))
}

func tileMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	t := tileProducts.Get().(*tileProduct)
	t.dst, t.x, t.m, t.w, t.bias = dst, x, m, w, bias
	t.run = amxStrips[w.Format]
	t.kBlocks = (w.K + stripDepth - 1) / stripDepth
	t.pairs = (m + pairRows - 1) / pairRows
	t.memory = growWork(t.memory, t.act(0, t.kBlocks)+tilePage)
	t.acts = t.memory[-uintptr(unsafe.Pointer(&t.memory[0]))%tilePage:]
	if m*w.N*w.K < quantSerialWork {
		p = nil
	}
	p.Run(t.pairs, t.runActs)
	strips := (w.N + stripWidth - 1) / stripWidth
	t.group = max(1, min(stripGroup, strips/(4*p.Threads())))
	tasks := (strips + t.group - 1) / t.group
	t.rowParts = (m + tileRowBlock - 1) / tileRowBlock
	if want := 4 * p.Threads(); p.Threads() > 1 && tasks < want {
		t.rowParts = max(t.rowParts, min((want+tasks-1)/tasks, (t.pairs+1)/2))
	}
	p.Run(tasks*t.rowParts, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	tileProducts.Put(t)
}

// steps returns the number of units in block b of K.
func (t *tileProduct) steps(b int) int {
	return (min(stripDepth, t.w.K-b*stripDepth) + tileK - 1) / tileK
}

// act returns the start of a pair of tiles of rows in t.acts in block b: a multiple of tilePage.
func (t *tileProduct) act(pair, b int) int {
	at := b * stripDepth / tileK * t.pairs
	if b < t.kBlocks {
		at += pair * ((t.steps(b) + 1) &^ 1)
	}
	return at * 2 * tileBytes
}

// round rounds the rows of x in a pair of tiles.
func (t *tileProduct) round(pair int) {
	k, first := t.w.K, pair*pairRows
	rows := min(pairRows, t.m-first)
	var ordered [orderedPart]float32 // of stripDepth
	for b := range t.kBlocks {
		steps, from := t.steps(b), b*stripDepth
		acts := t.acts[t.act(pair, b):][:steps*2*tileBytes]
		if rows%tileRows != 0 {
			clear(acts)
		}
		whole := min(steps, (k-from)/tileK)
		for r := range rows {
			to := acts[r/tileRows*tileBytes+r%tileRows*64:]
			x := t.x[(first+r)*k+from : (first+r+1)*k]
			if t.w.Order != nil {
				x = t.w.gather(&ordered, t.x[(first+r)*k:(first+r+1)*k], from,
					min(stripDepth, k-from))
			}
			if whole > 0 {
				amxRow(&to[0], &x[0], whole)
			}
			if whole < steps {
				var last [tileK]float32
				copy(last[:], x[whole*tileK:])
				amxRow(&to[whole*2*tileBytes], &last[0], 1)
			}
		}
	}
}

// packedAt returns the start of block b of a strip in the weight.
func (t *tileProduct) packedAt(strip, b int) int {
	if t.w.Format == BF16Dot {
		return strip/2*pairsPanel*pairsDepth(t.w.K)*2 + strip%2*4*stripWidth +
			b*stripDepth*pairsPanel*2
	}
	return (strip*quantBlocks(t.w.K) + b*stripDepth/quantBlock) * quantBlockSize(t.w.Format)
}

func (t *tileProduct) task(task int) {
	part := task % t.rowParts
	first, end := part*t.pairs/t.rowParts, (part+1)*t.pairs/t.rowParts
	tiles := (min(t.m, end*pairRows) - first*pairRows + tileRows - 1) / tileRows
	strip := task / t.rowParts * t.group
	strips := min(t.group, (t.w.N+stripWidth-1)/stripWidth-strip)
	s := tileScratches.Get().(*tileScratch)
	s.reserve(t.group * tiles)
	data := unsafe.Pointer(unsafe.SliceData(t.w.Data))
	blocks, soon := strips*t.kBlocks, 0
	if tiles <= 4 {
		soon = 1
	}
	for i := range blocks {
		b, c := i/strips, (*float32)(unsafe.Add(unsafe.Pointer(s.c), i%strips*tiles*unitBytes))
		at := t.packedAt(strip+i%strips, b)
		var next, end uintptr
		if i+1 < blocks {
			next = uintptr(data) + uintptr(t.packedAt(strip+(i+1)%strips, (i+1)/strips))
			end = next + uintptr(t.packedBytes((i+1)/strips))
		}
		start := 0
		if b == 0 {
			start = 1
		}
		steps := t.steps(b)
		packed := steps
		if rest := t.w.K % tileK; rest != 0 && b == t.kBlocks-1 && t.w.Format == BF16Dot {
			packed--
			unit := (*byte)(unsafe.Add(unsafe.Pointer(s.units), packed*unitBytes))
			t.lastUnit(unit, at+packed*tileK*2*pairsPanel, pairsDepth(rest))
		}
		from := (*byte)(unsafe.Add(data, at))
		if t.w.Format == IQ4 {
			widenIQ4(s.wide[:], t.w.Data[at:], packed)
			from = &s.wide[0]
		}
		t.run(&tileConfig[0], &t.acts[t.act(first, b)], tiles, steps, s.units, c, start, from,
			packed, next, end, soon)
	}
	t.store(s, strip, strips, first*pairRows, tiles)
	tileScratches.Put(s)
}

// packedBytes returns the size in the weight of block b of a strip.
func (t *tileProduct) packedBytes(b int) int {
	if t.w.Format == BF16Dot {
		return t.steps(b) * tileK * 2 * pairsPanel
	}
	return t.steps(b) * quantBlockSize(t.w.Format)
}

// lastUnit copies the existing part of an incomplete unit of BF16Dot, from at on.
func (t *tileProduct) lastUnit(unit *byte, at, depth int) {
	to := unsafe.Slice(unit, unitBytes)
	clear(to)
	for row := range depth / 2 {
		for h := range 2 {
			copy(to[h*tileBytes+64*row:][:64], t.w.Data[at+4*pairsPanel*row+64*h:])
		}
	}
}

// store writes finished strips with their bias, for some tiles of rows from row first on.
func (t *tileProduct) store(s *tileScratch, strip, strips, first, tiles int) {
	n, col := t.w.N, strip*stripWidth
	width := min(strips*stripWidth, n-col)
	clear(s.bias[:])
	if t.bias != nil {
		copy(s.bias[:width], t.bias[col:])
	}
	size := tiles * unitBytes // of one strip's accumulators
	for tile := range tiles {
		row := first + tile*tileRows
		rows := min(tileRows, t.m-row)
		from := (*float32)(unsafe.Add(unsafe.Pointer(s.c), tile*unitBytes))
		if whole := width / stripWidth; whole > 0 {
			amxStore(&t.dst[row*n+col], n, from, size, whole, rows, &s.bias[0])
		}
		if rest := width % stripWidth; rest > 0 {
			at := width - rest
			s.tail = grow(s.tail, tileRows*stripWidth)
			from = (*float32)(unsafe.Add(unsafe.Pointer(from), width/stripWidth*size))
			amxStore(&s.tail[0], stripWidth, from, size, 1, rows, &s.bias[at])
			for r := range rows {
				copy(t.dst[(row+r)*n+col+at:][:rest], s.tail[r*stripWidth:])
			}
		}
	}
}
