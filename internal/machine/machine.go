// Package machine reports how much memory a program may use.
package machine

import "math"

// Available returns the bytes of memory that are free without swapping: the system's figure,
// limited by what the control groups of this process leave, and with addresses of 32 bits by half
// of what they reach. ok is false if the system does not report it.
func Available() (bytes int64, ok bool) {
	bytes, ok = available()
	return min(bytes, math.MaxInt), ok
}
