package engine

import (
	"cmp"
	"slices"

	"github.com/restore-vlm/restore/internal/nn"
)

// claim is the memory that a running sequence may still need.
type claim struct {
	cache *nn.KVCache
	need  int // pages in addition to held and takes
	takes int
}

// safe reports whether s may take so many pages now and every running sequence can still finish,
// one after another, with all the pages it may need (the banker's algorithm). No sequence then
// waits for memory forever, and none reserves pages it may not need.
func (d *scheduler) safe(s *sequence, pages int) bool {
	d.caches, d.claims = d.caches[:0], d.claims[:0]
	add := func(r *sequence) {
		c := claim{cache: r.cache, need: r.pages - r.cache.Held()}
		if r == s {
			c.takes, c.need = pages, c.need-pages
		}
		d.caches, d.claims = append(d.caches, r.cache), append(d.claims, c)
	}
	for _, r := range d.running {
		add(r)
	}
	if r := d.reading; r != nil && r.cache != nil {
		add(r)
	}
	if s.cache != nil && !slices.Contains(d.caches, s.cache) {
		add(s)
	}
	left := d.e.pagesMost - d.e.pages.Census(d.caches) - pages
	slices.SortFunc(d.claims, func(a, b claim) int { return cmp.Compare(a.need, b.need) })
	for _, c := range d.claims {
		if left < max(0, c.need) {
			return false
		}
		left += c.takes + d.e.pages.Leaves(c.cache)
	}
	return true
}

// room evicts prefixes of finished sequences until there is space for the missing pages.
func (d *scheduler) room(missing func() (pages, find int)) {
	for {
		_, find := missing()
		if d.e.pages.Used()+find <= d.e.pagesMost || !d.e.prefixes.evict() {
			return
		}
	}
}

// sharable returns how many units of the prompt may come from a prefix in memory. The rest must
// have at least leastRead rows: fewer rows are summed in another order than in the whole prompt,
// and rounding activations to 8 bits amplifies that difference.
func (s *sequence) sharable() int {
	rows := 0
	for i := len(s.units) - 1; i >= 0; i-- {
		if rows += s.units[i].rows(); rows >= leastRead {
			return i
		}
	}
	return 0
}

// admit starts the cache of s with the longest prefix of its prompt that is in memory, and reserves
// pages for the rest. It returns false if there is too little memory.
func (d *scheduler) admit(s *sequence) bool {
	e := d.e
	if s.tried == d.changes { // no memory was freed since the last try
		return false
	}
	var from cut
	if !s.req.NoCache && !s.late {
		from = e.prefixes.find(s.root, s.units, s.sharable())
	}
	s.cache = e.newCache()
	if from.n > 0 {
		keys, shift := from.lens(e.shape.Layers)
		s.cache = from.p.cache.Share(keys)
		for i := range shift {
			s.cache.Layer(i).Shift = shift[i]
		}
	}
	keys := e.keysOf(s.units)
	missing := func() (pages, find int) {
		for i, n := range keys {
			p, f := s.cache.Layer(i).Missing(n - s.cache.Len(i))
			pages, find = pages+p, find+f
		}
		return pages, find
	}
	if pages, _ := missing(); !d.safe(s, pages) {
		s.cache.Free()
		s.cache, s.tried = nil, d.changes
		return false
	}
	if from.n > 0 {
		e.prefixes.touch(from.p)
		for i, u := range s.units[:from.n] {
			if u.pic != nil {
				u.pic.found(from.p.units[i].pic)
				if u.pic.entry != nil {
					e.cached.count(FromFeatures)
				}
			}
		}
	}
	d.room(missing)
	for i, n := range keys {
		l := s.cache.Layer(i)
		l.Reserve(n-len(l.Pos), n-len(l.Pos))
	}
	if s.cached = from.n; !s.req.NoCache {
		e.prefixes.count(from.n > 0)
	}
	return true
}

// grow takes the pages that s needs for one more token. It returns false if there is too little
// memory.
func (d *scheduler) grow(s *sequence) bool {
	missing := func() (pages, find int) { return s.cache.Missing(1) }
	pages, _ := missing()
	switch {
	case pages == 0:
		return true
	case !d.safe(s, pages):
		return false
	}
	d.room(missing)
	s.cache.Reserve(1, 0)
	return true
}

func (e *Engine) newCache() *nn.KVCache { return e.pages.NewCache(e.shape.Layers) }
