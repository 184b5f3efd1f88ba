//go:build unix

package kernel

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is the processor time of the process, over all threads, and whether the system
// tells it.
func CPUTime() (time.Duration, bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
