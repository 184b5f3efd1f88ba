//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// What the CPU has.
var (
	hasAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C
	hasAVX512 = hasAVX2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL &&
		cpu.X86.HasAVX512DQ
	// features beyond the level that single kernels test for
	hasVNNI = hasAVX512 && cpu.X86.HasAVX512VNNI
	hasBF16 = hasAVX512 && cpu.X86.HasAVX512BF16
	hasAMX  = hasVNNI && hasBF16 && cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16
)

// tileError tells why the system does not let this process use AMX, nil where it does or where
// there is none.
var tileError = func() error {
	if !hasAMX {
		return nil
	}
	return requestTiles()
}()

// Refused tells why an implementation that the CPU has is not available, nil where none is
// withheld.
func Refused() error { return tileError }

// hasImpl tells what the CPU and the operating system support.
func hasImpl(i implementation) bool {
	switch i {
	case implGo:
		return true
	case implAVX2:
		return hasAVX2
	case implAVXVNNI:
		return hasAVX2 && cpu.X86.HasAVXVNNI
	case implAVX512:
		return hasAVX512
	case implAMX:
		return hasAMX && tileError == nil
	}
	return false
}

// avxVNNI tells whether integer products take VPDPBUSD of 256 bits.
func avxVNNI() bool { return choice() == implAVXVNNI }
