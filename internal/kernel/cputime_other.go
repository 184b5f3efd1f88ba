//go:build !unix

package kernel

import "time"

// CPUTime is the processor time of the process, over all threads, and whether the system
// tells it.
func CPUTime() (time.Duration, bool) { return 0, false }
