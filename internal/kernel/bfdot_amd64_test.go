//go:build !purego

package kernel

// withoutBF16 runs f as if the CPU lacked VDPBF16PS. It returns false, and does not run f, if the
// implementation in use lacks it.
func withoutBF16(f func()) bool {
	if !hasBF16 || impl() != implAVX512 {
		return false
	}
	hasBF16 = false
	defer func() { hasBF16 = true }()
	f()
	return true
}
