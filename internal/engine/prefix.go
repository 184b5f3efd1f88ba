package engine

import (
	"encoding/binary"
	"hash/fnv"
	"sync/atomic"

	"github.com/restore-vlm/restore/internal/nn"
)

// prefixCache finds prompt prefixes whose keys and values are in memory, from running and from
// finished sequences. Only the device's goroutine uses it.
type prefixCache struct {
	cuts map[uint64][]cut // by the hash of the units up to the cut
	idle []*prefix        // of finished sequences, least recently used first

	hits, misses, evictions atomic.Int64
}

// prefix is the part of a sequence that was read.
type prefix struct {
	root   uint64 // start of its hashes: calibration and salt
	units  []unit
	hashes []uint64 // hashes[i] is of units[:i+1]
	cache  *nn.KVCache
}

// cut is the first n units of a prefix.
type cut struct {
	p *prefix
	n int // units
}

func newPrefixCache() *prefixCache { return &prefixCache{cuts: map[uint64][]cut{}} }

// rootOf returns the hash of an empty prefix under a calibration, for requests with the same salt
// and mark. The calibration also changes the keys and values of text.
func rootOf(c *nn.Calibration, salt string, mark uint64) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte(salt), mark))
	if c != nil {
		b := []byte{1, bit(c.Size), bit(c.Distance), bit(c.DecodeDistance), bit(c.Truncate)}
		h.Write(binary.LittleEndian.AppendUint64(b, uint64(c.From)))
	}
	return h.Sum64()
}

func bit(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// hash extends the hash of the units before u by u.
func (u unit) hash(before uint64) uint64 {
	h := fnv.New64a()
	var b [12]byte
	binary.LittleEndian.PutUint64(b[:], before)
	binary.LittleEndian.PutUint32(b[8:], uint32(u.id))
	h.Write(b[:])
	if u.pic != nil {
		h.Write(u.pic.id[:])
	}
	return h.Sum64()
}

// same reports whether two units with the same units before them have the same keys and values.
func (u unit) same(v unit) bool {
	if u.pic == nil || v.pic == nil {
		return u == v
	}
	return u.pic.id == v.pic.id
}

// find returns the longest prefix of units in memory, of at most n units. The cut is empty if there
// is none.
func (c *prefixCache) find(root uint64, units []unit, n int) cut {
	n = min(n, len(units))
	hashes := make([]uint64, n)
	h := root
	for i, u := range units[:n] {
		h = u.hash(h)
		hashes[i] = h
	}
	for ; n > 0; n-- {
		for _, k := range c.cuts[hashes[n-1]] {
			if k.p.root == root && k.n == n && sameUnits(k.p.units[:n], units[:n]) {
				return k
			}
		}
	}
	return cut{}
}

func sameUnits(a, b []unit) bool {
	for i := range a {
		if !a[i].same(b[i]) {
			return false
		}
	}
	return true
}

// add registers the units that a sequence has read. cache holds their keys and values.
func (c *prefixCache) add(root uint64, units []unit, cache *nn.KVCache) *prefix {
	p := &prefix{root: root, cache: cache}
	c.extend(p, units)
	return p
}

// extend appends units to p.
func (c *prefixCache) extend(p *prefix, units []unit) {
	h := p.root
	if n := len(p.hashes); n > 0 {
		h = p.hashes[n-1]
	}
	for _, u := range units {
		h = u.hash(h)
		p.units, p.hashes = append(p.units, u), append(p.hashes, h)
		c.cuts[h] = append(c.cuts[h], cut{p, len(p.units)})
	}
}

// trim forgets the units of p from index n on.
func (c *prefixCache) trim(p *prefix, n int) {
	for i := n; i < len(p.units); i++ {
		list := c.cuts[p.hashes[i]]
		for j := range list {
			if list[j].p == p {
				list = append(list[:j], list[j+1:]...)
				break
			}
		}
		if c.cuts[p.hashes[i]] = list; len(list) == 0 {
			delete(c.cuts, p.hashes[i])
		}
	}
	clear(p.units[min(n, len(p.units)):])
	p.units, p.hashes = p.units[:min(n, len(p.units))], p.hashes[:min(n, len(p.hashes))]
}

// prefixesMost is the most prefixes of finished sequences that are kept.
const prefixesMost = 512

// keep retains p after its sequence has finished, so that others can start with it. Its pictures
// keep only what reports need. Prefixes that p contains are dropped.
func (c *prefixCache) keep(p *prefix) {
	for i := range p.units {
		if pic := p.units[i].pic; pic != nil {
			bare := *pic
			bare.prepared, bare.rgb, bare.visual = nil, nil, nil
			bare.entry, bare.shared = nil, nil
			if bare.tokens != nil {
				bare.tokens = bare.tokens.bare()
			}
			p.units[i].pic = &bare
		}
	}
	for i := 0; i < len(c.idle); i++ {
		old := c.idle[i]
		if n := len(old.units); old.root == p.root && n <= len(p.units) &&
			old.hashes[n-1] == p.hashes[n-1] {
			c.drop(i)
			i--
		}
	}
	c.idle = append(c.idle, p)
	if len(c.idle) > prefixesMost {
		c.evict()
	}
}

// touch marks p as recently used.
func (c *prefixCache) touch(p *prefix) {
	for i, q := range c.idle {
		if q == p {
			c.idle = append(append(c.idle[:i], c.idle[i+1:]...), p)
			return
		}
	}
}

// drop frees the i-th idle prefix.
func (c *prefixCache) drop(i int) {
	p := c.idle[i]
	c.idle = append(c.idle[:i], c.idle[i+1:]...)
	c.trim(p, 0)
	p.cache.Free()
}

// evict frees the least recently used idle prefix. It returns false if there is none.
func (c *prefixCache) evict() bool {
	if len(c.idle) == 0 {
		return false
	}
	c.drop(0)
	c.evictions.Add(1)
	return true
}

// lens returns, for each layer, how many keys the cut has, and by how many positions the rows after
// it move forward.
func (k cut) lens(layers int) (keys []int, shift []float64) {
	keys, shift = make([]int, layers), make([]float64, layers)
	tokens := 0
	for _, u := range k.p.units[:k.n] {
		if u.pic == nil {
			tokens++
			continue
		}
		for i := range keys {
			keys[i] += u.keys(i)
			shift[i] += u.shift(i)
		}
	}
	for i := range keys {
		keys[i] += tokens
	}
	return keys, shift
}

// count records whether a prefix of a prompt was in memory.
func (c *prefixCache) count(hit bool) {
	if hit {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
}
