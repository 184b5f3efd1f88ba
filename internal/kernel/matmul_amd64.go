//go:build !purego

package kernel

import (
	"sync"
	"unsafe"
)

//go:generate sh -c "cd _gen && go run . -kernel matmul"

const (
	maxTileRows = 6
	// depth is the most values of k in a packed panel: with 64 columns 128 KiB, which fit the
	// second-level cache together with the rows of x.
	depth = 512
	// rowBlock is the most rows of one task, and so limits its accumulators.
	rowBlock = 960
	// groupWidth is the number of columns of a task if all rows of x take more than groupBytes,
	// which a shared last-level cache may not hold. Then groupTiles tiles of x at a time go over
	// all panels of the group from the second-level cache.
	groupWidth = 64
	groupBytes = 4 << 20
	groupTiles = 24
	// streamBytes is the part of a weight that one task of a small product reads.
	streamBytes = 128 << 10
	// partsK is the least K that dotParts divides into blocks.
	partsK = 2048
	// dotsRow is the size of a weight's row below which one or two rows of x are faster without
	// dotParts.
	dotsRow = 3 << 10
)

// smallRows returns the most rows of x that are multiplied straight with the weight's rows; from
// more rows on, packing is faster.
func smallRows(level implementation) int {
	if level == implAVX512 {
		return 18
	}
	return 16
}

// fewRows: plain weights are multiplied with more rows in another order.
func fewRows(f Format) int {
	if f.packed() {
		return anyRows
	}
	return smallRows(impl())
}

// panelWidth returns the number of columns of gemmTile's packed operand.
func panelWidth(level implementation) int {
	if level == implAVX512 {
		return 64
	}
	return 16
}

// prefetch walks over a block of memory row by row, 128 or 256 bytes per step, one step for every
// four of a tile's k, so that the next panel's weights arrive while this one is used. The zero
// value does nothing.
type prefetch struct {
	next   uintptr // may point past the matrix: never dereferenced
	stride int     // bytes from row to row
	rows   int     // rows of the block
	row    int     // index of next's row
	left   int     // remaining steps
	second int     // 128 for steps of 256 bytes, 0 for 128
}

// prefetchForever is a count that no tile reaches.
const prefetchForever = 1 << 40

