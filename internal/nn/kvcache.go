package nn

import (
	"math"
	"slices"
	"sync"

	"github.com/restore-vlm/restore/internal/kernel"
)

// KVPool owns the memory of keys and values: pages of kernel.PageKeys keys of one layer. Sequences
// with a common prefix share pages, so pages count their users. A pool is safe for concurrent use;
// a cache and its pages belong to one goroutine at a time.
type KVPool struct {
	kvHeads, headDim int
	half             bool

	mu     sync.Mutex
	memory kernel.Memory
	free   []*page
	used   int
	census int
}

// page is a page with the number of caches that hold it.
type page struct {
	kernel.Page
	refs int

	census, holders int // for Census: its number, and how many of its caches hold the page
}

// NewKVPool returns a pool for layers of kvHeads heads of headDim. With half, keys and values are
// rounded to float16 and take half the memory.
func NewKVPool(kvHeads, headDim int, half bool) *KVPool {
	return &KVPool{kvHeads: kvHeads, headDim: headDim, half: half}
}

// PageBytes returns the memory of one page.
func (p *KVPool) PageBytes() int64 {
	return kernel.PageBytes(p.kvHeads, p.headDim, p.half)
}

// PagesOf returns the number of pages that n keys of one layer take.
func PagesOf(n int) int { return (n + kernel.PageKeys - 1) / kernel.PageKeys }

// Used returns the number of pages that caches hold.
func (p *KVPool) Used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Census counts the pages of caches, a shared one once.
func (p *KVPool) Census(caches []*KVCache) (pages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.census++
	for _, c := range caches {
		for i := range c.layers {
			for _, g := range c.layers[i].held {
				if g.census != p.census {
					g.census, g.holders = p.census, 0
					pages++
				}
				g.holders++
			}
		}
	}
	return pages
}

// Leaves removes c from the last Census and returns how many of its pages no other cache holds.
func (p *KVPool) Leaves(c *KVCache) (pages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range c.layers {
		for _, g := range c.layers[i].held {
			if g.holders--; g.holders == 0 {
				pages++
			}
		}
	}
	return pages
}

// Free frees all memory; no cache may be used afterwards.
func (p *KVPool) Free() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = nil
	return p.memory.Free()
}

// take returns a page with undefined content.
func (p *KVPool) take() *page {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used++
	if n := len(p.free); n > 0 {
		g := p.free[n-1]
		p.free = p.free[:n-1]
		g.refs = 1
		return g
	}
	return &page{Page: kernel.NewPage(&p.memory, p.kvHeads, p.headDim, p.half), refs: 1}
}

// hold counts one more cache for each of the pages.
func (p *KVPool) hold(pages []*page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range pages {
		g.refs++
	}
}

// release counts one cache less for each of the pages.
func (p *KVPool) release(pages []*page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range pages {
		if g.refs--; g.refs == 0 {
			p.free = append(p.free, g)
			p.used--
		}
	}
}

// alone reports whether only one cache holds g.
func (p *KVPool) alone(g *page) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return g.refs == 1
}

// KVCache holds the keys and values of one sequence. Layers may hold different numbers of keys,
// because reducers inside the decoder remove rows, so each layer stores the position and size of
// each key. A cache belongs to one request.
type KVCache struct {
	pool   *KVPool
	layers []LayerKV
}

// LayerKV is one layer's part of a KVCache. Keys are stored after RoPE.
type LayerKV struct {
	pool  *KVPool
	held  []*page
	pages []*kernel.Page // the pages of held, in the form that kernels take
	// a page of another cache that holds the keys after those in held; it is copied when keys are
	// appended
	lent *page

	Pos  []Pos
	Size []float32 // patches (for text tokens: 1) that each key stands for
	// subtracted from the positions of later rows in this layer, after a reducer inside the decoder
	// closed the gaps it left
	Shift   float64
	logSize []float32
	ipos    []int32
	frac    int // keys with a fractional position on some axis
	sized   int // keys whose size is not 1
	scratch causalScratch
}

