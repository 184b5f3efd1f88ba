package server

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// memory limits the bytes that the bodies of requests take together. A body takes more as it
// arrives. Bodies that wait for each other's memory could wait for ever, so a reserve as large as
// the largest body is kept for one body at a time, which can then always arrive to its end.
//
// When there was no request for a while, what bodies took goes back to the system: a model at rest
// does so, but not for requests that were refused, and a gateway has none.
type memory struct {
	mu      sync.Mutex
	free    int64
	reserve int64
	first   *share  // may use the reserve; nil: none
	waiting []*want // in order of arrival
	open    int     // shares of requests that have not ended
	used    int64   // bytes granted since memory went back
	rest    *time.Timer
}

// newMemory returns memory for n of the largest bodies.
func newMemory(n int, largest int64) *memory {
	return &memory{free: int64(n) * largest, reserve: largest}
}

const (
	restAfter   = 5 * time.Second // without a request
	worthGiving = 1 << 20         // bytes
)

// share returns the share of a request that begins.
func (m *memory) share() *share {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open++
	return &share{m: m}
}

// end frees the share when its request ends.
func (s *share) end() {
	s.shrink(0)
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.open--; {
	case m.open > 0 || m.used < worthGiving:
	case m.rest == nil:
		m.rest = time.AfterFunc(restAfter, m.giveBack)
	default:
		m.rest.Reset(restAfter)
	}
}

// giveBack returns free memory to the system, unless a request has begun.
func (m *memory) giveBack() {
	m.mu.Lock()
	busy := m.open > 0
	if !busy {
		m.used = 0
	}
	m.mu.Unlock()
	if !busy {
		debug.FreeOSMemory()
	}
}

// share is one request's part of the memory. It grows up to the largest body, then it shrinks.
type share struct {
	m    *memory
	held int64
}

// want is a share that waits until it may grow.
type want struct {
	s       *share
	more    int64
	granted chan struct{} // closed
}

// grow makes the share at least size bytes large. It waits for memory, or returns the cause of ctx.
func (s *share) grow(ctx context.Context, size int64) error {
	m := s.m
	w := &want{s: s, granted: make(chan struct{})}
	m.mu.Lock()
	w.more = max(0, size-s.held)
	m.waiting = append(m.waiting, w)
	m.grant()
	m.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-w.granted:
	default:
		m.waiting = slices.DeleteFunc(m.waiting, func(x *want) bool { return x == w })
	}
	return context.Cause(ctx)
}

// grant serves the waiting shares for which there is memory, the oldest first.
func (m *memory) grant() {
	m.waiting = slices.DeleteFunc(m.waiting, func(w *want) bool {
		switch {
		case m.free-w.more >= m.reserve, m.first == w.s:
		case m.first == nil && m.free >= m.reserve:
			m.first = w.s
		default:
			return false
		}
		m.free -= w.more
		m.used += w.more
		w.s.held += w.more
		close(w.granted)
		return true
	})
}

// shrink frees all but size bytes. The share does not grow again.
func (s *share) shrink(size int64) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.held > size {
		m.free += s.held - size
		s.held = size
	}
	if m.first == s {
		m.first = nil
	}
	m.grant()
}
