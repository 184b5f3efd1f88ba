//go:build race

package kernel

// raceDetector is true with the race detector: then sync.Pool drops values at random, so counts of
// allocations mean nothing, and arithmetic is many times slower.
const raceDetector = true
