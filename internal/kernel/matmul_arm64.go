//go:build !purego

package kernel

import "sync"

const (
	// neonPanel is the number of columns of a packed panel, neonDepth the most values of k in it.
	neonPanel = 16
	neonDepth = 512
	// neonSmall is the most rows of x that are multiplied straight with the weight's rows.
	neonSmall = 8
	neonRows  = 4 // of a tile
)

// neonTiles lists the tiles by number of rows.
var neonTiles = []func(c *float32, ldc int, a *float32, lda int, b *float32, k int, accumulate int){
	tileNEON1, tileNEON2, tileNEON3, tileNEON4,
}

// neonProduct is one call of MatMul. It is recycled.
type neonProduct struct {
	dst, x   []float32
	m        int
	w        *Matrix
	bias     []float32
	runTasks func(int)
}

// neonScratch is one thread's scratch memory for a task.
type neonScratch struct {
	rows  [4 * neonDepth]float32 // of the weight, widened
	panel [neonPanel * neonDepth]float32
	c     []float32 // [rows of x][neonPanel]
}

var (
	neonProducts = sync.Pool{
		New: func() any { t := new(neonProduct); t.runTasks = t.task; return t },
	}
	neonScratches = sync.Pool{New: func() any { return new(neonScratch) }}
)

func matMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	if impl() == implGo || w.K == 0 {
		matMulGo(p, dst, x, m, w, bias)
		return
	}
	if m*w.N*w.K < serialWork {
		p = nil
	}
	t := neonProducts.Get().(*neonProduct)
	t.dst, t.x, t.m, t.w, t.bias = dst, x, m, w, bias
	p.Run((w.N+neonPanel-1)/neonPanel, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	neonProducts.Put(t)
}

// task computes the outputs of one panel.
func (t *neonProduct) task(panel int) {
	s := neonScratches.Get().(*neonScratch)
	s.c = grow(s.c, t.m*neonPanel)
	clear(s.c)
	col := panel * neonPanel
	n := min(neonPanel, t.w.N-col)
	for k := 0; k < t.w.K; k += neonDepth {
		if t.m <= neonSmall {
			t.dots(s, col, n, k, min(neonDepth, t.w.K-k))
		} else {
			t.tiles(s, col, n, k, min(neonDepth, t.w.K-k))
		}
	}
	for i := range t.m {
		d := t.dst[i*t.w.N+col:][:n]
		copy(d, s.c[i*neonPanel:])
		if t.bias != nil {
			for j := range d {
				d[j] += t.bias[col+j]
			}
		}
	}
	neonScratches.Put(s)
}

func fewRows(f Format) int {
	if f.packed() && f != Q12 {
		return anyRows
	}
	return neonSmall
}

// widen writes k values from k0 on of up to four rows from o on to s.rows.
func (t *neonProduct) widen(s *neonScratch, o, rows, k0, k int) {
	if t.w.Format == Q12 {
		for r := range rows {
			t.w.wordsRow(s.rows[r*neonDepth:][:k], o+r, k0)
		}
		return
	}
	size := t.w.Format.Size()
	for r := range rows {
		Convert(s.rows[r*neonDepth:][:k], t.w.Data[((o+r)*t.w.K+k0)*size:], t.w.Format)
	}
}

// dots adds the products of one block of k, four outputs at a time.
func (t *neonProduct) dots(s *neonScratch, col, n, k0, k int) {
	for o := 0; o < n; o += 4 {
		rows := min(4, n-o)
		t.widen(s, col+o, rows, k0, k)
		for i := range t.m {
			x := t.x[i*t.w.K+k0:][:k]
			var sum [4]float32
			dotNEON4(&sum[0], &x[0], &s.rows[0], neonDepth, k/8)
			for r := range rows {
				tail := s.rows[r*neonDepth:]
				s.c[i*neonPanel+o+r] += sum[r] + dot1Go(x[k&^7:], tail[k&^7:k])
			}
		}
	}
}

// tiles adds the products of one block of k.
func (t *neonProduct) tiles(s *neonScratch, col, n, k0, k int) {
	for o := 0; o < neonPanel; o += 4 {
		rows := max(0, min(4, n-o))
		t.widen(s, col+o, rows, k0, k)
		for r := range 4 {
			if r >= rows {
				for i := range k {
					s.panel[i*neonPanel+o+r] = 0
				}
				continue
			}
			for i, v := range s.rows[r*neonDepth:][:k] {
				s.panel[i*neonPanel+o+r] = v
			}
		}
	}
	for r := 0; r < t.m; r += neonRows {
		rows := min(neonRows, t.m-r)
		neonTiles[rows-1](&s.c[r*neonPanel], neonPanel, &t.x[r*t.w.K+k0], t.w.K, &s.panel[0], k, 1)
	}
}
