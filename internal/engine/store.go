package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/restore-vlm/restore/reduce"
)

// stored is the header before a picture's rows in a Store.
type stored struct {
	Rows, Width       int
	Reduced           bool // otherwise every token was read, and the fields below are not set
	NVis, Keep, Merge int
	Gains             []float64 `json:",omitempty"` // of a budget by content
	Tokens            []reduce.Row
	Kept, Anchors     []int32
	Scores            map[string][]float32 `json:",omitempty"`
}

// storedMost is the most bytes that are read from a Store.
const storedMost = 1 << 30

// pack encodes f for a Store: the length of the header, the header, and the rows as little-endian
// float32, then the rows of each level.
func (f *features) pack(width, levels int) ([]byte, error) {
	h := stored{Rows: len(f.x) / width / (1 + levels), Width: width, Gains: f.gains}
	if r := f.reduction; r != nil {
		h.Reduced, h.NVis, h.Keep, h.Merge = true, f.options.NVis, f.options.Keep, f.options.Merge
		h.Tokens, h.Kept, h.Anchors, h.Scores = r.Rows, r.Kept, r.Anchors, r.Scores
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	out := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(text)+4*len(f.x)),
		uint32(len(text)))
	out = append(out, text...)
	for _, v := range f.x {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out, nil
}

// unpack decodes the features of p from the output of pack.
func (e *Engine) unpack(p *picture, data []byte) (*features, error) {
	width, tokens, parts := e.shape.Hidden, p.shape.N, 1+e.shape.Deep
	bad := func(format string, a ...any) (*features, error) {
		return nil, fmt.Errorf("engine: stored features: "+format, a...)
	}
	if len(data) < 4 || len(data) > storedMost {
		return bad("got %d bytes, want 4 to %d", len(data), storedMost)
	}
	n := int64(binary.LittleEndian.Uint32(data))
	if n > int64(len(data)-4) {
		return bad("got %d bytes, want %d and a description", len(data), n)
	}
	var h stored
	if err := json.Unmarshal(data[4:4+n], &h); err != nil {
		return bad("%v", err)
	}
	rest := data[4+n:]
	if h.Width != width || h.Rows < 1 || h.Rows > tokens+1 || len(rest) != 4*parts*h.Rows*width {
		return bad("got %d rows of %d in %d bytes, want rows of %d", h.Rows, h.Width, len(rest),
			width)
	}
	plan, whole := p.plan, p.whole()
	f := &features{x: make([]float32, parts*h.Rows*width)}
	if p.late != nil {
		var err error
		plan, err = e.settle(p, func(most int) ([]float64, error) {
			return h.Gains[:min(most, len(h.Gains))], nil
		})
		if err != nil {
			return nil, err
		}
		f.plan, f.gains = plan, h.Gains
		whole = plan.NVis == plan.N && p.shape.Pruned == nil
	}
	plan = plan.BeforeDecoder()
	if h.Reduced == whole || p.late != nil && h.Reduced && h.NVis != plan.NVis ||
		h.Reduced && len(h.Tokens) != h.Rows || !h.Reduced && h.Rows != tokens {
		return bad("got another reduction than the picture's")
	}
	f.options = plan.Resolved
	for i := range f.x {
		f.x[i] = math.Float32frombits(binary.LittleEndian.Uint32(rest[4*i:]))
	}
	if !h.Reduced {
		return f, nil
	}
	f.options.NVis, f.options.Keep, f.options.Merge = h.NVis, h.Keep, h.Merge
	r := &reduce.Reduction{
		Options: f.options, N: plan.N, Width: width, Features: f.x[:h.Rows*width], Scores: h.Scores,
	}
	if p.shape.Pruned != nil {
		r.N = p.shape.Pruned.N
	}
	r.Rows, r.Group = h.Tokens, slices.Repeat([]int32{-1}, r.N)
	for i := range r.Rows {
		for _, t := range r.Rows[i].Members {
			if t < 0 || int(t) >= r.N {
				return bad("row %d: token %d, want 0 to %d", i, t, r.N-1)
			}
			r.Group[t] = int32(i)
		}
	}
	r.Kept, r.Anchors = h.Kept, h.Anchors
	if err := r.Check(); err != nil {
		return nil, err
	}
	f.reduction = r
	return f, nil
}

// restore loads the features of p, whose entry is in use, from a store; wait says whether it may
// wait for another process that is making them. It returns which one had them; "" if none has.
func (e *Engine) restore(p *picture, wait bool) (from string) {
	for _, s := range []struct {
		Store
		name string
	}{{e.store, FromDisk}, {e.common, FromShared}} {
		if s.Store == nil {
			continue
		}
		data, ok := s.Load(e.storeKey(p.entry.key), wait)
		if !ok {
			continue
		}
		f, err := e.unpack(p, data)
		if err != nil {
			e.warn(err.Error())
			continue
		}
		e.cached.put(p.entry, f)
		return s.name
	}
	return ""
}

// savingMost is the most memory in bytes of features that wait to be stored.
const savingMost = 64 << 20

// saver stores features, one after another.
type saver struct {
	mu      sync.Mutex
	most    int64   // bytes
	list    []saved // in order
	bytes   int64   // of list, and of those that are being stored
	running bool    // a goroutine stores
	unsaved int64   // were not stored, because too many waited
	ended   sync.WaitGroup
}

// saved are features that will be stored.
type saved struct {
	key Key
	f   *features
}

// save stores the features of a picture soon, unless too many wait for that.
func (e *Engine) save(key Key, f *features) {
	if e.store == nil && e.common == nil {
		return
	}
	s := &e.saving
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes > 0 && s.bytes+f.size() > s.most {
		s.unsaved++
		return
	}
	s.bytes += f.size()
	s.list = append(s.list, saved{key, f})
	if !s.running {
		s.running = true
		s.ended.Go(e.saveAll)
	}
}

// numbers returns how many features were not stored.
func (s *saver) numbers() (unsaved int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsaved
}

// saveAll stores features until none wait.
func (e *Engine) saveAll() {
	s := &e.saving
	for {
		s.mu.Lock()
		if len(s.list) == 0 {
			s.running = false
			s.mu.Unlock()
			return
		}
		next := s.list[0]
		s.list = slices.Delete(s.list, 0, 1)
		s.mu.Unlock()
		if data, err := next.f.pack(e.shape.Hidden, e.shape.Deep); err != nil {
			e.warn(err.Error())
		} else {
			for _, s := range []Store{e.common, e.store} { // others wait for the first
				if s != nil {
					s.Save(e.storeKey(next.key), data)
				}
			}
		}
		s.mu.Lock()
		s.bytes -= next.f.size()
		s.mu.Unlock()
	}
}

// storeKey returns key for a store that other models and programs may share.
func (e *Engine) storeKey(key Key) Key {
	return keyOf([]byte("store 2"), e.digest[:], e.made, key[:])
}
