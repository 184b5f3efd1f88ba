//go:build unix

package kernel

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the processor time of all threads of the process, or false if the system does not
// report it.
func CPUTime() (time.Duration, bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
