//go:build unix && !linux

package checkpoint

// adviseHuge does nothing: this system has no such advice.
func adviseHuge([]byte) {}
