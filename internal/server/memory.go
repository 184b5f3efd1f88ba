package server

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// memory limits the bytes that the bodies of requests take together, with the copies that are made
// of them. A body takes more as it arrives. Bodies that wait for each other's memory could wait for
// ever, so a reserve that is enough for the largest body is kept for one body at a time, which can
// then always arrive to its end. What a body gives back is free after a garbage collection, which
// begins when a body waits.
//
// When there was no request for a while, what bodies took goes back to the system: a model at rest
// does so, but not for requests that were refused, and a gateway has none.
type memory struct {
	mu      sync.Mutex
	free    int64
	dead    int64 // bytes given back that garbage collection has not freed
	reserve int64
	first   *share  // may use the reserve; nil: none
	waiting []*want // in order of arrival
	open    int     // shares of requests that have not ended
	used    int64   // bytes granted since memory went back
	rest    *time.Timer

	collecting bool
}

// newMemory returns memory of a size, in which the largest body takes at most the reserve.
func newMemory(size, reserve int64) *memory { return &memory{free: size, reserve: reserve} }

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

// share is one request's part of the memory. It grows up to the reserve, then it shrinks.
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

// grant serves the waiting shares for which there is memory, the oldest first. If some still wait,
// it has garbage collected.
func (m *memory) grant() {
	m.waiting = slices.DeleteFunc(m.waiting, func(w *want) bool {
		switch {
		case m.free-w.more >= m.reserve, m.first == w.s && m.free >= w.more:
		case m.first == nil && m.free >= m.reserve && m.dead == 0:
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
	if len(m.waiting) > 0 && m.dead > 0 && !m.collecting {
		m.collecting = true
		go m.collect(m.dead)
	}
}

// collect frees what was dead when it was called.
func (m *memory) collect(dead int64) {
	runtime.GC()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collecting = false
	m.free += dead
	m.dead -= dead
	m.grant()
}

// drop gives all but size bytes back, which nothing refers to any more.
func (s *share) drop(size int64) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.held > size {
		s.m.dead += s.held - size
		s.held = size
	}
	s.m.grant()
}

// shrink is drop for a share that does not grow again.
func (s *share) shrink(size int64) {
	s.m.mu.Lock()
	if s.m.first == s {
		s.m.first = nil
	}
	s.m.mu.Unlock()
	s.drop(size)
}
