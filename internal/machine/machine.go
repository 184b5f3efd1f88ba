// Package machine reports how much memory a program may use.
package machine

// Available returns the bytes of memory that are free without swapping: the system's figure,
// limited by what the control groups of this process leave. ok is false if the system does not
// report it.
func Available() (bytes int64, ok bool) { return available() }
