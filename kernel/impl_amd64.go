//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// Features beyond the level that single kernels test for.
var (
	hasVNNI = cpu.X86.HasAVX512VNNI && bestImpl() == implAVX512
	hasBF16 = cpu.X86.HasAVX512BF16 && bestImpl() == implAVX512
)

// bestImpl is the highest level that the CPU and the operating system support.
func bestImpl() implementation {
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasF16C {
		return implGo
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ {
		return implAVX512
	}
	return implAVX2
}
