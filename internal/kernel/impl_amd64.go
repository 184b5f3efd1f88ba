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
	hasAMX  = hasVNNI && hasBF16 && cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 &&
		cpu.X86.HasAMXInt8
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

// detect returns the instructions of i on this CPU; false: the CPU or the operating system does not
// support i.
func detect(i implementation) (isa, bool) {
	switch i {
	case implGo:
		return isa{}, true
	case implAVX2:
		return isa{impl: i}, hasAVX2
	case implAVXVNNI:
		return isa{impl: i}, hasAVX2 && cpu.X86.HasAVXVNNI
	}
	wide := isa{impl: i, vnni: hasVNNI, bf16: hasBF16}
	return wide, i == implAVX512 && hasAVX512 || i == implAMX && hasAMX && tileError == nil
}
