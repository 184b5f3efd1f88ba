//go:build (!amd64 && !arm64) || purego

package kernel

// Refused returns why an implementation that the CPU supports is not available, or nil.
func Refused() error { return nil }

func hasImpl(i implementation) bool { return i == implGo }

func features(implementation) Features { return Features{} }
