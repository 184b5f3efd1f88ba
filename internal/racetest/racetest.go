// Package racetest adapts tests to the race detector.
package racetest

import "testing"

// SkipAllocs skips a test that counts allocations if the race detector is on: sync.Pool then drops
// values at random.
func SkipAllocs(t *testing.T) {
	t.Helper()
	if Enabled {
		t.Skip("the race detector makes sync.Pool drop values")
	}
}
