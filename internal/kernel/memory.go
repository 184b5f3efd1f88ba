package kernel

import (
	"math/bits"
	"sync"
)

// memoryChunk is the size of a request to the system: 1 GiB, or 64 MiB where all addresses of a
// process are 4 GiB. Pages that are never written take no memory.
const memoryChunk = 1 << (14 + bits.UintSize/4)

// Memory holds weights outside the heap if the system allows it: in huge pages, and freed at once
// by Free. The garbage collector does not count this memory; otherwise it would let as much garbage
// pile up as there are weights. Single blocks are never freed. The zero value is ready for use; a
// nil *Memory allocates from the heap. It is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	chunks [][]byte
	rest   []byte // of the last chunk
}

// Bytes returns n zero bytes, aligned to 64 unless they come from the heap.
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

// Free frees all memory; the blocks must not be used afterwards.
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