// gemmTile is C[rows, w] = A[rows, k]·B[k, w], added to C if accumulate is set, for 1 to 6 rows and
// w = panelWidth(level). Larger products are built from it. ldc and lda count elements; B is packed
// with w values for every k (see packPanel). It reads and writes nothing outside. Every output is
// one chain of fused multiply-adds in ascending k, so the number of rows does not change its
// result. The level must not be implGo.
func gemmTile(
	level implementation, c *float32, ldc int, a *float32, lda int, b *float32, k, rows int,
	accumulate bool, pf *prefetch,
) {
	add := 0
	if accumulate {
		add = 1
	}
	next, stride, left, wrap, wrapRows := uintptr(unsafe.Pointer(b)), 0, prefetchForever, 0,
		prefetchForever
	if pf.left > 0 {
		next, stride, left = pf.next, pf.stride, pf.rows-pf.row
		wrap, wrapRows = 128+pf.second-pf.rows*pf.stride, pf.rows
		pf.advance(k / 4)
	}
	if level == implAVX512 {
		switch rows {
		case 1:
			tileAVX5121(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
		case 2:
			tileAVX5122(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
		case 3:
			tileAVX5123(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
		case 4:
			tileAVX5124(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
		case 5:
			tileAVX5125(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
		case 6:
			tileAVX5126(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
		}
		return
	}
	switch rows {
	case 1:
		tileAVX21(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
	case 2:
		tileAVX22(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
	case 3:
		tileAVX23(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
	case 4:
		tileAVX24(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
	case 5:
		tileAVX25(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
	case 6:
		tileAVX26(c, ldc, a, lda, b, k, add, next, stride, left, wrap, wrapRows, pf.second)
	}
}

func (pf *prefetch) advance(steps int) {
	pf.left -= steps
	if pf.left <= 0 {
		return
	}
	pf.row += steps
	pf.next += uintptr(steps * pf.stride)
	for pf.row >= pf.rows {
		pf.row -= pf.rows
		pf.next += uintptr(128 + pf.second - pf.rows*pf.stride)
	}
}

// packPanel packs columns of a product from the rows of a matrix [n, k] of
// format f whose rows are ld bytes apart: dst[i·w+j] = src[j, i] widened,
// w = panelWidth(level), n ≤ w; columns from n on are zero. dst has
// w·(k rounded up to 16) elements.
func packPanel(level implementation, f Format, dst []float32, src unsafe.Pointer, ld, n, k int) {
	w, lanes := panelWidth(level), 8
	if level == implAVX512 {
		lanes = 16
	}
	size := f.Size()
	whole := k / lanes
	_ = dst[:w*lanes*((k+lanes-1)/lanes)]
	for j := 0; j < w; j += lanes {
		rows := min(lanes, n-j)
		if rows <= 0 {
			for i := range k {
				clear(dst[i*w+j : i*w+w])
			}
			return
		}
		from := unsafe.Add(src, j*ld)
		if rows == lanes && whole > 0 {
			packBlocks(level, f, &dst[j], 4*w, (*byte)(from), ld, whole)
		}
		first := whole // the first block that whole squares do not cover
		if rows < lanes {
			first = 0
		}
		for block := first; block*lanes < k; block++ {
			var square [16 * 16 * 4]byte
			count := min(lanes, k-block*lanes) * size
			for r := range rows {
				copy(square[r*lanes*size:],
					unsafe.Slice((*byte)(unsafe.Add(from, r*ld+block*lanes*size)), count))
			}
			packBlocks(level, f, &dst[block*lanes*w+j], 4*w, &square[0], lanes*size, 1)
		}
	}
}

func packBlocks(level implementation, f Format, dst *float32, ldd int, src *byte, ld, blocks int) {
	if level == implAVX512 {
		switch f {
		case F32:
			packF32AVX512(dst, ldd, src, ld, blocks)
		case F16:
			packF16AVX512(dst, ldd, src, ld, blocks)
		case BF16:
			packBF16AVX512(dst, ldd, src, ld, blocks)
		}
		return
	}
	switch f {
	case F32:
		packF32AVX2(dst, ldd, src, ld, blocks)
	case F16:
		packF16AVX2(dst, ldd, src, ld, blocks)
	case BF16:
		packBF16AVX2(dst, ldd, src, ld, blocks)
	}
}

// product is one call of MatMul. It is recycled with its buffers, so that a product allocates
// nothing once they are large enough.
type product struct {
	level  implementation
	dst, x []float32
	m      int
	w      *Matrix
	bias   []float32

	kc, blocks int    // depth of a block of k, number of blocks
	xBlocks    []byte // x as [blocks][m][kc] float32, when there are several blocks

	// for few rows
	rowsPerTask int
	parts       bool // with dotParts

	// for many rows
	group     int // panels of a task
	mBlocks   int
	runDots   func(int)
	runCopy   func(int)
	runPanels func(int)
}

var products = sync.Pool{New: func() any {
	t := new(product)
	t.runDots, t.runCopy, t.runPanels = t.dots, t.copyX, t.panels
	return t
}}

// scratch is one thread's scratch memory for a task with many rows.
type scratch struct {
	panel []float32 // packed weights
	c     []float32 // accumulators [rows][panelWidth]
	bias  [64]float32
}

var scratches = sync.Pool{New: func() any {
	// aligned to cache lines, so that no vector of the panel crosses one
	b := make([]float32, depth*64+16)
	for uintptr(unsafe.Pointer(&b[0]))%64 != 0 {
		b = b[1:]
	}
	return &scratch{panel: b}
}}

func matMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	level := impl()
	if level == implGo || w.K == 0 {
		matMulGo(p, dst, x, m, w, bias)
		return
	}
	if m*w.N*w.K < serialWork {
		p = nil
	}
	t := products.Get().(*product)
	t.level, t.dst, t.x, t.m, t.w, t.bias = level, dst, x, m, w, bias
	if m <= smallRows(level) {
		t.runSmall(p)
	} else {
		t.runLarge(p)
	}
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	products.Put(t)
}

// runSmall multiplies few rows straight with the rows of the weight, at the speed of memory.
func (t *product) runSmall(p *Pool) {
	row := t.w.K * t.w.Format.Size()
	if t.parts = t.level == implAVX2 && (t.m > 2 || row >= dotsRow); t.parts {
		blocks := 1
		if t.w.K >= partsK {
			blocks = (t.w.K + depth - 1) / depth
		}
		t.divide(p, blocks)
	}
	t.rowsPerTask = max(4, streamBytes/row&^3)
	if p != nil { // small weights: still a few tasks per thread
		t.rowsPerTask = max(4, min(t.rowsPerTask, t.w.N/(4*p.Threads())&^3))
	}
	p.Run((t.w.N+t.rowsPerTask-1)/t.rowsPerTask, t.runDots)
}

// divide divides K into blocks. If there are several, it rearranges x.
func (t *product) divide(p *Pool, blocks int) {
	t.kc = ((t.w.K+blocks-1)/blocks + 15) &^ 15
	t.blocks = (t.w.K + t.kc - 1) / t.kc
	if t.blocks > 1 {
		t.xBlocks = growWork(t.xBlocks, t.blocks*t.m*t.kc*4)
		p.Run((t.m+copyRows-1)/copyRows, t.runCopy)
	}
}

// block returns rows of x from first on in block b of K, and the distance between them.
func (t *product) block(b, first int) (x []float32, ld int) {
	if t.blocks > 1 {
		return t.blockedX()[(b*t.m+first)*t.kc:], t.kc
	}
	return t.x[first*t.w.K:], t.w.K
}

func (t *product) dots(task int) {
	w, m := t.w, t.m
	size := w.Format.Size()
	lanes, maxM := 8, 2
	if t.level == implAVX512 {
		lanes, maxM = 16, 6
	}
	blocks, rest := w.K/lanes, w.K%lanes
	mask := 1<<rest - 1
	end := min(w.N, (task+1)*t.rowsPerTask)
	data := unsafe.Pointer(unsafe.SliceData(w.Data))
	kernels := &dotTiles[t.level][w.Format]
	var s *scratch
	if t.parts {
		s = scratches.Get().(*scratch)
		defer scratches.Put(s)
	}
	for r := task * t.rowsPerTask; r < end; {
		rows := 4
		if end-r < 4 {
			rows = 1
		}
		row := (*byte)(unsafe.Add(data, r*w.K*size))
		if rows == 4 && t.parts {
			t.dotParts(s, r, row)
		} else {
			for i := 0; i < m; {
				n, shape := 1, len(kernels)-1
				if rows == 4 {
					// almost equal parts, so that none is slow
					parts := (m - i + maxM - 1) / maxM
					n = (m - i + parts - 1) / parts
					shape = n - 1
				}
				kernels[shape](&t.dst[i*w.N+r], w.N, &t.x[i*w.K], w.K, row, w.K*size, blocks, mask)
				i += n
			}
		}
		if rest != 0 && t.level == implAVX2 {
			t.dotTails(r, rows, w.K-rest)
		}
		if t.bias != nil {
			for i := range m {
				d := t.dst[i*w.N+r : i*w.N+r+rows]
				for j := range d {
					d[j] += t.bias[r+j]
				}
			}
		}
		r += rows
	}
}

// dotParts computes whole vectors of k of the outputs r … r+3, a block of k at a time, so that the
// weight's rows, of which row is the first, stay in the first-level cache for all rows of x.
func (t *product) dotParts(s *scratch, r int, row *byte) {
	w, m := t.w, t.m
	size := w.Format.Size()
	threes, twos, ones := m/3, 0, 0
	switch {
	case m == 1:
		ones = 1
	case m%3 > 0: // 2 and 2 rather than 3 and 1
		threes, twos = (m-2)/3, 3-m%3
	}
	passes := threes + twos + ones
	sums := s.panel[:m*4*8]
	clear(sums)
	for b := range t.blocks {
		at := b * t.kc
		x, ldx := t.block(b, 0)
		// what comes next: this block of the next four rows, or the next block
		pf := t.kc * size
		if b+1 == t.blocks {
			pf = (4*w.K - at) * size
		}
		second := pf
		if passes < 4 {
			second += passes * w.K * size
		}
		part := (*byte)(unsafe.Add(unsafe.Pointer(row), at*size))
		dotPartsAVX2[w.Format](&sums[0], &x[0], ldx, part, w.K*size, min(t.kc, w.K-at)/8, threes,
			twos, ones, pf, second)
	}
	dotSumsAVX2(&t.dst[r], w.N, &sums[0], m)
}

// dotTails adds the products from k on to the outputs r … r+rows-1.
func (t *product) dotTails(r, rows, k int) {
	w := t.w
	size := w.Format.Size()
	var tail [8]float32
	for j := r; j < r+rows; j++ {
		v := tail[:w.K-k]
		convertGo(v, w.Data[(j*w.K+k)*size:(j+1)*w.K*size], w.Format)
		for i := range t.m {
			t.dst[i*w.N+j] += dot1Go(t.x[i*w.K+k:(i+1)*w.K], v)
		}
	}
}

// runLarge computes many rows: it widens and transposes a panel of the weight's rows, a block of k
// at a time, and multiplies all rows of x with it.
func (t *product) runLarge(p *Pool) {
	w, m := t.w, t.m
	width := panelWidth(t.level)
	t.divide(p, (w.K+depth-1)/depth)
	t.group = 1
	if width < groupWidth && m*w.K*4 > groupBytes {
		t.group = groupWidth / width
	}
	width *= t.group
	panels := (w.N + width - 1) / width
	t.mBlocks = p.parts(panels, (m+rowBlock-1)/rowBlock, (m+23)/24)
	p.Run(panels*t.mBlocks, t.runPanels)
}

// copyRows is the number of rows of x that a task rearranges.
const copyRows = 16

// copyX writes rows of x as blocks of k, so that the rows of a block are contiguous. With a power
// of two between rows, all of them would share the same cache sets.
func (t *product) copyX(task int) {
	k, xBlocks := t.w.K, t.blockedX()
	for i := task * copyRows; i < min(t.m, (task+1)*copyRows); i++ {
		for b := range t.blocks {
			n := min(t.kc, k-b*t.kc)
			copy(xBlocks[(b*t.m+i)*t.kc:][:n], t.x[i*k+b*t.kc:][:n])
		}
	}
}

func (t *product) blockedX() []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(t.xBlocks))), len(t.xBlocks)/4)
}

func (t *product) panels(task int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	w := t.w
	width := panelWidth(t.level)
	panel, mBlock := task/t.mBlocks, task%t.mBlocks
	first, end := mBlock*t.m/t.mBlocks, (mBlock+1)*t.m/t.mBlocks
	m := end - first
	col := panel * width * t.group
	n := min(width*t.group, w.N-col)
	group := (n + width - 1) / width
	if cap(s.c) < m*width*group {
		s.c = make([]float32, rowBlock*groupWidth)
	}
	size := w.Format.Size()
	data := unsafe.Pointer(unsafe.SliceData(w.Data))
	for b := range t.blocks {
		k := min(t.kc, w.K-b*t.kc)
		a, lda := t.block(b, first)
		from := unsafe.Add(data, (col*w.K+b*t.kc)*size)
		for j := range group {
			packPanel(t.level, w.Format, s.panel[j*width*t.kc:],
				unsafe.Add(from, j*width*w.K*size), w.K*size, min(width, n-j*width), k)
		}
		tiles := (m + maxTileRows - 1) / maxTileRows
		pf := t.ahead(from, b, n, group*tiles*(k/4))
		for begin := 0; begin < tiles; begin += groupTiles {
			for j := range group {
				c, w := s.c[j*m*width:], &s.panel[j*width*t.kc]
				for tile := begin; tile < min(tiles, begin+groupTiles); tile++ {
					r, e := tile*m/tiles, (tile+1)*m/tiles
					gemmTile(t.level, &c[r*width], width, &a[r*lda], lda, w, k, e-r, b > 0, &pf)
				}
			}
		}
	}
	for j := range group {
		t.store(s, s.c[j*m*width:], first, m, col+j*width, min(width, n-j*width))
	}
}

// ahead returns the prefetch of the block of weights that this thread packs next, if known: the
// panel's next block of k. steps is the number of steps that the tiles will make. If the block has
// more lines than that, each step fetches two.
func (t *product) ahead(from unsafe.Pointer, b, n, steps int) prefetch {
	size := t.w.Format.Size()
	ld := t.w.K * size
	bytes := t.kc * size
	if b+1 == t.blocks {
		return prefetch{}
	}
	pf := prefetch{
		next: uintptr(from) + uintptr(bytes), stride: ld, rows: n, left: n * ((bytes + 127) / 128),
	}
	if steps < pf.left {
		pf.second, pf.left = 128, n*((bytes+255)/256)
	}
	return pf
}

// store writes a finished panel with its bias.
func (t *product) store(s *scratch, c []float32, first, m, col, n int) {
	width := panelWidth(t.level)
	clear(s.bias[:])
	if t.bias != nil {
		copy(s.bias[:n], t.bias[col:])
	}
	if n == width {
		d := &t.dst[first*t.w.N+col]
		if t.level == implAVX512 {
			storeBiasAVX512(d, 4*t.w.N, &c[0], m, &s.bias[0])
		} else {
			storeBiasAVX2(d, 4*t.w.N, &c[0], m, &s.bias[0])
		}
		return
	}
	for i := range m {
		d := t.dst[(first+i)*t.w.N+col:][:n]
		for j := range d {
			d[j] = c[i*width+j] + s.bias[j]
		}
	}
}

// dotPart adds the products of a part of K to sums, vectors of partial sums [rows of x][4]. w has
// four rows ldw bytes apart. x has 3·threes + 2·twos + ones rows, multiplied three, two or one at a
// time. The first of these passes prefetches what lies pf and second bytes after w's first row, the
// others one row further each. With 2 bytes an element, they also prefetch two rows after those.
type dotPart = func(sums *float32, x *float32, ldx int, w *byte, ldw int, blocks int, threes int,
	twos int, ones int, pf int, second int)

var dotPartsAVX2 = [...]dotPart{F32: dotPartF32AVX2, F16: dotPartF16AVX2, BF16: dotPartBF16AVX2}

// dotTiles lists the dot kernels by implementation, format and shape: four rows of the weight by 1
// to 6 of x (AVX2: by 1 or 2), and last one by one.
var dotTiles = [...][3][7]func(dst *float32, ldd int, x *float32, ldx int, w *byte, ldw, blocks,
	mask int){
	implAVX2: {
		F32:  {dotF32AVX24x1, dotF32AVX24x2, nil, nil, nil, nil, dotF32AVX21x1},
		F16:  {dotF16AVX24x1, dotF16AVX24x2, nil, nil, nil, nil, dotF16AVX21x1},
		BF16: {dotBF16AVX24x1, dotBF16AVX24x2, nil, nil, nil, nil, dotBF16AVX21x1},
	},
	implAVX512: {
		F32: {
			dotF32AVX5124x1, dotF32AVX5124x2, dotF32AVX5124x3, dotF32AVX5124x4, dotF32AVX5124x5,
			dotF32AVX5124x6, dotF32AVX5121x1,
		},
		F16: {
			dotF16AVX5124x1, dotF16AVX5124x2, dotF16AVX5124x3, dotF16AVX5124x4, dotF16AVX5124x5,
			dotF16AVX5124x6, dotF16AVX5121x1,
		},
		BF16: {
			dotBF16AVX5124x1, dotBF16AVX5124x2, dotBF16AVX5124x3, dotBF16AVX5124x4,
			dotBF16AVX5124x5, dotBF16AVX5124x6, dotBF16AVX5121x1,
		},
	},
}
