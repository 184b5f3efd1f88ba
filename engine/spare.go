package engine

import "sync"

// spareMost is how many values a spare keeps for reuse: enough for a request that
// follows another, few enough that a burst of requests does not hold its memory
// for ever.
const spareMost = 2

// spare keeps what a request leaves for the next one. Other than a sync.Pool it
// gives the newest value to whichever thread asks, so that requests one after
// another share one workspace and one cache, and keeps it over collections of
// garbage. The zero value is ready for use.
type spare[T any] struct {
	mu   sync.Mutex
	free []T
}

// take returns the newest value, if there is one.
func (s *spare[T]) take() (v T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		v, ok = s.free[n-1], true
		clear(s.free[n-1:])
		s.free = s.free[:n-1]
	}
	return v, ok
}

// put gives v back.
func (s *spare[T]) put(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) < spareMost {
		s.free = append(s.free, v)
	}
}
