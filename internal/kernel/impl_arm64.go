//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// Refused tells why an implementation that the CPU has is not available, nil where none is
// withheld.
func Refused() error { return nil }

// hasImpl tells what the CPU and the operating system support: the kernels of
// arm64 take the dot product of bytes (FEAT_DotProd).
func hasImpl(i implementation) bool {
	return i == implGo || i == implNEON && cpu.ARM64.HasASIMDDP
}
