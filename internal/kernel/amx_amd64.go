//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel amx"

// The product by AMX tiles. With BF16Dot, x is rounded to bfloat16; products are exact and summed
// in float32 in ascending order of k. With the other formats, x and the weights are rounded to int8
// in spans of 256 of K, with a scale for each row and column; a span's sums are exact and added in
// float32 in ascending order of k. A row's bits depend neither on the other rows nor on how the
// work is split. Weights are unpacked strip by strip, a block of K at a time, while the first rows
// are multiplied with them.
const (
	tileRows  = 16
	tileBytes = 1024
	pairRows  = 2 * tileRows
	// tilePage is the alignment of x, of units and of accumulators. The processor compares loads
	// with earlier stores only by their offset in a page of this size, so the tiles of x in one
	// step must not have the offsets of the stores for the next.
	tilePage = 4096
	// stripWidth is the number of columns of a strip: two tiles.
	stripWidth = 32
	// A unit is two tiles of a weight, 32 of K in bfloat16 or 64 in int8. A block is the part of a
	// strip that one call unpacks.
	unitBytes  = 2 * tileBytes
	blockUnits = 16
	spanUnits  = spanDepth / 64
	stripBytes = blockUnits * unitBytes
	// stripGroup is the most strips of a task, and tileRowBlock approximately the most rows. The
	// accumulators of all strips and the rows of one block of K then fit the second-level cache
	// together.
	stripGroup   = 16
	tileRowBlock = 320
)

// amxSpans is amxPairs in int8, with pairs of tiles of rows, each stride bytes after the last. sums
// is room for two pairs; params and scales are what spanScales computed; rows are the scales of the
// rows of a span; the next span's begin nextRows bytes later. at and span are the function's own.
type amxSpans = func(config, x *byte, stride int, units *byte, c, sums *float32, w, params *byte,
	scales, rows *float32, nextRows, pairs, steps, first int, next, end uintptr, soon int, at *byte,
	span int)

// amxBytes lists the kernels in int8 by format.
var amxBytes = [...]amxSpans{
	Q8: amxBytesQ8, Q4: amxBytesQ4, Q4M: amxBytesQ4M, IQ4: amxBytesQ8,
}

// tileRound rounds what spanScales prepares for tiles.
const tileRound = 128

// tileConfig is palette 1 with eight tiles of 16 rows of 64 bytes.
var tileConfig = func() (c [64]byte) {
	c[0] = 1
	for i := range 8 {
		c[16+2*i], c[48+i] = 64, tileRows
	}
	return c
}()

// tileProduct is one product by tiles. It is recycled.
type tileProduct struct {
	dst, x    []float32
	m         int
	w         *Matrix
	bias      []float32
	unit      int       // K of a unit
	blocks    int       // of K
	pairs     int       // of tiles of rows
	memory    []byte    // holds acts
	acts      []byte    // x rounded, [blocks of K][pairs][units][2][16][64] bytes
	scaling   []float32 // holds scales
	rowScales []float32 // of x in int8, [spans][pairs][32]
	group     int       // strips of a task
	rowParts  int
	runActs   func(int)
	runTasks  func(int)
}

var tileProducts = sync.Pool{New: func() any {
	t := new(tileProduct)
	t.runActs, t.runTasks = t.round, t.task
	return t
}}

// tileScratch is one thread's scratch memory.
type tileScratch struct {
	memory    []byte
	units     *byte     // a block of a strip, unpacked
	sums      *float32  // of two pairs of tiles in a span
	c         *float32  // accumulators, [strips][tiles][2][16][16]
	tail      []float32 // outputs of an incomplete strip
	bias      [stripGroup * stripWidth]float32
	wide      []byte // a block as Q8, or with an even number of blocks of the format
	params    [2 * blockUnits * paramBytes]byte
	colScales *float32 // of the columns, [spans][32]
}

var tileScratches = sync.Pool{New: func() any { return new(tileScratch) }}

// reserve allocates room for the accumulators of the given number of tiles of rows.
func (s *tileScratch) reserve(tiles int) {
	const sums, scales = 4 * unitBytes, blockUnits / spanUnits * 4 * stripWidth
	need := stripBytes + sums + tiles*unitBytes + scales + tilePage
	if len(s.memory) >= need {
		return
	}
	s.memory = growWork(s.memory, need)
	base := unsafe.Pointer(&s.memory[0])
	base = unsafe.Add(base, -uintptr(base)%tilePage)
	s.units = (*byte)(base)
	s.sums = (*float32)(unsafe.Add(base, stripBytes))
	s.c = (*float32)(unsafe.Add(base, stripBytes+sums))
	s.colScales = (*float32)(unsafe.Add(base, stripBytes+sums+tiles*unitBytes))
}

func tileMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	t := tileProducts.Get().(*tileProduct)
	t.dst, t.m, t.w, t.bias = dst, m, w, bias
	t.prepare(x)
	if m*w.N*w.K < quantSerialWork {
		p = nil
	}
	p.Run(t.pairs, t.runActs)
	strips := (w.N + stripWidth - 1) / stripWidth
	t.group = max(1, min(stripGroup, strips/(4*p.Threads())))
	tasks := (strips + t.group - 1) / t.group
	t.rowParts = p.parts(tasks, (m+tileRowBlock-1)/tileRowBlock, (t.pairs+1)/2)
	p.Run(tasks*t.rowParts, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	tileProducts.Put(t)
}

// prepare allocates room for x, rounded.
func (t *tileProduct) prepare(x []float32) {
	t.x, t.unit = x, 64
	if t.w.Format == BF16Dot {
		t.unit = 32
	}
	t.blocks = (t.w.K + t.depth() - 1) / t.depth()
	t.pairs = (t.m + pairRows - 1) / pairRows
	t.memory = growWork(t.memory, t.act(0, t.blocks)+tilePage)
	t.acts = t.memory[-uintptr(unsafe.Pointer(&t.memory[0]))%tilePage:]
	spans := (t.w.K + spanDepth - 1) / spanDepth
	t.scaling = grow(t.scaling, spans*t.pairs*pairRows+stripWidth)
	t.rowScales = t.scaling[-uintptr(unsafe.Pointer(&t.scaling[0]))%(4*stripWidth)/4:]
}

// depth returns the K of a block.
func (t *tileProduct) depth() int { return blockUnits * t.unit }

// steps returns the number of units in block b of K.
func (t *tileProduct) steps(b int) int {
	return (min(t.depth(), t.w.K-b*t.depth()) + t.unit - 1) / t.unit
}

// stride returns the bytes of a pair of tiles of rows in block b: a multiple of tilePage.
func (t *tileProduct) stride(b int) int { return (t.steps(b) + 1) &^ 1 * unitBytes }

// act returns the start of a pair of tiles of rows in t.acts in block b: a multiple of tilePage.
func (t *tileProduct) act(pair, b int) int {
	at := b * stripBytes * t.pairs
	if b < t.blocks {
		at += pair * t.stride(b)
	}
	return at
}

// round rounds the rows of x in a pair of tiles.
func (t *tileProduct) round(pair int) {
	k, first := t.w.K, pair*pairRows
	rows := min(pairRows, t.m-first)
	var part [orderedPart]float32
	for b := range t.blocks {
		acts := t.acts[t.act(pair, b):][:t.stride(b)]
		if rows%tileRows != 0 || rows < pairRows {
			clear(acts)
		}
		for from := b * t.depth(); from < min(k, (b+1)*t.depth()); from += spanDepth {
			n := min(spanDepth, k-from)
			at := acts[(from-b*t.depth())/t.unit*unitBytes:]
			for r := range rows {
				x := t.x[(first+r)*k+from : (first+r)*k+from+n]
				if t.w.Order != nil {
					x = t.w.gather(&part, t.x[(first+r)*k:(first+r+1)*k], from, n)
				}
				if n%t.unit != 0 { // a whole number of units, the rest zeros
					clear(part[copy(part[:], x):])
					x = part[:]
				}
				t.roundRow(&at[r/tileRows*tileBytes+r%tileRows*64], &x[0], (n+t.unit-1)/t.unit,
					pair, r, from/spanDepth)
			}
		}
	}
}

// roundRow rounds some units of a row of a pair.
func (t *tileProduct) roundRow(to *byte, x *float32, units, pair, row, span int) {
	if t.unit == 32 {
		amxRow(to, x, units)
		return
	}
	amxRowBytes(to, x, units, &t.rowScales[(span*t.pairs+pair)*pairRows+row])
}

// packedAt returns the start of block b of a strip in the weight.
func (t *tileProduct) packedAt(strip, b int) int {
	if t.w.Format == BF16Dot {
		return strip/2*pairsPanel*pairsDepth(t.w.K)*2 + strip%2*4*stripWidth +
			b*t.depth()*pairsPanel*2
	}
	return (strip*quantBlocks(t.w.K) + b*t.depth()/quantBlock) * quantBlockSize(t.w.Format)
}

