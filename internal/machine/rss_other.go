//go:build !unix

package machine

// PeakRSS returns 0: this platform does not report it.
func PeakRSS() int64 { return 0 }
