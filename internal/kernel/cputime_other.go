//go:build !unix

package kernel

import "time"

// CPUTime returns the processor time of all threads of the process. ok is false if the system does
// not report it.
func CPUTime() (time.Duration, bool) { return 0, false }
