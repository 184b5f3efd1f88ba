//go:build (!amd64 && !arm64) || purego

package kernel

// Refused returns why an implementation that the CPU supports is not available, or nil.
func Refused() error { return nil }

// detect returns the instructions of i; false: this build does not have it.
func detect(i implementation) (isa, bool) { return isa{}, i == implGo }
