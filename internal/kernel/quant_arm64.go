//go:build !purego

package kernel

import "sync"

func quantizeRow(on isa, dst []byte, x []float32, blocks, offset int) {
	if on.impl == implGo || blocks == 0 {
		quantizeRowGo(dst, x, blocks, 1, offset)
		return
	}
	quantizeRowNEON(&dst[0], &x[0], blocks, offset)
}

// widenIQ4 is widenIQ4Go in assembly.
func widenIQ4(dst, src []byte, blocks int) {
	widenIQ4NEON(&dst[0], &src[0], blocks, &iq4Values[0])
}

// quantTile computes rows of a panel: dst[i·ldd+c] = bias[c] + Σ over blocks.
type quantTile = func(dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias *float32)

// Tiles by number of rows.
var (
	q8NEON  = []quantTile{q8NEON1, q8NEON2}
	q4NEON  = []quantTile{q4NEON1, q4NEON2}
	q4mNEON = []quantTile{q4mNEON1, q4mNEON2}
)

// quantScratch is one thread's scratch memory.
type quantScratch struct {
	bias [quantPanel]float32
	tail [2 * quantPanel]float32 // outputs of the last panel
}

var quantScratches = sync.Pool{New: func() any { return new(quantScratch) }}

// quantPanelRows computes rows first … end-1 of some panels.
func quantPanelRows(t *quantProduct, f Format, data []byte, panel, panels, first, end int) {
	tiles := q8NEON
	switch f {
	case Q4:
		tiles = q4NEON
	case Q4M:
		tiles = q4mNEON
	}
	s := quantScratches.Get().(*quantScratch)
	n, size := t.w.N, t.blocks*quantBlockSize(f)
	for ; panels > 0; panel, panels, data = panel+1, panels-1, data[size:] {
		col := panel * quantPanel
		width := min(quantPanel, n-col)
		clear(s.bias[:])
		if t.bias != nil {
			copy(s.bias[:], t.bias[col:col+width])
		}
		for r := first; r < end; r += len(tiles) {
			rows := min(len(tiles), end-r)
			dst, ldd := &s.tail[0], quantPanel
			if width == quantPanel {
				dst, ldd = &t.dst[r*n+col], n
			}
			tiles[rows-1](dst, ldd, &t.acts[r*t.blocks*actBlock], t.blocks*actBlock, &data[0],
				t.blocks, &s.bias[0])
			for i := r; width < quantPanel && i < r+rows; i++ {
				copy(t.dst[i*n+col:i*n+col+width], s.tail[(i-r)*quantPanel:])
			}
		}
	}
	quantScratches.Put(s)
}
