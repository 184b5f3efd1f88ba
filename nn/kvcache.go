package nn

import (
	"math"

	"github.com/restore-vlm/restore/kernel"
)

// KVCache holds one sequence's keys and values. Layers may hold different
// numbers of keys (reducers inside the decoder shrink the sequence), so
// position and size are kept per layer and key. It belongs to one request.
type KVCache struct {
	layers []LayerKV
}

// LayerKV is one layer's part of a KVCache. K and V are [Len, KVHeads·HeadDim];
// keys are stored after RoPE.
type LayerKV struct {
	K, V    []float32
	Pos     []Pos
	Size    []float32 // patches (or text tokens: 1) each key stands for
	Shift   float64   // positions of rows to come, less this, are theirs in this layer: a reducer inside the decoder closed its gaps
	logSize []float32
	ipos    []int32
	width   int
	frac    int // keys whose position is not whole on one axis
	sized   int // keys whose size is not 1
	scratch biasScratch
}

// NewKVCache returns an empty cache for layers layers with rows of width
// KVHeads·HeadDim.
func NewKVCache(layers, width int) *KVCache {
	c := &KVCache{layers: make([]LayerKV, layers)}
	for i := range c.layers {
		c.layers[i].width = width
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

// Bytes returns the memory that keys and values occupy.
func (c *KVCache) Bytes() int64 {
	var n int64
	for i := range c.layers {
		n += 4 * int64(cap(c.layers[i].K)+cap(c.layers[i].V))
	}
	return n
}

// Reserve makes room for n more keys in every layer, so that appending them
// does not allocate.
func (c *KVCache) Reserve(n int) {
	for i := range c.layers {
		l := &c.layers[i]
		l.K, l.V = reserveLarge(l.K, n*l.width), reserveLarge(l.V, n*l.width)
		l.Pos, l.Size = reserve(l.Pos, n), reserve(l.Size, n)
		l.logSize, l.ipos = reserve(l.logSize, n), reserve(l.ipos, n)
	}
}

func reserve[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	g := make([]T, len(s), len(s)+n)
	copy(g, s)
	return g
}

// reserveLarge is reserve in huge pages: one decoded token reads all keys and values.
func reserveLarge(s []float32, n int) []float32 {
	if cap(s)-len(s) >= n {
		return s
	}
	g := kernel.LargeFloats(len(s) + n)[:len(s)]
	copy(g, s)
	return g
}

// Truncate keeps the first n keys if the layer holds more.
func (l *LayerKV) Truncate(n int) {
	if n >= len(l.Pos) {
		return
	}
	for _, p := range l.Pos[n:] {
		if !whole(p) {
			l.frac--
		}
	}
	for _, s := range l.Size[n:] {
		if s != 1 {
			l.sized--
		}
	}
	l.K, l.V = l.K[:n*l.width], l.V[:n*l.width]
	l.Pos, l.Size, l.logSize, l.ipos = l.Pos[:n], l.Size[:n], l.logSize[:n], l.ipos[:n]
}

// appendRows is the number of keys that a task of Append copies.
const appendRows = 32

// Append adds keys. k, v: [len(pos), width]; size nil means all 1. Those of a
// prompt are copied by all threads: to first write to memory takes longer than
// the copy.
func (l *LayerKV) Append(p *kernel.Pool, k, v []float32, pos []Pos, size []float32) {
	n := len(pos)
	if cap(l.K)-len(l.K) < n*l.width || n < 2*appendRows {
		l.K, l.V = append(l.K, k[:n*l.width]...), append(l.V, v[:n*l.width]...)
	} else {
		at := len(l.K)
		l.K, l.V = l.K[:at+n*l.width], l.V[:at+n*l.width]
		p.Run((n+appendRows-1)/appendRows, func(task int) {
			lo, hi := task*appendRows*l.width, min(n, (task+1)*appendRows)*l.width
			copy(l.K[at+lo:at+hi], k[lo:hi])
			copy(l.V[at+lo:at+hi], v[lo:hi])
		})
	}
	l.Pos = append(l.Pos, pos...)
	for t, p := range pos {
		s := float32(1)
		if size != nil {
			s = size[t]
		}
		if s != 1 {
			l.sized++
		}
		if !whole(p) {
			l.frac++
		}
		l.Size = append(l.Size, s)
		l.logSize = append(l.logSize, float32(math.Log(float64(s))))
		l.ipos = append(l.ipos, int32(p[0]))
	}
}

// whole reports whether p is one whole number on all axes, so that a table of
// distances can be used.
func whole(p Pos) bool {
	return p[0] == p[1] && p[1] == p[2] && p[0] == math.Trunc(p[0])
}
