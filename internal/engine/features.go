package engine

import (
	recent "container/list"
	"sync"
)

// Store keeps encoded and reduced pictures over restarts, as a folder on disk does. What it
// returns must be what it was given. It is called from several goroutines at once.
type Store interface {
	Load(key Key) (data []byte, ok bool)
	Save(key Key, data []byte)
}

// featureCache keeps what the decoder reads of pictures, by content, least recently used out.
// An entry that requests wait for or use stays, whatever the bound: what several ask for at
// once is made once.
type featureCache struct {
	mu      sync.Mutex
	most    int64 // bytes
	bytes   int64
	entries map[Key]*entry
	order   recent.List // of *entry, newest first; of those that nobody uses
	stats   CacheStats
}

// entry is one key's place in the cache.
type entry struct {
	key   Key
	value *features // nil: not made yet
	users int
	at    *recent.Element // in order; nil while it is used
}

// CacheStats count what a cache did.
type CacheStats struct {
	Hits, Misses, Evictions int64
	DiskHits                int64 // of Hits, those that the store answered
	Entries                 int
	Bytes                   int64
}

func newFeatureCache(most int64) *featureCache {
	return &featureCache{most: most, entries: map[Key]*entry{}}
}

// use returns the entry of key, which stays until it is left.
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

// leave gives the entry up.
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

// get returns what the entry holds, nil where that is still to be made.
func (c *featureCache) get(n *entry) *features {
	c.mu.Lock()
	defer c.mu.Unlock()
	return n.value
}

// put gives the entry, which is in use, its value.
func (c *featureCache) put(n *entry, f *features) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.value == nil {
		n.value = f
		c.bytes += f.size()
	}
}

// count notes whether a request found its picture.
func (c *featureCache) count(hit, disk bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !hit:
		c.stats.Misses++
	case disk:
		c.stats.DiskHits++
		c.stats.Hits++
	default:
		c.stats.Hits++
	}
}

// numbers returns what the cache did and holds.
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

// size is the memory of f, less some hundred bytes.
func (f *features) size() int64 {
	n := int64(len(f.x))
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

// bare returns f without what only the decoder's first layer reads.
func (f *features) bare() *features {
	b := *f
	b.x = nil
	if f.reduction != nil {
		r := *f.reduction
		r.Features, b.reduction = nil, &r
	}
	return &b
}
