//go:build unix

package machine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// PeakRSS returns the process's peak resident memory in bytes.
func PeakRSS() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10
}
