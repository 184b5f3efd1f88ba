//go:build !unix

package engine

// PeakRSS returns 0: this platform does not report it.
func PeakRSS() int64 { return 0 }
