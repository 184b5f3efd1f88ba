//go:build !unix

package kernel

import "time"

// CPUTime returns the processor time of all threads of the process, or false if the system does not
// report it.
func CPUTime() (time.Duration, bool) { return 0, false }
