//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// Refused returns why an implementation that the CPU supports is not available, or nil.
func Refused() error { return nil }

// detect returns the instructions of i on this CPU; false: it does not support i. The kernels of
// arm64 need the dot product of bytes (FEAT_DotProd).
func detect(i implementation) (isa, bool) {
	return isa{impl: i}, i == implGo || i == implNEON && cpu.ARM64.HasASIMDDP
}
