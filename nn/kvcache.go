package nn

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/kernel"
)

// KVCache holds one sequence's keys and values. Layers may hold different
// numbers of keys (reducers inside the decoder shrink the sequence), so
// position and size are kept per layer and key. It belongs to one request.
type KVCache struct {
	layers []LayerKV
}

// LayerKV is one layer's part of a KVCache. Keys and values are [Len,
// KVHeads·HeadDim]; keys are stored after RoPE.
type LayerKV struct {
	k, v         []float32
	halfK, halfV []uint16 // in their place where half is set
	half         bool

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

// NewHalfKVCache is NewKVCache with keys and values rounded to float16, in half
// the memory.
func NewHalfKVCache(layers, width int) *KVCache {
	c := NewKVCache(layers, width)
	for i := range c.layers {
		c.layers[i].half = true
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
		l := &c.layers[i]
		n += 4*int64(cap(l.k)+cap(l.v)) + 2*int64(cap(l.halfK)+cap(l.halfV))
	}
	return n
}

// Reserve makes room for n more keys in every layer, so that appending them
// does not allocate.
func (c *KVCache) Reserve(n int) {
	for i := range c.layers {
		l := &c.layers[i]
		if l.half {
			l.halfK, l.halfV = reserveLarge(l.halfK, n*l.width, kernel.LargeHalves), reserveLarge(l.halfV, n*l.width, kernel.LargeHalves)
		} else {
			l.k, l.v = reserveLarge(l.k, n*l.width, kernel.LargeFloats), reserveLarge(l.v, n*l.width, kernel.LargeFloats)
		}
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
func reserveLarge[T any](s []T, n int, large func(n int) []T) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	g := large(len(s) + n)[:len(s)]
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
	if l.half {
		l.halfK, l.halfV = l.halfK[:n*l.width], l.halfV[:n*l.width]
	} else {
		l.k, l.v = l.k[:n*l.width], l.v[:n*l.width]
	}
	l.Pos, l.Size, l.logSize, l.ipos = l.Pos[:n], l.Size[:n], l.logSize[:n], l.ipos[:n]
}

// appendRows is the number of keys that a task of Append copies.
const appendRows = 32

// Append adds keys. k, v: [len(pos), width]; size nil means all 1. Those of a
// prompt are copied by all threads: to first write to memory takes longer than
// the copy.
func (l *LayerKV) Append(p *kernel.Pool, k, v []float32, pos []Pos, size []float32) {
	n := len(pos)
	if l.half {
		l.halfK = appendKeys(p, l.halfK, k[:n*l.width], l.width, kernel.NarrowHalf)
		l.halfV = appendKeys(p, l.halfV, v[:n*l.width], l.width, kernel.NarrowHalf)
	} else {
		l.k = appendKeys(p, l.k, k[:n*l.width], l.width, copyFloats)
		l.v = appendKeys(p, l.v, v[:n*l.width], l.width, copyFloats)
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

// appendKeys appends rows of width numbers to dst, converted by to.
func appendKeys[T any](p *kernel.Pool, dst []T, x []float32, width int, to func(dst []T, x []float32)) []T {
	at := len(dst)
	dst = slices.Grow(dst, len(x))[:at+len(x)]
	rows := len(x) / width
	if rows < 2*appendRows {
		to(dst[at:], x)
		return dst
	}
	p.Run((rows+appendRows-1)/appendRows, func(task int) {
		lo, hi := task*appendRows*width, min(rows, (task+1)*appendRows)*width
		to(dst[at+lo:at+hi], x[lo:hi])
	})
	return dst
}

func copyFloats(dst, x []float32) { copy(dst, x) }

// Keys returns the keys from row from on as float32, [Len−from, width]. Read-only.
func (l *LayerKV) Keys(from int) []float32 { return l.rows(l.k, l.halfK, from) }

// Values returns the values from row from on as float32, [Len−from, width]. Read-only.
func (l *LayerKV) Values(from int) []float32 { return l.rows(l.v, l.halfV, from) }

func (l *LayerKV) rows(x []float32, half []uint16, from int) []float32 {
	if !l.half {
		return x[from*l.width:]
	}
	out := make([]float32, len(half)-from*l.width)
	kernel.WidenHalf(out, half[from*l.width:])
	return out
}

// whole reports whether p is one whole number on all axes, so that a table of
// distances can be used.
func whole(p Pos) bool {
	return p[0] == p[1] && p[1] == p[2] && p[0] == math.Trunc(p[0])
}
