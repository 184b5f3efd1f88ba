//go:build (!amd64 && !arm64) || purego

package kernel

// Refused tells why an implementation that the CPU has is not available, nil where none is
// withheld.
func Refused() error { return nil }

func hasImpl(i implementation) bool { return i == implGo }
