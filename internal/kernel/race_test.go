//go:build race

package kernel

// raceDetector: sync.Pool then drops what it is given at random, so that
// allocations say nothing, and arithmetic is many times slower.
const raceDetector = true
