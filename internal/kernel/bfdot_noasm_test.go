//go:build !amd64 || purego

package kernel

func withoutBF16(func()) bool { return false }
