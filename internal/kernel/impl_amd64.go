//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// CPU features.
var (
	hasAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C
	hasAVX512 = hasAVX2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL &&
		cpu.X86.HasAVX512DQ
	// features that single kernels test for, in addition to the level
	hasVNNI = hasAVX512 && cpu.X86.HasAVX512VNNI
	hasBF16 = hasAVX512 && cpu.X86.HasAVX512BF16
	hasAMX  = hasVNNI && hasBF16 && cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16
)

// tileError says why the system does not let this process use AMX. It is nil if it does, or if the
// CPU has none.
var tileError = func() error {
	if !hasAMX {
		return nil
	}
	return requestTiles()
}()

// Refused returns why an implementation that the CPU supports is not available, or nil.
func Refused() error { return tileError }

// hasImpl reports whether the CPU and the operating system support i.
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

// avxVNNI reports whether integer products use VPDPBUSD of 256 bits.
func avxVNNI() bool { return choice() == implAVXVNNI }

func features(i implementation) Features {
	switch i {
	case implAVX2:
		return Features{Words: true}
	case implAVXVNNI:
		return Features{VNNI: true}
	case implAVX512:
		return Features{VNNI: hasVNNI, BF16: hasBF16}
	case implAMX:
		return Features{VNNI: true, BF16: true}
	}
	return Features{}
}
