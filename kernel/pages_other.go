//go:build !linux

package kernel

// largeBytes allocates n zero bytes.
func largeBytes(n int) []byte { return make([]byte, n) }
