//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// Features beyond the level that single kernels test for.
var (
	hasVNNI = cpu.X86.HasAVX512VNNI && hasImpl(implAVX512)
	hasBF16 = cpu.X86.HasAVX512BF16 && hasImpl(implAVX512)
)

// hasImpl tells what the CPU and the operating system support.
func hasImpl(i implementation) bool {
	x := &cpu.X86
	avx2 := x.HasAVX2 && x.HasFMA && x.HasF16C
	switch i {
	case implGo:
		return true
	case implAVX2:
		return avx2
	case implAVXVNNI:
		return avx2 && x.HasAVXVNNI
	case implAVX512:
		return avx2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ
	}
	return false
}

// avxVNNI tells whether integer products take VPDPBUSD of 256 bits.
func avxVNNI() bool { return choice() == implAVXVNNI }
