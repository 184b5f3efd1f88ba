//go:build !unix

package engine

// peakRSS is not known on this platform.
func peakRSS() int64 { return 0 }
