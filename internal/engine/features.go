package engine

import (
	recent "container/list"
	"sync"
)

// Store keeps encoded and reduced pictures across restarts, for example in a folder on disk, or for
// several processes. It must return exactly the bytes that it was given. Several goroutines call
// Load at once, one calls Save. Load may wait for another process to save, if wait is set.
type Store interface {
	Load(key Key, wait bool) (data []byte, ok bool)
	Save(key Key, data []byte)
}

// featureCache keeps the decoder's rows of pictures by content and evicts the least recently used.
// Entries in use are never evicted, even above the limit. Features that several requests need at
// once are computed once.
type featureCache struct {
	mu      sync.Mutex
	most    int64 // bytes
	bytes   int64
	entries map[Key]*entry
	order   recent.List // of *entry, newest first; only entries that are not in use
	stats   CacheStats
}

// entry is the cache's slot for one key.
type entry struct {
	key   Key
	value *features // nil: not made yet
	users int
	at    *recent.Element // in order; nil while in use
}

// CacheStats counts a cache's hits, misses, evictions and contents.
type CacheStats struct {
	Hits, Misses, Evictions int64
	DiskHits, SharedHits    int64 // of Hits, found in a store
	Entries                 int
	Bytes                   int64
}

func newFeatureCache(most int64) *featureCache {
	return &featureCache{most: most, entries: map[Key]*entry{}}
}

// use returns the entry of key and marks it in use until leave.
func (c *featureCache) use(key Key) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.entries[key]
	if n == nil {
		n = &entry{key: key}
		c.entries[key] = n
	}
	if n.at != nil {
		c.order.Remove(n.at)
		n.at = nil
	}
	n.users++
	return n
}

// leave ends one use of the entry.
func (c *featureCache) leave(n *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.users--; n.users > 0 {
		return
	}
	if n.value == nil {
		delete(c.entries, n.key)
		return
	}
	n.at = c.order.PushFront(n)
	for c.bytes > c.most {
		oldest := c.order.Back()
		if oldest == nil {
			break
		}
		old := c.order.Remove(oldest).(*entry)
		delete(c.entries, old.key)
		c.bytes -= old.value.size()
		c.stats.Evictions++
	}
}

// get returns the entry's value, or nil if it is not made yet.
func (c *featureCache) get(n *entry) *features {
	c.mu.Lock()
	defer c.mu.Unlock()
	return n.value
}

// put sets the value of an entry that is in use.
func (c *featureCache) put(n *entry, f *features) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.value == nil {
		n.value = f
		c.bytes += f.size()
	}
}

// count records where the rows of a picture came from.
func (c *featureCache) count(from string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch from {
	case FromNothing:
		c.stats.Misses++
		return
	case FromDisk:
		c.stats.DiskHits++
	case FromShared:
		c.stats.SharedHits++
	}
	c.stats.Hits++
}

// numbers returns the cache's statistics.
func (c *featureCache) numbers() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Bytes = c.bytes
	for _, n := range c.entries {
		if n.value != nil {
			s.Entries++
		}
	}
	return s
}

// size is the memory of f in bytes, without a few hundred bytes of overhead.
func (f *features) size() int64 {
	n := int64(len(f.x))
	if f.visual != nil {
		n += visualBytes(f.visual) / 4
	}
	if r := f.reduction; r != nil {
		if len(r.Features) > 0 && &r.Features[0] != &f.x[0] {
			n += int64(len(r.Features))
		}
		n += int64(len(r.Group) + len(r.Kept) + len(r.Anchors) + len(r.Rest) + 3*len(r.Density) +
			32*len(r.Rows))
		for _, s := range r.Scores {
			n += int64(len(s))
		}
	}
	return 4 * n
}

// bare returns f without the rows, which only the decoder's first layer reads.
func (f *features) bare() *features {
	b := *f
	b.x = nil
	if f.reduction != nil {
		r := *f.reduction
		r.Width, r.Features, b.reduction = 0, nil, &r
	}
	return &b
}
