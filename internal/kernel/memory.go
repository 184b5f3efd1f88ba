package kernel

import "sync"

// memoryChunk is what is asked of the system at a time. Pages that are never
// written take no memory.
const memoryChunk = 1 << 30

// Memory holds weights outside of the heap, where the system has a way to: in
// huge pages, without a share in the garbage collector's accounts, which would
// let as much garbage pile up as there are weights, and given back at once by
// Free. Its blocks are never given back alone. The zero value is ready for use;
// a nil *Memory returns heap. It is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	chunks [][]byte
	rest   []byte // of the newest chunk
}

// Bytes returns n zero bytes, aligned to 64 where they are not heap.
func (m *Memory) Bytes(n int) []byte {
	if m == nil {
		return largeBytes(n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	room := (n + 63) &^ 63
	if room > len(m.rest) {
		chunk, err := mapBytes(max(room, memoryChunk))
		if err != nil {
			return largeBytes(n)
		}
		m.chunks = append(m.chunks, chunk)
		m.rest = hugeStart(chunk)
	}
	b := m.rest[:n:n]
	m.rest = m.rest[room:]
	return b
}

// Free gives everything back; the blocks must not be used afterwards.
func (m *Memory) Free() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var first error
	for _, c := range m.chunks {
		if err := unmapBytes(c); err != nil && first == nil {
			first = err
		}
	}
	m.chunks, m.rest = nil, nil
	return first
}
