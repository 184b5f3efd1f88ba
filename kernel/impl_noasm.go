//go:build !amd64 || purego

package kernel

func bestImpl() implementation { return implGo }