// NewCache returns an empty cache for layers layers.
func (p *KVPool) NewCache(layers int) *KVCache {
	c := &KVCache{pool: p, layers: make([]LayerKV, layers)}
	for i := range c.layers {
		c.layers[i].pool = p
	}
	return c
}

// Layer returns layer i.
func (c *KVCache) Layer(i int) *LayerKV { return &c.layers[i] }

// Layers returns the number of layers.
func (c *KVCache) Layers() int { return len(c.layers) }

// Len returns the number of keys in layer i.
func (c *KVCache) Len(i int) int { return len(c.layers[i].Pos) }

// Lens appends the number of keys in every layer to dst.
func (c *KVCache) Lens(dst []int) []int {
	for i := range c.layers {
		dst = append(dst, len(c.layers[i].Pos))
	}
	return dst
}

// Held returns the number of pages that the cache holds, without those that another cache lends it.
func (c *KVCache) Held() int {
	n := 0
	for i := range c.layers {
		n += len(c.layers[i].held)
	}
	return n
}

// Free releases the cache's pages. The cache may be used again.
func (c *KVCache) Free() {
	for i := range c.layers {
		c.layers[i].Truncate(0)
		c.layers[i].Shift = 0
	}
}

// Share returns a cache with the first lens[i] keys of every layer i, whose pages it shares. Either
// cache may grow: the new cache then copies a partly used page.
func (c *KVCache) Share(lens []int) *KVCache {
	s := c.pool.NewCache(len(c.layers))
	for i := range s.layers {
		from, to, n := &c.layers[i], &s.layers[i], lens[i]
		full := n / kernel.PageKeys
		to.held = slices.Clone(from.held[:full])
		to.pages = slices.Clone(from.pages[:full])
		c.pool.hold(to.held)
		if n%kernel.PageKeys != 0 {
			if to.lent = from.lent; full < len(from.held) {
				to.lent = from.held[full]
			}
			c.pool.hold([]*page{to.lent})
		}
		to.Pos, to.Size = slices.Clone(from.Pos[:n]), slices.Clone(from.Size[:n])
		to.logSize, to.ipos = slices.Clone(from.logSize[:n]), slices.Clone(from.ipos[:n])
		to.note(0, 1)
	}
	return s
}

// Reserve takes the pages for keys more keys of every layer, and allocates room for the data of
// entries more, so that appending them does not allocate.
func (c *KVCache) Reserve(keys, entries int) {
	for i := range c.layers {
		c.layers[i].Reserve(keys, entries)
	}
}

// Missing returns how many pages, beyond those the cache holds, n more keys of every layer need,
// and how many of these must come from the pool. A copy of a page that nobody else holds needs no
// additional memory.
func (c *KVCache) Missing(n int) (pages, find int) {
	for i := range c.layers {
		p, f := c.layers[i].Missing(n)
		pages, find = pages+p, find+f
	}
	return pages, find
}

// Missing is [KVCache.Missing] for one layer.
func (l *LayerKV) Missing(n int) (pages, find int) {
	pages = max(0, PagesOf(len(l.Pos)+n)-len(l.held))
	if l.lent != nil && l.pool.alone(l.lent) {
		return pages, pages - 1
	}
	return pages, pages
}

// Reserve is [KVCache.Reserve] for one layer.
func (l *LayerKV) Reserve(keys, n int) {
	l.room(keys)
	l.Pos, l.Size = reserve(l.Pos, n), reserve(l.Size, n)
	l.logSize, l.ipos = reserve(l.logSize, n), reserve(l.ipos, n)
}

func reserve[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	g := make([]T, len(s), len(s)+n)
	copy(g, s)
	return g
}

