package fleet

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore"
)

// Member describes a worker. The worker sends it with every heartbeat.
type Member struct {
	ID          string    `json:"id"`
	Machine     string    `json:"machine"`
	CPU         string    `json:"cpu"`
	Cores       int       `json:"cores"`
	Model       string    `json:"model"`       // the model's name
	Key         string    `json:"key"`         // MODEL of subjects
	Fingerprint string    `json:"fingerprint"` // in its answers
	Version     string    `json:"version"`
	Types       string    `json:"types"`    // of its weights and of keys and values
	Capacity    int       `json:"capacity"` // requests that it answers at once
	Busy        int       `json:"busy"`     // requests that it is answering
	Held        int       `json:"held"`     // requests that it has taken but not begun
	Answers     int64     `json:"answers"`  // answers since it started
	Rate        float64   `json:"rate"`     // recent answers per second
	Started     time.Time `json:"started"`
	Draining    bool      `json:"draining"`

	Seen time.Time `json:"-"` // when this process received the heartbeat
	Said time.Time `json:"-"` // when it was sent, by the server's clock
}

// A worker sends a heartbeat every beat, and counts as dead after deadAfter without one.
const (
	beatEvery = time.Second
	deadAfter = 5 * time.Second
)

// Members is the list of live workers. It follows the heartbeats until its context ends.
type Members struct {
	mu      sync.Mutex
	byID    map[string]Member
	changed chan struct{} // closed when the list changes
	known   bool          // the bucket was read once
	ready   chan struct{} // closed then
}

// Members follows the workers of a fleet.
func (c *Conn) Members(ctx context.Context) (*Members, error) {
	w, err := c.watch(ctx, c.workers, jetstream.AllKeys, false)
	if err != nil {
		return nil, c.explain("heartbeats", err)
	}
	m := &Members{byID: map[string]Member{}, changed: make(chan struct{}),
		ready: make(chan struct{})}
	go w.run(ctx, m.heard, m.forget)
	select {
	case <-m.ready:
	case <-time.After(c.callTime):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return m, nil
}

// forget removes the workers without a recent heartbeat.
func (m *Members) forget(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.byID)
	maps.DeleteFunc(
		m.byID,
		func(_ string, w Member) bool { return now.Sub(w.Seen) > deadAfter },
	)
	if len(m.byID) != before {
		m.signal()
	}
}

// heard processes a heartbeat, or nil after all existing ones.
func (m *Members) heard(e jetstream.KeyValueEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e == nil {
		if !m.known {
			m.known = true
			close(m.ready)
		}
		return
	}
	id := e.Key()[strings.LastIndexByte(e.Key(), '.')+1:]
	old, was := m.byID[id]
	var w Member
	if e.Operation() != jetstream.KeyValuePut || json.Unmarshal(e.Value(), &w) != nil ||
		w.ID != id {
		if was {
			delete(m.byID, id)
			m.signal()
		}
		return
	}
	w.Seen, w.Said = time.Now(), e.Created()
	m.byID[w.ID] = w
	if !was || old.Draining != w.Draining {
		m.signal()
	}
}

func (m *Members) signal() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// List returns the live workers, by machine and id.
func (m *Members) List() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.byID), func(a, b Member) int {
		return strings.Compare(a.Machine+"\x00"+a.ID, b.Machine+"\x00"+b.ID)
	})
}

// of returns the workers that take requests of a model.
func (m *Members) of(key string) []Member {
	return slices.DeleteFunc(m.List(), func(w Member) bool { return w.Key != key || w.Draining })
}

// heartbeat is the key of a worker's heartbeats. Workers that take requests of a model have keys
// under the model's, so that the server can list them.
func (m *Member) heartbeat() string {
	if m.Draining {
		return "ends." + m.ID
	}
	return m.Key + "." + m.ID
}

// living returns the ids of the workers that take requests of a model. The server drops entries
// older than deadAfter, so one request returns all live workers.
func (c *Conn) living(ctx context.Context, key string) ([]string, error) {
	byID, err := entries(ctx, c.beats, "$KV."+workersBucket+"."+key+".")
	return slices.Collect(maps.Keys(byID)), err
}

// meetAfter is how long n workers wait before they request the list of live workers again. It grows
// with n, so that the ids sent per second grow only in proportion to n.
func meetAfter(n int) time.Duration {
	return max(beatEvery, time.Duration(n)*10*time.Millisecond)
}

// preferred returns the partitions that a worker prefers among the live workers: each partition
// goes to the worker whose hash with it is highest, so that a worker that leaves or joins moves
// only its own partitions.
func preferred(self string, ids []string, partitions int) map[int]bool {
	out := map[int]bool{}
	for p := range partitions {
		best, most := "", uint64(0)
		for _, id := range ids {
			h := fnv.New64a()
			h.Write([]byte(id + "/" + strconv.Itoa(p)))
			if v := mix(h.Sum64()); best == "" || v > most || v == most && id < best {
				best, most = id, v
			}
		}
		if best == self {
			out[p] = true
		}
	}
	return out
}

// mix spreads the bits of a hash (the finalizer of MurmurHash3).
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Model is a model that a fleet can answer with.
type Model struct {
	Key  string
	Info restore.Info
}
