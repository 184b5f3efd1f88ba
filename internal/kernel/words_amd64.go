//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel words"

// wordTile is c = from + the products of blocks of one panel, 16 columns. Rows of c and from are
// ldc and ldf bytes apart. For every 32 of K it prefetches a line at pf and moves pf by pfStep.
type wordTile = func(c *float32, ldc int, from *float32, ldf int, x *byte, w *byte, blocks int,
	pf uintptr, pfStep int)

// wordTiles are the tiles by number of rows. All levels use AVX2: wider vectors come with VNNI or
// BF16, for which other formats are faster.
var wordTiles = [...]wordTile{wordTile1, wordTile2, wordTile3, wordTile4, wordTile5, wordTile6}

const (
	// wordsPart is the most blocks along K that are multiplied at once: their part of a panel fits
	// the first-level cache.
	wordsPart = 4
	// wordsRowBlock is the most rows of a task, so that their part of the activations fits the
	// second-level cache.
	wordsRowBlock = 192
	// wordsTaskPanels is the most panels of a task.
	wordsTaskPanels = 8
)

func quantizeWords(dst []byte, scale, step int, x []float32, blocks, most int) {
	if impl() == implGo || blocks == 0 {
		quantizeWordsGo(dst, scale, step, x, blocks, most)
		return
	}
	quantizeWordsAVX2(&dst[0], &dst[scale], step, &x[0], blocks, most)
}

// wordsProduct is one product with a weight in Q12. It is recycled.
type wordsProduct struct {
	dst, x   []float32
	m        int
	w        *Matrix
	bias     []float32
	blocks   int
	acts     []byte // x rounded: parts of K, tiles of rows, blocks
	tiles    int
	panels   int // of a task
	mBlocks  int
	runActs  func(int)
	runTasks func(int)
}

var wordsProducts = sync.Pool{New: func() any {
	t := new(wordsProduct)
	t.runActs, t.runTasks = t.pack, t.task
	return t
}}

// wordsScratch is one thread's scratch memory.
type wordsScratch struct {
	sums []byte
	bias [wordsPanel]float32
}

var wordsScratches = sync.Pool{New: func() any { return new(wordsScratch) }}

// wordsMatMul rounds x to int16 in blocks and computes the product block by block: exact integer
// sums, scaled and added in float32 in ascending order of k.
func wordsMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	if impl() == implGo || w.K == 0 {
		matMulGo(p, dst, x, m, w, bias)
		return
	}
	t := wordsProducts.Get().(*wordsProduct)
	t.dst, t.x, t.m, t.w, t.bias = dst, x, m, w, bias
	t.blocks = wordsBlocks(w.K)
	t.acts = growWork(t.acts, m*t.blocks*wordActs)
	t.tiles = (m + len(wordTiles) - 1) / len(wordTiles)
	if m*w.N*w.K < serialWork {
		p = nil
	}
	p.Run(t.tiles, t.runActs)
	panels := (w.N + wordsPanel - 1) / wordsPanel
	t.panels = max(1, min(wordsTaskPanels, panels/(8*p.Threads())))
	tasks := (panels + t.panels - 1) / t.panels
	t.mBlocks = p.parts(tasks, (m+wordsRowBlock-1)/wordsRowBlock, t.tiles)
	p.Run(tasks*t.mBlocks, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	wordsProducts.Put(t)
}

// rows returns the rows of a tile.
func (t *wordsProduct) rows(tile int) (first, end int) {
	return tile * t.m / t.tiles, (tile + 1) * t.m / t.tiles
}

// part returns the blocks of a part of K.
func (t *wordsProduct) part(part int) (first, end int) {
	parts := t.parts()
	return part * t.blocks / parts, (part + 1) * t.blocks / parts
}

func (t *wordsProduct) parts() int { return (t.blocks + wordsPart - 1) / wordsPart }

// pack rounds the rows of a tile and stores them in the order in which tiles read them.
func (t *wordsProduct) pack(tile int) {
	first, end := t.rows(tile)
	rows, k := end-first, t.w.K
	for r := range rows {
		x := t.x[(first+r)*k:][:k]
		for part := range t.parts() {
			b, stop := t.part(part)
			to := t.acts[(b*t.m+first*(stop-b))*wordActs:]
			scale, step := 2*wordsBlock*(rows-r)+4*r, wordActs*rows
			to = to[2*wordsBlock*r:]
			whole := min(stop, k/wordsBlock)
			quantizeWords(to, scale, step, x[b*wordsBlock:], whole-b, wordActMost)
			if whole < stop { // the last block is incomplete
				var last [wordsBlock]float32
				copy(last[:], x[whole*wordsBlock:])
				quantizeWords(to[(whole-b)*step:], scale, step, last[:], 1, wordActMost)
			}
		}
	}
}

// task computes some tiles of some panels, a part of K at a time.
func (t *wordsProduct) task(task int) {
	s := wordsScratches.Get().(*wordsScratch)
	panel, mBlock := task/t.mBlocks*t.panels, task%t.mBlocks
	begin, stop := mBlock*t.tiles/t.mBlocks, (mBlock+1)*t.tiles/t.mBlocks
	top, _ := t.rows(begin)
	bottom, _ := t.rows(stop)
	count, n := bottom-top, t.w.N
	panels := min(t.panels, (n+wordsPanel-1)/wordsPanel-panel)
	s.sums = growWork(s.sums, panels*count*4*wordsPanel)
	sums := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(s.sums))), len(s.sums)/4)
	size := t.blocks * wordsBlockSize
	data := t.w.Data[panel*size:]
	parts := t.parts()
	for part := range parts {
		b, e := t.part(part)
		depth := e - b
		for i := range panels {
			col := (panel + i) * wordsPanel
			width := min(wordsPanel, n-col)
			sums := sums[i*count*wordsPanel:][:count*wordsPanel]
			from, ldf := &sums[0], wordsPanel
			if part == 0 {
				clear(s.bias[:])
				if t.bias != nil {
					copy(s.bias[:], t.bias[col:col+width])
				}
				from, ldf = &s.bias[0], 0
			}
			whole := part+1 == parts && width == wordsPanel
			c, ldc := &sums[0], wordsPanel
			if whole {
				c, ldc = &t.dst[top*n+col], n
			}
			w := data[i*size+b*wordsBlockSize:]
			next, left := uintptr(unsafe.Pointer(&w[0]))+uintptr(size), depth*wordsBlockSize
			if i+1 == panels { // prefetch the first panel's next part
				next = uintptr(unsafe.Pointer(&data[0])) + uintptr(e*wordsBlockSize)
			}
			for tile := begin; tile < stop; tile++ {
				first, end := t.rows(tile)
				step, r := 0, first-top
				if left > 0 {
					step = 64
				}
				wordTiles[end-first-1]((*float32)(unsafe.Add(unsafe.Pointer(c), 4*r*ldc)),
					4*ldc, (*float32)(unsafe.Add(unsafe.Pointer(from), 4*r*ldf)), 4*ldf,
					&t.acts[(b*t.m+first*depth)*wordActs], &w[0], depth, next, step)
				next += uintptr(depth * wordsBlock / 32 * step)
				left -= depth * wordsBlock / 32 * step
			}
			for r := 0; part+1 == parts && !whole && r < count; r++ {
				copy(t.dst[(top+r)*n+col:][:width], sums[r*wordsPanel:])
			}
		}
	}
	wordsScratches.Put(s)
}