// room takes the pages for n more keys.
func (l *LayerKV) room(n int) {
	if n == 0 {
		return
	}
	if l.lent != nil {
		g := l.lent
		if !l.pool.alone(g) {
			g = l.pool.take()
			copy(g.Floats, l.lent.Floats)
			copy(g.Halves, l.lent.Halves)
			l.pool.release([]*page{l.lent})
		}
		l.lent = nil
		l.held, l.pages = append(l.held, g), append(l.pages, &g.Page)
	}
	for len(l.held) < PagesOf(len(l.Pos)+n) {
		g := l.pool.take()
		l.held, l.pages = append(l.held, g), append(l.pages, &g.Page)
	}
}

// drop releases the pages from the n-th on.
func (l *LayerKV) drop(n int) {
	if n >= len(l.held) {
		return
	}
	l.pool.release(l.held[n:])
	clear(l.held[n:])
	clear(l.pages[n:])
	l.held, l.pages = l.held[:n], l.pages[:n]
}

// Truncate keeps at most the first n keys and releases the pages beyond them.
func (l *LayerKV) Truncate(n int) { l.Retract(n, 0) }

// Held returns the number of pages that the layer holds.
func (l *LayerKV) Held() int { return len(l.held) }

// Retract is Truncate, but keeps up to so many pages: those reserved before the removed keys were
// appended.
func (l *LayerKV) Retract(n, pages int) {
	if n < len(l.Pos) {
		l.note(n, -1)
		l.Pos, l.Size, l.logSize, l.ipos = l.Pos[:n], l.Size[:n], l.logSize[:n], l.ipos[:n]
	}
	if l.lent != nil && len(l.Pos) <= len(l.held)*kernel.PageKeys {
		l.pool.release([]*page{l.lent})
		l.lent = nil
	}
	l.drop(max(pages, PagesOf(len(l.Pos))))
}

// note adds by to the counts of fractional positions and of sizes other than 1, for keys from n on.
func (l *LayerKV) note(n, by int) {
	for _, p := range l.Pos[n:] {
		if !whole(p) {
			l.frac += by
		}
	}
	for _, s := range l.Size[n:] {
		if s != 1 {
			l.sized += by
		}
	}
}

// Append adds keys. k, v: [len(pos), KVHeads·HeadDim]; size nil means all 1.
func (l *LayerKV) Append(p *kernel.Pool, k, v []float32, pos []Pos, size []float32) {
	at := len(l.Pos)
	l.Extend(pos, size)
	kernel.WritePages(p, l.pages, at, k, v, len(pos), l.pool.kvHeads, l.pool.headDim)
}

// Extend is Append for keys and values that a [Call] writes.
func (l *LayerKV) Extend(pos []Pos, size []float32) {
	at := len(l.Pos)
	l.room(len(pos))
	l.Pos = append(l.Pos, pos...)
	for t, p := range pos {
		s := float32(1)
		if size != nil {
			s = size[t]
		}
		l.Size = append(l.Size, s)
		l.logSize = append(l.logSize, float32(math.Log(float64(s))))
		l.ipos = append(l.ipos, int32(p[0]))
	}
	l.note(at, 1)
}

// Keys returns a copy of the keys from row from on as float32, [Len−from, KVHeads·HeadDim].
func (l *LayerKV) Keys(from int) []float32 { return l.rows(from, false) }

// Values returns a copy of the values from row from on, like Keys.
func (l *LayerKV) Values(from int) []float32 { return l.rows(from, true) }

func (l *LayerKV) rows(from int, values bool) []float32 {
	p := l.pool
	out := make([]float32, (len(l.Pos)-from)*p.kvHeads*p.headDim)
	kernel.ReadPages(out, l.pages, from, len(l.Pos), p.kvHeads, p.headDim, values)
	return out
}

// whole reports whether p is the same whole number on all axes, so that a table of distances
// applies.
func whole(p Pos) bool {
	return p[0] == p[1] && p[1] == p[2] && p[0] == math.Trunc(p[0])
}
