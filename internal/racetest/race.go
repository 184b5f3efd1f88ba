//go:build race

package racetest

// Enabled is true with the race detector, which makes arithmetic many times slower.
const Enabled = true
