//go:build !linux

package kernel

import "errors"

// largeBytes allocates n zero bytes.
func largeBytes(n int) []byte { return make([]byte, n) }

// workBytes allocates n bytes of scratch memory.
func workBytes(n int) []byte { return make([]byte, n) }

func hugeStart(b []byte) []byte { return b }

// mapBytes returns an error, so blocks come from the heap.
func mapBytes(n int) ([]byte, error) { return nil, errors.ErrUnsupported }
func unmapBytes([]byte) error        { return nil }