func (t *tileProduct) task(task int) {
	part := task % t.rowParts
	first, end := part*t.pairs/t.rowParts, (part+1)*t.pairs/t.rowParts
	tiles := 2 * (end - first)
	strip := task / t.rowParts * t.group
	strips := min(t.group, (t.w.N+stripWidth-1)/stripWidth-strip)
	s := tileScratches.Get().(*tileScratch)
	s.reserve(t.group * tiles)
	for i := range strips * t.blocks {
		c := tileBlock{
			tileProduct: t, tileScratch: s, b: i / strips, strip: strip + i%strips, first: first,
			pairs: end - first,
			c:     (*float32)(unsafe.Add(unsafe.Pointer(s.c), i%strips*tiles*unitBytes)),
		}
		if next := i + 1; next < strips*t.blocks {
			c.next = uintptr(unsafe.Pointer(unsafe.SliceData(t.w.Data))) +
				uintptr(t.packedAt(strip+next%strips, next/strips))
			c.end = c.next + uintptr(t.packedBytes(next/strips))
		}
		if tiles <= 4 {
			c.soon = 1
		}
		if i < strips {
			c.begin = 1
		}
		c.multiply()
	}
	t.store(s, strip, strips, first*pairRows, tiles)
	tileScratches.Put(s)
}

// tileBlock is the product of pairs of tiles of rows, from the first on, with a block of a strip.
type tileBlock struct {
	*tileProduct
	*tileScratch
	b, strip, first, pairs int
	c                      *float32 // accumulators of the strip
	next, end              uintptr  // the weights that are needed next
	soon, begin            int      // of amxPairs
}

func (t *tileBlock) multiply() {
	if t.w.Format == BF16Dot {
		t.multiplyPairs()
	} else {
		t.multiplyBytes()
	}
}

func (t *tileBlock) multiplyPairs() {
	at, steps := t.packedAt(t.strip, t.b), t.steps(t.b)
	packed := steps
	if rest := t.w.K % t.unit; rest != 0 && t.b == t.blocks-1 {
		packed--
		unit := (*byte)(unsafe.Add(unsafe.Pointer(t.units), packed*unitBytes))
		t.lastUnit(unit, at+packed*t.unit*2*pairsPanel, pairsDepth(rest))
	}
	tiles := (min(t.m-t.first*pairRows, t.pairs*pairRows) + tileRows - 1) / tileRows
	w := (*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.w.Data)), at))
	amxPairs(&tileConfig[0], &t.acts[t.act(t.first, t.b)], tiles, steps, t.units, t.c, t.begin, w,
		packed, t.next, t.end, t.soon)
}

func (t *tileBlock) multiplyBytes() {
	at, steps, size := t.packedAt(t.strip, t.b), t.steps(t.b), quantBlockSize(t.w.Format)
	blocks := min(2*steps, quantBlocks(t.w.K)-t.b*t.depth()/quantBlock)
	w := t.w.Data[at:][:blocks*size]
	if t.w.Format == IQ4 {
		size = quantBlockSize(Q8)
		t.wide = grow(t.wide, 2*blockUnits*size)
		widenIQ4(t.wide, w, blocks)
		w = t.wide[:blocks*size]
	}
	if blocks%2 != 0 { // a whole number of units, the rest zeros
		t.wide = grow(t.wide, 2*blockUnits*size)
		clear(t.wide[copy(t.wide, w):])
		w, blocks = t.wide, blocks+1
	}
	f := t.w.Format
	for i := 0; i < blocks; i += spanBlocks {
		scales := (*float32)(unsafe.Add(unsafe.Pointer(t.colScales), i/spanBlocks*4*stripWidth))
		spansAVX512.scales[f](&t.params[i*paramBytes], scales, &w[i*size],
			min(spanBlocks, blocks-i), tileRound)
	}
	amxBytes[f](&tileConfig[0], &t.acts[t.act(t.first, t.b)], t.stride(t.b), t.units, t.c, t.sums,
		&w[0], &t.params[0], t.colScales,
		&t.rowScales[(t.b*blockUnits/spanUnits*t.tileProduct.pairs+t.first)*pairRows],
		4*pairRows*t.tileProduct.pairs, t.pairs, steps, t.begin, t.next, t.end, t.soon, nil, 0)
}

// packedBytes returns the size in the weight of block b of a strip.
func (t *tileProduct) packedBytes(b int) int {
	if t.w.Format == BF16Dot {
		return t.steps(b) * t.unit * 2 * pairsPanel
	}
	return t.steps(b) * t.unit / quantBlock * quantBlockSize(t.w.Format)
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
	for tile := range (min(t.m-first, tiles*tileRows) + tileRows - 1) / tileRows {
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
