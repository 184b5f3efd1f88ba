//go:build !unix

package lineedit

// stop stops the process; nil: this system cannot.
var stop func()
