// Package machine tells how much memory a program may take.
package machine

// Available returns the bytes of memory that can be had without swapping: what the system
// says is available, and no more than what is left of the limits on this process's group.
// ok is false where the system does not say.
func Available() (bytes int64, ok bool) { return available() }
