//go:build !linux

package machine

func available() (int64, bool) { return 0, false }
