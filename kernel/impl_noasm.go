//go:build (!amd64 && !arm64) || purego

package kernel

func hasImpl(i implementation) bool { return i == implGo }
