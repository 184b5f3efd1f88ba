//go:build !purego

package kernel

import "unsafe"

//go:generate sh -c "cd _gen && go run . -kernel strips"

// planBlocks, for processors without VNNI, computes strips of 16 columns, half a panel. The weights
// of a block of K are widened once for all rows, to int16 for 8 bits and to bytes for 4.
// Activations are stored in the order in which strips read them: first a block of K of all rows,
// tile by tile.

// quantStrip adds the products of a block of K to sums, rows of 32. For every 32 of K it prefetches
// a line at pf and moves pf by pfStep. _gen documents the layout of x and w.
type quantStrip = func(sums *float32, x *byte, w *byte, blocks int, pf uintptr, pfStep int)

// stripKernels are the kernels and sizes of planBlocks for a format.
type stripKernels struct {
	tiles  [stripRows]quantStrip
	widen  func(dst *byte, half int, src *byte, blocks int)
	pack   func(dst *byte, scales *byte, step int, src *byte, blocks int, offsets int, magic int)
	magic  int // added to offsets
	size   int // bytes of a block of weights
	values int // bytes of the values in a block of one row of activations
	acts   int // bytes of such a block
}

const (
	stripRows = 6
	// stripBlocks is how many blocks of 32 along K are multiplied at once: their weights fit the
	// first-level cache.
	stripBlocks = 16
	// stripActs is the most bytes of a block of one row of activations.
	stripActs = 68
	// stripMagic is the bits of the float32 12582912, whose last bit is worth 1.
	stripMagic = 0x4b400000
)

var (
	q8Strips  = [...]quantStrip{q8Strip1, q8Strip2, q8Strip3, q8Strip4, q8Strip5, q8Strip6}
	q4Strips  = [...]quantStrip{q4Strip1, q4Strip2, q4Strip3, q4Strip4, q4Strip5, q4Strip6}
	q4mStrips = [...]quantStrip{q4mStrip1, q4mStrip2, q4mStrip3, q4mStrip4, q4mStrip5, q4mStrip6}

	stripsOf = [...]*stripKernels{
		Q8:  {q8Strips, widenStripQ8, packStrip8, 0, 64 + 1024, 64, stripActs},
		IQ4: {q8Strips, widenStripIQ4, packStrip8, 0, 64 + 1024, 64, stripActs},
		Q4:  {q4Strips, widenStripQ4, packStrip4, stripMagic, 128 + 512, 32, actBlock},
		Q4M: {q4mStrips, widenStripQ4M, packStrip4, 0, 128 + 512, 32, actBlock},
	}
)

// stripTile returns the rows of a tile.
func (t *quantProduct) stripTile(tile int) (first, end int) {
	tiles := (t.m + stripRows - 1) / stripRows
	return tile * t.m / tiles, (tile + 1) * t.m / tiles
}

// packStrip quantises the rows of a tile and stores them in the order in which strips read them.
func (t *quantProduct) packStrip(tile int) {
	first, end := t.stripTile(tile)
	t.quantizeRows(first, end)
	s, rows := stripsOf[t.w.Format], end-first
	parts := (t.blocks + stripBlocks - 1) / stripBlocks
	for part := range parts {
		k, stop := part*t.blocks/parts, (part+1)*t.blocks/parts
		to := t.strips[(k*t.m+first*(stop-k))*s.acts:]
		for r := range rows {
			s.pack(&to[s.values*r], &to[s.values*rows+4*r], s.acts*rows,
				&t.acts[((first+r)*t.blocks+k)*actBlock], stop-k, 4*rows, s.magic)
		}
	}
}

// quantStrips computes tiles first … end-1 of some panels.
func quantStrips(t *quantProduct, data []byte, panel, panels, first, end int) {
	scratch := quantScratches.Get().(*quantScratch)
	s, n := stripsOf[t.w.Format], t.w.N
	size := quantBlockSize(t.w.Format)
	rows := scratch.rows[:0] // where tiles begin, and the end of the last
	for tile := first; tile <= end; tile++ {
		r, _ := t.stripTile(tile)
		rows = append(rows, r)
	}
	scratch.rows = rows
	top, count := rows[0], rows[end-first]-rows[0]
	scratch.sums = growWork(scratch.sums, panels*count*4*quantPanel)
	sums := unsafe.Slice((*float32)(unsafe.Pointer(&scratch.sums[0])), panels*count*quantPanel)
	parts := (t.blocks + stripBlocks - 1) / stripBlocks
	for part := range parts {
		k, stop := part*t.blocks/parts, (part+1)*t.blocks/parts
		depth := stop - k
		x := t.strips[k*t.m*s.acts:]
		for i := range panels {
			col := (panel + i) * quantPanel
			w := data[(i*t.blocks+k)*size:]
			pf, left := uintptr(unsafe.Pointer(&w[0]))+uintptr(t.blocks*size), depth*size
			if i+1 == panels { // prefetch the first panel's next block
				pf = uintptr(unsafe.Pointer(&data[0])) + uintptr(stop*size)
			}
			half := depth * s.size
			s.widen(&scratch.wide[0], half, &w[0], depth)
			sums := sums[i*count*quantPanel:][:count*quantPanel]
			if part == 0 {
				startStrip(sums, t.bias, col)
			}
			for h := range 2 {
				for tile, r := range rows[:end-first] {
					step := 0
					if left > 0 {
						step = 64
					}
					s.tiles[rows[tile+1]-r-1](&sums[(r-top)*quantPanel+h*quantPanel/2],
						&x[r*depth*s.acts], &scratch.wide[h*half], depth, pf, step)
					pf += uintptr(depth * step)
					left -= depth * step
				}
			}
			if part+1 == parts {
				for j := range count {
					copy(t.dst[(top+j)*n+col:][:quantPanel], sums[j*quantPanel:])
				}
			}
		}
	}
	quantScratches.Put(scratch)
}

// startStrip sets the sums before the first product.
func startStrip(sums, bias []float32, col int) {
	if bias == nil {
		clear(sums)
		return
	}
	for ; len(sums) > 0; sums = sums[quantPanel:] {
		copy(sums, bias[col:col+quantPanel])
	}
}
