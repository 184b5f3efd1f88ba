//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// Refused returns why an implementation that the CPU supports is not available, or nil.
func Refused() error { return nil }

// hasImpl reports whether the CPU and the operating system support i. The kernels of arm64 need the
// dot product of bytes (FEAT_DotProd).
func hasImpl(i implementation) bool {
	return i == implGo || i == implNEON && cpu.ARM64.HasASIMDDP
}

func features(implementation) Features { return Features{} }
